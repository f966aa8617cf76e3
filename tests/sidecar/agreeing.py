"""
A rank of :mod:`tests.sidecar.test_training_module` that takes steps and writes down its saves.

``python -m tests.sidecar.agreeing FOLDER SAVES [torch]`` ends after SAVES saves; the file named by
its rank gets a line for each.
"""

import os
import random
import sys
import time
from pathlib import Path

from dljob import training

LIMIT = 1_000_000


def main(folder: str, saves: str, way: str = "") -> None:
    rank = int(os.environ["RANK"])
    chance = random.Random(rank)
    if way == "torch":
        from torch import distributed

        distributed.init_process_group("gloo")
    left = int(saves)
    training.folder(folder)
    with Path(folder, str(rank)).open("w", buffering=1) as journal:
        journal.write("ready\n")
        for step in range(1, LIMIT):
            # The ranks are not synchronised, and each has its own pace.
            time.sleep(chance.choice((0.0, 0.0002, 0.001)))
            if training.should_save(step):
                journal.write(f"{step}\n")
                left -= 1
            if not left:
                return


if __name__ == "__main__":
    main(*sys.argv[1:])
