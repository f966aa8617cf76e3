"""
Knowledge of a SideCar never goes backwards, and includes every GPU that the SideCar may still take.

The SideCar uses its real behaviour table; processes and network are played, so that hypothesis can
lose, delay and reorder messages.
"""

from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from dljob.control.sidecars.contacts import Answer, ContactLog, Ticket
from dljob_sidecar.behaviour.events import CheckpointDone, Gone, RankEnded, Started, Told
from dljob_sidecar.behaviour.machine import Limits, Machine, react
from dljob_wire.messages import (
    Phase,
    Problem,
    Progress,
    Refusal,
    Refused,
    Run,
    State,
    Target,
    Term,
)
from tests.control import scenes
from tests.control.scenes import state_of

FIRST, SECOND = "first-start", "second-start"


run = partial(scenes.run, epoch=1, incarnation=FIRST)
stop = partial(scenes.stop, epoch=1, incarnation=FIRST)


def state(version: int, *, target: Target | None = None, incarnation: str = FIRST, **more: Any):
    term = Term(0, 0) if target is None else target.term
    more = {"phase": Phase.READY, "released": True, **more}
    return State(
        incarnation, version, epoch=term.epoch, generation=term.generation, target=target, **more
    )


def refusal(error: Refused, *, epoch: int = 1, generation: int = 0) -> Refusal:
    return Refusal(error, "because", FIRST, epoch=epoch, generation=generation)


def met(first: State | None = None) -> ContactLog:
    """A log of a SideCar that has answered once."""
    known = ContactLog(now=10.0)
    known.hear(first or state(1), asked=known.ask(), now=11.0)
    return known


def unanswered(known: ContactLog) -> tuple[Run, ...]:
    return known.contact.unanswered


# --- the order of answers ------------------------------------------------------------------


def test_first_answer_makes_it_reachable():
    known = ContactLog(now=10.0)
    assert known.hear(state(1), asked=known.ask(), now=11.0) is Answer.MATERIAL
    contact = known.contact
    assert (contact.reachable, contact.since, contact.first_seen) == (True, 11.0, 11.0)


def test_unversioned_figures_come_only_from_later_questions():
    known = met()
    asked_before = known.ask()
    fresh, old = Progress(iteration=9), Progress(iteration=8)
    assert known.hear(state(1, progress=fresh), asked=known.ask(), now=12.0) is Answer.NOTHING
    assert known.contact.state == state(1, progress=fresh)
    known.hear(state(1, progress=old), asked=asked_before, now=13.0)
    assert known.contact.state == state(1, progress=fresh)


def test_progress_is_distinguished_from_material_news():
    known = met()
    moved = state(2, progress=Progress(iteration=5))
    assert known.hear(moved, asked=known.ask(), now=12.0) is Answer.PROGRESS
    trouble = replace(moved, version=3, problems=(Problem("DiskFull", "no room"),))
    assert known.hear(trouble, asked=known.ask(), now=12.0) is Answer.MATERIAL


def test_late_answer_of_a_former_incarnation_is_ignored():
    known = met(state(7))
    asked_of_the_first = known.ask()
    known.hear(state(1, incarnation=SECOND), asked=known.ask(), now=20.0)
    assert known.hear(state(8), asked=asked_of_the_first, now=21.0) is Answer.UNCLEAR
    assert known.contact.state == state(1, incarnation=SECOND)
    assert known.contact.reachable


def test_silence_lasts_from_first_failure_to_next_answer():
    known = met()
    known.lose("refused", 12.0)
    known.lose("refused again", 13.0)
    contact = known.contact
    assert (contact.reachable, contact.since, contact.problem) == (False, 12.0, "refused again")
    known.hear(state(1), asked=known.ask(), now=14.0)
    contact = known.contact
    assert (contact.reachable, contact.since, contact.problem) == (True, 14.0, "")
    assert contact.first_seen == 11.0


# --- targets ------------------------------------------------------------------------------


def test_run_is_unanswered_until_its_term_is_heard():
    known, target = met(), run(3, 0, 1)
    assert known.declare(target)
    assert unanswered(known) == (target,)
    known.send()
    known.lose("the answer was lost", 12.0)
    assert unanswered(known) == (target,)
    assert known.is_due(target)
    known.hear(state(2, target=target), asked=known.ask(), now=13.0)
    assert unanswered(known) == ()
    assert not known.is_due(target)
    assert known.contact.declared == target


