"""
Restores the Secret of the CA if it is deleted while an operator leads.

Otherwise the next operator would make a new CA, which no running SideCar trusts: the operator could not reach
any job until its pods are replaced. An administrator who wants a new CA (because the key may have leaked)
deletes the Secret while no operator runs, or rotates it step by step while jobs train
(:mod:`dljob.operator.authority_rotation`). A Secret that holds another CA is left alone and logged; the next start of
an operator uses it.
"""

import asyncio
import logging
from typing import Final

from dljob.control.situation.ports import Fenced
from dljob.core.primitives.once_per_change import OncePerChange
from dljob.kube.certificates import CA_SECRET, Authority, WrongAuthority, authority_document
from dljob.kube.client import ApiServer, Conflict, NotFound, Rejected, Unreachable
from dljob.kube.resources import SECRETS

log = logging.getLogger(__name__)

CHECK_S: Final = 5.0
"""The guard polls, because a watch would need the right to list Secrets."""


class Guard:
    """One for the life of a leader; :meth:`run` is its own task."""

    def __init__(self, api: ApiServer, authority: Authority, *, namespace: str) -> None:
        self._api = api
        self._authority = authority
        self._namespace = namespace
        self._complaints: OncePerChange[str] = OncePerChange()

    async def run(self) -> None:
        """Check the Secret for ever."""
        while True:
            await asyncio.sleep(CHECK_S)
            try:
                await self.check()
            except (Rejected, Unreachable) as error:
                self._complain(f"cannot watch the Secret {CA_SECRET}: {error}")

    async def check(self) -> None:
        """Check once; raises :class:`~dljob.control.situation.ports.Fenced` during a rotation."""
        try:
            secret = await self._api.get(SECRETS, CA_SECRET, self._namespace)
        except NotFound:
            await self._put_back()
            return
        try:
            found = Authority.read(secret.get("data") or {})
        except WrongAuthority as error:
            self._complain(str(error))
            return
        if found.is_same(self._authority):
            self._complaints.settle(CA_SECRET)
        elif found.believes(self._authority) or self._authority.believes(found):
            # A step of a rotation: the next leader reads it, and can still reach all jobs.
            raise Fenced(f"the Secret {CA_SECRET} holds another CA, which the next leader uses")
        else:
            self._complain(
                f"the Secret {CA_SECRET} holds another CA now; it is used after a restart of this"
                " operator, and running jobs are reached again once their pods are replaced"
            )

    async def _put_back(self) -> None:
        document = authority_document(self._authority, self._namespace)
        try:
            await self._api.create(SECRETS, document, self._namespace)
        except Conflict:
            return  # Another program was faster.
        log.warning(
            "the Secret %s was deleted and is restored, because no SideCar trusts a new CA; for"
            " a new CA, delete it while no operator runs",
            CA_SECRET,
        )

    def _complain(self, complaint: str) -> None:
        if self._complaints.note(CA_SECRET, complaint):
            log.error("%s", complaint)
