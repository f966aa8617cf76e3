"""The settings of a cluster's operator, from a ConfigMap in its namespace."""

import json
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from dljob.client.backend import BackendError, Json, NotThere
from dljob.kube import names
from dljob.kube.resources import CONFIGMAPS

if TYPE_CHECKING:
    from dljob.client.cluster.asking import Asker
    from dljob.core.profiles import Profile
    from dljob.operator.nodes.nodes import Pool


HOME: Final = names.HOME
HOME_VARIABLE: Final = "DLJOB_OPERATOR_NAMESPACE"
"""The operator's namespace, if not the one of manifests/install."""


class Operator:
    """Reads each ConfigMap once."""

    def __init__(self, asker: "Asker") -> None:
        self._asker = asker
        self._known: list[Json] | None = None
        self._learned: Json | None = None

    def settings(self) -> list[Json]:
        """List every setting with its value and origin."""
        if self._known is None:
            try:
                found = self._read_config_map(names.SETTINGS)
                self._known = json.loads(found["data"][names.SETTINGS_KEY])
            except NotThere as error:
                raise NotThere(
                    f"no operator shows its settings in namespace {self.namespace}; check that one runs"
                    f" there, or name its namespace in {HOME_VARIABLE}"
                ) from error
            except (KeyError, ValueError) as error:
                raise BackendError(
                    f"the ConfigMap {names.SETTINGS} in namespace {self.namespace} cannot be read; delete"
                    " it, and restart the operator, which writes it again"
                ) from error
        assert self._known is not None
        return self._known

    def _visible(self) -> list[Json]:
        try:
            return self.settings()
        except BackendError:
            self._known = []
            return []

    def known_gpus(self) -> Json:
        """Return the facts about GPUs that the operator publishes, by node; empty if unreadable."""
        told: Json = {}
        try:
            first = self._read_config_map(names.GPUS)
            count = int(first["data"].get(names.GPUS_PARTS_KEY, "1"))
            others = [self._read_config_map(name) for name in names.GPUS_PARTS[1:count]]
            for part in (first, *others):
                told |= json.loads(part["data"][names.GPUS_KEY])
        except (BackendError, KeyError, ValueError):
            return {}
        return told

    def learned(self) -> Json:
        """Return the profiles and the policy's state that the operator publishes; empty if unreadable."""
        from dljob.operator.reporting.learned_configmap import unpack  # noqa: PLC0415 - as below

        if self._learned is None:
            try:
                self._learned = unpack(self._read_config_map(names.LEARNED))
            except BackendError:
                self._learned = {}
        return self._learned

    def _read_config_map(self, name: str) -> Json:
        found: Json = self._asker.ask(lambda api: api.get(CONFIGMAPS, name, self.namespace))
        return found

    @property
    def namespace(self) -> str:
        """The namespace of the operator."""
        return os.environ.get(HOME_VARIABLE) or HOME

    def about(self) -> Json:
        """Return the policy and the mechanism."""
        visible = self._visible()
        told = {name: _value(visible, name) for name in ("policy", "mechanism")}
        return {name: value for name, value in told.items() if value}

    def pool(self) -> "Pool":
        """Return the nodes that the operator manages; the default ones if the setting is not visible."""
        return read_pool(self._visible())


def read_pool(settings: Sequence[Json]) -> "Pool":
    """Return the nodes that an operator with these settings manages; the default ones without the setting."""
    from dljob.operator.nodes.nodes import Pool  # noqa: PLC0415 - takes longer to load than to get
    from dljob.operator.nodes.placeholders import PoolMode  # noqa: PLC0415 - as below

    usual = Pool()
    modes = {mode.value: mode for mode in PoolMode}
    return Pool(
        label=_value(settings, "pool.label") or usual.label,
        value=_value(settings, "pool.value"),
        mode=modes.get(_value(settings, "pool.mode"), usual.mode),
    )


def read_profiles(learned: Mapping[str, Any]) -> "list[Profile]":
    """Read the published profiles; none if an operator of another version has written them."""
    from dljob.core.documents import profilefile  # noqa: PLC0415 - takes longer to load than to get
    from dljob_wire.problems import WrongDocument  # noqa: PLC0415 - as above

    try:
        return list(profilefile.parse_all(learned["profiles"]))
    except (KeyError, WrongDocument):
        return []


def _value(settings: Sequence[Json], path: str) -> str:
    return next((str(each["value"]) for each in settings if each["name"] == path), "")
