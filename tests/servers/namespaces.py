"""Namespaces, so that tests that share a control plane do not see each other."""

import http.client

from tests.servers.api import Api, Refused
from tests.sidecar.drivers import wait_until

PATH = "/api/v1/namespaces"


def make_namespace(api: Api, prefix: str = "test-") -> str:
    """Create a namespace, and return its name when pods can be created in it."""
    namespace = {"metadata": {"generateName": prefix}}
    name: str = api.post(PATH, namespace)["metadata"]["name"]
    wait_for_account(api, name)
    return name


def remove_namespace(api: Api, name: str) -> None:
    """
    Have it deleted with everything in it, which takes a while; no caller needs to wait for it.
    """
    api.delete(f"{PATH}/{name}")


def wait_for_account(api: Api, namespace: str) -> None:
    """Wait for the service account that pods of a namespace have; the controller-manager makes it."""
    wait_until(lambda: _has_account(api, namespace), what=f"the service account of {namespace}")


def _has_account(api: Api, namespace: str) -> bool:
    try:
        api.get(f"{PATH}/{namespace}/serviceaccounts/default")
    except Refused as refused:
        if refused.code != http.client.NOT_FOUND:
            raise
        return False
    return True
