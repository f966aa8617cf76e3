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
"""Modules that a framework imports at first use: PyTorch 2 loads its compiler with an optimizer."""
MEETING_SECONDS = 0.25
"""The longest time that a rank waits for the first rank to open the rendezvous port."""
MEETING_STEP_SECONDS = 0.005
ELSEWHERE_SECONDS = 0.15
"""The delay of a rank on another node, which cannot see the first rank's port."""


def answer(descriptor: int, **what: object) -> None:
    os.write(descriptor, json.dumps(what).encode() + b"\n")


def preload(names: list[str]) -> list[str]:
    """Import the modules; return the failed ones with the reason."""
    faults = []
    for name in names:
        try:
            importlib.import_module(name)
        except Exception as error:  # noqa: BLE001, PERF203 - a module of the user may raise anything
            faults.append(f"{name}: {type(error).__name__}: {error}")
    return faults


def read_order(descriptor: int) -> Any:
    """Wait for the order; return None if the SideCar has ended."""
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
    """Let the SideCar request stack traces from a training that hangs."""
    try:
        import faulthandler  # noqa: PLC0415 - a build of Python may lack it

        faulthandler.register(int(os.environ["DLJOB_STACKS_SIGNAL"]), file=2, all_threads=True)
    except (ImportError, AttributeError, KeyError, ValueError, OSError, RuntimeError):
        # Without the signal, only the kernel's view of the process is available.
        return


def await_first_rank(environment: Mapping[str, str]) -> None:
    """
    Delay until the first rank listens, if PyTorch's ranks meet at a port on this node.

    Warm ranks are ready within milliseconds. A rank that finds the port closed retries only after a
    full second, so a quarter of a second of waiting pays off. This function reads the kernel's
    table, because a first rank that counts its peers would count a test connection as a peer.
    """
    port = environment.get("MASTER_PORT", "")
    if "DLJOB_JOINS" in environment:
        return  # The others train already, and meet it elsewhere.
    if port.isdigit() and environment.get("NODE_RANK", "0") != "0":
        time.sleep(ELSEWHERE_SECONDS)
        return
    is_beside = environment.get("NODE_RANK") == "0" and environment.get("RANK", "0") != "0"
    end = time.monotonic() + MEETING_SECONDS
    while is_beside and port.isdigit() and not is_open(int(port)) and time.monotonic() < end:
        time.sleep(MEETING_STEP_SECONDS)


def is_open(port: int) -> bool:
    """Return True if a process of this machine or container listens at this port."""
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

    :func:`runpy.run_path` would set ``__file__`` and ``sys.argv[0]`` to the same text, but an
    interpreter makes only ``__file__`` absolute. Folders and archives are rare, and only runpy can
    run them.
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
    # Copy the environment first, because imported modules may change it.
    environment = dict(os.environ)
    faults = preload(sys.argv[5:])
    # Import modules that frameworks import later, if they exist in the installed version.
    for name, later in LATER.items():
        if name in sys.modules and not faults:
            with contextlib.suppress(Exception):
                importlib.import_module(later)
    answer(answers, ready=not faults, faults=faults)
    order = read_order(orders)
    if faults or order is None:
        return
    os.close(orders)
    # The output of the imports was discarded; from here on the output is the training's.
    os.dup2(out, 1)
    os.dup2(err, 2)
    for descriptor in {out, err} - {1, 2}:
        os.close(descriptor)
    answer(answers, running=True)
    os.close(answers)
    become(order, environment, path=path)


if __name__ == "__main__":
    main()
