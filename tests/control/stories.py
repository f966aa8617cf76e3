"""
Stories of a played world, drawn from a seed: acts of users, nodes, networks and trainings.

A story has two parts. In the first, anything happens at any time, and controllers are killed and
held at any call. In the second, nothing new happens, the world is kind, and everything has to end.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from random import Random

from dljob.control.situation.ports import Entry
from dljob.core.contract import Policy
from dljob.core.model import (
    Checkpoint,
    JobId,
    Limits,
    Mechanism,
    NodeName,
    Phase,
    Progress,
    Training,
)
from tests.builders import make_job
from tests.control.governing import PACE, Government, Reign
from tests.control.played import PlayedPod, Temper, World
from tests.control.training import Trainings


def draw_temper(chance: Random) -> Temper:
    """Draw how unkind and how slow a world is."""
    return Temper(
        start_fails=0.03,
        ignores_sigterm=chance.choice((0.0, 0.3)),
        checkpoint_fails=chance.choice((0.0, 0.1)),
        loses=chance.choice((0.0, 0.05, 0.2)),
        dawdles=chance.choice((0.0, 0.05, 0.3)),
        pod_seconds=chance.choice(((0.1, 1.0), (0.5, 8.0), (5.0, 30.0))),
        start_seconds=chance.choice(((0.0, 0.2), (0.1, 5.0))),
        save_seconds=chance.choice(((0.1, 2.0), (1.0, 15.0))),
        end_seconds=chance.choice(((0.0, 1.0), (0.5, 6.0))),
        carry_seconds=chance.choice(((0.001, 0.05), (0.001, 2.0))),
        dawdle_seconds=chance.choice(((1.0, 10.0), (1.0, 60.0))),
    )


MOST_COMMANDS = 12
"""For one decision about one job: on up to three nodes launch, stamp, run, and a later stop."""

MOST_CHANGES = 20
"""Limits the rivals of a job that a policy never lets end."""
NEAR_STEPS = (0, 0, 0, 4, 10)
"""Iterations before the last one at which a training is disturbed."""

OPTIONS = ((1,), (2,), (1, 2), (1, 2, 4), (2, 4), (3,), (1, 2, 3, 4, 6))


@dataclass(frozen=True)
class Plot:
    """The setting of a story."""

    policy: Policy
    mechanism: Mechanism = Mechanism.IN_PLACE
    jobs: int = 6
    seconds: float = 200.0
    misfortunes: int = 25
    deaths: int = 6
    """How often a controller is killed or held."""
    evaluations: tuple[float, ...] = ()
    """Seconds that trainings may go on after their last step, in which a user often changes the job. Empty: none."""


class Story:
    """One story."""

    def __init__(self, plot: Plot, seed: object) -> None:
        self.plot = plot
        chance = World(f"cast/{seed}", {"n0": 1}).chance
        sizes = {f"n{n}": chance.choice((2, 2, 3, 4)) for n in range(chance.choice((1, 2, 3)))}
        self.world = World(seed, sizes, draw_temper(chance))
        pace = replace(
            PACE,
            period_seconds=chance.choice((1.0, 4.0, 15.0)),
            trailing_launches=chance.choice((0, 1, 3)),
            launches_at_once=chance.choice((1, 1, 32)),
            most_steps=chance.choice((0, 1, 3)),
            bite_seconds=0.0,
        )
        self.government = Government(
            self.world,
            plot.policy,
            plot.mechanism,
            pace=pace,
            impatience=chance.choice((0.0, 0.5, 0.9)),
        )
        self.trainings = Trainings(self.world)
        self.is_calm = False
        self.is_over = False
        """All jobs have ended, so that no user changes anything."""
        self._names = 0
        self._rivals = 0

    def close(self) -> None:
        self.government.close()

    def tell(self) -> None:
        """Play the first part; raises :class:`LawBroken`."""
        world, chance = self.world, self.world.chance
        self.government.begin()
        self.trainings.begin()
        for _ in range(self.plot.jobs):
            world.later(0.0, self.plot.seconds * 0.7, self._submit)
        for _ in range(self.plot.misfortunes):
            what = chance.choice(self._misfortunes())
            world.later(0.0, self.plot.seconds, partial(self._unless_calm, what))
        for _ in range(self.plot.deaths):
            world.later(0.0, self.plot.seconds, lambda: self._unless_calm(self._doom))
        world.run(self.plot.seconds)
        self._be_kind()

    def end(self, seconds: float = 3000.0) -> list[str]:
        """Play the kind part; return the jobs that have not ended, or commands that never rest."""
        witness = self.world.witness
        before = witness.commands, witness.decisions
        self.world.run(seconds, until=lambda: not unfinished(self))
        left = unfinished(self)
        if left:
            return left
        said, decided = witness.commands - before[0], witness.decisions - before[1]
        if said > MOST_COMMANDS * (decided + len(self.world.entries)):
            return [f"{said} commands for {decided} decisions"]
        return self._find_unrest()

    def _find_unrest(self) -> list[str]:
        """Let time pass when all is over; return leftovers and unneeded commands."""
        world, witness = self.world, self.world.witness
        self.is_over = True
        self.government.wake()
        world.run(20.0)
        before = (witness.commands, world.records)
        world.run(60.0)
        scene = self.government.scene
        cluster = self.government.leader.controller.scheduler.snapshot(scene).cluster
        found = [f"pod {p.job} {p.booking} is left" for p in world.pods.values() if not p.is_ended]
        found += [f"{processes} are left" for processes in witness.living]
        found += [f"{ref} is held by {jobs}" for ref, jobs in scene.holders.items()]
        if not cluster.flawless:
            found.append(f"GPUs leaked: {cluster.usable}")
        if (witness.commands, world.records) != before:
            found.append("there is no rest")
        return found

    def _unless_calm(self, what: Callable[[], None]) -> None:
        if not self.is_calm:
            what()

    def _be_kind(self) -> None:
        """From now on nothing goes wrong, and no user changes anything."""
        world = self.world
        world.note("--- nothing goes wrong from now on")
        self.is_calm = True
        world.temper = Temper()
        world.silent.clear()
        for node in list(world.lost_nodes):
            self._bring_back(node)
        for node in list(world.nodes):
            self._mend(node)
        for job, entry in list(world.entries.items()):
            if entry.job.suspend:
                world.change(job, suspend=False)
        self.government.calm_down()
        for processes in list(world.witness.living):
            if processes.hang:
                # A user eventually notices a training that hangs.
                self.trainings.crash(processes)

    # --- users

    def _submit(self) -> None:
        chance = self.world.chance
        self._names += 1
        options = chance.choice(OPTIONS)
        job = make_job(
            f"job-{self._names}",
            options=options,
            requested=chance.choice(options),
            ids=chance.choice(("index", "index", "uuid")),
            processes=chance.choice(("perGpu", "perGpu", "perNode")),
            priority=chance.choice((0, 0, 1)),
            checkpoint=Checkpoint(shared=chance.random() < 0.8),
            progress=Progress(stall_seconds=30.0, restart_seconds=chance.choice((None, 60.0))),
            limits=Limits(
                backoff_limit=chance.choice((0, 2, 4)),
                active_deadline_seconds=chance.choice((None, None, None, 100)),
            ),
            training=Training(iterations=chance.choice((60, 150, 300)), batch_size=64),
        )
        self.world.submit(job)
        course = self.world.courses[job.id]
        if self.plot.evaluations:
            course.evaluates_seconds = chance.choice(self.plot.evaluations)
            self._watch_end(job.id)
        course.crashes_at = [
            chance.randrange(20, 200) for _ in range(chance.choice((0, 0, 0, 1, 2)))
        ]
        self._wake()

    def _watch_end(self, job: JobId) -> None:
        """Change the job near its last step, several times in the kind part as well."""
        world = self.world
        changes = 0

        def look() -> None:
            nonlocal changes
            course, entry = world.courses[job], world.entries.get(job)
            if entry is None or entry.status.is_final or self.is_over or changes >= MOST_CHANGES:
                return
            if course.iteration < course.total - world.chance.choice(NEAR_STEPS):
                world.after(0.5, look)
                return
            changes += 1
            self._change_at_its_end(job)
            world.after(10.0, look)

        look()

    def _change_at_its_end(self, job: JobId) -> None:
        chance = self.world.chance
        what = chance.choice(("suspend", "suspend", "options", "rival", "rival", "nothing"))
        if what == "suspend":
            self.world.change(job, suspend=True)
            self.world.later(0.1, 15.0, lambda: self._resume(job))
        elif what == "options":
            options = chance.choice(OPTIONS)
            demand = replace(
                self.world.entries[job].job.gpus, options=options, requested=options[-1]
            )
            self.world.change(job, gpus=demand)
        elif what == "rival":
            self._rivals += 1
            rival = make_job(
                f"rival-{self._rivals}",
                options=(1,),
                requested=1,
                priority=3,
                training=Training(iterations=20, batch_size=64),
            )
            self.world.submit(rival)
        self._wake()

    def _some_job(self) -> JobId | None:
        names = sorted(name for name, e in self.world.entries.items() if not e.status.is_final)
        return self.world.chance.choice(names) if names else None

    def _change_options(self) -> None:
        job = self._some_job()
        if job is not None:
            options = self.world.chance.choice(OPTIONS)
            demand = replace(
                self.world.entries[job].job.gpus, options=options, requested=options[-1]
            )
            self.world.change(job, gpus=demand)
            self._wake()

    def _change_priority(self) -> None:
        job = self._some_job()
        if job is not None:
            self.world.change(job, priority=self.world.chance.choice((0, 1, 2)))

    def _suspend(self) -> None:
        job = self._some_job()
        if job is not None:
            self.world.change(job, suspend=True)
            self.world.later(1.0, 60.0, lambda: self._resume(job))
            self._wake()

    def _resume(self, job: JobId) -> None:
        if job in self.world.entries and not self.is_over:
            self.world.change(job, suspend=False)
            self._wake()

    def _cancel(self) -> None:
        job = self._some_job()
        if job is not None:
            self.world.cancel(job)
            self._wake()

    def _wake(self) -> None:
        self.government.wake()

    # --- misfortunes

    def _misfortunes(self) -> tuple[Callable[[], None], ...]:
        return (
            self._restart_container,
            self._restart_container,
            self._end_some_pod,
            self._silence,
            self._silence,
            self._lose_node,
            self._crash,
            self._crash,
            self._hang,
            self._cordon,
            self._break_gpu,
            self._change_options,
            self._change_options,
            self._change_priority,
            self._suspend,
            self._suspend,
            self._cancel,
        )

    def _some_pod(self) -> PlayedPod | None:
        pods = [p for p in self.world.pods.values() if not p.is_ended and p.container is not None]
        pods = [pod for pod in pods if pod.node not in self.world.lost_nodes]
        return self.world.chance.choice(pods) if pods else None

    def _restart_container(self) -> None:
        pod = self._some_pod()
        if pod is not None:
            self.world.restart_container(pod, fault=self.world.chance.random() < 0.2)

    def _end_some_pod(self) -> None:
        pod = self._some_pod()
        if pod is not None:
            self.world.end_pod(pod)

    def _silence(self) -> None:
        world = self.world
        node = world.chance.choice(sorted(world.nodes) or [NodeName("")])
        world.silent.add(node)
        world.note(f"{node} is silent")
        for reign in self.government.reigns:
            reign.dialer.notice_silence()
        world.later(1.0, 45.0, lambda: world.silent.discard(node))

    def _lose_node(self) -> None:
        world = self.world
        if len(world.nodes) < 2:
            return
        name = world.chance.choice(sorted(world.nodes))
        world.lost_nodes[name] = world.nodes.pop(name)
        for processes in world.witness.living:
            if processes.node == name and len(processes.run.peers) > 1:
                # The other containers rightly believe that it is gone.
                world.witness.spoil(processes)
        world.note(f"{name} is lost")
        for reign in self.government.reigns:
            reign.dialer.notice_silence()
        self._wake()
        world.later(5.0, 60.0, lambda: self._bring_back(name))

    def _bring_back(self, name: NodeName) -> None:
        world = self.world
        if name not in world.lost_nodes:
            return
        world.nodes[name] = world.lost_nodes.pop(name)
        boots = world.chance.random() < 0.5
        world.note(f"{name} is back{', and was restarted' if boots else ''}")
        for pod in list(world.pods.values()):
            if pod.node == name and not pod.is_ended:
                if boots or pod.is_removed:
                    world.end_pod(pod)
                else:
                    world.later(0.0, 3.0, partial(world.start_container, pod))
                    world.tell(pod)
        self._wake()

    def _crash(self) -> None:
        living = sorted(self.world.witness.living, key=lambda p: (p.job, p.node))
        if living:
            self.trainings.crash(self.world.chance.choice(living))

    def _hang(self) -> None:
        living = sorted(self.world.witness.living, key=lambda p: (p.job, p.node))
        if living:
            processes = self.world.chance.choice(living)
            processes.hang = True
            self.world.witness.spoil(processes)
            self.world.note(f"{processes.job} hangs on {processes.node}")

    def _cordon(self) -> None:
        world = self.world
        name = world.chance.choice(sorted(world.nodes) or [NodeName("")])
        if name in world.nodes:
            world.nodes[name] = replace(world.nodes[name], schedulable=False)
            world.later(1.0, 60.0, lambda: self._mend(name))

    def _break_gpu(self) -> None:
        world = self.world
        name = world.chance.choice(sorted(world.nodes) or [NodeName("")])
        if name in world.nodes:
            node = world.nodes[name]
            bad = world.chance.choice(node.gpus)
            gpus = tuple(
                replace(gpu, unavailable_because="ECC") if gpu is bad else gpu for gpu in node.gpus
            )
            world.nodes[name] = replace(node, gpus=gpus)
            world.later(1.0, 60.0, lambda: self._mend(name))

    def _mend(self, name: NodeName) -> None:
        world = self.world
        if name in world.nodes:
            node = world.nodes[name]
            gpus = tuple(replace(gpu, unavailable_because="") for gpu in node.gpus)
            world.nodes[name] = replace(node, gpus=gpus, schedulable=True)

    # --- controllers

    def _doom(self) -> None:
        """Kill or hold the controller at one of its next calls; another one takes over."""
        world, reign = self.world, self.government.leader
        at = reign.leash.calls + world.chance.choice((1, 2, 3, 4, 5, 6, 8, 10, 15))
        is_held = world.chance.random() < 0.4
        if is_held:
            reign.leash.hold_at = at
        else:
            reign.leash.kill_at = at
        world.note(f"[{reign.epoch}] is doomed to be {'held' if is_held else 'killed'} at {at}")
        world.later(0.0, 20.0, lambda: self._succeed(reign))

    def _succeed(self, reign: Reign) -> None:
        if self.government.leader is not reign:
            return
        self.government.begin()
        self.world.later(0.0, 60.0, lambda: self.government.go_on(reign))


def unfinished(story: Story) -> list[str]:
    """The jobs that have not ended, with their record."""
    return [
        f"{job}: {entry.status.phase} g{entry.status.generation} {entry.status.placement}"
        f" {entry.status.pods} {entry.status.message}"
        for job, entry in story.world.entries.items()
        if not has_ended(story.world, entry)
    ]


def has_ended(world: World, entry: Entry) -> bool:
    """Whether a job is over, or could never run in this cluster."""
    status = entry.status
    within_reach = status.bound_to or tuple(world.nodes)
    most = sum(len(world.nodes[name].gpus) for name in within_reach if name in world.nodes)
    will_fail = entry.job.limits.active_deadline_seconds is not None and status.started_at
    is_too_large = entry.job.gpus.options[0] > most
    waits_for_ever = status.phase is Phase.QUEUED and is_too_large and not will_fail
    return (status.is_final or waits_for_ever) and not status.pods
