"""
Badly behaved trainings, run by the tests as real processes.

``python trainers.py TOKEN [manner …]``. Every descendant has TOKEN in its command line, by which
the witness finds it. Manners:

fork       starts a child that stays
daemon     starts a child that forks twice and so loses its parent
setsid     its children start their own sessions
clearenv   its children have an empty environment
deaf       all processes ignore SIGTERM, SIGINT and SIGHUP
lone       the first process ends as soon as the others run
quit=N     it ends with code N (or by signal -N) when everything is set up
save=PATH  on SIGUSR1 it writes a checkpoint there and prints a line
leave      on SIGUSR1 it ends with code 0
hang       on SIGUSR1 it only writes a line into its journal
story=DIR  it keeps a journal in DIR, and locks a file there for its GPU, as its descendants do
obey       it obeys the orders in its pipe in DIR: ``exit N``, or ``say TEXT``
say=TEXT   prints TEXT without end

If the lock is held already, two trainings have one GPU: the journal records that.
"""

# ruff: noqa: T201 - its output is what it is for
# ruff: noqa: PTH104, PTH108, PTH110, PTH123 - pathlib would be most of what a start costs
from __future__ import annotations

import fcntl
import os
import signal
import sys
import time

PORT = 20000
"""The port of generation 0, as the tests number them."""
COMM = "training"


def wait_for_ever() -> None:
    while True:
        time.sleep(1000)


def be_deaf() -> None:
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(signum, signal.SIG_IGN)


class Story:
    """A journal of a training's identity and actions; without a folder it does nothing."""

    def __init__(self, folder: str) -> None:
        generation = int(os.environ.get("MASTER_PORT", PORT)) - PORT
        self.folder = folder
        self.name = f"{generation}.{os.environ.get('RANK', '0')}"

    def tell(self, word: str) -> None:
        if not self.folder:
            return
        journal = os.open(f"{self.folder}/journal", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(journal, f"{word} {self.name}\n".encode())
        os.close(journal)

    def take_gpu(self) -> None:
        """Lock the GPU while this process or a descendant lives."""
        if not self.folder:
            return
        gpus = os.environ["CUDA_VISIBLE_DEVICES"].split(",")
        gpu = gpus[int(os.environ.get("LOCAL_RANK", "0")) % len(gpus)]
        lock = os.open(f"{self.folder}/gpu-{gpu}", os.O_RDWR | os.O_CREAT)
        os.set_inheritable(lock, True)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self.tell("TWICE")

    def obey(self) -> None:
        pipe = f"{self.folder}/orders-{self.name}"
        if os.path.exists(pipe):
            os.unlink(pipe)
        os.mkfifo(pipe)
        # Open for both, so that there always is a writer.
        with os.fdopen(os.open(pipe, os.O_RDWR), encoding="ascii") as orders:
            self.tell("ready")
            for order in orders:
                word, _, rest = order.strip().partition(" ")
                if word == "exit":
                    os._exit(int(rest))
                print(rest, flush=True)


def start_child(token: str, manners: set[str], *, twice: bool, ready: int) -> None:
    if os.fork():
        return
    if "setsid" in manners:
        os.setsid()
    if twice and os.fork():
        os._exit(0)
    environment = {} if "clearenv" in manners else dict(os.environ)
    os.set_inheritable(ready, True)
    rest = ["deaf"] if "deaf" in manners else []
    command = [sys.executable, "-S", __file__, token, "child", str(ready), *rest]
    os.execve(command[0], command, environment)  # noqa: S606


def start_children(token: str, manners: set[str]) -> None:
    """Return when all children are set up, or dead."""
    waited, ready = os.pipe()
    for manner in manners & {"fork", "daemon"}:
        start_child(token, manners, twice=manner == "daemon", ready=ready)
    os.close(ready)
    while os.read(waited, 1):
        pass
    os.close(waited)


def save(path: str) -> None:
    with open(path + ".tmp", "w") as temporary:
        temporary.write(str(os.getpid()))
    os.rename(path + ".tmp", path)
    print(f"saved {path}", flush=True)


def listen(options: dict[str, str], story: Story) -> None:
    """Install the handlers of the manners."""
    if "save" in options:
        signal.signal(signal.SIGUSR1, lambda *_: save(options["save"]))
    if "leave" in options:
        signal.signal(signal.SIGUSR1, lambda *_: os._exit(0))
    if "hang" in options:
        signal.signal(signal.SIGUSR1, lambda *_: story.tell("asked"))


def end(code: int) -> None:
    if code < 0:
        os.kill(os.getpid(), -code)
    sys.exit(code)


def main(token: str, *arguments: str) -> None:
    options = dict(one.partition("=")[::2] for one in arguments)
    manners = set(options)
    if "deaf" in manners:
        be_deaf()
    if arguments[:1] == ("child",):
        os.close(int(arguments[1]))
        wait_for_ever()
    # The command line of a warm interpreter lacks this script; the witness finds it by its name.
    with open("/proc/self/comm", "w") as comm:
        comm.write(COMM)
    story = Story(options.get("story", ""))
    story.take_gpu()
    listen(options, story)
    start_children(token, manners)
    gpus = os.environ.get("CUDA_VISIBLE_DEVICES")
    print(f"ready {token} pid={os.getpid()} gpus={gpus}", flush=True)
    if "obey" in manners:
        story.obey()
    story.tell("ready")
    if "quit" in options:
        end(int(options["quit"]))
    if "lone" in manners:
        return
    while "say" in options:
        os.write(1, (options["say"] + "\n").encode())
    wait_for_ever()


if __name__ == "__main__":
    main(*sys.argv[1:])
