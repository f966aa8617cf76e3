"""
The surroundings of one machine as a value that can be copied: supervisor, timer and news.

The world does exactly the things that :class:`dljob_sidecar.contract.Supervisor` allows. A process becomes
the user's program at once or later, or fails to; it ends well or badly, and may leave others. News
arrives in order, with anything in between. Random walks and :func:`explore` go through this world.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from dljob_sidecar.behaviour.events import (
    Action,
    ArmTimer,
    Capable,
    Changed,
    ChangeFailed,
    ChangeLive,
    ChangeRefused,
    ChangeTimedOut,
    Checkpoint,
    CheckpointDone,
    CheckpointFailed,
    CheckpointTimedOut,
    Event,
    Gathered,
    GiveUpCheckpoint,
    Gone,
    GraceOver,
    Interrupted,
    Leave,
    NotWithdrawn,
    Prepare,
    RankEnded,
    Started,
    StartFailed,
    StartProcesses,
    StillThere,
    Terminate,
    Told,
    TryLive,
    Withdraw,
    Withdrawn,
)
from dljob_sidecar.behaviour.machine import Limits, Machine, react
from dljob_wire.messages import Phase, Problem, Refused, Run, Stop, Target, Term
from tests.sidecar.matrices import Pair, name_heard
from tests.sidecar.targets import INCARNATION, as_follower, live_run, run, stop

PROBLEM = Problem("Drawn", "it was drawn")

News = (
    Started
    | StartFailed
    | RankEnded
    | CheckpointDone
    | CheckpointFailed
    | CheckpointTimedOut
    | GraceOver
    | StillThere
    | Gone
    | Capable
    | Gathered
    | Changed
    | ChangeRefused
    | ChangeFailed
    | ChangeTimedOut
    | Withdrawn
    | NotWithdrawn
)
"""The events that name their attempt."""

Move = Callable[["World"], object]


@dataclass(frozen=True)
class UnderWay:
    """A live change, or a trial of one, as the supervisor knows it."""

    target: Target | None
    """None for a trial."""
    is_gathered: bool = False
    is_agreed: bool = False
    is_taken_back: bool = False
    is_over: bool = False
    """True if it can only fail."""


class World:
    """The surroundings of one SideCar, and the laws that it must keep."""

    def __init__(
        self, *, saves: bool = True, follows: bool = False, tries: bool = False, lives: bool = False
    ) -> None:
        """``follows``: the leader, in another container, saves the job."""
        live_seconds = 30.0 if lives else 0.0
        limits = Limits(saves=saves, leader_saves=follows, tries=tries, live_seconds=live_seconds)
        self.machine = Machine(INCARNATION, limits)
        self.accepted: tuple[Target, ...] = ()
        self.left: tuple[int, ...] = ()
        self.heard: Counter[Pair] = Counter()
        self.news: tuple[News, ...] = ()
        self.old_news: tuple[News, ...] = ()
        self.timer: News | None = None
        # The supervisor's knowledge of the latest attempt.
        self.waiting: frozenset[int] = frozenset()
        """Ranks that are not yet the user's program."""
        self.running: frozenset[int] = frozenset()
        self.has_leftover = False
        """Whether another process than the ranks lives, such as a daemon."""
        self.has_reported_start = self.has_reported_end = True
        self.is_terminating = False
        self.is_saving = False
        self.capable = 0
        self.under_way: UnderWay | None = None
        self.has_newcomers = False
        """Whether processes live that came for a live change."""
        self.gpus: frozenset[str] = frozenset()
        """The GPUs whose processes are not proven gone."""
        self.changed_live: tuple[int, ...] = ()
        """The generations that were reached live, or tried to be."""

    def copy(self) -> World:
        """Return a copy that shares the counts."""
        # Faster than copy.copy(), which matters at every step of an exploration.
        other = World.__new__(World)
        other.__dict__.update(self.__dict__)
        return other

    @property
    def is_alive(self) -> bool:
        """Whether any process of the job lives."""
        return bool(self.waiting or self.running or self.has_leftover or self.has_newcomers)

    @property
    def may_fail_to_start(self) -> bool:
        return bool(self.waiting) and not self.has_reported_start and not self.is_terminating

    @property
    def may_be_proven(self) -> bool:
        """Whether the end of all processes can be proven."""
        return not self.is_alive and not self.has_reported_end

    def overtaken(self) -> list[News]:
        """Return the news of earlier attempts."""
        return [event for event in self.old_news if event.attempt < self.machine.attempt]

    def check(self) -> None:
        machine = self.machine
        if machine.released:
            assert not self.is_alive
        if self.is_alive:
            assert self.gpus <= {*machine.held}
        if machine.phase is Phase.CHANGING:
            assert self.under_way is not None or self.news
            assert self.timer is not None, "a live change without a limit"
        newest = self.accepted[-1] if self.accepted else None
        assert _without_base(machine.target) == _without_base(newest)

    def check_goal(self) -> None:
        """In a fair world without new declarations the newest target is reached."""
        while self.settle():
            pass
        machine, target = self.machine, self.machine.target
        if machine.is_leaving:
            assert machine.released
            assert self.left
        elif isinstance(target, Run):
            assert machine.phase in {Phase.RUNNING, Phase.EXITED, Phase.FAILED}
            assert machine.run == target
        else:
            assert machine.released

    def settle(self) -> bool:
        """Let the next inevitable event happen; return whether there was one."""
        phase = self.machine.phase
        if self.news:
            self.news_arrives()
        elif self.under_way is not None and not self.is_terminating:
            self.it_comes_to_its_end()
        elif self.waiting and not self.is_terminating:
            self.a_rank_runs(min(self.waiting))
        elif self.may_become_capable:
            self.all_become_capable()
        elif self.timer is not None and (
            phase is Phase.CHECKPOINTING or (phase is Phase.RUNNING and self.machine.is_trying)
        ):
            self.time_passes()
        elif phase is Phase.STOPPING and self.is_alive:
            self.all_are_killed()
        elif self.may_be_proven:
            self.it_is_proven()
        else:
            return False
        return True

    def happen(self, event: Event) -> Refused | None:
        before = self.machine
        reaction = react(before, event)
        self.machine = reaction.machine
        name = name_heard(event, before, reaction)
        if name is not None:
            self.heard[before.phase, name] += 1
        for action in reaction.actions:
            self.carry_out(action)
        if self.machine.released:
            self.timer = None
        return reaction.refused

    def carry_out(self, action: Action) -> None:
        if isinstance(action, StartProcesses):
            self.begin(action)
        elif isinstance(action, Prepare):
            assert action.processes > 0
        elif isinstance(action, GiveUpCheckpoint):
            self.is_saving = False
            answers = (CheckpointDone, CheckpointFailed)
            self.news = tuple(event for event in self.news if not isinstance(event, answers))
        elif isinstance(action, Checkpoint):
            assert self.machine.limits.saves
            assert not self.machine.follows
            assert not self.is_saving, "asked twice at once"
            # The end of the processes answers a request to them.
            self.is_saving = not self.has_reported_end
        elif isinstance(action, ArmTimer):
            timer = action.event
            assert isinstance(timer, (CheckpointTimedOut, GraceOver, StillThere, ChangeTimedOut))
            self.timer = timer
        elif isinstance(action, ChangeLive):
            self.change(action)
        elif isinstance(action, TryLive):
            assert self.under_way is None
            assert self.capable == action.run.processes
            self.under_way = None if self.has_reported_end else UnderWay(None, is_gathered=True)
        elif isinstance(action, Withdraw):
            self.take_back()
        elif isinstance(action, Leave):
            assert not self.is_alive
            self.left = (*self.left, action.exit_status)
        else:
            # The last output of ended processes is still read, until SIGKILL.
            is_settling = isinstance(action, Terminate) and not (self.waiting or self.running)
            self.is_terminating, self.is_saving = True, self.is_saving and is_settling
            self.under_way = None

    def begin(self, action: StartProcesses) -> None:
        assert not self.is_alive, "two trainings at once"
        assert action.attempt == self.machine.attempt
        assert _without_base(action.run) == _without_base(self.accepted[-1])
        self.waiting, self.timer = frozenset(range(action.run.processes)), None
        self.has_reported_start = self.has_reported_end = False
        self.is_terminating = self.is_saving = False
        assert not self.gpus, "a process on a GPU whose former one is not proven gone"
        self.gpus, self.capable, self.under_way = frozenset(action.run.gpus), 0, None

    # --- live changes -----------------------------------------------------------------------

    def change(self, action: ChangeLive) -> None:
        assert self.under_way is None
        assert _without_base(action.target) == _without_base(self.accepted[-1])
        # The author of the latest target may not have known yet that a change before it was carried out.
        assert action.target.live is not None
        assert action.target.live.since == action.run.generation
        generation = action.target.generation
        assert generation not in self.changed_live, "tried live twice"
        self.changed_live = (*self.changed_live, generation)
        if self.has_reported_end:
            return
        run = action.run
        # The news of an end may be on its way.
        assert self.running <= frozenset(run.ranks)
        coming = action.target.gpus if isinstance(action.target, Run) else ()
        joining = {*coming} - {*run.gpus}
        assert not joining & self.gpus, "a process on a GPU whose former one is not proven gone"
        self.gpus, self.has_newcomers = self.gpus | joining, bool(joining)
        self.under_way = UnderWay(action.target)

    def take_back(self) -> None:
        if self.under_way is None or self.under_way.is_taken_back:
            return
        if self.under_way.is_agreed or isinstance(self.under_way.target, Stop):
            self.tell(NotWithdrawn(self.machine.attempt))
        else:
            self.under_way = replace(self.under_way, is_taken_back=True)

    @property
    def may_become_capable(self) -> bool:
        """Whether processes that have registered for live changes are not yet known to have."""
        machine = self.machine
        if not machine.limits.live_seconds or machine.run is None or self.is_terminating:
            return False
        is_whole = self.capable < len(self.running) == machine.run.processes
        return machine.phase is Phase.RUNNING and is_whole

    def all_become_capable(self) -> None:
        self.capable = len(self.running)
        self.tell(Capable(self.machine.attempt, self.capable))

    def a_live_run_is_declared(self, keep: int, joins: int) -> None:
        """Declare the last ``keep`` processes of the present run with others that join."""
        before = self.machine.run
        assert before is not None
        term = self.newer()
        ranks = before.ranks[len(before.ranks) - keep :]
        self.declare(live_run(before, term.generation, keep=ranks, joins=joins, epoch=term.epoch))

    def a_live_trial_is_declared(self) -> None:
        known = self.accepted[-1]
        assert isinstance(known, Run)
        trying = replace(known, live_trial=known.live_trial + 1)
        if self.happen(Told(trying)) is None:
            self.accepted = (*self.accepted, trying)
            self.nothing_new_is_declared(lambda _: known)

    def it_comes_to_its_end(self) -> None:
        """Take the next inevitable step of a live change."""
        assert self.under_way is not None
        if self.under_way.is_taken_back:
            self.it_is_withdrawn()
        elif self.under_way.is_over or len(self.running) < self._run_processes:
            self.time_passes()
        elif not self.under_way.is_gathered:
            self.all_are_gathered()
        elif not self.under_way.is_agreed:
            self.all_agree()
        else:
            self.all_have_changed()

    @property
    def _run_processes(self) -> int:
        return 0 if self.machine.run is None else self.machine.run.processes

    def all_are_gathered(self) -> None:
        self._proceed(is_gathered=True)
        self.tell(Gathered(self.machine.attempt))

    def all_agree(self) -> None:
        self._proceed(is_agreed=True)

    def _proceed(self, **how: Any) -> None:
        assert self.under_way is not None
        self.under_way = replace(self.under_way, **how)

    def all_have_changed(self) -> None:
        """Let all members join, and prove that the others are gone."""
        assert self.under_way is not None
        target, self.under_way = self.under_way.target, None
        self.has_newcomers = False
        if isinstance(target, Run):
            self.running, self.gpus = frozenset(target.ranks), frozenset(target.gpus)
            self.capable = target.processes
        self.tell(Changed(self.machine.attempt))

    def it_is_withdrawn(self) -> None:
        """Prove that those that came for the change are gone."""
        self.under_way, self.has_newcomers = None, False
        assert self.machine.run is not None
        self.gpus = frozenset(self.machine.run.gpus)
        self.tell(Withdrawn(self.machine.attempt))

    def the_change_is_refused(self) -> None:
        assert self.under_way is not None
        trial = self.under_way.target is None
        self.under_way = None if trial else replace(self.under_way, is_over=True)
        self.tell(ChangeRefused(self.machine.attempt, "it was drawn"))

    def the_change_fails(self) -> None:
        self._proceed(is_over=True)
        self.tell(ChangeFailed(self.machine.attempt, "it was drawn"))

    def _moves_of_a_change(self) -> Iterator[Move]:
        machine, run = self.machine, self.machine.run
        if machine.limits.live_seconds and run is not None and not machine.released:
            yield partial(World.a_live_run_is_declared, keep=1, joins=0)
            yield partial(World.a_live_run_is_declared, keep=1, joins=1)
            is_running = machine.phase is Phase.RUNNING and not self.is_terminating
            if self.may_become_capable:
                yield World.all_become_capable
            if is_running and machine.target == run and run.live_trial < 2:
                yield World.a_live_trial_is_declared
        if self.has_newcomers and self.is_terminating:
            yield World.those_that_came_end
        if self.under_way is not None and not self.is_terminating:
            yield from self._moves_on(self.under_way)

    def _moves_on(self, way: UnderWay) -> Iterator[Move]:
        """Return what may happen next to a live change."""
        if way.is_taken_back:
            yield World.it_is_withdrawn
        if way.is_taken_back or way.is_over or len(self.running) < self._run_processes:
            return
        yield World.the_change_fails
        if not way.is_agreed:
            yield World.the_change_is_refused
        if not way.is_gathered:
            yield World.all_are_gathered
        elif not way.is_agreed:
            yield World.all_agree
        else:
            yield World.all_have_changed

    # --- processes and declarations ---------------------------------------------------------

    def tell(self, event: News) -> None:
        self.news = (*self.news, event)

    def newer(self, rise: int = 1) -> Term:
        return Term(self.machine.term.epoch, self.machine.term.generation + rise)

    def declare(self, target: Target) -> None:
        expected = None
        if self.left or self.machine.is_interrupted:
            expected = Refused.LEAVING
        elif self.accepted and target.term < self.accepted[-1].term:
            expected = Refused.OLDER
        elif not self.accepted or target.term > self.accepted[-1].term:
            self.accepted = (*self.accepted, target)
        assert self.happen(Told(target)) is expected

    def a_newer_run_is_declared(self, processes: int, *, rise: int = 1) -> None:
        term = self.newer(rise)
        gpus = processes if self.machine.limits.live_seconds else 2
        target = run(term.generation, epoch=term.epoch, processes=processes, gpus=gpus)
        self.declare(as_follower(target) if self.machine.limits.leader_saves else target)

    def a_newer_stop_is_declared(self, *, checkpoint: bool, leave: bool, rise: int = 1) -> None:
        term = self.newer(rise)
        self.declare(stop(term.generation, epoch=term.epoch, checkpoint=checkpoint, leave=leave))

    @property
    def may_hurry(self) -> bool:
        target = self.accepted[-1]
        return isinstance(target, Stop) and target.checkpoint

    def the_stop_is_hurried(self) -> None:
        """Hurry the same stop; the former declaration arrives late."""
        known = self.accepted[-1]
        assert isinstance(known, Stop)
        hurried = replace(known, checkpoint=False)
        refused = self.happen(Told(hurried))
        if refused is not None:
            assert refused is Refused.LEAVING
            return
        self.accepted = (*self.accepted, hurried)
        assert self.machine.phase is not Phase.CHECKPOINTING
        self.nothing_new_is_declared(lambda _: known)

    @property
    def may_try(self) -> bool:
        """Whether another trial may be declared, one ahead at most."""
        return self.machine.limits.tries and isinstance(self.accepted[-1], Run) and not self.owes

    @property
    def owes(self) -> bool:
        """Whether a declared trial has not begun."""
        target, machine = self.machine.target, self.machine
        begun = machine.trial.number if target == machine.run else 0
        return isinstance(target, Run) and target.trial > begun

    def a_trial_is_declared(self) -> None:
        """Declare a trial of the same run; the former declaration arrives late."""
        known = self.accepted[-1]
        assert isinstance(known, Run)
        trying = replace(known, trial=known.trial + 1)
        if self.happen(Told(trying)) is None:
            self.accepted = (*self.accepted, trying)
            self.nothing_new_is_declared(lambda _: known)

    def nothing_new_is_declared(self, how: Callable[[World], Target]) -> None:
        """Declare a target without effect: a repeat, an older one, a contradiction."""
        before = self.machine
        self.happen(Told(how(self)))
        assert self.machine == before

    def the_same(self) -> Target:
        return self.accepted[-1]

    def something_older(self) -> Target:
        return run(self.machine.term.generation - 1, epoch=self.machine.term.epoch)

    def a_contradiction(self) -> Target:
        known = self.accepted[-1]
        return run(known.generation, epoch=known.epoch, batch_size=77)

    def another_start(self) -> Target:
        return replace(run(self.newer().generation), incarnation="another")

    def a_new_leader_stamps_what_it_finds(self) -> None:
        """Repeat the target with a higher epoch: the epoch is adopted, and nothing else changes."""
        before, known = self.machine, self.accepted[-1]
        stamped = replace(known, epoch=known.epoch + 1)
        if self.happen(Told(stamped)) is None:
            self.accepted = (*self.accepted, stamped)
        assert (self.machine.phase, self.machine.attempt) == (before.phase, before.attempt)

    def the_container_is_interrupted(self) -> None:
        self.happen(Interrupted())

    def a_rank_runs(self, rank: int) -> None:
        self.waiting, self.running = self.waiting - {rank}, self.running | {rank}
        if not self.waiting and not self.has_reported_start and not self.is_terminating:
            self.has_reported_start = True
            self.tell(Started(self.machine.attempt))

    def a_start_fails(self, rank: int, *, is_last: bool) -> None:
        """Fail to start a rank, perhaps without trying the later ranks."""
        self.has_reported_start = True
        self.waiting -= {rank}
        if is_last:
            self.waiting = frozenset(one for one in self.waiting if one < rank)
        self.tell(StartFailed(self.machine.attempt, PROBLEM))

    def a_rank_ends(self, rank: int, exit_code: int | None, signal: int | None = None) -> None:
        self.running -= {rank}
        self.tell(RankEnded(self.machine.attempt, rank, exit_code, signal))

    def those_that_came_end(self) -> None:
        """End the processes that came for a live change, with the others."""
        self.has_newcomers = False

    def one_that_waits_ends(self, rank: int) -> None:
        """End a process that never became the user's program; there is no report."""
        self.waiting -= {rank}

    def another_is_left_behind(self) -> None:
        self.has_leftover = True

    def what_was_left_behind_ends(self) -> None:
        self.has_leftover = False

    def all_are_killed(self) -> None:
        for rank in sorted(self.running):
            self.a_rank_ends(rank, None, 9)
        self.waiting, self.has_leftover, self.has_newcomers = frozenset(), False, False

    def it_is_proven(self) -> None:
        self.has_reported_end, self.is_saving = True, False
        self.gpus, self.under_way = frozenset(), None
        self.tell(Gone(self.machine.attempt))

    def a_checkpoint_is_answered(self, *, works: bool) -> None:
        self.is_saving = False
        attempt = self.machine.attempt
        self.tell(CheckpointDone(attempt) if works else CheckpointFailed(attempt, PROBLEM))

    def time_passes(self) -> None:
        timer, self.timer = self.timer, None
        assert timer is not None
        self.happen(timer)
        self.old_news = (*self.old_news, timer)

    def news_arrives(self) -> None:
        event, *rest = self.news
        self.news = tuple(rest)
        self.happen(event)
        self.old_news = (*self.old_news, event)

    def overtaken_news_arrives(self, event: News) -> None:
        """The machine must tolerate it, although no supervisor does it."""
        assert event.attempt < self.machine.attempt
        before = self.machine
        self.happen(event)
        assert self.machine == before

    def moves(self) -> Iterator[Move]:
        """Return the possible next moves, with at most two ranks."""
        yield from ALWAYS
        if self.accepted:
            yield from ONCE_DECLARED
            if self.may_hurry:
                yield World.the_stop_is_hurried
            if self.may_try:
                yield World.a_trial_is_declared
        if self.news:
            yield World.news_arrives
        if self.timer is not None:
            yield World.time_passes
        if self.is_saving:
            yield partial(World.a_checkpoint_is_answered, works=True)
            yield partial(World.a_checkpoint_is_answered, works=False)
        yield from self._moves_of_processes()
        yield from self._moves_of_a_change()

    def _moves_of_processes(self) -> Iterator[Move]:
        for rank in self.waiting:
            yield partial(World.a_rank_runs, rank=rank)
            if self.is_terminating:
                yield partial(World.one_that_waits_ends, rank=rank)
            if self.may_fail_to_start:
                yield partial(World.a_start_fails, rank=rank, is_last=True)
                yield partial(World.a_start_fails, rank=rank, is_last=False)
        for rank in self.running:
            yield partial(World.a_rank_ends, rank=rank, exit_code=0)
            yield partial(World.a_rank_ends, rank=rank, exit_code=1)
        if self.may_be_proven:
            yield World.it_is_proven

    def essence(self) -> Hashable:
        """
        Return exactly the parts of the state that matter from here on.

        Of generations and attempts only equality matters. The result of a checkpoint and stuck
        processes do not, because the machine only reports them.
        """
        machine, target = self.machine, self.machine.target
        is_own = target == machine.run
        wants: Hashable = isinstance(target, Stop) and (target.checkpoint, target.leave)
        if isinstance(target, Run):
            wants = target.processes, self.owes
        if machine.is_interrupted or machine.has_left:
            # No other target is accepted any more.
            wants = isinstance(target, Stop) and not target.checkpoint
        asked = (machine.phase, wants, machine.is_interrupted, machine.has_left, target is None)
        if machine.released:
            # The next start does not depend on this one.
            return (asked, self.news)
        return (
            (asked, is_own, is_own and machine.failure is None),
            machine.run and machine.run.processes,
            frozenset(end.rank for end in machine.ended),
            tuple(_essence_of(event) for event in self.news),
            (type(self.timer), machine.is_trying),
            (self.waiting, self.running),
            (self.has_reported_start, self.has_reported_end, self.is_terminating, self.is_saving),
        )


