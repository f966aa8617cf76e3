"""
How the operator of a cluster is set, as far as it shows that: in a ConfigMap of its own namespace.
"""

import json
import os
from typing import TYPE_CHECKING, Any, Final

from dlclient.backend import BackendError, NotThere
from dlclient.cluster.asking import Asker
from dlkube import names
from dlkube.resources import CONFIGMAPS

if TYPE_CHECKING:
    from dloperator.nodes.nodes import Pool

Json = dict[str, Any]

HOME_VARIABLE: Final = "DLJOB_OPERATOR_NAMESPACE"
"""Where the operator is at home, if not where manifests/install puts it."""


class Operator:
    """Asks once, and remembers."""

    def __init__(self, asker: Asker) -> None:
        self._asker = asker
        self._known: list[Json] | None = None

    def settings(self) -> list[Json]:
        """List every setting with its value and where that came from."""
        if self._known is None:
            self._known = self._read()
        return self._known

    def _read(self) -> list[Json]:
        namespace = os.environ.get(HOME_VARIABLE) or names.HOME
        try:
            found = self._asker.ask(lambda api: api.get(CONFIGMAPS, names.SETTINGS, namespace))
        except NotThere as error:
            raise NotThere(
                f"no operator shows its settings in namespace {namespace}; check that one runs"
                f" there, or name its namespace in {HOME_VARIABLE}"
            ) from error
        try:
            settings: list[Json] = json.loads(found["data"][names.SETTINGS_KEY])
        except (KeyError, ValueError) as error:
            raise BackendError(
                f"the ConfigMap {names.SETTINGS} in namespace {namespace} cannot be read; delete"
                " it, and restart the operator, which writes it again"
            ) from error
        return settings

    def value(self, path: str) -> str:
        """How something is set; empty if that cannot be seen."""
        try:
            settings = self.settings()
        except BackendError:
            self._known = settings = []
        return next((str(each["value"]) for each in settings if each["name"] == path), "")

    def known_gpus(self) -> Json:
        """Return the facts about GPUs that only the operator knows, by node; nothing if they cannot be read."""
        told: Json = {}
        try:
            first = self._read_part(names.GPUS)
            count = int(first.get(names.GPUS_PARTS_KEY, "1"))
            others = [self._read_part(name) for name in names.GPUS_PARTS[1:count]]
            for part in (first, *others):
                told |= json.loads(part[names.GPUS_KEY])
        except (BackendError, KeyError, ValueError):
            return {}
        return told

    def _read_part(self, name: str) -> dict[str, str]:
        namespace = os.environ.get(HOME_VARIABLE) or names.HOME
        data: dict[str, str] = self._asker.ask(lambda api: api.get(CONFIGMAPS, name, namespace))[
            "data"
        ]
        return data

    def about(self) -> Json:
        """Tell by which policy it decides, and how GPUs change hands."""
        told = {name: self.value(name) for name in ("policy", "mechanism")}
        return {name: value for name, value in told.items() if value}

    def pool(self) -> "Pool":
        """Which nodes are the operator's to give; the usual ones where that cannot be seen."""
        from dloperator.nodes.nodes import Pool  # noqa: PLC0415 - takes longer to load than to get
        from dloperator.nodes.placeholders import PoolMode  # noqa: PLC0415 - as below

        usual = Pool()
        modes = {mode.value: mode for mode in PoolMode}
        return Pool(
            label=self.value("pool.label") or usual.label,
            value=self.value("pool.value"),
            mode=modes.get(self.value("pool.mode"), usual.mode),
        )
