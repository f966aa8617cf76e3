"""Trainings in a played world, a second at a time, and their ends."""

from functools import partial

from dljob.core.model import JobId
from tests.control.played import PlayedPod, World
from tests.control.played_sidecars import Processes

MOST_IGNORED_S = 3.0
"""A training with a longer evaluation saves before its last step if asked: later it could not answer in time."""


class Trainings:
    """All trainings of a world."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._standing: set[Processes] = set()
        """The processes for which a stall was reported."""

    def begin(self) -> None:
        """Let a second pass for all trainings, again and again."""
        self.world.after(1.0, self.begin)
        witness = self.world.witness
        seen: set[tuple[JobId, int]] = set()
        for processes in sorted(witness.living, key=lambda each: (each.job, each.node)):
            key = (processes.job, processes.run.generation)
            trains = not processes.is_ending and not processes.is_evaluating
            if key not in seen and witness.is_whole(processes) and trains:
                seen.add(key)
                self._go_on(processes)
        self._tell_of_stalls()

    def _tell_of_stalls(self) -> None:
        """Let SideCars report a stall once, as real ones do."""
        living = self.world.witness.living
        still = {each for each in living if self.world.progress_of(each).stalled}
        for processes in sorted(still - self._standing, key=lambda each: (each.job, each.node)):
            pod = self.world.pod_of(processes.job, processes.node)
            if pod is not None and pod.container is not None:
                pod.container.show_progress()
        self._standing = still

    def _go_on(self, processes: Processes) -> None:
        """Let a second pass for one training."""
        course = self.world.courses[processes.job]
        manner, now = course.manner, self.world.now
        if manner is None:
            self._iterate(processes, 1 + processes.run.world_size)
            return
        if now - processes.running_at >= manner.crashes_after_seconds:
            self.crash(processes)
            return
        trained = now - processes.running_at - manner.import_seconds
        if trained <= 0.0 or now <= processes.saves_until:
            return
        pace = manner.warm_up_pace if trained <= manner.warm_up_seconds else 1.0
        gpus = sum(len(each.gpus) for each in self.world.witness.of_same_start(processes))
        part = course.part + manner.speeds[gpus] * pace * min(1.0, trained)
        course.part = part % 1.0
        if part >= 1.0:
            self._iterate(processes, int(part))

    def _iterate(self, processes: Processes, steps: int) -> None:
        course = self.world.courses[processes.job]
        is_last = course.iteration + steps >= course.total
        is_asked = any(each.is_asked for each in self.world.witness.of_same_start(processes))
        if is_last and is_asked and course.evaluates_seconds > MOST_IGNORED_S:
            return
        course.iteration += steps
        course.moved_at = self.world.now
        if is_last:
            self._evaluate(processes)
            return
        self._report(processes.job)
        if course.crashes_at and course.iteration >= course.crashes_at[0]:
            course.crashes_at.pop(0)
            self.crash(processes)

    def _report(self, job: JobId) -> None:
        course = self.world.courses[job]
        for pod in self._pods_of(job):
            if pod.container is None or pod.container.processes is None:
                continue
            if course.manner is None:
                pod.container.show_progress()
            elif not course.manner.is_mute:
                pod.container.observe(course.iteration)

    def _evaluate(self, processes: Processes) -> None:
        """The last step is taken; the training reports its end after the evaluation."""
        course = self.world.courses[processes.job]
        for each in self.world.witness.of_same_start(processes):
            each.is_evaluating = True
        self.world.note(f"{processes.job} evaluates for {course.evaluates_seconds:g} s")
        self._report(processes.job)
        self.world.after(course.evaluates_seconds, lambda: self._finish(processes))

    def _finish(self, processes: Processes) -> None:
        if not self.world.witness.is_whole(processes):
            return  # Some of its processes were killed, or hang.
        course = self.world.courses[processes.job]
        course.is_done, course.done_at = True, self.world.now
        self.world.witness.see_done(processes)
        self.world.note(f"{processes.job} is done")
        for pod in self._pods_of(processes.job):
            container = pod.container
            if container is None or container.processes is None:
                continue
            for rank in sorted(container.processes.ranks):
                end = partial(container.end, container.processes, rank, 0)
                self.world.later(0.0, 1.0, end)

    def _pods_of(self, job: JobId) -> list[PlayedPod]:
        return [pod for (name, _), pod in self.world.pods.items() if name == job]

    def crash(self, processes: Processes) -> None:
        pod = self.world.pod_of(processes.job, processes.node)
        if pod is not None and pod.container is not None and processes.live:
            self.world.note(f"{processes.job} crashes")
            processes.is_spoilt = True
            self.world.witness.spoil(processes)
            pod.container.end(processes, min(processes.ranks), 1)
