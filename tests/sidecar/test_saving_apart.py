"""Containers of one job that all wait for a checkpoint which a process in one of them writes."""

from __future__ import annotations

import sys
import time
from itertools import pairwise

import pytest

from dlsidecar.checkpoints.recognizing.shapes import UNKNOWN_SECONDS
from dlwire.messages import Peer, Phase, Run, Saving
from tests.sidecar.drivers import wait_until

pytestmark = pytest.mark.processes

PART_BYTES = 1_000_000
PARTS = 4
GAP_SECONDS = 0.3
"""Between two parts of the file: more than a file has to rest that is known to be whole."""
MOST_CHECKPOINTS = 8
MOST_TRIES = 3

SAVER = f"""
import os, signal, sys, time
folder, notes, asked = sys.argv[1], sys.argv[2], []
def note(what):
    open(os.path.join(notes, what), "w").close()
def note_time():
    with open(os.path.join(notes, "times"), "a") as times:
        print(time.monotonic(), file=times)
rank = int(os.environ["DLJOB_RANK"])
signal.signal(signal.SIGUSR1, lambda *_: asked.append(1))
step = len([name for name in os.listdir(folder) if name.startswith("step-")])
note("ready-%d" % rank)
while True:
    time.sleep(0.01)
    if not asked:
        continue
    asked.clear()
    note("asked-%d" % rank)
    step += 1
    # Both containers know what was there before anything is written.
    while len([name for name in os.listdir(notes) if name.startswith("asked-")]) < 2:
        time.sleep(0.01)
    if rank == 0:
        note_time()
        with open(os.path.join(folder, "step-%d" % step), "wb") as file:
            for part in range({PARTS}):
                time.sleep({GAP_SECONDS} if part else 0.0)
                note_time()
                file.write(b"x" * {PART_BYTES})
                file.flush()
                note_time()
"""


@pytest.fixture
def begin(start, token, tmp_path):
    """Begin two containers of one job; return them, and the folders of its checkpoints and of what its processes note."""

    def begin_job(name):
        folder, notes = tmp_path / f"{name}-checkpoints", tmp_path / f"{name}-notes"
        folder.mkdir()
        notes.mkdir()
        script = tmp_path / "train.py"
        script.write_text(SAVER)
        command = (sys.executable, "-S", str(script), str(folder), str(notes), token)
        options = (
            *("--checkpoint-signal=SIGUSR1", "--checkpoint-to=all", "--checkpoint-confirm=file"),
            *(f"--checkpoint-path={folder}", "--checkpoint-files=step-*"),
            *("--checkpoint-complete=settled", "--checkpoint-seconds=60"),
        )
        names = (f"{name}-first", f"{name}-second")
        both = [start(command=command, name=each, options=options) for each in names]
        for one in both:
            one.wait_ready()
        return both, folder, notes

    return begin_job


def change(containers, generation):
    """Let the job start and save itself; yield what each container says of that, and the bytes that are saved then."""
    both, folder, notes = containers
    for note in notes.iterdir():
        note.unlink()
    for rank, one in enumerate(both):
        one.declare(
            Run(
                epoch=1,
                generation=generation,
                incarnation=one.incarnation,
                gpus=("0",),
                rank_offset=rank,
                world_size=len(both),
                peers=(Peer("localhost", 1),) * len(both),
                rendezvous_port=20000 + generation,
            )
        )
    for rank in range(2):
        wait_until((notes / f"ready-{rank}").exists, what="the handler of the signal")
    for one in both:
        one.wait_for(lambda s: s.phase is Phase.RUNNING and s.held_generation == generation)
        one.stop(generation + 1)
    # The second first, which sees nothing of the process that writes.
    for one in reversed(both):
        found = one.wait_for(lambda s: s.released).change
        yield found, sum(each.stat().st_size for each in folder.iterdir() if "step-" in each.name)


def read_times(notes):
    """Read when the last checkpoint was begun, and before and after each part of it."""
    return [float(line) for line in (notes / "times").read_text().split()]


def save_again_and_again(containers):
    """
    Return how long each checkpoint rested before one of the containers believed it, until two after the first were believed soon.

    None where a busy machine has stopped the writer for as long as files have to rest: it looks like one that is done then.
    """
    rests = []
    for number in range(1, MOST_CHECKPOINTS + 1):
        told = list(change(containers, 2 * number))
        times = read_times(containers[2])
        if len(times) <= 2 * PARTS:
            # It was stopped so long that it has ended before it went on.
            times.append(time.monotonic())
        if max(later - earlier for earlier, later in pairwise(times)) > UNKNOWN_SECONDS / 2:
            return None
        for found, size in told:
            assert (found.saving, size) == (Saving.CONFIRMED, number * PARTS * PART_BYTES), found
        rests.append(min(found.checkpoint_seconds for found, _ in told) - (times[-1] - times[0]))
        if count_soon(rests) == 2:
            break
    return rests


def count_soon(rests):
    # The first checkpoint tells what the later ones look like.
    return sum(rest < UNKNOWN_SECONDS for rest in rests[1:])


def test_a_container_without_the_first_process_waits_for_a_whole_checkpoint_and_no_longer(begin):
    for number in range(MOST_TRIES):
        rests = save_again_and_again(begin(f"job-{number}"))
        if rests is not None:
            assert count_soon(rests) == 2, rests
            return
    pytest.skip("this machine stops the writer again and again")
