"""
The part of a cluster that a user may see, as the API server's access reviews say.

A user who may list DLJobs in a namespace sees its jobs, and one who may list nodes sees all GPUs: the same rights that
``kubectl dljob get`` and ``kubectl dljob gpu list`` need.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from typing import Final

from dljob.core.placement.limits import namespace_of
from dljob.kube import names
from dljob.kube.reviews import Act, Reviews, User

LIST_NODES: Final = Act(verb="list", resource="nodes")


@dataclass(frozen=True, slots=True)
class Rights:
    """The visible part. Users with the same rights share all answers."""

    namespaces: frozenset[str] | None
    """The namespaces whose jobs may be seen; ``None``: all of them, also those that come later."""
    nodes: bool
    """True if GPUs may be seen that no visible job has."""

    @property
    def has_all(self) -> bool:
        return self.namespaces is None and self.nodes

    @property
    def has_none(self) -> bool:
        return self.namespaces is not None and not self.namespaces and not self.nodes

    def shows(self, job: str) -> bool:
        """Return whether a job may be seen, by its name with its namespace."""
        return self.namespaces is None or namespace_of(job) in self.namespaces


def list_jobs_in(namespace: str = "") -> Act:
    return Act(verb="list", group=names.GROUP, resource=names.PLURAL, namespace=namespace)


async def read_rights(
    reviews: Reviews, user: User, *, list_namespaces: Callable[[], Awaitable[Collection[str]]]
) -> Rights:
    """Review the rights of a user; ``list_namespaces`` is called for users without access to all namespaces."""
    nodes, everywhere = await asyncio.gather(
        reviews.allows(user, LIST_NODES), reviews.allows(user, list_jobs_in())
    )
    if everywhere:
        return Rights(None, nodes)
    # Most users may see few of many namespaces; each question is remembered, so that only the first view is slow.
    asked = sorted(set(await list_namespaces()) - {""})
    allowed = await asyncio.gather(*(reviews.allows(user, list_jobs_in(each)) for each in asked))
    seen = (namespace for namespace, is_seen in zip(asked, allowed, strict=True) if is_seen)
    return Rights(frozenset(seen), nodes)


def explain_withheld(rights: Rights) -> str:
    """Return why a user with these rights gets no futures and plans, with the remedy; empty: the user gets them."""
    if rights.has_all:
        return ""
    # The right to list jobs comes first, because most users lack it.
    missing, role = ("nodes", "dljob-gpus-view")
    if rights.namespaces is not None:
        missing, role = ("DLJobs in all namespaces", "view")
    return (
        "futures and plans are made with all jobs and all GPUs, and would reveal some that you may not see, because you may"
        f" not list {missing}; an administrator grants it by a ClusterRoleBinding to the ClusterRole"
        f" {role}"
    )
