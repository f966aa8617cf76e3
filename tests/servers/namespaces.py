"""Namespaces, so that tests that share a control plane do not see each other."""

import http.client
import time

from dljob.kube import names
from tests.servers.api import Api, Json, Refused
from tests.sidecar.drivers import wait_until

PATH = "/api/v1/namespaces"
JOBS = f"/apis/{names.GROUP}/{names.VERSION}/namespaces"
ENDING_SECONDS = 120.0
"""An empty namespace ends within seconds, unless the machine stands still."""


def make_namespace(api: Api, prefix: str = "test-") -> str:
    """Create a namespace, and return its name when pods can be created in it."""
    namespace = {"metadata": {"generateName": prefix}}
    name: str = api.post(PATH, namespace)["metadata"]["name"]
    wait_for_account(api, name)
    return name


def remove_namespace(api: Api, name: str) -> None:
    """
    Have it deleted with everything in it, which takes a while; no caller needs to wait for it.

    Its operator and its kubelets are gone, so the finalizers of its jobs and pods go first. Otherwise
    Kubernetes would look through all kinds of objects there every few seconds, for as long as it runs.
    """
    empty_namespace(api, name)
    api.delete(f"{PATH}/{name}")


def empty_namespace(api: Api, name: str) -> None:
    """Delete the jobs and pods of a namespace, with their finalizers."""
    for path in (f"{JOBS}/{name}/{names.PLURAL}", f"{PATH}/{name}/pods"):
        for each in _list(api, path):
            _remove(api, f"{path}/{each['metadata']['name']}", each["metadata"])


def _list(api: Api, path: str) -> list[Json]:
    try:
        items: list[Json] = api.get(path)["items"]
    except Refused as refused:
        if refused.code != http.client.NOT_FOUND:
            raise
        # This control plane has no definition of DLJobs.
        return []
    return items


def _remove(api: Api, path: str, metadata: Json) -> None:
    try:
        if metadata.get("finalizers"):
            api.merge(path, {"metadata": {"finalizers": None}})
        api.delete(path, gracePeriodSeconds=0)
    except Refused as refused:
        # It may be gone already, and a job that was being deleted is gone with its last finalizer.
        if refused.code != http.client.NOT_FOUND:
            raise


def wait_for_ends(api: Api) -> None:
    """Wait for the end of all namespaces whose deletion was asked for, and name those that stay."""
    end = time.monotonic() + ENDING_SECONDS
    while left := [
        each for each in api.get(PATH)["items"] if "deletionTimestamp" in each["metadata"]
    ]:
        if time.monotonic() > end:
            why = {each["metadata"]["name"]: each["status"].get("conditions") for each in left}
            raise RuntimeError(f"namespaces do not end: {why}")
        time.sleep(0.2)


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
