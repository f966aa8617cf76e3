"""
The metrics of a controller, for Prometheus.

The loop and the client of the SideCars feed them; each controller has a registry of its own, so that
several can live in one process.
"""

from collections import Counter as Tally
from collections.abc import Callable
from importlib.metadata import version

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
)

from dljob.control.gpus.gpu_table import gpu_rows
from dljob.control.situation.ports import PodPhase
from dljob.control.situation.scene import Scene
from dljob.core.checking import BrokenLaw
from dljob.core.model import Cluster, JobId, Phase
from dljob.core.placement.limits import namespace_of
from dljob.store.notebook import NotebookState
from dljob.store.tables import GpuState

# A counter that is read from a scene would say at each scrape that it was created just now.
disable_created_metrics()  # type: ignore[no-untyped-call]

_FAST = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_WAITS = (1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 4 * 3600.0, 12 * 3600.0, 86400.0, 3 * 86400.0)
_SLOW = (0.01, 0.03, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0)

MOST_NAMESPACES = 200
"""The most namespaces with a wait histogram of their own, in the order in which their jobs start."""
OTHER_NAMESPACES = "_other"
"""Stands for all further namespaces; no namespace can have this name."""


class Metrics:
    """Counts and times; the loop's gauge and the SideCars' meter."""

    def __init__(self, is_leading: Callable[[], bool] = lambda: True) -> None:
        self._registry = CollectorRegistry()
        leader = self._gauge("dljob_leader", "1 while this controller leads, else 0")
        leader.set_function(lambda: float(is_leading()))
        self._ask_store: Callable[[], NotebookState] | None = None
        """None before the store is open: a replica that waits to lead has none."""
        self._dropped: Counter | None = None
        self._unread: Scene | None = None
        """The latest scene, until a scrape reads it."""
        self._cycles = Histogram(
            "dljob_cycle_seconds",
            "Time of a cycle of the loop",
            ["decided"],
            registry=self._registry,
            buckets=_FAST,
        )
        self._refused = Counter(
            "dljob_broken_laws_total",
            "Plans that were refused, by the law they break",
            ["law"],
            registry=self._registry,
        )
        self._jobs = self._gauge("dljob_jobs", "Jobs by phase", "phase")
        self._gpus = self._gauge("dljob_gpus", "GPUs by state", "node", "state")
        self._uses = self._gauge(
            "dljob_gpu_in_use", "1 for each GPU that a job uses", "node", "gpu", "uuid", "job"
        )
        self._namespaces = self._gauge(
            "dljob_namespace_gpus_in_use", "GPUs that the jobs of a namespace use", "namespace"
        )
        self._progress = self._gauge("dljob_job_iterations", "Iterations done", "job")
        self._speed = self._gauge("dljob_job_iterations_per_second", "Speed of training", "job")
        self._reshapes = Counter(
            "dljob_job_reshapes_total",
            "Changes of its GPUs so far",
            ["job"],
            registry=self._registry,
        )
        self._silent = self._gauge("dljob_sidecars", "SideCars, by whether they answer", "state")
        self._breaker = self._gauge(
            "dljob_breaker_tripped",
            "1 while too many SideCars are silent at once, so that none of their pods is ended",
        )
        self._polls = Counter(
            "dljob_sidecar_polls_total", "Long polls of SideCars", registry=self._registry
        )
        self._failures = Counter(
            "dljob_sidecar_failures_total",
            "Requests without an answer to SideCars that have answered before",
            registry=self._registry,
        )
        self._told = Histogram(
            "dljob_sidecar_round_trip_seconds",
            "Time from a command to its acknowledgement",
            registry=self._registry,
            buckets=_FAST,
        )
        self._reshape = Histogram(
            "dljob_reshape_seconds",
            "Time for which a change of GPUs interrupted the training; the mechanism is live where its processes stayed",
            ["mechanism"],
            registry=self._registry,
            buckets=_SLOW,
        )
        self._waits = Histogram(
            "dljob_job_wait_seconds",
            "Time from the submission of a job to its first training (outcome started), or to its end without"
            " one (cancelled, failed)",
            ["namespace", "outcome"],
            registry=self._registry,
            buckets=_WAITS,
        )
        self._waiting_namespaces: set[str] = set()
        info = self._gauge("dljob_build_info", "1, with the version of DLJob", "version")
        info.labels(version("dljob")).set(1)
        self._error = Histogram(
            "dljob_prediction_error",
            "Predicted over actual speed, less 1, in absolute value",
            registry=self._registry,
            buckets=(0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0),
        )

    def watch_store(self, state: Callable[[], NotebookState]) -> None:
        """Read the state of this store at each scrape, in place of a former one."""
        is_first, self._ask_store = self._ask_store is None, state
        if is_first:
            connected = self._gauge("dljob_store_connected", "Whether the store is available")
            connected.set_function(lambda: self._store_state().connected)
            waiting = self._gauge("dljob_store_waiting", "Writes that wait for the store")
            waiting.set_function(lambda: self._store_state().waiting)
            text = "Writes dropped because too many waited"
            self._dropped = Counter("dljob_store_dropped_total", text, registry=self._registry)

    def _store_state(self) -> NotebookState:
        assert self._ask_store is not None
        return self._ask_store()

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(name, text, labels, registry=self._registry)

    def text(self) -> bytes:
        """Return all metrics in the Prometheus text format."""
        scene, self._unread = self._unread, None
        if scene is not None:
            self._show_jobs(scene)
            self._show_gpus(scene)
            pods = [pod for job_pods in scene.job_pods.values() for pod in job_pods.values()]
            begun = [pod for pod in pods if pod.pod.phase is not PodPhase.PENDING]
            answering = sum(pod.contact.reachable for pod in begun)
            self._silent.labels("answers").set(answering)
            self._silent.labels("silent").set(len(begun) - answering)
            self._silent.labels("pending").set(len(pods) - len(begun))
            self._breaker.set(scene.is_suspicious)
        if self._dropped is not None:
            self._dropped.reset()
            self._dropped.inc(sum(self._store_state().dropped))
        return generate_latest(self._registry)

    # --- from the loop

    def cycle(self, seconds: float, *, decided: bool) -> None:
        """Count a cycle of the loop, with its duration."""
        self._cycles.labels("yes" if decided else "no").observe(seconds)

    def broken_law(self, error: BrokenLaw) -> None:
        """Count a refused plan."""
        self._refused.labels(error.law.value).inc()

    def reshaped(self, seconds: float, mechanism: str) -> None:
        """Count a change of GPUs, with the time for which the job did not train."""
        self._reshape.labels(mechanism).observe(seconds)

    def waited(self, job: JobId, *, seconds: float, outcome: str) -> None:
        """Count a job that trains for the first time or never will, with its wait since its submission."""
        namespace, known = namespace_of(job), self._waiting_namespaces
        if namespace not in known and len(known) >= MOST_NAMESPACES:
            namespace = OTHER_NAMESPACES
        else:
            known.add(namespace)
        self._waits.labels(namespace, outcome).observe(max(0.0, seconds))

    def predicted(self, error: float) -> None:
        """Record the relative error of a predicted speed."""
        self._error.observe(abs(error))

    def show(self, scene: Scene) -> None:
        """Remember the scene; the thousands of gauges are set only when a scrape reads them."""
        self._unread = scene

    def _show_jobs(self, scene: Scene) -> None:
        for metrics in (self._progress, self._speed, self._reshapes):
            metrics.clear()
        phases = dict.fromkeys(Phase, 0)
        for job, entry in scene.entries.items():
            status = entry.status
            phases[status.phase] += 1
            if not status.is_final:
                self._progress.labels(job).set(status.iteration)
                self._speed.labels(job).set(status.speed)
                self._reshapes.labels(job).inc(status.reshapes)
        for phase, count in phases.items():
            self._jobs.labels(phase.value).set(count)

    def _show_gpus(self, scene: Scene) -> None:
        self._uses.clear()
        self._namespaces.clear()
        used: Tally[str] = Tally()
        counts = {(node, state): 0 for node in scene.nodes for state in GpuState}
        for row in gpu_rows(scene, Cluster(scene.nodes.values())):
            counts[row.node, row.state] += 1
            if row.state is GpuState.IN_USE:
                self._uses.labels(row.node, str(row.gpu), row.uuid, row.job).set(1)
                used[namespace_of(row.job or "")] += 1
        for (node, state), count in counts.items():
            self._gpus.labels(node, state.value.replace(" ", "-")).set(count)
        for namespace, count in used.items():
            self._namespaces.labels(namespace).set(count)

    # --- from the client of the SideCars

    def polled(self) -> None:
        self._polls.inc()

    def told(self, seconds: float) -> None:
        """Count an answered declaration, with the time from sending it to the answer."""
        self._told.observe(seconds)

    def failed(self) -> None:
        self._failures.inc()
