"""
All policies that a simulation can play: those that a user can name, and classes from users' files.

``dljob simulate`` and ``compare`` call :func:`read` for every ``--policy``: a name, or
``FILE.py:Class[:OPTION=VALUE]…``. Such a class follows the same protocol (:mod:`dljob.core.contract`) and is held to
the same laws. A mistake in the file, in the class or in one of its answers is a
:class:`~dljob.sim.errors.BadInput` that names the file, the line and the remedy, because its author reads it.
A controller takes no such file: see ``docs/policies.md``.
"""

import dataclasses
import hashlib
import importlib.machinery
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, NamedTuple, cast

from dljob.core import policies
from dljob.core.checking import Law
from dljob.core.contract import Decision, Policy, Share, View
from dljob.core.options import rules_of
from dljob.known_policies import KNOWN_POLICIES, read_policy
from dljob.sim.errors import BadInput

POLICIES = KNOWN_POLICIES

NAMES: tuple[str, ...] = tuple(POLICIES)

CONTRACT = "docs/policies.md, section A policy of your own"

ATTRIBUTES: Mapping[str, tuple[type, str]] = {
    "name": (str, 'name: ClassVar[str] = "mine"'),
    "paper": (str, 'paper: ClassVar[str] = "none"'),
    "needs": (str, 'needs: ClassVar[str] = "nothing"'),
    "breaks": (frozenset, "breaks: ClassVar[frozenset[Law]] = frozenset()"),
}
"""The attributes that a class must have: the kind of value, and how it is written."""


class Named(NamedTuple):
    """The user's argument, in its parts."""

    path: Path
    kind: str
    """The name of the class; empty: the only policy in the file."""
    options: str
    """Colon and all; empty: the defaults."""


def read(text: str) -> Policy:
    """
    Build the policy that ``NAME[:OPTION=VALUE]…`` or ``FILE.py:Class[:OPTION=VALUE]…`` means.

    Raises :class:`ValueError` that says what is wrong and what to write.
    """
    named = parse(text)
    if named is None:
        return read_policy(text)
    kind = _find_class(named)
    _check_class(named.path, kind)
    label = f"{named.path}:{kind.__name__}"
    try:
        options = policies.read_options(label, named.options) if named.options else {}
        policy = policies.build(kind, label, options=options)
    except ValueError:
        # An option: the user knows where it stands.
        raise
    except Exception as error:
        raise _blame(
            named.path, error, message=f"{kind.__name__} raises {_describe(error)} when it is made"
        ) from error
    return guard(policy, named.path)


def make(name: str, options: Mapping[str, str] | None = None) -> Policy:
    """Build the policy of that name with options as a user writes them."""
    return policies.make(name, options, known=POLICIES)


def options_of(name: str) -> dict[str, Any]:
    """Return the options of a policy with their defaults."""
    kind: Any = POLICIES[name]
    return {option.name: option.default for option in dataclasses.fields(kind)}


def guard(policy: Policy, path: Path) -> Policy:
    """Have what a policy of a user's own does wrong reported with the line of its file."""
    return cast(Policy, Guarded(policy, path))


def parse(text: str) -> Named | None:
    """Take apart what names a file; ``None`` where it is the name of a policy that is shipped."""
    path, suffix, rest = text.partition(".py")
    if not suffix or (rest and not rest.startswith(":")):
        return None
    kind, _, options = rest[1:].partition(":")
    if "=" in kind:
        kind, options = "", rest[1:]
    return Named(Path(path + suffix), kind, options)


# --- the file -----------------------------------------------------------------------------


class _Reader(importlib.machinery.SourceFileLoader):
    """
    Reads a file without Python's cache of compiled files.

    The cache compares versions by size and second alone, so that of a file that changed twice in a second
    the older version would be played.
    """

    def get_code(self, fullname: str) -> CodeType | None:  # noqa: ARG002 - as it is called
        return self.source_to_code(self.get_data(self.path), self.path)


@cache
def _load(path: Path, _digest: str) -> ModuleType:
    """Load a file as a module of its own, with its folder on the path, as Python does for a script."""
    folder = str(path.parent)
    if folder not in sys.path:
        sys.path.append(folder)
    name = f"dljob_policy_{hashlib.sha256(str(path).encode()).hexdigest()[:12]}"
    spec = importlib.util.spec_from_loader(name, _Reader(name, str(path)))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Dataclasses look their module up by its name.
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _find_class(named: Named) -> type:
    path = named.path
    try:
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        message = f"cannot be read ({error.strerror or error})"
        raise BadInput(path, message, remedy="write --policy FILE.py:Class") from error
    try:
        module = _load(path.resolve(), digest)
    except SyntaxError as error:
        message = f"is not Python ({error.msg})"
        raise BadInput(path, message, line=error.lineno, remedy="mend that line") from error
    except Exception as error:
        raise _blame(path, error, message=f"raises {_describe(error)} when it is loaded") from error
    own = {
        name: value
        for name, value in vars(module).items()
        if isinstance(value, type) and value.__module__ == module.__name__
    }
    candidates = [name for name, kind in own.items() if callable(getattr(kind, "allocate", None))]
    there = f"its policies are {', '.join(candidates)}" if candidates else "it has no policy"
    if not named.kind and len(candidates) == 1:
        return own[candidates[0]]
    if not named.kind:
        raise BadInput(path, f"names no class; {there}", remedy=f"write {path}:Class")
    if named.kind not in own:
        remedy = f"write {path}:Class, with a class that has allocate(self, view)"
        raise BadInput(path, f"has no class {named.kind!r}; {there}", remedy=remedy)
    return own[named.kind]


