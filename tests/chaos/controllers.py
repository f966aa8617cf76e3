"""
A ``dljob up`` that may die at many points; it is prepared once, and forked for each new life.

Standard input has orders, one line of JSON each; the answer is the controller's pid, and later its exit
status. A fork costs a hundredth of starting Python and importing everything.

It has the same parts as ``dljob up``. The deadly points are around them: methods that write and
command, the statements of both databases, and the start of processes.
"""

import asyncio
import json
import logging
import os
import signal
import sqlite3
import subprocess
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from dljob.control.pacing import Pace
from dljob.control.scheduling import Options
from dljob.control.sidecars import dialing
from dljob.control.sidecars.dialing import DialSettings
from dljob.control.situation.rules import Rules
from dljob.core import policies
from dljob.core.model import Mechanism
from dljob.local.pods import sidecar_processes
from dljob.local.running import Running
from dljob.local.setup import Setup
from dljob.sim.clusters import build_packed, parse_cluster
from dljob_sidecar.linux.kernel import die_with_parent
from dljob_wire.messages import Run, Target
from tests.chaos.points import Fuse, Plan
from tests.chaos.processes import log_file

WITHOUT_NAMESPACE = (
    "import dljob_sidecar.processes.keeper as keeping; keeping.is_isolation_possible = lambda: False;"
    " from dljob_sidecar.__main__ import main; raise SystemExit(main())"
)
"""A SideCar without the right to make namespaces: its keeper is only a subreaper."""

CHANGES = ("UPDATE", "INSERT", "DELETE", "CREATE", "COMMIT", "BEGIN")


@dataclass(frozen=True)
class Order:
    """The orders for one controller: its world, and the points at which it may die."""

    state: str
    deaths: str
    """The file in which a controller names the point of its death."""
    plan: Plan
    cluster: str = "2x4"
    policy: str = "adaptive"
    mechanism: str = "in-place"
    has_namespaces: bool = True
    patience: float = 1.0

    @classmethod
    def read(cls, line: str) -> "Order":
        fields = json.loads(line)
        return cls(**{**fields, "plan": Plan(**fields["plan"])})


def serve() -> None:
    """Fork a controller for each line, and report its end."""
    die_with_parent(signal.SIGKILL)
    for line in sys.stdin:
        order = Order.read(line)
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            os._exit(live(order))
        print(child, flush=True)  # noqa: T201 - the answer
        status = os.waitpid(child, 0)[1]
        print(os.waitstatus_to_exitcode(status), flush=True)  # noqa: T201


def live(order: Order) -> int:
    die_with_parent(signal.SIGKILL)
    null = os.open(os.devnull, os.O_RDWR)
    log = os.open(f"{order.state}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for ours, number in ((null, 0), (log, 1), (log, 2)):
        os.dup2(ours, number)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(process)d %(name)s %(message)s")
    try:
        asyncio.run(_control(order))
    except BaseException:  # noqa: BLE001 - after any error, two processes would go on from here
        traceback.print_exc()
        return 70
    return 0


async def _control(order: Order) -> None:
    fuse = Fuse(order.plan, Path(order.deaths))
    _guard_databases(fuse)
    _guard_processes(fuse, has_namespaces=order.has_namespaces)
    guard_wire(fuse)
    nodes = build_packed(parse_cluster(order.cluster))
    fuse.passes("at its start")
    running = Running(
        Setup(
            state=Path(order.state),
            nodes=lambda: nodes,
            virtual_gpus=True,
            options=Options(
                policy=policies.make(order.policy),
                mechanism=Mechanism(order.mechanism),
                rules=Rules(
                    retry_seconds=0.2,
                    longest_retry_seconds=1.0,
                    lost_seconds=10.0 * order.patience,
                    obey_seconds=20.0 * order.patience,
                    initialize_seconds=30.0 * order.patience,
                ),
                pace=Pace(period_seconds=2.0, look_seconds=0.5, rest_share=1.0),
            ),
            sample_seconds=1.0,
            dialing=DialSettings(
                wait_seconds=2.0, longest_pause_seconds=0.5, refused_pause_seconds=0.5
            ),
        )
    )
    fuse.passes("when all is made")
    machine: Any = running.machine
    fuse.guard_async(machine, "observe", "record", "launch", "remove", "forget", "tell")
    fuse.guard(machine, "rendezvous_port")
    fuse.guard(running.pods, "kill")
    fuse.guard(running.registry, "submit_all", "change", "cancel")
    fuse.guard(running.memory, "note", "note_news")
    _guard_declarations(fuse, running.sidecars)
    fuse.guard_async(running.server, "open")
    await running.run()
    await running.close()


def _guard_declarations(fuse: Fuse, sidecars: Any) -> None:
    declare = sidecars.declare

    def declare_guarded(key: object, target: Target) -> None:
        fuse.around(f"declare {_name(target)}", declare)(key, target)

    sidecars.declare = declare_guarded
    fuse.guard(sidecars, "follow", "forget", where="sidecars.")


def _name(target: Target) -> str:
    if isinstance(target, Run):
        return "Run"
    return "Stop and leave" if target.leave else "Stop"


def guard_wire(fuse: Fuse) -> None:
    """Guard the send of a declaration, and the arrival of its answer."""
    send = dialing.Line.declare

    async def send_guarded(line: dialing.Line, target: Target) -> Any:
        return await fuse.around_async(f"send {_name(target)}", send)(line, target)

    dialing.Line.declare = send_guarded  # type: ignore[assignment,method-assign]


def _guard_databases(fuse: Fuse) -> None:
    """Guard each statement that changes data, so also within transactions."""
    connect = sqlite3.connect

    def connect_guarded(database: Any, *args: Any, **named: Any) -> sqlite3.Connection:
        connection: sqlite3.Connection = connect(database, *args, **named)
        name = Path(str(database).partition("?")[0]).name

        def look(statement: str) -> None:
            words = statement.split()
            if words and words[0].upper() in CHANGES:
                what = " ".join(words[:3] if words[0] == "INSERT" else words[:2])
                fuse.passes(f"{name}: before {what}")

        connection.set_trace_callback(look)
        return connection

    sqlite3.connect = connect_guarded  # type: ignore[assignment]


def _guard_processes(fuse: Fuse, *, has_namespaces: bool) -> None:
    """Guard the start of a SideCar, and tell its training its node."""

    def start(command: list[str], *, env: dict[str, str], **named: Any) -> Any:
        place = command.index("run")
        if not has_namespaces:
            command = [*command[: place - 1], "-c", WITHOUT_NAMESPACE, *command[place:]]
        return fuse.around("starting a SideCar", subprocess.Popen)(
            command, env={**env, "CHAOS_NODE": log_file(" ".join(command)).stem}, **named
        )

    changed: Any = sidecar_processes
    assert changed.subprocess is subprocess
    changed.subprocess = SimpleNamespace(Popen=start, DEVNULL=subprocess.DEVNULL)


if __name__ == "__main__":
    serve()
