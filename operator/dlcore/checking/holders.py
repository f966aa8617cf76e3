"""
Which job has each GPU while the steps of a plan are replayed.

A GPU is busy until a step releases it, and a step that gives it makes it busy again. Only
:mod:`dlcore.checking.replaying` keeps this book; what is allowed is decided there.
"""

from collections.abc import Collection, Iterable, Iterator

from dlcore.checking.laws import Breach, Law
from dlcore.model import GpuRef, JobId, JobState, NodeName, Placement


class Holders:
    """The busy, released and newly given GPUs."""

    __slots__ = ("_busy", "_given", "_released", "_shared", "has_doubles", "states")

    def __init__(self, running: Iterable[JobState]) -> None:
        self.states: dict[JobId, JobState] = {}
        """The jobs that had GPUs before the plan."""
        self._busy: dict[NodeName, set[int]] = {}
        self._shared: set[GpuRef] = set()
        """GPUs that two jobs had, and that one keeps because the plan stops the other."""
        self._released: dict[GpuRef, JobId] = {}
        self._given: dict[GpuRef, JobId] = {}
        held = 0
        # Count GPUs only: an owner is needed just for error messages.
        for state in running:
            if state.placement is not None:
                self.states[state.id] = state
                held += state.placement.shape.gpus
                for node, gpus in state.placement.slices:
                    self._busy.setdefault(node, set()).update(gpus)
        self.has_doubles = held != sum(map(len, self._busy.values()))
        """True while two jobs have the same GPU."""

    def find_doubles(self, stopped: Collection[JobId]) -> Iterator[Breach]:
        """Find GPUs that two jobs have and both would keep."""
        owner: dict[GpuRef, JobId] = {}
        for job, placement in self._iter_held():
            for ref in placement.refs():
                if job in stopped:
                    self._shared.add(ref)
                    continue
                other = owner.setdefault(ref, job)
                if other != job:
                    message = f"holds GPU {ref}, which job {other} holds too"
                    yield Breach(Law.ONE_MASTER, job, message)
        self._shared &= owner.keys()

    def _iter_held(self) -> Iterator[tuple[JobId, Placement]]:
        for state in self.states.values():
            if state.placement is not None:
                yield state.id, state.placement

    def is_busy(self, ref: GpuRef) -> bool:
        return ref.number in self._busy.get(ref.node, ())

    def owner_of(self, ref: GpuRef) -> JobId:
        """The job that has a busy GPU."""
        if ref in self._given:
            return self._given[ref]
        return next(job for job, placement in self._iter_held() if ref in placement.refs())

    def releaser_of(self, ref: GpuRef) -> JobId | None:
        """The job from which a step has taken this GPU."""
        return self._released.get(ref)

    def releasers_of(self, refs: Iterable[GpuRef]) -> set[JobId]:
        return {self._released[ref] for ref in refs if ref in self._released}

    def gainers_of(self, refs: Iterable[GpuRef]) -> set[JobId | None]:
        """Return the jobs that get these GPUs; ``None`` stands for a GPU that no job gets."""
        return {self._given.get(ref) for ref in refs}

    def give(self, job: JobId, ref: GpuRef) -> None:
        self._busy.setdefault(ref.node, set()).add(ref.number)
        self._given[ref] = job

    def release(self, job: JobId, refs: Iterable[GpuRef]) -> None:
        for ref in refs:
            # A GPU that another job keeps or already has does not become free.
            if ref not in self._given and ref not in self._shared:
                self._busy[ref.node].discard(ref.number)
                self._released[ref] = job
