"""
How the operator is set, for people to see: a ConfigMap of its own, written when it begins to lead.

``dljob config show`` reads it. Credentials are no part of it, and nothing is decided by it: the
operator itself never reads it, so that who changes it changes nothing.
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
        """Write every setting with its origin and its documentation."""
        documents = [_document(setting) for setting in self.settings]
        # People read this document, so a value that JSON has no form for becomes its text.
        return json.dumps(documents, ensure_ascii=False, default=str)


def _document(setting: Setting) -> dict[str, object]:
    return {
        "name": setting.path,
        "value": setting.value,
        "origin": setting.origin,
        "description": setting.documentation,
    }


async def show_settings(api: ApiServer, shown: SettingsConfigMap) -> None:
    """Let people see how this operator is set; where that cannot be, it goes on without."""
    document = {
        "metadata": {"name": names.SETTINGS, "namespace": shown.namespace},
        "data": {names.SETTINGS_KEY: shown.text()},
    }
    try:
        await api.apply(CONFIGMAPS, document, namespace=shown.namespace)
    except (Rejected, Unreachable) as error:
        log.warning("dljob config show cannot show the settings of this operator: %s", error)
