"""
Random orders of events with real processes and witnesses: 144 stories from seeds.

Targets are newer, older, repeated or contradictory, leaders change and answers are lost; processes are
killed, ignore SIGTERM, fork twice, change their session and clear their environment; checkpoints hang;
SideCars are killed. Each story must reach the newest target, and *released* must be true.
test_real_matrix.py shows every possible pair of phase and event.
"""

import contextlib
import os
import random
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from dljob_wire.messages import Phase, Run, Term
from tests.sidecar.containers import (
    BOUNDED,
    Container,
    Manner,
    find_sidecar,
    opened,
    run_of,
    stop_of,
    watched,
)
from tests.sidecar.drivers import wait_until
from tests.sidecar.witnesses import find_relatives, find_trainings

pytestmark = pytest.mark.processes

STORIES = 12
"""The number of stories of a test."""
AT_ONCE = 2
"""The number of concurrent containers."""

HASTY = {"checkpoint.graceSeconds": 0.1, "checkpoint.to": "all", "checkpoint.timeoutSeconds": 0.2}
NEVER_SAVED = {
    **HASTY,
    "checkpoint.signal": "SIGCONT",
    "checkpoint.confirm": "file",
    "checkpoint.path": "/nowhere",
}
"""A checkpoint that hangs: the training does not handle that signal."""
SAVED = {
    **HASTY,
    "checkpoint.signal": "SIGUSR1",
    "checkpoint.confirm": "log",
    "checkpoint.confirmLog": "^saved ",
}
SAVES = "save={folder}/checkpoint"
HIDING = ("fork", "daemon", "setsid", "clearenv", "deaf")

MANNERS = {
    "polite": Manner((SAVES,), SAVED),
    "deaf": Manner(("deaf",), NEVER_SAVED),
    "forking twice": Manner(("daemon",), SAVED),
    "leaving its session": Manner(("fork", "setsid"), NEVER_SAVED),
    "clearing its environment": Manner(("fork", "clearenv"), SAVED),
    "hiding": Manner(HIDING, NEVER_SAVED),
    "hiding without namespaces": Manner(HIDING, NEVER_SAVED, python=BOUNDED),
    "leaving others behind": Manner(("fork", "lone"), SAVED),
    "warm": Manner((SAVES,), {**SAVED, "preload": ["json"]}, flags=("-s",)),
    "crashing": Manner(("quit=3",), NEVER_SAVED),
    "short": Manner(("quit=0", "fork"), NEVER_SAVED),
    "missing": Manner(None, NEVER_SAVED),
}
"""The behaviour of the training, and its way to save."""
SHORT = {"crashing", "short", "missing", "leaving others behind"}
"""The manners that end by themselves."""


class Story:
    """The possible events of one container; each move is drawn from a seed."""

    def __init__(self, container: Container, chance: random.Random, *, is_short: bool) -> None:
        self.container = container
        self.chance = chance
        self.is_short = is_short

    def newer(self) -> Term:
        return self.container.newer(self.chance.randint(1, 3))

    def declare_a_run(self) -> None:
        target = run_of(self.newer(), processes=self.chance.randint(1, 3))
        assert self.container.declare(target) == 200

    def declare_a_stop(self) -> None:
        target = stop_of(self.newer(), checkpoint=self.chance.random() < 0.3)
        assert self.container.declare(target) == 200

    def declare_a_burst(self) -> None:
        """Declare several targets while the training is being stopped."""
        self.let_it_train()
        for _ in range(self.chance.randint(2, 4)):
            self.chance.choice([self.declare_a_run, self.declare_a_stop])()

    def declare_unheard(self) -> None:
        self.container.declare_unheard(run_of(self.newer()))

    def declare_as_a_new_leader(self) -> None:
        epoch, generation = self.newer()
        assert self.container.declare(run_of(Term(epoch + 1, generation))) == 200

    def repeat(self) -> None:
        if self.container.accepted is not None:
            assert self.container.declare(self.container.accepted) == 200

    def stamp(self) -> None:
        known = self.container.accepted
        if known is not None:
            assert self.container.declare(replace(known, epoch=known.epoch + 1)) == 200

    def say_what_is_old(self) -> None:
        known = self.container.accepted
        if known is not None:
            epoch, generation = known.term
            assert self.container.declare(run_of(Term(epoch, generation - 1))) == 409
            assert self.container.declare(run_of(Term(epoch - 1, generation + 5))) == 409

    def contradict(self) -> None:
        known = self.container.accepted
        if known is not None:
            assert self.container.declare(run_of(known.term, processes=5)) == 409

    def address_another(self) -> None:
        assert self.container.declare_to("another", run_of(self.newer())) == 409

    def kill_a_process(self) -> None:
        processes = find_trainings(self.container.token)
        if processes:
            kill(self.chance.choice(processes))

    def wait(self) -> None:
        self.container.settle()

    def wait_for_the_end(self) -> None:
        if self.is_short and self.container.accepted is not None:
            self.container.settle()
            self.container.wait_for(lambda state: state.released)

    def let_it_train(self) -> None:
        """Wait until the training listens to signals, which is some time after its start."""
        known = self.container.accepted
        if self.is_short or not isinstance(known, Run):
            return
        ranks = {f"ready {known.generation}.{rank}" for rank in range(known.processes)}

        def is_listening() -> bool:
            is_running = self.container.sidecar.state().phase is Phase.RUNNING
            return ranks <= set(self.container.journal()) or not is_running

        self.container.settle()
        wait_until(is_listening, what="the training")

    def end_the_sidecar(self) -> None:
        how = self.chance.choice(["leave", "interrupt", *["kill it", "kill its keeper"] * 2])
        if self.chance.random() < 0.5:
            self.declare_a_run()
            self.let_it_train()
        keeper = self.container.sidecar.process.pid
        if how == "leave":
            assert self.container.declare(stop_of(self.newer(), leave=True)) == 200
        elif how == "interrupt":
            os.kill(keeper, signal.SIGTERM)
        elif how == "kill it":
            os.kill(find_sidecar(keeper), signal.SIGKILL)
        else:
            os.kill(keeper, signal.SIGKILL)
        self.container.begin_anew()

    def moves(self) -> list[Callable[[], None]]:
        often = [self.declare_a_run, self.declare_a_stop, self.declare_a_burst, self.wait]
        usual = [self.repeat, self.stamp, self.say_what_is_old, self.contradict]
        seldom = [self.declare_unheard, self.declare_as_a_new_leader, self.address_another]
        patient = [self.wait_for_the_end, self.wait_for_the_end, self.let_it_train]
        return [*often, *often, *usual, *seldom, *patient, self.kill_a_process]

    def tell(self) -> None:
        for move in self.chance.choices(self.moves(), k=self.chance.randint(3, 9)):
            move()
        if self.chance.random() < 0.2:
            self.end_the_sidecar()
        self.container.settle()


def kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("manner", MANNERS)
def test_one_sidecar_keeps_the_laws(tmp_path, token, manner):
    def tell(number: int) -> None:
        chance = random.Random(f"{manner} {number}")
        with opened(tmp_path / str(number), f"{token}.{number}.0.", MANNERS[manner]) as container:
            for _ in range(STORIES // AT_ONCE):
                Story(container, chance, is_short=manner in SHORT).tell()

    with watched(token), ThreadPoolExecutor(AT_ONCE) as pool:
        for story in [pool.submit(tell, number) for number in range(AT_ONCE)]:
            story.result(900)
    wait_until(lambda: not find_relatives(token), what="the end of all processes")
