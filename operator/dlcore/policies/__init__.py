"""
The policies by the names that users type.

A policy of your own is one file with a class like the others, in the folder that says where it comes from, and one
line in the list below:

- :mod:`.foresight` is the default;
- :mod:`.papers` has what papers describe;
- :mod:`.baselines` has the simple rules that others are measured against;
- :mod:`.common` is what several of them share, and no policy.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from dlcore.contract import Policy
from dlcore.options import read as read_option
from dlcore.options import rules_of
from dlcore.policies.baselines.fifo import Fifo
from dlcore.policies.baselines.fjf import Fjf
from dlcore.policies.baselines.hdf import HighestDensityFirst
from dlcore.policies.baselines.kube_default import KubeDefault
from dlcore.policies.baselines.kube_pods import KubePods
from dlcore.policies.baselines.locality import Locality
from dlcore.policies.baselines.max_min import MaxMin
from dlcore.policies.baselines.srsf import Srsf
from dlcore.policies.baselines.srtf import Srtf
from dlcore.policies.foresight import Foresight
from dlcore.policies.papers.adaptive import Adaptive
from dlcore.policies.papers.afs.afs_l import AfsL
from dlcore.policies.papers.afs.afs_p import AfsP
from dlcore.policies.papers.afs.afs_s import AfsS
from dlcore.policies.papers.afs.srsf_e import SrsfE
from dlcore.policies.papers.afs.srtf_e import SrtfE
from dlcore.policies.papers.dragon import Dragon
from dlcore.policies.papers.gang_fifo import GangFifo
from dlcore.policies.papers.hesrpt import Hesrpt
from dlcore.policies.papers.lyra import Lyra
from dlcore.policies.papers.ones import Ones
from dlcore.policies.papers.optimus import Optimus
from dlcore.policies.papers.optimus_periodic import OptimusPeriodic
from dlcore.policies.papers.sia import Sia
from dlcore.policies.papers.smartfill import SmartFill
from dlcore.policies.papers.themis import Themis
from dlcore.policies.papers.tiresias import Tiresias
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
