"""
The settings of a controller: one frozen tree, and the origin of each value.

The options of the command come first, then the environment (``DLJOB_PACE_PERIOD_SECONDS``), then the settings
file (``pace: {periodSeconds: 15}``), and then the default. A file with an unknown setting or a value of the wrong
type is refused. The strings under the fields are their documentation, here and in ``dljob config show``.
"""

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from enum import Enum
from typing import Any, Final, Generic, NamedTuple, TypeVar, get_type_hints
from urllib.parse import urlsplit

from dljob.control.pacing import Pace
from dljob.control.sidecars.dialing import DialSettings
from dljob.control.situation.rules import Rules
from dljob.core.model import Mechanism
from dljob.core.placement.limits import NamespaceLimits
from dljob.core.profiles import Costs
from dljob.store.addresses import redact
from dljob_wire.kinds import (
    Flag,
    Form,
    Kind,
    Many,
    Named,
    Number,
    OneOf,
    Text,
    Whole,
    camel,
    documentation,
    snake,
)
from dljob_wire.problems import Problem, WrongDocument, nearest

PREFIX = "DLJOB_"
RENAMED: Final = {"notify.on": "notify.events", "notify.True": "notify.events"}
"""Former names of settings; YAML reads the word on, without quotes, as true."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Learning:
    """How jobs are observed."""

    sample_seconds: float = 10.0
    """The shortest time over which DLJob measures a speed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """The interfaces for other programs."""

    metrics: str = ""
    """Where the controller serves metrics for Prometheus, as [ADDRESS]:PORT; empty: nowhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Notify:
    """Notices of events to a program or a web server."""

    events: tuple[str, ...] = ("done", "failed", "noCheckpoint", "waits")
    """Which events: done, failed, noCheckpoint (a checkpoint was not confirmed), waits, and reasons of Events."""
    wait_seconds: float = 0.0
    """After how long without GPUs a job is reported as one that waits; 0: never."""
    url: str = ""
    """The http or https address that gets each notice as JSON in a POST; empty: none."""
    url_file: str = ""
    """A file with that address, which other users of the settings then do not see."""
    token_file: str = ""
    """A file with a bearer token for that address."""
    command: tuple[str, ...] = ()
    """A command that gets each notice as JSON on its standard input; empty: none."""

    def __post_init__(self) -> None:
        if self.url and not self.url.startswith(("http://", "https://")):
            raise ValueError("the address does not begin with http:// or https://")
        if self.url and self.url_file:
            raise ValueError("give url or urlFile, not both")

    @property
    def is_wanted(self) -> bool:
        return bool(self.url or self.url_file or self.command)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All settings of a controller."""

    policy: str = "foresight"
    """How GPUs are shared out; dljob policies lists them."""
    mechanism: Mechanism = Mechanism.IN_PLACE
    """How GPUs change hands: in-place (the process is restarted in its pod) or recreate."""
    seed: int = 0
    """The seed of the policies that draw random numbers."""
    limits: NamespaceLimits = field(default_factory=NamespaceLimits)
    """The limits for all jobs of a namespace together."""
    store: str = ""
    """Where profiles and the history are kept: a file, or a mongodb:// address."""
    record_days: float = 0.0
    """For how many days the store keeps the record; 0: up to its limits of rows."""
    pace: Pace = field(default_factory=Pace)
    """How often the loop looks and decides."""
    rules: Rules = field(default_factory=Rules)
    """How many failures DLJob tolerates, and for how long."""
    costs: Costs = field(default_factory=Costs)
    """The costs of starting and stopping, in seconds, for types of jobs that were not measured yet."""
    dialing: DialSettings = field(default_factory=DialSettings)
    """How the controller connects to SideCars."""
    learning: Learning = field(default_factory=Learning)
    """How jobs are observed."""
    serving: Serving = field(default_factory=Serving)
    """The interfaces for other programs."""
    notify: Notify = field(default_factory=Notify)
    """Notices of events to a program or a web server."""


class Setting(NamedTuple):
    """One value, for people."""

    path: str
    value: Any
    origin: str
    """``default``, or the file, the variable or the option that has the value."""
    documentation: str


class SettingsError(WrongDocument):
    """One or more settings have values that DLJob refuses."""


