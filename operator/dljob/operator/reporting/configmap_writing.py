"""Writes ConfigMaps for users and clients, each only when it has changed; a failure is logged once."""

import json
import logging
from collections.abc import Iterable, Mapping
from typing import Any

from dljob.control.settings import Setting
from dljob.core.primitives.once_per_change import OncePerChange
from dljob.kube.client import ApiServer, Rejected, Unreachable
from dljob.kube.resources import CONFIGMAPS

log = logging.getLogger(__name__)

FAILURE = "failure"


class ConfigMapWriter:
    """The ConfigMaps about one subject."""

    def __init__(self, api: ApiServer, namespace: str, *, failure: str) -> None:
        """``failure`` is the sentence for the log about ConfigMaps that cannot be written."""
        self._api = api
        self._namespace = namespace
        self._failure = failure
        self._written: dict[str, Mapping[str, Any]] = {}
        """The written content, by the names of ConfigMaps."""
        self._complaints: OncePerChange[str] = OncePerChange()

    async def write(self, name: str, content: Mapping[str, Any]) -> bool:
        """Write a ConfigMap; ``content`` is its ``data`` or ``binaryData``. Return whether it is in the cluster."""
        if content == self._written.get(name):
            return True
        document = {"metadata": {"name": name, "namespace": self._namespace}, **content}
        try:
            await self._api.apply(CONFIGMAPS, document, namespace=self._namespace)
        except (Rejected, Unreachable) as error:
            if self._complaints.note(FAILURE, error):
                log.warning("%s: %s", self._failure, error)
            return False
        self._written[name] = content
        self._complaints.settle(FAILURE)
        return True


def settings_text(settings: Iterable[Setting]) -> str:
    """Return the content of the ConfigMap that ``dljob config show`` reads; it holds no credentials."""
    documents = [
        {
            "name": each.path,
            "value": each.value,
            "origin": each.origin,
            "description": each.documentation,
        }
        for each in settings
    ]
    return json.dumps(documents, ensure_ascii=False, default=str)
