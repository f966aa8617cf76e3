"""
Requests a checkpoint of the job and detects its confirmation.

A :class:`Request` is made when the job must stop or must try its checkpoint. It lives until it has
reported its outcome or is cancelled. The machine decides how long to wait.

:mod:`dljob_sidecar.checkpoints.confirming` handles confirmation by file, this module all others.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

from tornado.httpclient import AsyncHTTPClient, HTTPRequest

from dljob_sidecar.checkpoints.checkpoint_files import await_next_stamp, stamp_ns
from dljob_sidecar.checkpoints.confirming import FileWatch, Watch
from dljob_sidecar.linux.family import Process, read_environment, scan
from dljob_sidecar.linux.kernel import send
from dljob_sidecar.linux.spawning import CannotStart, Ended, Reaper, start
from dljob_wire.checkpoints import Checkpoint, Confirmation
from dljob_wire.messages import MOST_GPUS

AGAIN_SHARE = 0.75
"""The share of the time after which a training is asked again."""
UNCONFIRMED = "the training ended before its checkpoint was confirmed"
DONE = "the training ended after its last iteration"
UNREAD = "the training ended, and what it said last, which may confirm its checkpoint, was not read in {:g} s"

LAUNCH = b"TORCHELASTIC_RUN_ID"
"""The variable with torchrun's launch id in each of its processes."""


class Recipients(NamedTuple):
    """The recipients of the signal, or the reason why there are none."""

    pids: tuple[int, ...] = ()
    fault: str = ""


def find_recipients(root: int, signum: signal.Signals, *, to_all: bool) -> Recipients:
    """Return the process itself, or its topmost descendants with a handler."""
    if catches(root, signum):
        return Recipients((root,))
    processes = scan()
    found = _find_below(root, processes, signum=signum)
    if not found:
        return Recipients(fault=f"the training has no handler for {signum.name}")
    late = _find_late(root, processes, found=found, signum=signum)
    if late:
        ranks = ", ".join(sorted(late))
        return Recipients(fault=f"rank {ranks} has no handler for {signum.name}")
    return Recipients(tuple(found if to_all else _leaders(found)))


