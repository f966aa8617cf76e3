"""
The limits for all jobs of a namespace together.

Kubernetes' own quotas cannot see GPUs that a container is given without asking its node for them,
so the limit is kept where GPUs are decided about.
"""

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

ANY: Final = "*"
"""Means every namespace that is not named."""

_NAMESPACE: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


@dataclass(frozen=True, slots=True, kw_only=True)
class NamespaceLimits:
    """Limits by the names of namespaces; one that is not named, nor meant by ``*``, has none."""

    max_gpus: Mapping[str, int] = field(default_factory=dict)
    """How many GPUs the jobs of a namespace may have together; * stands for those not named."""
    max_priority: Mapping[str, int] = field(default_factory=dict)
    """The highest priority that jobs of a namespace may have; * stands for those not named."""
    shares: Mapping[str, int] = field(default_factory=dict)
    """The weights by which users, or namespaces, are owed GPUs; * stands for those not named, and 0 means that nothing is
    owed. Idle GPUs are lent. Empty: no shares, but with --system the same weight for all."""

    def __post_init__(self) -> None:
        for name in (*self.max_gpus, *self.max_priority, *self.shares):
            if name != ANY and not _NAMESPACE.fullmatch(name):
                raise ValueError(f"{name!r} is no name of a namespace; name one, or write {ANY}")
        for name, gpus in self.max_gpus.items():
            if gpus < 0:
                raise ValueError(f"{name} cannot have {gpus} GPUs; write 0 or more")
        for name, weight in self.shares.items():
            if weight < 0:
                raise ValueError(f"{name} cannot have the weight {weight}; write 0 or more")

    def __bool__(self) -> bool:
        """Return whether there is any limit."""
        return bool(self.max_gpus or self.max_priority or self.shares)

    def gpus_of(self, namespace: str) -> int | None:
        """How many GPUs the jobs of a namespace may have together; ``None``: any number."""
        return self.max_gpus.get(namespace, self.max_gpus.get(ANY))

    def priority_of(self, namespace: str) -> int | None:
        """The highest priority that jobs of a namespace may have; ``None``: any."""
        return self.max_priority.get(namespace, self.max_priority.get(ANY))

    def weight_of(self, namespace: str) -> int:
        """The weight by which a namespace is owed GPUs."""
        return self.shares.get(namespace, self.shares.get(ANY, 0))

    def granting(self, priorities: Mapping[str, int]) -> "NamespaceLimits":
        """Return the limits with the highest priorities that an administrator has granted since."""
        return replace(self, max_priority={**self.max_priority, **priorities})

    def closed(self) -> "NamespaceLimits":
        """Return the limits of a place with several users: none may have a priority above 0 that is not granted."""
        return replace(self, max_priority={ANY: 0, **self.max_priority})

    def less(self, held: Mapping[str, int]) -> "NamespaceLimits":
        """Return the limits less the GPUs that unscheduled jobs hold."""
        left = {
            namespace: max(0, limit - gpus)
            for namespace, gpus in held.items()
            if (limit := self.gpus_of(namespace)) is not None
        }
        return replace(self, max_gpus={**self.max_gpus, **left}) if left else self


HALF_LIFE_S: Final = 1800.0
"""The time after which half of the use of GPUs counts."""


@dataclass(frozen=True, slots=True)
class Use:
    """The GPU time of namespaces, of which older time counts less."""

    until: float = 0.0
    seconds: Mapping[str, float] = field(default_factory=dict)
    held: Mapping[str, int] = field(default_factory=dict)
    """The GPUs that the jobs of a namespace have since then."""

    def at(self, now: float) -> dict[str, float]:
        """Return the GPU-seconds that count."""
        left = 0.5 ** (max(0.0, now - self.until) / HALF_LIFE_S)
        new = (1.0 - left) * HALF_LIFE_S / math.log(2.0)
        names = {**self.seconds, **self.held}
        used = {n: self.seconds.get(n, 0.0) * left + self.held.get(n, 0) * new for n in names}
        return {name: seconds for name, seconds in used.items() if seconds >= 1.0}


def namespace_of(job: str) -> str:
    """Name the namespace of a job; empty where there are none."""
    return job.rpartition("/")[0]


def sum_by_namespace(gpus: Iterable[tuple[str, int]]) -> Counter[str]:
    """Return the GPUs of all jobs of each namespace together, from those of each job."""
    totals: Counter[str] = Counter()
    for job, number in gpus:
        totals[namespace_of(job)] += number
    return totals
