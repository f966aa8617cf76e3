"""
A training for :mod:`tests.local.test_ending_in_changes`, whose end takes time. Runs without the project.

``evaluator.py MANNER CHECKPOINT JOURNAL ITERATIONS EACH``. The handler of its checkpoint only sets a flag, which the
loop reads after each step. The journal says ``begins N`` for each start, with the iteration that it goes on at, ``saves N``,
``evaluates``, ``asked`` when something asks it to save itself or to end during the evaluation, and ``done``.

saves: saves itself when asked, and trains on. evaluates: the same; after its last step it evaluates until something asks
it to save itself or to end, which it ignores, and a moment longer; at most for a few seconds. unread: waits before its last step until it is
asked to save itself, and does not read that. exits: saves itself when asked, and ends with status 0. closes: the same, and evaluates.
"""

import json
import os
import pathlib
import signal
import sys
import time

MANNER, CHECKPOINT, JOURNAL = sys.argv[1], pathlib.Path(sys.argv[2]), sys.argv[3]
ITERATIONS, EACH = int(sys.argv[4]), int(sys.argv[5])
"""EACH: a line of the log is about this number of steps."""
STEP_S, TICK_S = 0.01, 0.05
MOST_S = 4.0
"""An evaluation of which nothing is asked ends after this."""
MOMENT_S = 1.0
WAITS_S = 60.0
"""For how long ``unread`` waits to be asked; no law of ours."""
WANTED: list[int] = []


def load():
    return json.loads(CHECKPOINT.read_text())["iteration"] if CHECKPOINT.exists() else 0


def save(iteration):
    part = CHECKPOINT.with_name("part")
    part.write_text(json.dumps({"iteration": iteration}))
    part.rename(CHECKPOINT)


def wait(most):
    until = time.monotonic() + most
    while not WANTED and time.monotonic() < until:
        time.sleep(TICK_S)
    return bool(WANTED)


def train(iteration, say):
    while iteration < ITERATIONS:
        time.sleep(STEP_S)
        if MANNER == "unread" and iteration == ITERATIONS - 1:
            wait(WAITS_S)
        iteration += 1
        if iteration % EACH == 0:
            os.write(1, f"step {iteration}\n".encode())
        if WANTED and MANNER != "unread":
            WANTED.clear()
            save(iteration)
            say(f"saves {iteration}")
            if MANNER in ("exits", "closes"):
                return False
    return True


def evaluate(say):
    signal.signal(signal.SIGTERM, lambda number, _: WANTED.append(number))
    WANTED.clear()
    say("evaluates")
    if wait(MOST_S):
        say("asked")
        # A sleep goes on after a signal.
        time.sleep(MOMENT_S)


def main():
    signal.signal(signal.SIGUSR1, lambda number, _: WANTED.append(number))
    journal = os.open(JOURNAL, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def say(line):
        os.write(journal, f"{line}\n".encode())

    iteration = load()
    say(f"begins {iteration}")
    if train(iteration, say):
        if MANNER in ("evaluates", "closes"):
            evaluate(say)
        # Python gives signals back their default action before it exits: one that comes then would end a training that is done.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1, signal.SIGTERM})
        say("done")


main()