def catches(pid: int, signum: signal.Signals) -> bool:
    """Return True if the process has a handler; without one the signal would end it or be lost."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    fields = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
    return bool(int(fields.get("SigCgt", "0"), 16) >> (signum - 1) & 1)


def _find_below(
    root: int, processes: Mapping[int, Process], *, signum: signal.Signals
) -> list[int]:
    """Return the topmost descendants that catch the signal."""
    children: dict[int, list[int]] = {}
    for process in processes.values():
        if not process.dead:
            children.setdefault(process.parent, []).append(process.pid)
    found, waiting = [], list(children.get(root, ()))
    while waiting:
        pid = waiting.pop()
        if catches(pid, signum):
            found.append(pid)
        else:
            waiting.extend(children.get(pid, ()))
    return sorted(found)


def _find_late(
    root: int, processes: Mapping[int, Process], *, found: list[int], signum: signal.Signals
) -> set[str]:
    """Return ranks of the same launch without a handler, which would miss a common save."""
    own = _variable(root, LAUNCH)
    parents = {processes[pid].parent for pid in found}
    siblings = [one.pid for one in processes.values() if one.parent in parents and not one.dead]
    launched = [pid for pid in siblings if _variable(pid, LAUNCH) not in ("", own)]
    late = (pid for pid in launched if not catches(pid, signum))
    return {_variable(pid, b"RANK") for pid in late}


def _leaders(found: list[int]) -> list[int]:
    """Return the processes of the lowest rank; all if a rank is unknown."""
    ranks = {pid: _variable(pid, b"RANK") for pid in found}
    if not all(rank.isdigit() for rank in ranks.values()):
        return found
    lowest = min(int(rank) for rank in ranks.values())
    return [pid for pid in found if int(ranks[pid]) == lowest]


def _variable(pid: int, name: bytes) -> str:
    start = name + b"="
    values = (each[len(start) :] for each in read_environment(pid) if each.startswith(start))
    return next(values, b"").decode(errors="replace")


class Asked(Protocol):
    """The interface of a training process that a checkpoint request needs."""

    @property
    def pid(self) -> int: ...

    @property
    def local_rank(self) -> int: ...

    @property
    def ended(self) -> Ended | None: ...


@dataclass(frozen=True)
class LastOutput:
    """The evidence in the output of a training whose processes have ended."""

    is_read: Callable[[], bool] = lambda: True
    """Returns True if the SideCar has read the output to its end."""
    is_counted: bool = False
    """True if the total number of iterations is known."""
    shows_all_done: Callable[[], bool] = lambda: False
    """Returns True if the training reported its last iteration."""


class Request:
    """
    One request for a checkpoint.

    ``report`` is called once with the outcome: the empty string, or the reason why there will be no
    checkpoint. The constructor never calls it.
    """

    period_seconds = 0.1
    settling_seconds = 30.0
    """
    The longest time to read the last lines.

    Only unreadable output takes this long; on a busy machine the matcher may take some seconds.
    """

    def __init__(
        self,
        saving: Checkpoint,
        ranks: Sequence[Asked],
        *,
        environment: Mapping[str, str],
        outputs: tuple[int, int],
        reaper: Reaper,
        watch: Watch,
        output: LastOutput,
        report: Callable[[str], None],
    ) -> None:
        self.is_trial = False
        """True if the training is to continue after the checkpoint."""
        self.is_given_up = False
        """True if the outcome no longer matters, although it may still arrive."""
        self._saving = saving
        self._asked = [one for one in ranks if one.ended is None]
        if not saving.to_all:
            self._asked = self._asked[:1]
        self._environment = environment
        self._outputs = outputs
        self._reaper = reaper
        self._distrust = watch.distrust
        self._output = output
        self._report: Callable[[str], None] | None = report
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._limit: asyncio.TimerHandle | None = None
        # The machine's time-out comes right after this, and would name no reason.
        self._awaits_until = self._loop.time() + saving.timeout_seconds - 2 * self.period_seconds
        self._awaits_handler = False
        """True while no process could be asked, because one has no handler for the signal yet."""
        self._again: asyncio.TimerHandle | None = None
        self.is_settling = False
        """True while the last output of the ended processes is being read."""
        self._calls: list[asyncio.Task[None]] = []
        self._command: int | None = None
        self._files: FileWatch | None = None
        if saving.confirm is Confirmation.FILE:
            self._files = FileWatch(
                saving, watch, ready=self._ask, confirmed=lambda: self._finish("")
            )
            self._files.begin()
        else:
            self._ask_until_possible()

    # --- asking -----------------------------------------------------------------------------

    def _ask_until_possible(self) -> None:
        if self._ask() is None:
            self._timer = self._loop.call_later(self.period_seconds, self._ask_until_possible)

    def _ask(self) -> int | None:
        """
        Ask for the checkpoint; return the earliest time stamp of a file that can answer.

        Return None if the training is not ready yet, so this function has to be called again.
        """
        since_ns = stamp_ns()
        # The id of an ended process may belong to another process.
        self._asked = [one for one in self._asked if one.ended is None]
        if not self._asked:
            self._fail("no training process runs")
        elif self._saving.signal:
            return self._signal(signal.Signals[self._saving.signal])
        elif self._saving.command:
            self._start_command()
        elif self._saving.http:
            self._calls = [self._loop.create_task(self._post(one)) for one in self._asked]
        else:
            self._fail("the job does not say how it saves itself")
        return since_ns

    def _signal(self, signum: signal.Signals) -> int | None:
        # Without a handler the signal would end the process or be lost. A process that was just
        # started installs its handler later, and one that ends takes it back first.
        found = [
            find_recipients(one.pid, signum, to_all=self._saving.to_all) for one in self._asked
        ]
        fault = next((each.fault for each in found if each.fault), "")
        self._awaits_handler = bool(fault)
        if fault and self._loop.time() < self._awaits_until:
            return None
        if fault:
            seconds = self._saving.timeout_seconds
            self._fail(f"{fault}, and has installed none in {seconds:g} s")
            return stamp_ns()
        pids = [pid for each in found for pid in each.pids]
        since_ns = await_next_stamp()
        for pid in pids:
            send(pid, signum)
        # If the kernel ran other processes meanwhile, a stamp of that tick may precede the request.
        sent_ns = stamp_ns()
        after = AGAIN_SHARE * self._saving.timeout_seconds
        self._again = self._loop.call_later(after, self._ask_again, signum)
        return since_ns if sent_ns <= since_ns else sent_ns + 1

    def _ask_again(self, signum: signal.Signals) -> None:
        """Ask once more before a stop, if the training has answered and other files do not rest."""
        # The kill must not tear the second checkpoint, so the first has to have come quickly.
        soon = (1.0 - AGAIN_SHARE) * self._saving.timeout_seconds / 3.0
        if self.is_trial or self._files is None or not self._files.has_answer(within_seconds=soon):
            return
        for one in self._asked:
            if one.ended is None:
                for pid in find_recipients(one.pid, signum, to_all=self._saving.to_all).pids:
                    send(pid, signum)

    def _start_command(self) -> None:
        out, err = self._outputs
        try:
            self._command = start(
                self._saving.command, env=self._environment, stdout=out, stderr=err
            )
        except CannotStart as error:
            self._fail(str(error))
            return

        def hear(ended: Ended) -> None:
            self._command = None
            if ended.code != 0:
                self._fail(f"the checkpoint command ended with {ended}")
            elif self._saving.confirm is Confirmation.EXIT:
                self._finish("")

        self._reaper.watch(self._command, hear)

    async def _post(self, one: Asked) -> None:
        [port, path] = self._saving.hook
        url = f"http://127.0.0.1:{port + one.local_rank}/{path}"
        # The machine's time-out comes first; this one only cleans up.
        limit = self._saving.timeout_seconds + 1
        request = HTTPRequest(
            url, method="POST", body=b"", connect_timeout=limit, request_timeout=limit
        )
        try:
            # Send all at once: ranks that save together answer only after the last is asked.
            await AsyncHTTPClient(max_clients=MOST_GPUS).fetch(request)
        except Exception as error:  # noqa: BLE001 - the job may answer anything, or nothing
            # A call that cancel() ends raises CancelledError, which is no Exception.
            self._fail(f"POST {url}: {error}")

    # --- hearing ----------------------------------------------------------------------------

    def hear_line(self) -> None:
        """Handle a log line that matches the confirmation expression."""
        if self._saving.confirm is Confirmation.LOG:
            self._finish("")

    def hear_end(self) -> None:
        """Handle the end of a training process."""
        ends = [one.ended for one in self._asked]
        if self._report is None or not all(ends) or not ends:
            return
        if self._timer is not None:
            self._timer.cancel()
        signals = [end for end in ends if end is not None and end.signal is not None]
        killed = (
            f"a process that was asked for a checkpoint ended by {signals[0]}" if signals else ""
        )
        if self._files is not None:
            is_well = all(end is not None and end.code == 0 for end in ends)
            self._inspect_finally(self._files, killed, is_well=is_well)
            return
        if killed:
            self._fail(killed)
        elif self._awaits_handler and self._saving.confirm is Confirmation.EXIT:
            self._fail(UNCONFIRMED)
        elif self._saving.confirm is Confirmation.LOG or (
            self._output.is_counted and not self._saving.command
        ):
            self.is_settling = True
            self._await_output(self._loop.time() + self.settling_seconds)
        elif not self._saving.command:
            self._finish("")

    def _await_output(self, limit: float) -> None:
        """Wait until all output has been read; a confirming line ends the wait at once."""
        # Poll, because neither the matcher nor a slow file signals that it has caught up.
        is_read = self._output.is_read()
        if not is_read and self._loop.time() <= limit:
            self._timer = self._loop.call_later(self.period_seconds / 10, self._await_output, limit)
        elif self._saving.confirm is Confirmation.LOG:
            self._fail(UNCONFIRMED if is_read else UNREAD.format(self.settling_seconds))
        else:
            # A training that finished its work did not end because of the request.
            self._finish(DONE if self._output.shows_all_done() else "")

    def _inspect_finally(self, files: FileWatch, killed: str, *, is_well: bool) -> None:
        """Inspect the files once more, because all processes have ended and no file will change."""
        if self.is_settling:
            return
        self.is_settling = True
        self._limit_final_inspection(files)

        def hear(lack: str) -> None:
            if lack:
                self._fail(killed or f"{UNCONFIRMED}: {lack}")
            else:
                self._finish("")

        files.inspect_finally(hear, ended_well=is_well)

    def _limit_final_inspection(self, files: FileWatch) -> None:
        def end() -> None:
            # A copy from memory to disk has its own limit; if it fails, another inspection follows.
            if files.is_securing:
                self._limit_final_inspection(files)
            else:
                self._fail(UNCONFIRMED)

        self._limit = self._loop.call_later(self.settling_seconds, end)

    @property
    def is_securing(self) -> bool:
        return self._files is not None and self._files.is_securing

    # --- ending -----------------------------------------------------------------------------

    def _fail(self, reason: str) -> None:
        self._finish(reason or "unknown")

    def _finish(self, reason: str) -> None:
        # Clear the callback first, so a later outcome of a command or another rank is not reported.
        report, self._report = self._report, None
        self.cancel()
        reason = reason or self._distrust
        if report is not None:
            self._loop.call_soon(report, reason)

    def cancel(self) -> None:
        self._report = None
        self.is_settling = False
        if self._files is not None:
            self._files.cancel()
        for timer in (self._timer, self._limit, self._again):
            if timer is not None:
                timer.cancel()
        # Do not cancel the current call, which ends by itself. A command continues, because it is a
        # process of the job and ends with the others.
        current = asyncio.current_task() if self._calls else None
        for call in self._calls:
            if call is not current:
                call.cancel()
