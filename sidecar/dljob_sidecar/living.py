"""
The life of a SideCar: from its settings to the end of the training.

Called by ``dljob_sidecar.__main__``. Only this module creates and connects the real parts: the
settings, the parts for processes and GPUs, the agent, and the listeners.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import signal
import sys
import time
import uuid
from collections.abc import Callable

from dljob_sidecar import EXIT_UNAVAILABLE, options
from dljob_sidecar.agent import Agent, limits_of
from dljob_sidecar.assembling import Assembly, LogCannotOpen
from dljob_sidecar.behaviour.events import Interrupted
from dljob_sidecar.behaviour.state import STUCK
from dljob_sidecar.linux import kernel
from dljob_sidecar.processes import keeper, leftovers
from dljob_sidecar.serving.listening import Servers
from dljob_sidecar.settings import Settings
from dljob_wire.messages import Problem

log = logging.getLogger("dljob_sidecar")

EXIT_USAGE = 2

RENEWAL_SECONDS = 5.0

ENDING = (signal.SIGTERM, signal.SIGINT)
PASSED_ON = tuple(set(keeper.FORWARDED) - set(ENDING))

CERTIFICATES = Problem(
    "CertificatesUnreadable",
    "the certificates were renewed and cannot be read; the old ones are still in use",
    "look into the mounted folder: tls.crt, tls.key and ca.crt have to belong together",
)

MOST_LINES = 1000
"""The number of lines that may follow each other without a pause."""
LINES_PER_SECOND = 100 / 3600
"""The rate at which that number recovers: 2,400 lines a day."""
LONGEST_LINE = 4096
"""The longest message in characters; longer ones are cut."""


class LogLimit(logging.Filter):
    """
    Limits the rate of lines in the SideCar's own log.

    A kubelet rotates this log, or ``dljob up`` while it runs; jobs continue without either. Other
    programs can cause lines by refused requests. The first line after a gap has the number of
    dropped lines.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._now = now
        self._left = float(MOST_LINES)
        self._at = now()
        self._left_out = 0

    def filter(self, record: logging.LogRecord) -> bool:
        """Return True if the line is written; shorten it, and add the number of dropped lines."""
        now = self._now()
        self._left = min(MOST_LINES, self._left + (now - self._at) * LINES_PER_SECOND)
        self._at = now
        if self._left < 1.0:
            self._left_out += 1
            return False
        self._left -= 1.0
        message = record.getMessage()[:LONGEST_LINE]
        if self._left_out:
            message += f" (before it {self._left_out} lines were left out, as there were too many)"
            self._left_out = 0
        record.msg, record.args = message, ()
        return True


class CannotBegin(Exception):
    """The SideCar cannot begin; the message goes to the log."""


def run_command() -> int:
    """Run the command line, and return the exit status."""
    logging.basicConfig(
        stream=sys.stderr, level=logging.INFO, format="dljob-sidecar %(levelname)s %(message)s"
    )
    for handler in logging.getLogger().handlers:
        handler.addFilter(LogLimit())
    # Tornado logs each malformed request at length; the SideCar logs one line.
    logging.getLogger("tornado").setLevel(logging.ERROR)
    try:
        settings = options.read(sys.argv[1:], os.environ)
    except options.UsageError as error:
        sys.stderr.write(f"dljob-sidecar: {error}\n")
        return EXIT_USAGE
    return asyncio.run(live(settings))


async def live(settings: Settings) -> int:
    """Run one start of a container; return the exit status of the training."""
    agent = Agent(
        incarnation=uuid.uuid4().hex,
        limits=limits_of(settings.training),
        write_left=functools.partial(_write_left, settings.serving.left),
    )
    servers = Servers(agent, settings.serving)
    try:
        assembly = _gather(settings, agent, servers=servers)
    except CannotBegin as reason:
        log.error("%s", reason)  # noqa: TRY400 - the reason is all there is to say
        await servers.close()
        return EXIT_UNAVAILABLE
    loop = asyncio.get_running_loop()
    for signum in ENDING:
        loop.add_signal_handler(signum, agent.happen, Interrupted())
    for signum in PASSED_ON:
        loop.add_signal_handler(signum, assembly.supervisor.forward, signum)
    # Unblock last, because signals that arrived since the start are delivered in this call.
    keeper.unblock_signals()
    assembly.begin()
    log.info("ready; this start of the container is %s", agent.incarnation)
    # Compiling modules leaves megabytes of free memory behind.
    kernel.give_back_memory()
    renewing = asyncio.ensure_future(_renew(agent, servers))
    status = await agent.left
    renewing.cancel()
    # Close the listeners before the assembly, because their last answers need its facts.
    await servers.close()
    await assembly.finish_output()
    # The last lines of the output may have come after the end of the processes.
    agent.leave_behind()
    assembly.close()
    return status


def _write_left(path: str, text: bytes) -> None:
    """Write in place, because on Kubernetes the file is a mount; its first line counts."""
    flags = os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    if path != options.TERMINATION_LOG:
        flags |= os.O_CREAT
    try:
        opened = os.open(path, flags, 0o600)
        try:
            os.pwrite(opened, text, 0)
            os.ftruncate(opened, len(text))
        finally:
            os.close(opened)
    except FileNotFoundError:
        return  # No kubelet would read it.
    except OSError as error:
        log.warning("how the training ended cannot be written down: %s", error)


def _gather(settings: Settings, agent: Agent, *, servers: Servers) -> Assembly:
    """Take the locks and end the processes of earlier starts before making the parts."""
    # The name distinguishes this SideCar from others that may see the same processes.
    socket = settings.serving.socket and os.path.abspath(settings.serving.socket)  # noqa: PTH100
    name = socket or settings.serving.job_uid
    passed = _be_alone(name, socket, servers=servers)
    try:
        assembly = Assembly(
            settings,
            report=agent.happen,
            changed=agent.changed,
            environment=options.environment_of_training(
                os.environ, settings.serving.progress_socket
            ),
            mark=leftovers.make_mark(name, agent.incarnation),
            passed=passed,
        )
    except LogCannotOpen as error:
        raise CannotBegin(f"LogCannotOpen: {error}; see logFile of --training") from error
    # The listeners are open, but no request is served before live() awaits.
    agent.begin(assembly.supervisor, assembly)
    return assembly


def _be_alone(name: str, socket: str, *, servers: Servers) -> tuple[int, ...]:
    """Lock the name, and return the descriptors that the training processes inherit."""
    try:
        servers.open()
        swept = leftovers.sweep(name)
        passed = (leftovers.hold(f"{socket}.held"),) if socket else ()
    except OSError as error:
        remedy = "see --socket, --listen, --tls and --health"
        raise CannotBegin(f"ListenersCannotOpen: {error}; {remedy}") from error
    except leftovers.Lingering as error:
        raise CannotBegin(f"{STUCK.name}: {error}; {STUCK.remedy}") from error
    if swept:
        log.warning("ended %d processes that an earlier start had left behind", swept)
    return passed


async def _renew(agent: Agent, servers: Servers) -> None:
    while True:
        await asyncio.sleep(RENEWAL_SECONDS)
        servers.renew()
        if servers.has_readable_certificates:
            agent.solve(CERTIFICATES.name)
        else:
            agent.complain(CERTIFICATES)
