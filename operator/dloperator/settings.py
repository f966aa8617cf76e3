"""Everything that can be set about an operator: what any controller has, and what Kubernetes adds."""

from dataclasses import dataclass, field

from dlcontrol.settings import Settings
from dloperator.electing import LeaseSettings
from dloperator.podmaking import PodSettings
from dloperator.publishing import Publishing
from dloperator.reading import Pool


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorSettings(Settings):
    """All of it."""

    namespace: str = ""
    """Where the operator's Lease and its authority are kept; empty: the namespace of its pod."""
    watched: tuple[str, ...] = ()
    """The namespaces whose jobs it runs; empty: all."""
    health: str = ":8080"
    """Where it answers /healthz, /readyz and /metrics, as [ADDRESS]:PORT."""
    pods: PodSettings = field(default_factory=PodSettings)
    """What pods need besides what their job says."""
    pool: Pool = field(default_factory=Pool)
    """Which nodes are its to give."""
    lease: LeaseSettings = field(default_factory=LeaseSettings)
    """How the one that leads is found."""
    publishing: Publishing = field(default_factory=Publishing)
    """How often the progress of jobs is written into their status."""
