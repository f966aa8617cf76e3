"""
A training for :mod:`tests.local.histories`, whose checkpoint works or does not. Runs without the project.

``saver.py MANNER FOLDER JOURNAL ITERATIONS``. The journal says ``begins N`` for each start, with the
iteration that it goes on at, ``at N`` with each iteration, and ``done``.

good: saves all it has done. none: has no handler. torn: writes the first of two files and stops there.
elsewhere: saves itself in another folder. ends: saves itself and ends. freezes: saves itself and hangs.
"""

import json
import os
import pathlib
import signal
import sys
import time

MANNER, FOLDER, JOURNAL, ITERATIONS = sys.argv[1:5]
# With checkpoints in memory it is the environment that names their folder.
CHECKPOINT = (
    pathlib.Path(os.environ["DLJOB_CHECKPOINT_DIR"] if FOLDER == "-" else FOLDER) / "state.json"
)
PATIENCE_S, STEP_S = 10.0, 0.1
"""
A training that has saved itself waits for its end this long, so that no step after it is lost; in
steps, because a machine that stands still must not use all of it up at once.
"""
WANTED: list[bool] = []


def load():
    try:
        return json.loads(CHECKPOINT.read_text())["iteration"]
    except (OSError, ValueError, KeyError):
        return 0


def save(iteration):
    place = CHECKPOINT
    if MANNER == "elsewhere":
        place = CHECKPOINT.parent.parent / "elsewhere.json"
    text = json.dumps({"iteration": iteration, "weights": "0" * 4000})
    if MANNER == "torn":
        CHECKPOINT.with_name("state.json.tmp").write_text(text[:2000])
        return
    place.with_name(f"{place.name}.tmp").write_text(text)
    place.with_name(f"{place.name}.tmp").rename(place)


def main():
    if MANNER != "none":
        signal.signal(signal.SIGUSR1, lambda *_: WANTED.append(True))
    journal = os.open(JOURNAL, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    iteration = load()
    os.write(journal, f"begins {iteration}\n".encode())
    pause = 0.02 / len(os.environ["CUDA_VISIBLE_DEVICES"].split(","))
    while iteration < int(ITERATIONS):
        time.sleep(pause)
        iteration += 1
        os.write(journal, f"at {iteration}\n".encode())
        os.write(1, f"step {iteration}\n".encode())
        if WANTED:
            WANTED.clear()
            save(iteration)
            if MANNER == "ends":
                return
            if MANNER == "freezes":
                time.sleep(1e6)
            for _ in range(round(PATIENCE_S / STEP_S)):
                time.sleep(STEP_S)
    os.write(journal, b"done\n")


main()
