"""
A process that writes pieces into a store, and confirms each.

Run as ``python -m tests.control.store.writers ADDRESS NAME COUNT``. Piece n is an observation of
speed n, and an entry of the history at n seconds, both under the name of the writer.
"""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Timer

from dljob.core.model import JobId
from dljob.store.store import Store, Ticket, fold_into
from tests.control.store.places import KIND, make_entry, open_patiently, speed_seen

ROOT = Path(__file__).resolve().parents[3]
BEGUN = "begun"


def write_piece(store: Store, name: str, number: int) -> None:
    """Write one piece; a repetition changes nothing."""
    fold_into(store, KIND, observations=[speed_seen(float(number))], ticket=Ticket(name, number))
    store.record([make_entry(name, float(number), name=f"{name}/{number}")])


def count_pieces(store: Store, name: str) -> tuple[int, int]:
    """The number of observations and of entries of a writer in the store."""
    stored = store.profiles().get(KIND)
    tickets = stored.tickets if stored is not None else ()
    observations = max((each.number for each in tickets if each.writer == name), default=0)
    return observations, len(store.history(JobId(name), limit=10_000))


@contextmanager
def writing(address: str, name: str, count: int) -> Iterator[subprocess.Popen[str]]:
    """Run a writing process; kill it at the end."""
    command = [sys.executable, "-m", "tests.control.store.writers", address, name, str(count)]
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env={"PYTHONPATH": f"{ROOT}:{ROOT / 'operator'}:{ROOT / 'sidecar'}"},
        stdout=subprocess.PIPE,
        text=True,
    )
    # The limit for readers of its output.
    end = Timer(240.0, process.kill)
    end.start()
    try:
        yield process
    finally:
        end.cancel()
        process.kill()
        process.wait(timeout=240)
        assert process.stdout is not None
        process.stdout.close()


def main(address: str, name: str, count: int) -> None:
    sys.stdout.write(f"{BEGUN}\n")
    sys.stdout.flush()
    store = open_patiently(address)
    for number in range(1, count + 1):
        write_piece(store, name, number)
        sys.stdout.write(f"{number}\n")
        sys.stdout.flush()
    store.close()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
