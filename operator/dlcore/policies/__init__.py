"""
The policies by the names that users type.

A policy of your own is one file with a class like the others, and one line in the list below.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from dlcore.contract import Policy
from dlcore.options import read as read_option
from dlcore.options import rules_of
from dlcore.policies.adaptive import Adaptive
from dlcore.policies.afs_l import AfsL
from dlcore.policies.afs_p import AfsP
from dlcore.policies.afs_s import AfsS
from dlcore.policies.dragon import Dragon
from dlcore.policies.fifo import Fifo
from dlcore.policies.fjf import Fjf
from dlcore.policies.foresight import Foresight
from dlcore.policies.gang_fifo import GangFifo
from dlcore.policies.hdf import HighestDensityFirst
from dlcore.policies.hesrpt import Hesrpt
from dlcore.policies.kube_default import KubeDefault
from dlcore.policies.kube_pods import KubePods
from dlcore.policies.locality import Locality
from dlcore.policies.lyra import Lyra
from dlcore.policies.max_min import MaxMin
from dlcore.policies.ones import Ones
from dlcore.policies.optimus import Optimus
from dlcore.policies.optimus_periodic import OptimusPeriodic
from dlcore.policies.sia import Sia
from dlcore.policies.smartfill import SmartFill
from dlcore.policies.srsf import Srsf
from dlcore.policies.srsf_e import SrsfE
from dlcore.policies.srtf import Srtf
from dlcore.policies.srtf_e import SrtfE
from dlcore.policies.themis import Themis
from dlcore.policies.tiresias import Tiresias
from dlcore.problems import nearest

POLICIES: Mapping[str, Callable[..., Policy]] = {
    policy.name: policy
    for policy in (
        KubePods,
        KubeDefault,
        Fifo,
        Fjf,
        GangFifo,
        Locality,
        Dragon,
        Optimus,
        OptimusPeriodic,
        Adaptive,
        Foresight,
        MaxMin,
        Srtf,
        Srsf,
        SrtfE,
        SrsfE,
        Tiresias,
        AfsL,
        AfsP,
        AfsS,
        SmartFill,
        Hesrpt,
        HighestDensityFirst,
        Lyra,
        Themis,
        Sia,
        Ones,
    )
}

NAMES: tuple[str, ...] = tuple(POLICIES)


def make(name: str, options: Mapping[str, str] | None = None) -> Policy:
    """
    Build the policy of that name with options as a user writes them.

    Raises :class:`ValueError` that says what is known instead of what was given.
    """
    policy = POLICIES.get(name)
    if policy is None:
        raise ValueError(f"no policy is named {name!r}; {_suggest(name, NAMES)}")
    return build(policy, name, options or {})


def build(policy: Callable[..., Policy], name: str, options: Mapping[str, str]) -> Policy:
    """Build a policy of its class, with options as a user writes them; ``name`` is for errors."""
    rules = rules_of(policy)
    values: dict[str, Any] = {}
    for key, text in options.items():
        if key not in rules:
            known = _suggest(key, tuple(rules)) if rules else "it has none"
            raise ValueError(f"{name} has no option {key!r}; {known}")
        values[key] = read_option(name, key, rules[key], text)
    return policy(**values)


def read(text: str) -> Policy:
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
    return make(name, read_options(name, rest) if colon else {})


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


def options_of(name: str) -> dict[str, Any]:
    """The options of a policy with their defaults."""
    policy: Any = POLICIES[name]
    return {option.name: option.default for option in dataclasses.fields(policy)}


def _suggest(word: str, known: Mapping[str, Any] | tuple[str, ...]) -> str:
    guess = nearest(word, known)
    meant = f"did you mean {guess}? " if guess else ""
    return f"{meant}known are {', '.join(known)}"
