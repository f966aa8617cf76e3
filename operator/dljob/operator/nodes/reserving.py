"""
Creates and deletes placeholder pods, and knows the nodes whose GPUs they reserve.

:mod:`dljob.operator.nodes.placeholders` decides which placeholders should exist. A node is given back only after a
whole cycle in which the scheduler did not use it, because a decision of the cycle before may not be recorded yet.
"""

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from dljob.core.documents.rules.podrules import TRAINER
from dljob.core.primitives.once_per_change import OncePerChange
from dljob.kube.client import ApiServer, Conflict, Rejected, Unreachable
from dljob.kube.documents import Json
from dljob.kube.names import Name
from dljob.kube.resources import PODS
from dljob.kube.watches.mirror import Mirrors
from dljob.operator.jobs.trusted_jobs import TrustedJobs
from dljob.operator.nodes import ownership, placeholders
from dljob.operator.nodes.nodes import Pool, is_in_pool, read_supply
from dljob.operator.nodes.ownership import OwnershipRules
from dljob.operator.nodes.placeholders import (
    AT_ONCE_S,
    MOST_A_NODE,
    Drop,
    Make,
    PlaceholderSettings,
    PoolMode,
    Supply,
)
from dljob.operator.proofs import is_gone, proof_of_end, role_of

log = logging.getLogger(__name__)


REST_S: Final = 10.0
"""The time before an ended placeholder is replaced, so that one that always ends causes no busy loop."""


