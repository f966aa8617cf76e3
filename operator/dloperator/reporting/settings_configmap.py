"""
A ConfigMap with the settings of the operator, written when it begins to lead.

``dljob config show`` reads it. It holds no credentials, and the operator never reads it.
"""

import json
import logging
from dataclasses import dataclass

from dlcontrol.settings import Setting
from dlkube import names
from dlkube.client import ApiServer, Rejected, Unreachable
from dlkube.resources import CONFIGMAPS

log = logging.getLogger(__name__)


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
    document = {
        "metadata": {"name": names.SETTINGS, "namespace": shown.namespace},
        "data": {names.SETTINGS_KEY: shown.text()},
    }
    try:
        await api.apply(CONFIGMAPS, document, namespace=shown.namespace)
    except (Rejected, Unreachable) as error:
        log.warning("dljob config show cannot show the settings of this operator: %s", error)