def _essence_of(event: News) -> Hashable:
    ended = (event.rank, event.is_well) if isinstance(event, RankEnded) else None
    return type(event), ended


ALWAYS: tuple[Move, ...] = (
    partial(World.a_newer_run_is_declared, processes=1),
    partial(World.a_newer_run_is_declared, processes=2),
    partial(World.a_newer_stop_is_declared, checkpoint=True, leave=False),
    partial(World.a_newer_stop_is_declared, checkpoint=False, leave=False),
    partial(World.a_newer_stop_is_declared, checkpoint=True, leave=True),
    partial(World.a_newer_stop_is_declared, checkpoint=False, leave=True),
    partial(World.nothing_new_is_declared, how=World.another_start),
    World.the_container_is_interrupted,
)
ONCE_DECLARED: tuple[Move, ...] = (
    World.a_new_leader_stamps_what_it_finds,
    partial(World.nothing_new_is_declared, how=World.the_same),
    partial(World.nothing_new_is_declared, how=World.something_older),
    partial(World.nothing_new_is_declared, how=World.a_contradiction),
)


def _without_base(target: Target | None) -> Target | None:
    """
    Return a target without the processes that it keeps.

    If a change is carried out that its author did not know of, the machine names them by the GPUs that they have now.
    """
    return replace(target, live=None) if target is not None else None


@dataclass(frozen=True)
class Exploration:
    """The result of an exploration."""

    states: int
    heard: Counter[Pair]
    """The counts of events by phase."""


def explore(*, saves: bool, follows: bool = False, tries: bool = False) -> Exploration:
    """Explore every path without live changes from the beginning, and check the laws at every step."""
    start = World(saves=saves, follows=follows, tries=tries)
    known = {start.essence()}
    waiting = deque([start])
    while waiting:
        world = waiting.popleft()
        world.check()
        fair = world.copy()
        fair.heard = Counter()
        fair.check_goal()
        for move in world.moves():
            following = world.copy()
            move(following)
            essence = following.essence()
            if essence not in known:
                known.add(essence)
                waiting.append(following)
    return Exploration(len(known), start.heard)