class Reservations:
    """One for the life of a leader."""

    def __init__(
        self,
        api: ApiServer,
        mirrors: Mirrors,
        *,
        jobs: TrustedJobs,
        namespace: str,
        pool: Pool,
        rules: OwnershipRules,
        ask_for_cleanup: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._api = api
        self._mirrors = mirrors
        self._jobs = jobs
        self._namespace = namespace
        self._pool = pool
        self._rules = rules
        self._clock = clock
        self._offered: tuple[frozenset[str], frozenset[str]] = (frozenset(), frozenset())
        """The nodes that jobs could use in the last cycle but one, and in the last cycle."""
        self._reported: OncePerChange[str] = OncePerChange()
        """The reasons why nodes get no jobs, by name."""
        self._dropped: set[str] = set()
        self._ended_at: dict[str, float] = {}
        """When placeholders were first seen to have ended, by their uids."""
        self._ask_for_cleanup = ask_for_cleanup

    # --- the nodes

    def why_not(self, node: Json) -> str:
        """Return the reason why no job can get the GPUs of a node; empty if jobs can."""
        reaching = self._mirrors.others.reaching
        if self._pool.mode is not PoolMode.RESERVE:
            return ownership.why_not_dedicated(node, reaching, rules=self._rules)
        supply = read_supply(node)
        held = self._placeholders_of(supply.node)
        return placeholders.why_not_ours(supply, held) or ownership.why_not_reserved(
            node, reaching, rules=self._rules
        )

    def is_taken(self, node: Json) -> bool:
        """True if other pods have GPUs of a node, so that no job may stay there."""
        reaching, is_reserved = self._mirrors.others.reaching, False
        if self._pool.mode is PoolMode.RESERVE:
            is_reserved = True
            if placeholders.is_lost(self._placeholders_of(node["metadata"]["name"])):
                return True
        why = ownership.why_used(node, reaching, rules=self._rules, by_requests=not is_reserved)
        return bool(why)

    def note(self, reasons: Mapping[str, str]) -> None:
        """Take in the nodes of this cycle, each with the reason why its GPUs are not ours."""
        self._reported.keep(reasons.keys())
        for node, why in reasons.items():
            if why:
                if self._reported.note(node, why):
                    log.warning("node %s gets no jobs: %s", node, why)
            elif self._reported.settle(node):
                log.info("the GPUs of node %s are given to jobs from now on", node)
        older, before = self._offered
        offered = frozenset(node for node, why in reasons.items() if not why)
        self._offered = (before, offered)
        # Only now may their placeholders go: in the cycle before, the cleanup still found these
        # nodes busy, and in an idle cluster no other event would start a cleanup.
        if self._pool.mode is PoolMode.RESERVE and older - before - offered:
            self._ask_for_cleanup()

    def _placeholders_of(self, node: str) -> list[Json]:
        names = (placeholders.placeholder_name(node, number) for number in range(MOST_A_NODE))
        found = (self._mirrors.pods.get(Name(self._namespace, name)) for name in names)
        return [pod for pod in found if pod is not None and placeholders.is_placeholder(pod)]

    # --- the placeholders

    async def reconcile(self) -> bool:
        """Create missing placeholders and delete superfluous ones; return true if that is all."""
        pods = {
            name: pod
            for name, pod in self._mirrors.pods.objects.items()
            if name.namespace == self._namespace and placeholders.is_placeholder(pod)
        }
        uids = {pod["metadata"]["uid"] for pod in pods.values()}
        self._dropped &= uids
        self._ended_at = {uid: at for uid, at in self._ended_at.items() if uid in uids}
        supplies = dict(self._iter_wanted())
        busy: frozenset[str] = frozenset()
        # In the other mode placeholders are always superfluous.
        if self._pool.mode is PoolMode.RESERVE and (supplies or pods):
            busy = _find_busy(
                self._mirrors, self._jobs, offered=self._offered[0] | self._offered[1]
            )
        settings = self._pool.placeholder
        is_done = True
        for step in placeholders.next_steps(supplies, pods, busy=busy, settings=settings):
            try:
                is_done &= await self._take(step, pods, settings=settings)
            except (Rejected, Unreachable) as error:
                log.warning("the GPUs of a node cannot be reserved or released: %s", error)
                is_done = False
        return is_done

    def _iter_wanted(self) -> Iterator[tuple[str, Supply]]:
        if self._pool.mode is not PoolMode.RESERVE:
            return
        for node in self._mirrors.nodes.objects.values():
            if is_in_pool(node, self._pool) and not is_gone(node):
                supply = read_supply(node)
                if supply.is_whole:
                    yield supply.node, supply

    async def _take(
        self, step: Make | Drop, pods: Mapping[Name, Json], *, settings: PlaceholderSettings
    ) -> bool:
        match step:
            case Make():
                await self._make(step, settings)
                return True
            case Drop(name, uid, because):
                phase, now = (pods[name].get("status") or {}).get("phase"), self._clock()
                has_ended = phase in ("Succeeded", "Failed")
                if has_ended and now < self._ended_at.setdefault(uid, now) + REST_S:
                    return False
                # Deleted once; until the watch shows its end, each pass finds it again.
                if uid not in self._dropped:
                    log.info("placeholder pod %s is deleted: %s", name, because)
                    await self._api.delete(
                        PODS, name.name, name.namespace, uid=uid, grace_seconds=AT_ONCE_S
                    )
                    self._dropped.add(uid)
                return True

    async def _make(self, step: Make, settings: PlaceholderSettings) -> None:
        document = self._mirrors.nodes.get(Name("", step.node))
        if document is None:
            # Its Node was deleted during the earlier steps.
            return
        pod = placeholders.make_placeholder(
            document["metadata"], step, namespace=self._namespace, settings=settings
        )
        try:
            made = await self._api.create(PODS, pod, self._namespace)
        except Conflict:
            log.info("the placeholder pod of node %s exists already", step.node)
            return
        self._mirrors.pods.show(made, is_ours=True)


def _find_busy(mirrors: Mirrors, jobs: TrustedJobs, *, offered: Iterable[str]) -> frozenset[str]:
    """Find the nodes where jobs have GPUs, or may be given some by a decision under way."""
    busy = set(offered)
    for job in jobs:
        busy |= {booking["node"] for booking in (job.get("status") or {}).get("pods", ())}
    for pod in mirrors.pods.objects.values():
        node = str(pod["spec"].get("nodeName", ""))
        if node and role_of(pod) == TRAINER:
            document = mirrors.nodes.get(Name("", node))
            busy |= set() if proof_of_end(pod, document) else {node}
    return frozenset(busy)
