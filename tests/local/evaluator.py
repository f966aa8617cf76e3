"""
A training that evaluates after its last step, and exports its result once. Runs without the project.

``evaluator.py FOLDER JOURNAL ITERATIONS SECONDS [EVERY]``. It saves itself when a step sees that SIGUSR1 asked for it, reports each
EVERY steps, and evaluates for so many seconds, in which it answers no signal. The journal says ``begins N``, ``evaluates`` and
``done``; the export fails where there is one already.
"""

import json
import os
import pathlib
import signal
import sys
import time

FOLDER, JOURNAL, ITERATIONS, SECONDS = sys.argv[1:5]
EVERY = int(sys.argv[5]) if len(sys.argv) > 5 else 1
CHECKPOINT = pathlib.Path(FOLDER) / "state.json"
WANTED: list[bool] = []


def save(iteration):
    fresh = CHECKPOINT.with_name("state.json.tmp")
    fresh.write_text(json.dumps({"iteration": iteration}))
    fresh.rename(CHECKPOINT)


def main():
    signal.signal(signal.SIGUSR1, lambda *_: WANTED.append(True))
    journal = os.open(JOURNAL, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    iteration = json.loads(CHECKPOINT.read_text())["iteration"] if CHECKPOINT.exists() else 0
    os.write(journal, f"begins {iteration}\n".encode())
    while iteration < int(ITERATIONS):
        time.sleep(0.02)
        iteration += 1
        if iteration % EVERY == 0:
            os.write(1, f"step {iteration}\n".encode())
        if WANTED:
            WANTED.clear()
            save(iteration)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.write(journal, b"evaluates\n")
    for _ in range(int(float(SECONDS) * 10)):
        time.sleep(0.1)
    os.close(os.open(f"{JOURNAL}.export", os.O_WRONLY | os.O_CREAT | os.O_EXCL))
    os.write(journal, b"done\n")


main()
