"""
The epochs in the statuses of jobs, which the Lease has to confirm.

An account that may write ``dljobs/status`` can write any epoch there, so such an epoch proves nothing by itself.
A leader takes the Lease before it writes its first status. So where a status names a later epoch, the operator reads
the Lease from the API server: if another operator holds it, this one exits. Otherwise it overwrites the status with
its own record, and other jobs are not affected. If the other program has also decided about the job, this operator
reads everything again, because the decision may have been commanded.

Once this leader has written the status of a job, it also overwrites a status that another program writes there without a
later epoch (:meth:`~dljob.operator.jobs.entries.Jobs.is_foreign`).
"""

import logging
import time
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

from dljob.control.situation.ports import Fenced, NotKept
from dljob.core.primitives.once_per_change import OncePerChange
from dljob.kube.client import Rejected, Unreachable
from dljob.kube.documents import Json
from dljob.kube.names import Name
from dljob.kube.watches.mirror import epoch_of

log = logging.getLogger(__name__)


NOT_CONFIRMED: Final = "EpochNotConfirmed"
"""The reason of the Event about a status whose epoch the Lease does not confirm."""
NOT_OURS: Final = "StatusOverwritten"
"""The reason of the Event about a status that another program has written."""
_REMEDY: Final = (
    "Find the account that writes it, and take the right to write dljobs/status from it"
)


class Term(NamedTuple):
    """The term of this leader."""

    epoch: int
    holds: Callable[[], bool]
    """Returns true while no other operator can lead."""
    is_over: Callable[[], Awaitable[bool]]
    """Reads the Lease from the API server; true if another operator leads."""
    clock: Callable[[], float] = time.time
    """The clock of this leader's decisions."""

    def insist(self) -> None:
        """Raise :class:`Fenced` once another operator may lead."""
        # Called before each write, so it makes no request: the age of the last renewal decides, and
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
        """By the uids of jobs."""
        self._reported_foreign: OncePerChange[Name] = OncePerChange()

    def is_later(self, document: Json) -> bool:
        """True if a status names a later epoch."""
        return epoch_of(document) > self._epoch

    async def is_over(self) -> bool:
        """Ask the Lease whether another operator leads; raises :class:`NotKept` if it cannot be read."""
        try:
            return await self._ask_lease()
        except (Rejected, Unreachable) as error:
            # Without the Lease this leader neither exits nor overwrites the doubted status; the next
            # cycle reads it again.
            raise NotKept(f"the Lease cannot be read: {error}") from error

    async def insist(self, document: Json) -> None:
        """Raise :class:`Fenced` if a status names a later epoch and the Lease confirms another leader."""
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
                "another program has written the status; this operator continues with its own record, and"
                f" overwrites the status. {_REMEDY}"
            )
            log.error("job %s: %s", name, message)
            self._warn(document, NOT_OURS, message)

    def forget(self, name: Name) -> None:
        """Forget a job that is gone."""
        self._reported.settle(name)
        self._reported_foreign.settle(name)
