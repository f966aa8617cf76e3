"""
Elects the leader among several operators: with a Lease, and an epoch that only rises.

A Lease alone does not stop a leader that was suspended; the epoch in every allocation and every command does
(law 2). The Lease holds the epoch in ``leaseTransitions``; a new one is also higher than those in the statuses of jobs,
in case the Lease was deleted. But any account that may write the status of a job can write an epoch there, so a
status can raise the epoch by a limited step only.

Clocks of different machines are not compared: a Lease has expired if it was not renewed for its duration while this
process watched it.

A thread of its own renews the Lease over its own connection, so that a long computation never loses it. That thread
would also renew it for an event loop that hangs. So the event loop gives a sign of life every second, and without one
for ``stuck_seconds`` the thread stops: the Lease expires, another operator leads, and this one is fenced if its
event loop runs again. (The liveness probe, which the same event loop answers, makes the kubelet restart it.)
"""

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from dljob.control.situation.ports import MOST_JUMP, Fenced
from dljob.kube import names
from dljob.kube.client import ApiServer, Conflict, NotFound, Rejected, Unreachable
from dljob.kube.documents import JsonObject
from dljob.kube.resources import LEASES

log = logging.getLogger(__name__)


SIGN_OF_LIFE_S: Final = 1.0
RISE_LOOK_S: Final = 0.1
MOST_WITHOUT_LEASE: Final = 2**30
"""The highest epoch of a job that counts without a Lease; half of the maximum in a Lease."""
RISEN: Final = f"{names.GROUP}/epoch-risen-because"
"""The annotation of the Lease with the reason why the epoch rose by more than one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseSettings:
    """How operators elect a leader. Times are in seconds."""

    name: str = "dljob-operator"
    """The name of the Lease."""
    lease_seconds: float = 15.0
    """After this time without a renewal another operator takes over."""
    renew_seconds: float = 2.0
    """How often the leader renews its Lease."""
    give_up_seconds: float = 10.0
    """A leader that could not renew its Lease for this time stops leading; shorter than
    leaseSeconds."""
    look_seconds: float = 2.0
    """How often an operator that does not lead reads the Lease."""
    stuck_seconds: float = 60.0
    """A leader whose event loop has hung for this time stops renewing its Lease."""


class _Rising(NamedTuple):
    """An epoch to rise to, above all that SideCars know, and the reason."""

    epoch: int = 0
    why: str = ""


class OwnThread:
    """
    One run of a coroutine on its own thread and event loop; create it on the event loop that waits for its end.

    It continues while the main event loop is busy, because Python switches between threads every few milliseconds.
    """

    def __init__(self, name: str, activity: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._activity = activity
        self._waiting = asyncio.get_running_loop()
        self.ended: asyncio.Future[None] = self._waiting.create_future()
        """Done when the coroutine has ended, with its exception if it raised one."""
        self._loop = asyncio.new_event_loop()
        self._task: asyncio.Task[None] | None = None
        # A daemon, so that a process that ends by an exception does not wait for it.
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    async def stop(self) -> None:
        """Cancel the coroutine, and wait for its end; its exception is dropped."""
        with contextlib.suppress(RuntimeError):  # Its loop is closed already.
            self._loop.call_soon_threadsafe(self._cancel)
        with contextlib.suppress(Exception, asyncio.CancelledError):
            # Shield the future, because our own cancellation would also cancel it.
            await asyncio.shield(self.ended)

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._task = self._loop.create_task(self._activity())
        error: BaseException | None = None
        try:
            self._loop.run_until_complete(self._task)
        except BaseException as raised:  # noqa: BLE001 - it is handed to the waiting event loop
            error = raised
        finally:
            self._loop.close()
        with contextlib.suppress(RuntimeError):  # The waiting event loop is closed.
            self._waiting.call_soon_threadsafe(self._settle, error)

    def _settle(self, error: BaseException | None) -> None:
        if self.ended.done():
            return
        if error is None:
            self.ended.set_result(None)
        elif isinstance(error, asyncio.CancelledError):
            self.ended.cancel()
        else:
            self.ended.set_exception(error)


class Election:
    def __init__(
        self,
        api: ApiServer,
        namespace: str,
        *,
        identity: str,
        settings: LeaseSettings,
        connect: Callable[[], ApiServer],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``connect`` is called on the thread that renews the Lease."""
        self._api = api
        self._connect = connect
        self._namespace = namespace
        self._identity = identity
        self._settings = settings
        self._clock = clock
        self._lease: JsonObject | None = None
        self._renewed_at = 0.0
        self._turned_at = 0.0
        """The last sign of life of the event loop."""
        self._rising = _Rising()
        self.epoch = 0
        """The epoch in which we lead; 0 while we do not."""

    @property
    def is_leading(self) -> bool:
        """True while the Lease prevents another operator from leading."""
        held_for = self._clock() - self._renewed_at
        return self.epoch > 0 and held_for < self._settings.give_up_seconds

    async def is_overtaken(self) -> bool:
        """Read the Lease from the API server; return true if another operator leads."""
        lease = await self._read(self._api)
        spec = (lease or {}).get("spec") or {}
        is_ours = spec.get("holderIdentity") == self._identity
        return not is_ours or spec.get("leaseTransitions", 0) > self.epoch or not self.is_leading

    async def rise(self, epoch: int, why: str) -> None:
        """
        Go on in a later epoch, once the Lease holds it.

        That is necessary if the Lease was restored from a backup, and SideCars know later epochs.
        """
        # Assign one value, because the thread may read it at any time.
        self._rising = _Rising(epoch, why)
        # If the Lease cannot be renewed, keep() raises, which cancels this task.
        while self.epoch < epoch:
            await asyncio.sleep(min(RISE_LOOK_S, self._settings.renew_seconds))

    async def win(self, latest_named: Callable[[int], int] = lambda _most: 0) -> int:
        """
        Wait until we lead; return the epoch.

        It is later than any epoch of the Lease while we waited: the former leader may go on for a moment if the
        Lease is deleted, and only the epoch distinguishes it. And it is later than ``latest_named``, which
        returns the latest epoch in the statuses of jobs, up to a limit.
        """
        counted, is_known = 0, False
        seen: str | None = None
        seen_at = self._clock()
        while True:
            try:
                lease = await self._read(self._api)
                if not is_known:
                    # Logged only now: before the first read, a deletion of the Lease would hide the epoch.
                    log.info("waits to lead, as %s", self._identity)
                    is_known = True
                mark = None if lease is None else lease["metadata"]["resourceVersion"]
                if mark != seen:
                    seen, seen_at = mark, self._clock()
                spec = (lease or {}).get("spec") or {}
                counted = max(counted, spec.get("leaseTransitions") or 0)
                lasts = float(spec.get("leaseDurationSeconds") or 0)
                if not spec.get("holderIdentity") or self._clock() >= seen_at + lasts:
                    most = MOST_WITHOUT_LEASE if lease is None else counted + MOST_JUMP
                    await self._take(self._api, lease, epoch=1 + max(counted, latest_named(most)))
                    log.info("leads, in epoch %d", self.epoch)
                    return self.epoch
            except Conflict:
                pass  # Another operator was faster.
            except (Rejected, Unreachable) as error:
                # If the answer to our own write was lost, this Lease expires like any other.
                log.warning("cannot read the Lease: %s", error)
            await asyncio.sleep(self._settings.look_seconds)

    async def keep(self) -> None:
        """Renew the Lease for ever; raises :class:`Fenced` when that fails."""
        # Set this before the thread starts, because the thread compares it with the clock.
        self._turned_at = self._clock()
        renewing = OwnThread("dljob-lease", self._renew)
        renewing.start()
        try:
            while not renewing.ended.done():
                self._turned_at = self._clock()
                # wait_for() would cancel the future at each time-out.
                await asyncio.wait({renewing.ended}, timeout=SIGN_OF_LIFE_S)
            renewing.ended.result()
        finally:
            await renewing.stop()

    async def _renew(self) -> None:
        api = self._connect()
        try:
            while True:
                await asyncio.sleep(self._settings.renew_seconds)
                self._insist_on_leading()
                await self._renew_once(api)
        finally:
            await api.close()

    def _insist_on_leading(self) -> None:
        settings = self._settings
        if not self.is_leading:
            raise Fenced(
                f"the Lease {settings.name} could not be renewed for {settings.give_up_seconds:g} s"
            )
        if self._clock() >= self._turned_at + settings.stuck_seconds:
            message = (
                f"the event loop has not turned for {settings.stuck_seconds:g} s, so the Lease"
                f" {settings.name} is not renewed any more"
            )
            # Log here, because the task that waits for the exception hangs.
            log.error("%s", message)
            raise Fenced(message)

    async def _renew_once(self, api: ApiServer) -> None:
        try:
            assert self._lease is not None
            # The time-out leaves time for another attempt.
            async with asyncio.timeout(self._settings.give_up_seconds / 2):
                try:
                    await self._take(api, self._lease, epoch=max(self.epoch, self._rising.epoch))
                except Conflict:
                    await self._insist_on_own_write(api)
        except (Rejected, Unreachable, TimeoutError) as error:
            log.warning("the Lease is not renewed yet: %s", str(error) or "no answer came in time")

    async def _insist_on_own_write(self, api: ApiServer) -> None:
        """Raise :class:`Fenced` if another operator wrote the Lease."""
        lease = await self._read(api)
        spec = (lease or {}).get("spec") or {}
        if spec.get("holderIdentity") != self._identity:
            raise Fenced(f"the Lease belongs to {spec.get('holderIdentity') or 'no operator'}")
        # _renewed_at stays, because it is unknown when that write arrived.
        self._lease = lease

    async def leave(self) -> None:
        """Release the Lease, so that another operator can lead at once."""
        if self._lease is None or not self.epoch:
            return
        # Clear this first, so that nothing here writes once another operator can lead.
        self.epoch = 0
        try:
            try:
                await self._release(self._lease)
            except Conflict:
                # The last renewal may have succeeded although its answer was lost.
                await self._insist_on_own_write(self._api)
                await self._release(self._lease)
        except Fenced:
            return
        except (Rejected, Unreachable) as error:
            log.warning("the Lease could not be released and will expire: %s", error)

    async def _release(self, lease: JsonObject) -> None:
        spec = {**lease["spec"], "holderIdentity": ""}
        await self._api.replace(LEASES, {**lease, "spec": spec}, self._namespace)

    async def _read(self, api: ApiServer) -> JsonObject | None:
        try:
            return await api.get(LEASES, self._settings.name, self._namespace)
        except NotFound:
            return None

    async def _take(self, api: ApiServer, lease: JsonObject | None, *, epoch: int) -> None:
        now, began = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"), self._clock()
        old = (lease or {}).get("spec") or {}
        is_ours = old.get("holderIdentity") == self._identity and self.epoch == epoch
        spec = {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": max(1, round(self._settings.lease_seconds)),
            "acquireTime": old.get("acquireTime") if is_ours else now,
            "renewTime": now,
            "leaseTransitions": epoch,
        }
        if epoch == self._rising.epoch and lease is not None:
            kept = lease["metadata"].get("annotations") or {}
            annotations = {**kept, RISEN: self._rising.why}
            lease = {**lease, "metadata": {**lease["metadata"], "annotations": annotations}}
        if lease is None:
            metadata = {"name": self._settings.name, "namespace": self._namespace}
            document = {
                "apiVersion": LEASES.api_version,
                "kind": LEASES.kind,
                "metadata": metadata,
                "spec": spec,
            }
            self._lease = await api.create(LEASES, document, self._namespace)
        else:
            self._lease = await api.replace(LEASES, {**lease, "spec": spec}, self._namespace)
        # Count from before the request, because its arrival time is unknown.
        self.epoch, self._renewed_at = epoch, began
