"""
Whatever comes in which order: the laws of the machine under thousands of interleavings.

Hypothesis plays the controller, the processes, the timers and the network. The controller declares
rising, repeated, stale and contradictory targets, and now and then is replaced by a new leader. The
processes fail to start, crash, end well, hang in their checkpoint, ignore SIGTERM and leave others
behind. News is delivered late, and again after it was overtaken. The supervisor keeps its contract:
it tells of each rank that ends, and says that all are gone only when they are.
"""

import sys
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from dlsidecar.events import (
    ArmTimer,
    Checkpoint,
    CheckpointDone,
    CheckpointFailed,
    CheckpointTimedOut,
    Event,
    Gone,
    GraceOver,
    Interrupted,
    Kill,
    Leave,
    RankEnded,
    Started,
    StartFailed,
    StartProcesses,
    StillThere,
    Terminate,
    Told,
)
from dlsidecar.machine import TABLE, Limits, Machine, Word, react
from dlwire.messages import Phase, Problem, Refused, Run, Target, Term
from tests.sidecar.targets import INCARNATION, run, stop

LEFTOVER = -1
"""A process that is no rank: a helper, a daemon, a data loader."""
PROBLEM = Problem("Drawn", "drawn by hypothesis")

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
)
"""Every event that names its attempt."""

BEGINNINGS = ["ready", "running", "running", "checkpointing", "exited", "failed"]

SEEN: Counter[tuple[Phase, Word]] = Counter()