def _check_class(path: Path, kind: type) -> None:
    """Hold a class to the protocol, and name everything that is missing at once."""
    line = inspect.getsourcelines(kind)[1]

    def refuse(message: str, remedy: str) -> BadInput:
        return BadInput(path, f"{kind.__name__} {message}", line=line, remedy=remedy)

    if not dataclasses.is_dataclass(kind) or not kind.__dataclass_params__.frozen:  # type: ignore[attr-defined]
        raise refuse(
            "is not a frozen dataclass, so its options could change between decisions",
            "write @dataclass(frozen=True) above it",
        )
    missing = [
        how
        for name, (of, how) in ATTRIBUTES.items()
        if not isinstance(getattr(kind, name, None), of)
    ]
    if missing:
        raise refuse("does not say everything about itself", f"add {'; '.join(missing)}")
    laws: frozenset[object] = getattr(kind, "breaks", frozenset())
    if not all(isinstance(law, Law) for law in laws):
        raise refuse("breaks something that is no law", "take members of dljob.core.checking.Law")
    allocate = getattr(kind, "allocate", None)
    if not callable(allocate) or not _takes_view(allocate):
        raise refuse(
            "has no method allocate(self, view)",
            f"write def allocate(self, view: View) -> Decision; see {CONTRACT}",
        )
    try:
        rules_of(kind)
    except TypeError as error:
        raise refuse(
            f"has an option of which nothing says what it may be ({error})",
            "write for example: size: float = declare(1.0, at_least=0.0), from dljob.core.options",
        ) from error


def _takes_view(allocate: Any) -> bool:
    try:
        inspect.signature(allocate).bind(None, None)
    except TypeError:
        return False
    return True


def files_of(path: Path) -> list[Path]:
    """List a file that was loaded, and the modules next to it that it imported."""
    folder = path.resolve().parent
    loaded: set[Path] = set()
    for name, module in list(sys.modules.items()):
        file, package = getattr(module, "__file__", None), name.partition(".")[0]
        beside = folder / f"{package}.py", folder / package / "__init__.py"
        if file and any(each.is_file() for each in beside):
            loaded.add(Path(file).resolve())
    return [path, *sorted(file for file in loaded if file.is_relative_to(folder))]


# --- its answers --------------------------------------------------------------------------


class Guarded:
    """A policy of a user's own, whose mistakes are reported with the line of the file."""

    def __init__(self, policy: Policy, path: Path) -> None:
        # Nothing that it returns can be relied upon.
        self._policy: Any = policy
        self._path = path
        # The protocol has these on the class; here each instance stands for a class of its own.
        self.name = policy.name
        self.paper = policy.paper
        self.needs = policy.needs
        self.breaks = policy.breaks

    def allocate(self, view: View) -> Decision:
        """Ask the policy, and hold its answer to the protocol."""
        when = f"at t={view.now:.12g} s"
        try:
            decision = self._policy.allocate(view)
        except Exception as error:
            message = f"policy {self.name!r} raises {_describe(error)} {when}"
            raise _blame(self._path, error, message=message) from error
        if not isinstance(decision, Decision):
            raise self._refuse(f"returns {_kind(decision)} {when}", "return Decision(shares)")
        shares: Mapping[Any, object] = decision.shares
        wrong = [job for job, share in shares.items() if not isinstance(share, Share)]
        if wrong:
            job, share = wrong[0], shares[wrong[0]]
            raise self._refuse(
                f"gives job {job} {_kind(share)} {when}", "give each job a Share, as in Share(2)"
            )
        return decision

    def _refuse(self, message: str, remedy: str) -> BadInput:
        try:
            line = inspect.getsourcelines(type(self._policy).allocate)[1]
        except OSError:
            # It was typed, and its lines are in no file.
            line = None
        return BadInput(
            self._path,
            f"policy {self.name!r} {message}",
            line=line,
            remedy=f"{remedy}; see {CONTRACT}",
        )


def _blame(path: Path, error: BaseException, *, message: str) -> BadInput:
    """Make the error of something that the file raised, with the last line of it that ran."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame.lineno for frame in frames if Path(frame.filename) == path.resolve()]
    return BadInput(path, message, line=own[-1] if own else None, remedy="mend the policy")


def _describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _kind(value: object) -> str:
    name = type(value).__name__
    return "None" if value is None else f"{'an' if name[0] in 'aeiou' else 'a'} {name}"
