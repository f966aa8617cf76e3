"""
Whether the operator may believe the status of a job.

An account that may write ``dljobs/status`` can write any epoch there, so such an epoch proves nothing by itself.
A leader takes the Lease before it writes its first status. So where a job tells of a later epoch, the Lease decides,
read past all that is remembered: if another operator holds it, this one ends. Otherwise the status of that job is
written over as this operator recorded it last, and every other job goes on. Only where that program has also decided
about the job, this operator reads everything again, because what was decided may have been commanded.

A program may also write a status without a later epoch. Once this leader has written the status of a job, nothing
that another program writes there counts (:meth:`~dloperator.jobs.entries.Jobs.is_foreign`): it is written over.
"""

import logging
import time
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

from dlcontrol.situation.ports import Fenced, NotKept
from dlcore.primitives.once_per_change import OncePerChange
from dlkube.client import Rejected, Unreachable
from dlkube.documents import Json
from dlkube.names import Name
from dlkube.watches.mirror import epoch_of

log = logging.getLogger(__name__)


NOT_CONFIRMED: Final = "EpochNotConfirmed"
"""The reason of the Event of a job whose status tells of a leader that there is not."""
NOT_OURS: Final = "StatusOverwritten"
"""The reason of the Event of a job whose status another program has written."""
_REMEDY: Final = (
    "Find the account that writes it, and take the right to write dljobs/status from it"
)


class Term(NamedTuple):
    """The time in which we lead."""

    epoch: int
    holds: Callable[[], bool]
    """Whether it is sure that no other operator leads yet."""
    is_over: Callable[[], Awaitable[bool]]
    """Whether another one leads by the Lease, as the API server has it now."""
    clock: Callable[[], float] = time.time
    """By which this leader decides."""

    def insist(self) -> None:
        """Raise :class:`Fenced` once another operator may lead."""
        # Asked before each write, so it costs no request: the age of the last renewal decides, and
        # the Lease lasts longer than the age at which this turns false.
        if not self.holds():
            raise Fenced("the Lease could not be renewed in time, so another operator may lead")


class Epochs:
    """One for the life of a leader."""

    def __init__(self, term: Term, *, warn: Callable[[Json, str, str], None]) -> None:
        """``warn`` writes an Event about a job."""
        self._epoch = term.epoch
        self._ask_lease = term.is_over
        self._warn = warn
        self._reported: OncePerChange[Name] = OncePerChange()
        """The uids of jobs whose epoch was reported."""
        self._reported_foreign: OncePerChange[Name] = OncePerChange()
        """The uids of jobs of which it was reported that another program writes their status."""

    def is_later(self, document: Json) -> bool:
        """Whether a job tells of a later leader."""
        return epoch_of(document) > self._epoch

    async def is_over(self) -> bool:
        """Ask the Lease whether another operator leads; raises :class:`NotKept` if it cannot be read."""
        try:
            return await self._ask_lease()
        except (Rejected, Unreachable) as error:
            # An unread Lease neither ends this leader nor lets it write over the doubted status;
            # the next cycle asks again.
            raise NotKept(f"the Lease cannot be read: {error}") from error

    async def insist(self, document: Json) -> None:
        """Raise :class:`Fenced` if a job tells of a later leader and the Lease confirms that there is one."""
        if not self.is_later(document):
            return
        name = Name.of(document)
        if await self.is_over():
            raise Fenced(f"job {name} was decided about in epoch {epoch_of(document)}")
        if self._reported.note(name, document["metadata"]["uid"]):
            message = (
                f"the status says that it is of epoch {epoch_of(document)}, and the Lease is this operator's, in epoch"
                f" {self._epoch}; this operator writes its own epoch over it. {_REMEDY}"
            )
            log.error("job %s: %s", name, message)
            self._warn(document, NOT_CONFIRMED, message)

    def report_foreign(self, document: Json) -> None:
        """Report, once for each job, that another program has written its status."""
        name = Name.of(document)
        if self._reported_foreign.note(name, document["metadata"]["uid"]):
            message = (
                "another program has written the status; this operator goes on with what it has recorded, and"
                f" writes that over it. {_REMEDY}"
            )
            log.error("job %s: %s", name, message)
            self._warn(document, NOT_OURS, message)

    def forget(self, name: Name) -> None:
        """Forget a job that is gone."""
        self._reported.settle(name)
        self._reported_foreign.settle(name)