class World(RuleBasedStateMachine):
    """Everything around one machine, and the laws it must keep."""

    saves = True

    def __init__(self) -> None:
        super().__init__()
        self.machine = Machine(INCARNATION, Limits(saves=self.saves))
        self.living: set[int] = set()
        self.attempt = 0
        self.is_gone_told = True
        self.may_save = False
        self.may_fail_to_start = False
        self.timer: News | None = None
        self.news: list[News] = []
        self.old_news: list[News] = []
        self.accepted: list[Target] = []
        self.left: list[int] = []

    # --- the machine and what it demands --------------------------------------------------

    def happen(self, event: Event) -> Refused | None:
        phase = self.machine.phase
        reaction = react(self.machine, event)
        self.machine = reaction.machine
        if reaction.word is not None:
            SEEN[phase, reaction.word] += 1
        for action in reaction.actions:
            self.carry_out(action)
        return reaction.refused

    def carry_out(self, action: object) -> None:
        if isinstance(action, StartProcesses):
            assert not self.living, "two trainings at once"
            assert action.attempt == self.attempt + 1
            assert action.run == self.accepted[-1]
            self.attempt, self.is_gone_told = action.attempt, False
            self.may_save, self.may_fail_to_start = False, True
            self.timer, self.living = None, set(range(action.run.processes))
        elif isinstance(action, Checkpoint):
            assert self.saves
            self.may_save = True
        elif isinstance(action, ArmTimer):
            timer = action.event
            assert isinstance(timer, (CheckpointTimedOut, GraceOver, StillThere))
            self.timer = timer
        elif isinstance(action, Leave):
            assert not self.living
            self.left.append(action.exit_status)
        else:
            assert isinstance(action, (Terminate, Kill))
            self.tell_whether_gone()

    def tell(self, event: News) -> None:
        self.news.append(event)

    def tell_whether_gone(self) -> None:
        if not self.living and not self.is_gone_told:
            self.is_gone_told, self.may_fail_to_start = True, False
            self.tell(Gone(self.attempt))

    # --- the beginning ------------------------------------------------------------------------

    @initialize(beginning=st.sampled_from(BEGINNINGS))
    def something_has_happened_already(self, beginning):
        if beginning == "ready":
            return
        self.a_newer_run_is_declared(rise=1, processes=2)
        self.all_are_started()
        self.news_arrives(1)
        if beginning == "checkpointing":
            self.a_newer_run_is_declared(rise=1, processes=1)
        if beginning in {"exited", "failed"}:
            end = (0, None) if beginning == "exited" else (None, 11)
            self.a_rank_ends(at=0, end=end)
            self.a_rank_ends(at=0, end=end)
            self.news_arrives(3)

    # --- the controller -------------------------------------------------------------------

    def declare(self, target: Target) -> None:
        known = self.accepted[-1].term if self.accepted else Term(-1, -1)
        expected = None
        if self.left or self.machine.is_interrupted:
            expected = Refused.LEAVING
        elif target.term < known:
            expected = Refused.OLDER
        elif target.term > known:
            self.accepted.append(target)
        assert self.happen(Told(target)) is expected

    def newer(self, rise: int) -> Term:
        return Term(self.machine.term.epoch, self.machine.term.generation + rise)

    @rule(rise=st.integers(1, 3), processes=st.integers(1, 3))
    def a_newer_run_is_declared(self, rise, processes):
        term = self.newer(rise)
        self.declare(run(term.generation, epoch=term.epoch, processes=processes))

    @rule(
        rise=st.integers(1, 3),
        checkpoint=st.booleans(),
        leave=st.sampled_from([False] * 9 + [True]),
    )
    def a_newer_stop_is_declared(self, rise, checkpoint, leave):
        term = self.newer(rise)
        self.declare(stop(term.generation, epoch=term.epoch, checkpoint=checkpoint, leave=leave))

    @precondition(lambda self: self.accepted)
    @rule(how=st.sampled_from(["repeated", "old", "contradicting"]), at=st.integers(0, 99))
    def what_was_said_is_said_again(self, how, at):
        before, known = self.machine, self.accepted[-1]
        if how == "repeated":
            self.declare(known)
        elif how == "old":
            self.declare(self.accepted[at % len(self.accepted)])
        else:
            other = run(known.generation, epoch=known.epoch, batch_size=77)
            assert self.happen(Told(other)) in {Refused.CONFLICT, Refused.LEAVING}
        assert self.machine == before

    @precondition(lambda self: self.accepted)
    @rule()
    def a_new_leader_stamps_what_it_finds(self):
        phase, attempt = self.machine.phase, self.machine.attempt
        known = self.accepted[-1]
        self.declare(replace(known, epoch=known.epoch + 1))
        assert (self.machine.phase, self.machine.attempt) == (phase, attempt)

    # Seldom, because little can happen afterwards.
    @precondition(lambda self: self.attempt >= 2)
    @rule()
    def the_container_is_told_to_end(self):
        self.happen(Interrupted())

    # --- the processes --------------------------------------------------------------------

    @precondition(lambda self: self.may_fail_to_start)
    @rule()
    def all_are_started(self):
        self.may_fail_to_start = False
        self.tell(Started(self.attempt))

    @precondition(lambda self: self.may_fail_to_start)
    @rule(started=st.integers(0, 2))
    def a_start_fails_halfway(self, started):
        self.may_fail_to_start = False
        self.living = {rank for rank in self.living if rank < started}
        self.tell(StartFailed(self.attempt, PROBLEM))
        self.tell_whether_gone()

    @precondition(lambda self: self.living & {0, 1, 2})
    @rule(at=st.integers(0, 2), end=st.sampled_from([(0, None), (0, None), (1, None), (None, 11)]))
    def a_rank_ends(self, at, end):
        ranks = sorted(self.living - {LEFTOVER})
        rank = ranks[at % len(ranks)]
        self.living.discard(rank)
        self.tell(RankEnded(self.attempt, rank, *end))
        self.tell_whether_gone()

    @precondition(lambda self: self.living)
    @rule()
    def a_process_leaves_another_behind(self):
        self.living.add(LEFTOVER)

    @precondition(lambda self: LEFTOVER in self.living)
    @rule()
    def what_was_left_behind_ends(self):
        self.living.discard(LEFTOVER)
        self.tell_whether_gone()

    @precondition(lambda self: self.may_save and self.living)
    @rule(works=st.booleans())
    def a_checkpoint_is_answered(self, works):
        self.may_save = False
        attempt = self.attempt
        self.tell(CheckpointDone(attempt) if works else CheckpointFailed(attempt, PROBLEM))

    # --- time and the network -------------------------------------------------------------

    @precondition(lambda self: self.timer)
    @rule()
    def time_passes(self):
        timer, self.timer = self.timer, None
        assert timer is not None
        self.happen(timer)
        self.old_news.append(timer)

    @precondition(lambda self: self.news)
    @rule(how_many=st.integers(1, 3))
    def news_arrives(self, how_many):
        for _ in range(min(how_many, len(self.news))):
            event = self.news.pop(0)
            self.happen(event)
            self.old_news.append(event)

    @precondition(lambda self: any(e.attempt < self.attempt for e in self.old_news))
    @rule(at=st.integers(0, 99))
    def overtaken_news_arrives_again(self, at):
        old = [event for event in self.old_news if event.attempt < self.attempt]
        before = self.machine
        self.happen(old[at % len(old)])
        assert self.machine == before

    # --- the laws -------------------------------------------------------------------------

    @invariant()
    def released_means_that_nothing_lives(self):
        if self.machine.released:
            assert not self.living

    @invariant()
    def what_lives_is_held(self):
        if self.living:
            assert self.machine.run is not None
            assert self.machine.held == self.machine.run.gpus

    @invariant()
    def the_target_is_the_newest_accepted(self):
        assert self.machine.target == (self.accepted[-1] if self.accepted else None)

    def teardown(self) -> None:
        """Once nothing new is declared and the world is fair, the newest target is reached."""
        for _ in range(20):
            self.settle()
        machine, target = self.machine, self.machine.target
        assert not self.news
        if machine.is_leaving:
            assert machine.released
            assert self.left
        elif isinstance(target, Run):
            assert machine.phase in {Phase.RUNNING, Phase.EXITED, Phase.FAILED}
            assert machine.run == target
        else:
            assert machine.released

    def settle(self) -> None:
        while self.news:
            self.happen(self.news.pop(0))
        if self.may_fail_to_start:
            self.all_are_started()
        elif self.machine.phase is Phase.CHECKPOINTING and self.timer is not None:
            self.time_passes()
        elif self.machine.phase is Phase.STOPPING and self.living:
            for rank in sorted(self.living - {LEFTOVER}):
                self.tell(RankEnded(self.attempt, rank, None, 9))
            self.living.clear()
            self.tell_whether_gone()


class WorldThatCannotSave(World):
    saves = False


def play(world: type[World], examples: int) -> None:
    run_state_machine_as_test(
        world,
        settings=settings(
            max_examples=examples,
            stateful_step_count=20,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.mark.parametrize("world", [World, WorldThatCannotSave])
def test_the_laws_hold_whatever_comes(world):
    play(world, 60)


@pytest.mark.slow
def test_the_laws_hold_over_two_thousand_interleavings(capsys):
    SEEN.clear()
    play(World, 1700)
    play(WorldThatCannotSave, 300)
    with capsys.disabled():
        sys.stdout.write(f"\n{matrix()}\n")
    reachable = {(phase, word) for phase in TABLE for word in TABLE[phase]}
    assert reachable - set(SEEN) == set()


def matrix() -> str:
    """Tell how often each word of the table occurred in each phase."""
    columns = [phase.value[:7] for phase in TABLE]
    rows = [f"{'':48}" + "".join(f"{column:>8}" for column in columns)]
    for word in Word:
        cells = ["." if word not in TABLE[phase] else str(SEEN[phase, word]) for phase in TABLE]
        rows.append(f"{word.value:48}" + "".join(f"{cell:>8}" for cell in cells))
    return "\n".join(rows)
