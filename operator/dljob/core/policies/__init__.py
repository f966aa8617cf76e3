"""
The policies of the product, by the names that users type.

:mod:`.foresight` is the default, :mod:`.papers` has those of papers, :mod:`.baselines` simple rules, and :mod:`.common`
what several of them share. :mod:`dljob.known_policies` adds those of the installed add-ons.
"""

from collections.abc import Callable, Mapping
from typing import Any

from dljob.core.contract import Policy
from dljob.core.options import read as read_option
from dljob.core.options import rules_of
from dljob.core.policies.baselines.fifo import Fifo
from dljob.core.policies.baselines.max_min import MaxMin
from dljob.core.policies.baselines.srtf import Srsf, Srtf
from dljob.core.policies.foresight import Foresight
from dljob.core.policies.papers.adaptive import Adaptive
from dljob.core.policies.papers.tiresias import Tiresias
from dljob_wire.problems import nearest

Known = Mapping[str, Callable[..., Policy]]
"""Policies by their names."""

POLICIES: Known = {
    policy.name: policy for policy in (Foresight, Adaptive, MaxMin, Srsf, Srtf, Tiresias, Fifo)
}

NAMES: tuple[str, ...] = tuple(POLICIES)


def make(name: str, options: Mapping[str, str] | None = None, *, known: Known = POLICIES) -> Policy:
    """
    Build the policy of that name with options as a user writes them.

    Raises :class:`ValueError` that names the known policies.
    """
    policy = known.get(name)
    if policy is None:
        raise ValueError(f"no policy is named {name!r}; {_suggest(name, tuple(known))}")
    return build(policy, name, options=options or {})


def build(policy: Callable[..., Policy], name: str, *, options: Mapping[str, str]) -> Policy:
    """Build a policy of its class, with options as a user writes them; ``name`` is for errors."""
    rules = rules_of(policy)
    values: dict[str, Any] = {}
    for key, text in options.items():
        if key not in rules:
            known = _suggest(key, tuple(rules)) if rules else "it has none"
            raise ValueError(f"{name} has no option {key!r}; {known}")
        values[key] = read_option(name, key, rules[key], text)
    return policy(**values)


def read(text: str, *, known: Known = POLICIES) -> Policy:
    """
    Build the policy that ``NAME[:OPTION=VALUE]…`` means, for example ``tiresias:thresholds=3250,7200``.

    Options are separated by colons, because values may hold commas.
    """
    name, colon, rest = text.partition(":")
    if name.endswith(".py"):
        raise ValueError(
            f"{name!r} is a file, and only dljob simulate and compare play the policies of files; "
            "a controller would run its code with its own rights. Add the policy to the package, "
            "see CONTRIBUTING.md"
        )
    return make(name, read_options(name, rest) if colon else {}, known=known)


def read_options(name: str, text: str) -> dict[str, str]:
    """Read ``OPTION=VALUE[:OPTION=VALUE]…``, which follows the name of a policy."""
    options: dict[str, str] = {}
    for part in text.split(":"):
        key, equals, value = part.partition("=")
        if not equals or not key:
            raise ValueError(f"{part!r} is no option of a policy; write {name}:OPTION=VALUE")
        if key in options:
            raise ValueError(f"{key} is given twice for {name}; keep one of them")
        options[key] = value
    return options


def _suggest(word: str, known: Mapping[str, Any] | tuple[str, ...]) -> str:
    guess = nearest(word, known)
    meant = f"did you mean {guess}? " if guess else ""
    return f"{meant}known are {', '.join(known)}"
