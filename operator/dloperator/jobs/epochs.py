"""
Whether an epoch that stands in a job may be believed.

An account that may write ``dljobs/status`` can write any epoch there, so such an epoch proves nothing by itself.
A leader takes the Lease before it writes its first status. So where a job tells of a later epoch, the Lease decides,
read past all that is remembered: if another operator holds it, this one ends. Otherwise the status of that job is
written over as this operator recorded it last, and every other job goes on. Only where that program has also decided
about the job, this operator reads everything again, because what was decided may have been commanded.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from dlcontrol.situation.ports import Fenced, NotKept
from dlcore.primitives.once_per_change import OncePerChange
from dlkube.client import Rejected, Unreachable
from dlkube.mirror import epoch_of
from dlkube.names import Name

log = logging.getLogger(__name__)

Json = Mapping[str, Any]

NOT_CONFIRMED: Final = "EpochNotConfirmed"
"""The reason of the Event of a job whose status tells of a leader that there is not."""


class Epochs:
    """One for the life of a leader."""

    def __init__(
        self,
        epoch: int,
        is_over: Callable[[], Awaitable[bool]],
        warn: Callable[[Json, str, str], None],
    ) -> None:
        """Lead in this epoch; ``is_over`` asks the Lease, and ``warn`` writes an Event about a document."""
        self._epoch = epoch
        self._ask_lease = is_over
        self._warn = warn
        self._reported: OncePerChange[Name] = OncePerChange()
        """The uids of jobs whose epoch was reported."""

    def is_later(self, document: Json) -> bool:
        """Whether a job tells of a later leader."""
        return epoch_of(document) > self._epoch

    async def is_over(self) -> bool:
        """Ask the Lease whether another operator leads; raises :class:`NotKept` if it cannot be read."""
        try:
            return await self._ask_lease()
        except (Rejected, Unreachable) as error:
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
                f" {self._epoch}; this operator writes its own epoch over it. Find the account that"
                " writes it, and take the right to write dljobs/status from it"
            )
            log.error("job %s: %s", name, message)
            self._warn(document, NOT_CONFIRMED, message)

    def forget(self, name: Name) -> None:
        """Forget a job that is gone."""
        self._reported.settle(name)