def test_older_or_equal_declaration_changes_nothing():
    known, target = met(), run(3, 0)
    known.declare(target)
    before = known.contact
    for again in (run(3, 0), run(2, 1), stop(2)):
        assert not known.declare(again)
    assert known.contact is before


def test_declaration_for_another_incarnation_is_void():
    known = met()
    assert not known.declare(run(3, 0, incarnation=SECOND))
    assert known.contact.declared is None
    assert not ContactLog(now=1.0).declare(run(3, 0))


def test_target_the_sidecar_already_has_is_not_sent():
    target = run(3, 0)
    known = met(state(5, target=target))
    assert not known.declare(run(3, 0))
    assert known.contact.declared == target


def test_new_incarnation_voids_old_declarations():
    known = met()
    known.declare(run(3, 0, 1))
    known.send()
    known.declare(run(5, 2))
    assert len(unanswered(known)) == 2
    known.hear(state(1, incarnation=SECOND), asked=known.ask(), now=12.0)
    assert known.contact.declared is None
    assert unanswered(known) == ()


def test_unsent_run_cannot_arrive():
    known = met()
    known.declare(run(3, 0, 1))
    known.declare(stop(4))
    assert unanswered(known) == ()


def test_overtaken_runs_do_not_pile_up():
    known = met()
    for generation in range(3, 103, 2):
        known.declare(run(generation, generation % 3))
        known.send()
    assert {told.gpus for told in unanswered(known)} == {("0",), ("1",), ("2",)}
    assert len(known.contact.overtaken) == 3


def test_target_waiting_in_the_sidecar_counts_as_coming():
    waiting = state(
        6,
        target=run(5, 0, 1),
        phase=Phase.CHECKPOINTING,
        released=False,
        held=("0",),
        held_generation=3,
    )
    known = met(waiting)
    assert unanswered(known) == ()
    assert [each.gpus for each in known.contact.coming] == [("0", "1")]
    begun = replace(waiting, version=7, phase=Phase.STARTING, held=("0", "1"), held_generation=5)
    known.hear(begun, asked=known.ask(), now=12.0)
    assert known.contact.coming == ()


# --- refusals ------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [Refused.OTHER_INCARNATION, Refused.LEAVING])
def test_harmless_refusal_drops_the_target_without_a_problem(error):
    known, target = met(), run(3, 0)
    known.declare(target)
    known.refuse(target, refusal(error), 12.0)
    assert known.contact.declared is None
    assert known.contact.problem == ""
    assert known.contact.reachable


@pytest.mark.parametrize("error", [Refused.OLDER, Refused.CONFLICT])
def test_overtaken_target_is_dropped_with_a_problem(error):
    known, target = met(), run(3, 0)
    known.declare(target)
    known.refuse(target, refusal(error, generation=5), 12.0)
    assert known.contact.declared is None
    assert unanswered(known) == ()
    assert error.value in known.contact.problem


def test_retryable_refusal_stays_until_a_newer_declaration():
    for error in (Refused.MALFORMED, Refused.BROKEN, Refused.TOO_LARGE):
        known, target = met(), run(3, 0)
        known.declare(target)
        known.refuse(target, refusal(error), 12.0)
        assert unanswered(known) == (target,), error
        assert known.is_due(target)
        known.hear(state(2), asked=known.ask(), now=13.0)
        assert "epoch 1, generation 3" in known.contact.problem
        known.declare(stop(4))
        assert known.contact.problem == ""


def test_refusal_of_an_old_target_leaves_the_new_one():
    known, old, new = met(), run(3, 0), stop(4)
    known.declare(old)
    known.declare(new)
    known.refuse(old, refusal(Refused.OLDER, generation=4), 12.0)
    assert known.contact.declared == new
    assert known.contact.problem == ""


# --- the laws, over a network that loses, delays and reorders -----------------------------


class Question(NamedTuple):
    ticket: Ticket
    target: Target | None = None


class Reply(NamedTuple):
    question: Question
    said: State | Refused