def _hide_path(url: str) -> str:
    """Leave out all but the server, because the path of an incoming webhook is its password."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.hostname}/***" if url else ""


_HIDERS: Mapping[str, Callable[[str], str]] = {"store": redact, "notify.url": _hide_path}

Tree = TypeVar("Tree", bound=Settings)


class Loaded(NamedTuple, Generic[Tree]):
    """The tree, and the origins of the values that are not the default."""

    settings: Tree
    origins: Mapping[str, str]

    def described(self) -> Iterator[Setting]:
        """Return every value without credentials, with its origin and its documentation."""
        for path, value, note in _iter_leaves(self.settings, ""):
            shown = _HIDERS[path](value) if path in _HIDERS else value
            yield Setting(path, shown, self.origins.get(path, "default"), note)


def load_tree(
    tree: Tree,
    document: object = None,
    *,
    file: str = "",
    environment: Mapping[str, str] | None = None,
    options: Mapping[str, Any] | None = None,
) -> Loaded[Tree]:
    """
    Build a tree from ``tree``, which has all defaults; that of a platform has settings of its own.

    ``options`` are named by their path, as ``pace.periodSeconds``.

    Raises :class:`SettingsError` with everything that is wrong.
    """
    given: dict[str, tuple[Any, str]] = {}
    problems: list[Problem] = []
    leaves = {path: value for path, value, _ in _iter_leaves(tree, "")}
    paths = dict.fromkeys(leaves)
    whole = {path for path, value in leaves.items() if isinstance(value, Mapping)}
    for path, value in _flatten(document, "", problems=problems, whole=whole):
        given[path] = (value, file)
    for path in (*paths, *RENAMED):
        variable = PREFIX + snake(path).replace(".", "_").upper()
        if environment and variable in environment:
            given[path] = (environment[variable], variable)
    for path, value in (options or {}).items():
        given[path] = (value, "--" + snake(path.rpartition(".")[2]).replace("_", "-"))
    problems += [
        _unknown(path, value, paths=paths)
        for path, (value, _) in given.items()
        if path not in paths
    ]
    settings = tree
    for path, (value, origin) in given.items():
        if path in paths:
            settings = _set(
                settings, path.split("."), given=(value, origin, path), problems=problems
            )
    if problems:
        raise SettingsError(tuple(problems))
    return Loaded(settings, {path: origin for path, (_, origin) in given.items()})


# --- names --------------------------------------------------------------------------------


def _unknown(path: str, value: object, *, paths: Mapping[str, None]) -> Problem:
    if path in RENAMED:
        return Problem(path, value, "has another name now", f"write {RENAMED[path]}")
    guess = nearest(path, paths)
    remedy = f"did you mean {guess}?" if guess else "dljob config show lists all settings"
    return Problem(path, value, "there is no such setting", remedy)


# --- the tree -----------------------------------------------------------------------------


def _iter_leaves(tree: Any, prefix: str) -> Iterator[tuple[str, Any, str]]:
    declared: type = type(tree)
    notes = documentation(declared)
    for each in fields(tree):
        value = getattr(tree, each.name)
        path = f"{prefix}{camel(each.name)}"
        if is_dataclass(value):
            yield from _iter_leaves(value, f"{path}.")
        else:
            yield path, value, notes.get(each.name, "")


def _flatten(
    document: object, prefix: str, *, problems: list[Problem], whole: Collection[str]
) -> Iterator[tuple[str, Any]]:
    if document is None:
        return
    if not isinstance(document, Mapping):
        problems.append(
            Problem(prefix.rstrip("."), document, "is not a mapping", "write it as name: value")
        )
        return
    for name, value in document.items():
        path = f"{prefix}{name}"
        if isinstance(value, Mapping) and path not in whole:
            yield from _flatten(value, f"{path}.", problems=problems, whole=whole)
        else:
            yield path, value


def _set(
    tree: Any, names: list[str], *, given: tuple[Any, str, str], problems: list[Problem]
) -> Any:
    name = snake(names[0])
    if len(names) > 1:
        return replace(
            tree, **{name: _set(getattr(tree, name), names[1:], given=given, problems=problems)}
        )
    value, origin, path = given
    kind = get_type_hints(type(tree))[name]
    try:
        read = _read(kind, value)
    except ValueError as error:
        wrong = f"is not {error}"
    else:
        try:
            return replace(tree, **{name: read})
        except ValueError as error:
            wrong = f"is not valid: {error}"
    where = f"{path} ({origin})" if origin else path
    problems.append(Problem(where, value, wrong, "correct it, or leave it out"))
    return tree


def _read(annotation: Any, value: Any) -> Any:
    """Read a value of YAML or of the environment; a ValueError says what it should be."""
    is_words = isinstance(annotation, type) and issubclass(annotation, Enum)
    kind = OneOf(annotation) if is_words else _KINDS[annotation]
    try:
        given = kind.from_text(value) if isinstance(value, str) else value
        return kind.parse(list(given) if isinstance(given, tuple) else given)
    except ValueError as error:
        raise ValueError(kind.allowed) from error


def read_numbers(text: str) -> dict[str, int]:
    """Read whole numbers by names, ``NAME=NUMBER,…``; a ValueError says what it should be."""
    numbers: dict[str, int] = _read(Mapping[str, int], text)
    return numbers


_TEXT: Final = Text(1_000_000, min_length=0)
_NUMBER: Final = Whole(-(10**9), 10**9)
_KINDS: Final[Mapping[Any, Kind]] = {
    bool: Flag(),
    int: Whole(maximum=math.inf),
    float: Number(maximum=math.inf),
    str: _TEXT,
    tuple[str, ...]: Many(_TEXT, 1000),
    Mapping[str, int]: Named(_NUMBER, 100_000, Form(".*", "is no name", "name a namespace, or *")),
}
"""The kind of a setting, by its annotation."""
