"""The settings of the operator: those of any controller, and those that Kubernetes adds."""

import os
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

import yaml

from dljob.control.pacing import Pace
from dljob.control.settings import Loaded, Settings, SettingsError, load_tree
from dljob.kube.health_server import MetricsSettings
from dljob.kube.leases import LeaseSettings
from dljob.operator.kueue.quotas import KueueSettings
from dljob.operator.nodes.nodes import Pool
from dljob.operator.podspecs.podsettings import PodSettings
from dljob.operator.reporting.publishing import Publishing
from dljob_wire.endpoints import read_endpoint
from dljob_wire.problems import Problem


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorSettings(Settings):
    """All settings of an operator."""

    namespace: str = ""
    """The namespace of the operator's Lease and CA; empty: that of its pod."""
    watched: tuple[str, ...] = ()
    """The namespaces whose jobs it runs; empty: all."""
    health: str = ":8080"
    """The address of /healthz, /readyz and /metrics, as [ADDRESS]:PORT."""
    metrics: MetricsSettings = field(default_factory=MetricsSettings)
    """The access to metrics."""
    pace: Pace = field(
        default_factory=lambda: Pace(most_steps=256, trailing_launches=32, record_seconds=600.0)
    )
    """How often the loop runs a cycle and decides."""
    pods: PodSettings = field(default_factory=PodSettings)
    """How the operator builds the pods of jobs."""
    pool: Pool = field(default_factory=Pool)
    """Which nodes DLJob schedules."""
    lease: LeaseSettings = field(default_factory=LeaseSettings)
    """How operators elect a leader."""
    publishing: Publishing = field(default_factory=Publishing)
    """How often the operator writes the progress of jobs into their status."""
    kueue: KueueSettings = field(default_factory=KueueSettings)
    """Jobs in the queues of Kueue."""

    def __post_init__(self) -> None:
        read_endpoint(self.health)


def load_settings(file: Path | None, options: Iterable[str]) -> Loaded[OperatorSettings]:
    """
    Read a settings file, the environment, and options such as ``pods.image=dljob-sidecar:1``.

    Raises :class:`SettingsError` with everything that is wrong.
    """
    given: dict[str, str] = {}
    for option in options:
        path, equals, value = option.partition("=")
        if not equals:
            wrong = Problem("--set", option, "is not a setting with a value", "write PATH=VALUE")
            raise SettingsError((wrong,))
        given[path] = value
    document = yaml.safe_load(file.read_text()) if file is not None else None
    loaded = load_tree(
        OperatorSettings(), document, file=str(file or ""), environment=os.environ, options=given
    )
    settings = loaded.settings
    return loaded._replace(settings=replace(settings, limits=settings.limits.closed()))
