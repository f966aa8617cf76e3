"""
A ConfigMap with the settings of the operator, written when it begins to lead.

``dljob config show`` reads it. It holds no credentials, and the operator never reads it.
"""

import json
from dataclasses import dataclass
from typing import Final

from dljob.control.settings import Setting
from dljob.kube import names
from dljob.kube.client import ApiServer
from dljob.operator.reporting.configmap_writing import ConfigMapWriter

FAILURE: Final = "dljob config show cannot show the settings of this operator"


@dataclass(frozen=True, slots=True)
class SettingsConfigMap:
    """The settings to publish, and the namespace of the ConfigMap."""

    namespace: str
    settings: tuple[Setting, ...]

    def text(self) -> str:
        documents = [_document(setting) for setting in self.settings]
        return json.dumps(documents, ensure_ascii=False, default=str)


def _document(setting: Setting) -> dict[str, object]:
    return {
        "name": setting.path,
        "value": setting.value,
        "origin": setting.origin,
        "description": setting.documentation,
    }


async def show_settings(api: ApiServer, shown: SettingsConfigMap) -> None:
    """Write the ConfigMap; an error is only logged."""
    writer = ConfigMapWriter(api, shown.namespace, failure=FAILURE)
    await writer.write(names.SETTINGS, {"data": {names.SETTINGS_KEY: shown.text()}})