class Network(RuleBasedStateMachine):
    """A SideCar with its real table, and a network that delivers in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.known = ContactLog(now=0.0)
        self.machines = [Machine("start-0", Limits(saves=True))]
        self.version = 1
        self.generation = 0
        self.questions: list[Question] = []
        self.answers: list[Reply] = []
        self.best = (0, 0)

    @property
    def machine(self) -> Machine:
        return self.machines[-1]

    def happen(self, event: Any) -> Refused | None:
        reaction = react(self.machine, event)
        if reaction.machine != self.machine:
            self.machines[-1] = reaction.machine
            self.version += 1
        return reaction.refused

    def state(self) -> State:
        return state_of(self.machine, self.version)

    @initialize()
    def meet(self):
        self.poll()
        self.answer_question(0)
        self.hear(0)

    # --- the controller

    @rule(gpus=st.sets(st.integers(0, 3)), step=st.integers(1, 2))
    def declare(self, gpus, step):
        self.generation += step
        contact = self.known.contact
        assert contact.state is not None
        incarnation = contact.state.incarnation
        make = run(self.generation, *sorted(gpus), incarnation=incarnation) if gpus else None
        self.known.declare(make or stop(self.generation, incarnation=incarnation))

    @precondition(lambda self: self.declared is not None)
    @rule()
    def send(self):
        assert self.declared is not None
        if self.known.is_due(self.declared):
            self.questions.append(Question(self.known.send(), self.declared))

    @rule()
    def poll(self):
        self.questions.append(Question(self.known.ask()))

    @property
    def declared(self) -> Target | None:
        return self.known.contact.declared

    # --- the network

    @precondition(lambda self: self.questions)
    @rule(at=st.integers(0, 99))
    def answer_question(self, at):
        question = self.questions.pop(at % len(self.questions))
        said: State | Refused | None = None
        if question.target is not None:
            said = self.happen(Told(question.target))
        self.answers.append(Reply(question, said or self.state()))

    @precondition(lambda self: self.answers)
    @rule(at=st.integers(0, 99))
    def hear(self, at):
        answer = self.answers.pop(at % len(self.answers))
        question = answer.question
        if isinstance(answer.said, State):
            self.known.hear(answer.said, asked=question.ticket, now=1.0)
        else:
            assert question.target is not None
            self.known.refuse(question.target, refusal(answer.said), 1.0)

    @precondition(lambda self: self.questions)
    @rule(at=st.integers(0, 99))
    def lose_question(self, at):
        self.questions.pop(at % len(self.questions))
        self.known.lose("lost", 1.0)

    @precondition(lambda self: self.answers)
    @rule(at=st.integers(0, 99))
    def lose_answer(self, at):
        self.answers.pop(at % len(self.answers))
        self.known.lose("lost", 1.0)

    # --- the SideCar

    @rule(made=st.sampled_from([Started, CheckpointDone]))
    def go_on(self, made):
        self.happen(made(self.machine.attempt))

    @precondition(lambda self: self.machine.phase is Phase.STOPPING)
    @rule()
    def end(self):
        self.happen(Gone(self.machine.attempt))

    @precondition(lambda self: self.machine.phase is Phase.RUNNING)
    @rule(code=st.integers(0, 1))
    def rank_ends(self, code):
        self.happen(RankEnded(self.machine.attempt, 0, code))

    @rule()
    def restart(self):
        self.machines.append(Machine(f"start-{len(self.machines)}", Limits(saves=True)))
        self.version = 1

    # --- the laws

    def may_take(self) -> set[str]:
        """Every GPU that it holds, or will hold if the controller sends nothing more."""
        machine = self.machine
        runs = [machine.target] + [
            question.target
            for question in self.questions
            if question.target is not None
            and question.target.incarnation == machine.incarnation
            and question.target.term > machine.term
        ]
        begun = 0 if machine.run is None else machine.run.generation
        gpus = set(machine.held)
        for each in runs:
            if isinstance(each, Run) and each.generation != begun:
                gpus.update(each.gpus)
        return gpus

    @invariant()
    def no_gpu_is_missed_that_it_may_take(self):
        contact = self.known.contact
        if contact.state is not None:
            named = set(contact.state.held).union(*(each.gpus for each in contact.coming))
            assert self.may_take() <= named

    @invariant()
    def nothing_goes_backwards(self):
        known = self.known.contact.state
        if known is not None:
            now = (int(known.incarnation.removeprefix("start-")), known.version)
            assert now >= self.best
            self.best = now

    def teardown(self):
        """After every history, one more answered question brings complete knowledge."""
        self.known.hear(self.state(), asked=self.known.ask(), now=1.0)
        assert self.known.contact.state == self.state()


TestWhateverTheNetworkDoes = Network.TestCase
TestWhateverTheNetworkDoes.settings = settings(max_examples=30)
