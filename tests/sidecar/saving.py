"""
A training of :mod:`tests.sidecar.test_saving_together`, with ``dljob.training`` alone.

``python -m tests.sidecar.saving TOKEN [exit]``: each rank appends the steps of its saves to its own file.
With ``exit`` it also handles SIGTERM, and ends after it saved.
"""

import os
import signal
import sys
import time

from dljob import training

LIMIT = 1_000_000


def main(_token: str, way: str = "") -> None:
    folder, rank = training.folder(), os.environ["DLJOB_RANK"]
    if way == "exit":
        training.listen(signal.SIGTERM)
    former = sorted(folder.glob("step-*"), key=lambda path: int(path.name[5:]))
    first = int(former[-1].name[5:]) + 1 if former else 1
    for step in range(first, LIMIT):
        time.sleep(0.002)
        training.report(step)
        if training.should_save(step):
            with (folder / f"saves-{rank}.txt").open("a") as saves:
                saves.write(f"{step}\n")
            save(step)
            if way == "exit":
                sys.exit(0)


def wait_for_all(step: int) -> None:
    """The barrier of a framework before the last file of a checkpoint."""
    files = [training.folder() / f"saves-{rank}.txt" for rank in range(training.world_size())]
    while not all(each.exists() and f"{step}\n" in each.read_text() for each in files):
        time.sleep(0.001)


def save(step: int) -> None:
    if training.is_leader():
        wait_for_all(step)
        path = training.folder() / f"step-{step}"
        path.mkdir()
        (path / "weights").write_text(str(step))
        training.mark_complete(path)


if __name__ == "__main__":
    main(*sys.argv[1:])
