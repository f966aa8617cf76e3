"""
Training processes of all kinds of bad manners, run by the tests as real processes.

``python trainers.py TOKEN [manner …]``. TOKEN stands in the command line of everything that comes
of it, which is how the witness finds it whatever else it does. Manners:

fork       starts a child that stays
daemon     starts one that forks twice and so loses its parent
setsid     its children take sessions of their own
clearenv   its children have an empty environment
deaf       everybody ignores SIGTERM, SIGINT and SIGHUP
lone       the first process ends as soon as the others are there
quit=N     it ends with code N (or by signal -N) when everything is set up
save=PATH  on SIGUSR1 it writes a checkpoint there and says so
say=TEXT   says it, again and again, as fast as it is read
bomb       forks and forks
"""

# ruff: noqa: T201 - its output is what it is for
from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path


def wait_for_ever() -> None:
    while True:
        time.sleep(1000)


def be_deaf() -> None:
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(signum, signal.SIG_IGN)


def start_child(token: str, manners: set[str], *, twice: bool, told: int) -> None:
    if os.fork():
        return
    if "setsid" in manners:
        os.setsid()
    if twice and os.fork():
        os._exit(0)
    environment = {} if "clearenv" in manners else dict(os.environ)
    os.set_inheritable(told, True)
    rest = ["deaf"] if "deaf" in manners else []
    command = [sys.executable, "-S", __file__, token, "child", str(told), *rest]
    os.execve(command[0], command, environment)  # noqa: S606


def start_children(token: str, manners: set[str]) -> None:
    """Return when all of them are what they want to be."""
    waited, told = os.pipe()
    count = 0
    for manner in manners & {"fork", "daemon"}:
        start_child(token, manners, twice=manner == "daemon", told=told)
        count += 1
    while count:
        count -= len(os.read(waited, count))


def save(path: str) -> None:
    temporary = Path(path + ".tmp")
    temporary.write_text(str(os.getpid()), encoding="ascii")
    temporary.rename(path)
    print(f"saved {path}", flush=True)


def explode() -> None:
    while True:
        try:
            os.fork()
        except OSError:
            time.sleep(0.001)


def main(token: str, *arguments: str) -> None:
    options = dict(one.partition("=")[::2] for one in arguments)
    manners = set(options)
    if "deaf" in manners:
        be_deaf()
    if arguments[:1] == ("child",):
        os.write(int(arguments[1]), b".")
        wait_for_ever()
    if "save" in options:
        signal.signal(signal.SIGUSR1, lambda *_: save(options["save"]))
    start_children(token, manners)
    print(
        f"ready {token} pid={os.getpid()} gpus={os.environ.get('CUDA_VISIBLE_DEVICES')}", flush=True
    )
    if "quit" in options:
        code = int(options["quit"])
        if code < 0:
            os.kill(os.getpid(), -code)
        sys.exit(code)
    if "lone" in manners:
        return
    if "bomb" in manners:
        explode()
    while "say" in options:
        os.write(1, (options["say"] + "\n").encode())
    wait_for_ever()


if __name__ == "__main__":
    main(*sys.argv[1:])
