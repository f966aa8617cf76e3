"""
A Python interpreter that has imported what the job names and waits to become its training.

This file is not imported by the SideCar: its source is handed to ``python -c`` of the job's own
interpreter, of any version, with the job's own packages. It imports nothing of ours.

It gets four descriptors, and then the names of the modules to import: where orders come from,
where answers go, and the output and the error output of the training. It answers ``ready``, waits
for one line of JSON, answers ``running``, and is the training from there on: environment and
arguments as a cold start would have had them, and the script as ``__main__``.
"""

from __future__ import annotations

import builtins
import contextlib
import importlib
import json
import os
import runpy
import sys
import time
import types
import zipfile
from collections.abc import Mapping
from importlib.machinery import SourceFileLoader
from typing import Any

LATER = {"torch": "torch._dynamo"}
"""Modules that a framework imports at its first use: PyTorch 2 loads its compiler with the first optimizer, in seconds."""
MEETING_SECONDS = 0.25
"""The longest time for which a rank waits until the first one opens the place where they meet."""
MEETING_STEP_SECONDS = 0.005
ELSEWHERE_SECONDS = 0.15
"""How far a rank on another node stays behind the first one, whose port it cannot see in a table."""


def answer(descriptor: int, **what: object) -> None:
    os.write(descriptor, json.dumps(what).encode() + b"\n")


def preload(names: list[str]) -> list[str]:
    """Return what cannot be imported, with the reason."""
    faults = []
    for name in names:
        try:
            importlib.import_module(name)
        except Exception as error:  # noqa: BLE001, PERF203 - a module of the user may raise anything
            faults.append(f"{name}: {type(error).__name__}: {error}")
    return faults


def preload_later() -> None:
    """Import the modules that imported frameworks leave for later; a version without such a module needs none."""
    for name, later in LATER.items():
        if name in sys.modules:
            with contextlib.suppress(Exception):
                importlib.import_module(later)


def read_order(descriptor: int) -> Any:
    """Wait for the one order; None means that the SideCar is gone."""
    data = b""
    while not data.endswith(b"\n"):
        block = os.read(descriptor, 65536)
        if not block:
            return None
        data += block
    return json.loads(data.decode())


def become(order: Any, environment: dict[str, str], *, path: list[str]) -> None:
    """Run the script or the module as if the interpreter had just been started with it."""
    os.environ.clear()
    os.environ.update(environment)
    os.environ.update(order["environment"])
    tell_stacks_when_asked()
    await_first_rank(os.environ)
    sys.path[:] = path
    sys.argv[:] = order["arguments"]
    if order["module"]:
        sys.path.insert(0, os.getcwd())  # noqa: PTH109
        runpy.run_module(order["module"], run_name="__main__", alter_sys=True)
    else:
        run_script(sys.argv[0])


def tell_stacks_when_asked() -> None:
    """Let the SideCar ask where each thread is, should the training hang."""
    try:
        import faulthandler  # noqa: PLC0415 - a build of Python may lack it

        faulthandler.register(int(os.environ["DLJOB_STACKS_SIGNAL"]), file=2, all_threads=True)
    except (ImportError, AttributeError, KeyError, ValueError, OSError, RuntimeError):
        # Then the kernel alone says what it does.
        return


def await_first_rank(environment: Mapping[str, str]) -> None:
    """
    Let the first rank be ahead, where PyTorch's ranks meet at a port that it opens on this node.

    Warm ranks are all there within milliseconds. One that finds the port closed tries again after a
    whole second, so that a quarter of it is well spent even if the port opens later: all ranks run the same
    program, and this one is behind the first from here on. The kernel's table is read, because a first rank that
    counts its peers would take a connection that tries the port for one of them.
    """
    port = environment.get("MASTER_PORT", "")
    if port.isdigit() and environment.get("NODE_RANK", "0") != "0":
        time.sleep(ELSEWHERE_SECONDS)
        return
    is_beside = environment.get("NODE_RANK") == "0" and environment.get("RANK", "0") != "0"
    end = time.monotonic() + MEETING_SECONDS
    while is_beside and port.isdigit() and not is_open(int(port)) and time.monotonic() < end:
        time.sleep(MEETING_STEP_SECONDS)


def is_open(port: int) -> bool:
    """Return whether a process of this machine or container listens at this port."""
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            with open(table) as file:  # noqa: PTH123
                lines = [line.split() for line in file]
        except OSError:
            continue
        if any(words[1].endswith(f":{port:04X}") and words[3] == "0A" for words in lines[1:]):
            return True
    return False


def run_script(script: str) -> None:
    """
    Run a file as ``__main__``.

    Not by :func:`runpy.run_path`, which sets ``__file__`` and ``sys.argv[0]`` to the same text: an
    interpreter makes the one absolute and leaves the other alone. Folders and archives are rare,
    and runpy alone knows how to run them.
    """
    if not os.path.isfile(script) or zipfile.is_zipfile(script):  # noqa: PTH113
        runpy.run_path(script, run_name="__main__")
        return
    sys.path.insert(0, os.path.dirname(os.path.realpath(script)))  # noqa: PTH120
    path = os.path.abspath(script) if sys.version_info >= (3, 9) else script  # noqa: PTH100
    module = types.ModuleType("__main__")
    module.__file__ = path
    module.__dict__["__builtins__"] = builtins
    module.__loader__ = SourceFileLoader("__main__", path)
    sys.modules["__main__"] = module
    with open(path, "rb") as file:  # noqa: PTH123
        code = compile(file.read(), path, "exec")
    exec(code, module.__dict__)  # noqa: S102 - it is the user's own script


def main() -> None:
    orders, answers, out, err = (int(text) for text in sys.argv[1:5])
    # With -c the first entry is the current folder, which a script would not have.
    path = [entry for entry in sys.path if entry]
    # As we got it: what is imported may change it.
    environment = dict(os.environ)
    faults = preload(sys.argv[5:])
    if not faults:
        preload_later()
    answer(answers, ready=not faults, faults=faults)
    order = read_order(orders)
    if faults or order is None:
        return
    os.close(orders)
    # The output of the imports is discarded; from now on it is the training's.
    os.dup2(out, 1)
    os.dup2(err, 2)
    for descriptor in {out, err} - {1, 2}:
        os.close(descriptor)
    answer(answers, running=True)
    os.close(answers)
    become(order, environment, path=path)


if __name__ == "__main__":
    main()
