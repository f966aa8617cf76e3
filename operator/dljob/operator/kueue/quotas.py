"""
Joins the layers of jobs to the cluster: reads Workloads and flavors for each cycle, and writes what is due.

The loop reads the ceilings at the beginning of a cycle (:meth:`Quotas.read`). The writes follow from the scene after a
cycle, which has the decision and the GPUs that are still held, so they are a task of their own.
"""

import asyncio
import logging
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from dljob.control.judging.checkpoints import is_declared, unsaved_from
from dljob.control.situation.ports import Entry
from dljob.control.situation.scene import Scene
from dljob.control.situation.status import Trust
from dljob.core.model import Ceiling, GpuRef, Job, JobId, NodeName, Phase
from dljob.core.placement.limits import NamespaceLimits, namespace_of
from dljob.core.placement.needs import Needs
from dljob.core.primitives.backoff import Backoff
from dljob.kube import names
from dljob.kube.client import ApiServer, Conflict, NotFound, Rejected, Unreachable
from dljob.kube.documents import Json
from dljob.kube.names import Name
from dljob.kube.resources import PRIORITY_CLASSES, WORKLOADS
from dljob.kube.watches.mirror import Mirrors
from dljob.operator.jobs.entries import job_id, name_of
from dljob.operator.kueue import workloads
from dljob.operator.kueue.layers import (
    Demand,
    Layer,
    Request,
    Wanted,
    find_ceiling,
    find_due,
    split,
)
from dljob.operator.kueue.lending import find_borrowed
from dljob.operator.kueue.workloads import BOOST, CLASS_LABEL, QUEUE_LABEL

log = logging.getLogger(__name__)

LOOK_S: Final = 0.1
MOST_REST: Final = 4.0
"""The pause after a look at all jobs, as a multiple of the time that the look took."""
MOST_AT_ONCE: Final = 16
SUPPOSE_S: Final = 0.5
"""The least time between two suppositions."""
SUPPOSE_REST: Final = 20.0
"""The time between two as a multiple of the time that one takes, which is that of a decision; the loop waits for it."""
LONGEST_RETURN_S: Final = 3600.0
"""The longest time until a layer is asked for again that Kueue has admitted on nodes of no use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KueueSettings:
    """Jobs in the queues of Kueue."""

    enabled: bool = False
    """True if the label kueue.x-k8s.io/queue-name puts a job into a queue of Kueue, whose quota then bounds its GPUs."""
    idle_seconds: float = 300.0
    """After how long without use a job gives quota back."""
    most_boost: int = 0
    """The most that the seconds of training that a job would lose add to its priority in Kueue (annotation
    kueue.x-k8s.io/priority-boost of its lowest layer); 0: nothing."""


@dataclass(slots=True)
class _Use:
    """The GPUs that a job would use."""

    reach: int
    """The job asks Kueue for these."""
    since: float
    """When it would have used them last, or waited for Kueue."""
    why: str = ""
    """Why the job did not start on its quota."""


class _Seen(NamedTuple):
    """A Workload that was read for the job with this uid."""

    document: Json
    uid: str
    layer: Layer
    request: Request


class _Due(NamedTuple):
    """A write that is due."""

    job: Job
    queue: str
    layer: Layer
    wanted: Wanted
    workload: Json
    """Empty where there is none yet."""
    priority: int
    """The priority that the job may have."""
    place: int
    """The number of the layer from the lowest."""
    boost: int | None


def read_demand(entry: Entry, *, queue: str, reach: int = sys.maxsize) -> Demand:
    """Read the demand of a job before a decision; an empty ``queue`` is none."""
    job, status, options = entry.job, entry.status, entry.job.gpus.options
    decided = _decided(entry)
    # Without a checkpoint a job keeps the GPUs that it starts with, until a trial has shown that it changes live.
    is_whole = not is_declared(job.checkpoint) and status.live is not Trust.CONFIRMED
    if is_whole:
        options = (decided if decided in options else job.gpus.requested,)
    return Demand(
        # One that is set aside asks for nothing.
        queue="" if entry.is_wanted_gone or (entry.problem and not decided) else queue,
        options=options,
        is_whole=is_whole,
        reach=reach,
        decided=decided,
    )


def iter_demands(scene: Scene, demands: Mapping[JobId, Demand]) -> Iterator[tuple[JobId, Demand]]:
    """Yield these demands with the GPUs that the jobs may hold, and the quota that the latest decision counted on."""
    held: dict[JobId, set[GpuRef]] = {}
    for ref, jobs in scene.holders.items():
        for job in jobs:
            held.setdefault(job, set()).add(ref)
    for job, demand in demands.items():
        status, ceiling = scene.entries[job].status, scene.ceilings.get(job)
        decided = status.placement.refs() if status.placement is not None else ()
        yield (
            job,
            replace(
                demand,
                used=len(held.get(job, set()).union(decided)),
                known=ceiling.gpus if ceiling is not None and demand.queue else 0,
                trains=status.phase is Phase.RUNNING,
            ),
        )


def find_boost(entry: Entry, scene: Scene, *, most: int) -> int:
    """Return the seconds of training that a stop of a job would lose, as a power of two, so that it changes rarely."""
    job, status = entry.job, entry.status
    since = unsaved_from(job, status, now=scene.now, mechanism=scene.mechanism)
    if job.checkpoint.ends_with_pod:
        since = 0.0
    if since is None or not status.pace:
        return 0
    seconds = min(most, int((status.iteration - since) / status.pace))
    return 1 << seconds.bit_length() >> 1


class Quotas:
    """One for the life of a leader; :meth:`run` is its own task."""

    def __init__(
        self,
        api: ApiServer,
        mirrors: Mirrors,
        *,
        settings: KueueSettings,
        limits: NamespaceLimits,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._api = api
        self._mirrors = mirrors
        self._settings = settings
        self._limits = limits
        self._clock = clock
        self._found: dict[JobId, dict[Layer, tuple[Json, Request]]] = {}
        """The Workloads of each job."""
        self._read: dict[Name, _Seen] = {}
        self._flavors: dict[Name, Json] = {}
        """The flavors when these were read."""
        self._uses: dict[JobId, _Use] = {}
        self._supposed: Scene | None = None
        self._suppose_at = clock()
        self._is_new = True
        self._deleted: set[str] = set()
        """The uids of Workloads whose end the watch has not shown yet."""
        self._refused: Backoff[tuple[JobId, Layer]] = Backoff()
        """The writes that were refused."""
        self._returned: Backoff[tuple[JobId, Layer]] = Backoff(
            first_seconds=settings.idle_seconds, longest_seconds=LONGEST_RETURN_S
        )
        """The layers that Kueue has admitted on nodes of no use."""
        self._narrowed: dict[tuple[Needs | None, frozenset[str], str], Needs] = {}
        self._counted: list[dict[JobId, Ceiling]] = []
        """The quotas that cycles have read since the scene; a cycle under way may give GPUs by them."""

    def note_change(self) -> None:
        """Called after each change of an object."""
        self._is_new = True

    # --- for the loop

    def read(self, entries: Mapping[JobId, Entry]) -> dict[JobId, Ceiling]:
        """Return the quota of each job in a queue."""
        self._read_requests()
        requests = {job: self._requests_of(job) for job in self._found}
        borrowed = find_borrowed(requests, self._mirrors.cluster_queues.objects)
        failed = {
            key[0]: backoff.why(key)
            for backoff in (self._returned, self._refused)
            for key in backoff
        }
        ceilings: dict[JobId, Ceiling] = {}
        for job, entry in entries.items():
            demand = self._demand(entry)
            ceiling = find_ceiling(demand, requests.get(job, {}), borrowed=borrowed.get(job, 0))
            if ceiling is not None:
                why = failed.get(job) or ("" if demand.reach else self._uses[job].why)
                told = f"{ceiling.told}: {why}" if why else ceiling.told
                ceilings[job] = replace(ceiling, told=told)
        if self._counted and self._counted[-1] == ceilings:
            self._counted.pop()  # Only words have changed.
        self._counted.append(ceilings)
        return ceilings

    def narrow(
        self, needs: Mapping[JobId, Needs], ceilings: Mapping[JobId, Ceiling]
    ) -> Mapping[JobId, Needs]:
        """Return the needs of the jobs, of which those with quota may only be on nodes of its flavor."""
        nodes: dict[str, frozenset[str]] = {}
        narrowed = {}
        for job, ceiling in ceilings.items():
            flavor = self._flavor_of(job) if ceiling.gpus else ""
            labels = workloads.node_labels(self._mirrors.flavors.objects, flavor)
            if not labels:
                continue
            if flavor not in nodes:
                nodes[flavor] = frozenset(self._iter_nodes(labels))
            narrowed[job] = self._narrow(needs.get(job), nodes[flavor], flavor=flavor)
        return {**needs, **narrowed} if narrowed else needs

    def _narrow(self, needs: Needs | None, nodes: frozenset[str], *, flavor: str) -> Needs:
        # The same object as long as nothing changes, because a change of its needs is news for a decision.
        found = self._narrowed.get((needs, nodes, flavor))
        if found is None:
            if len(self._narrowed) > len(self._found):
                self._narrowed.clear()
            mine = needs or Needs()
            there = {name.name for name in self._mirrors.nodes.objects}
            allowed = there if mine.nodes is None else mine.nodes
            others = len(allowed - nodes)
            because = ((f"outside flavor {flavor} of Kueue", others),) if others else ()
            found = Needs(mine.amounts, frozenset(allowed & nodes), (*mine.refusals, *because))
            self._narrowed[needs, nodes, flavor] = found
        return found

    def _iter_nodes(self, labels: Mapping[str, str]) -> Iterator[NodeName]:
        for name, node in self._mirrors.nodes.objects.items():
            has = node["metadata"].get("labels") or {}
            if labels.items() <= has.items():
                yield NodeName(name.name)

    def _flavor_of(self, job: JobId) -> str:
        """Return the flavor of a job's lowest layer."""
        found = self._found.get(job, {})
        return found[min(found)][1].flavor if found else ""

    def _read_requests(self) -> None:
        found: dict[JobId, dict[Layer, tuple[Json, Request]]] = {}
        read: dict[Name, _Seen] = {}
        if self._flavors != self._mirrors.flavors.objects:
            self._flavors = dict(self._mirrors.flavors.objects)
            self._read.clear()
        for name, document in self._mirrors.workloads.objects.items():
            metadata = document["metadata"]
            owner = Name(name.namespace, metadata["labels"][names.JOB_LABEL])
            job = self._mirrors.jobs.get(owner)
            is_here = metadata["uid"] not in self._deleted and "deletionTimestamp" not in metadata
            if job is None or not is_here:
                continue  # The garbage collector deletes the Workloads of a job that is gone.
            uid, known = job["metadata"]["uid"], self._read.get(name)
            if known is None or known.document is not document or known.uid != uid:
                layer = workloads.find_layer(document, job)
                if layer is None:
                    continue
                request = workloads.read_request(
                    document, self._mirrors.cluster_queues.objects, self._flavors
                )
                known = _Seen(document, uid, layer, request)
            read[name] = known
            found.setdefault(job_id(owner), {})[known.layer] = known.document, known.request
        self._found, self._read = found, read

    def _requests_of(self, job: JobId) -> dict[Layer, Request]:
        return {layer: request for layer, (_, request) in self._found.get(job, {}).items()}

    def _demand(self, entry: Entry) -> Demand:
        job = entry.job.id
        document, use = self._mirrors.jobs.get(name_of(job)), self._uses.get(job)
        # Read here, because a change of a label makes no new generation of the job.
        labels = ((document or {}).get("metadata") or {}).get("labels") or {}
        reach = use.reach if use is not None else self._find_reach(job)
        return read_demand(entry, queue=labels.get(QUEUE_LABEL, ""), reach=reach)

    def _find_reach(self, job: JobId) -> int:
        """Return the GPUs that a job has asked for, also under an earlier leader; at least one."""
        return max((layer.high for layer in self._found.get(job, ())), default=1)

    # --- for Kueue

    async def run(
        self,
        scene: Callable[[], Scene | None],
        suppose: Callable[[Scene], Mapping[JobId, int]],
    ) -> None:
        """Write what is due, for ever; ``suppose`` returns the GPUs that jobs would get in a decision about a scene."""
        last: Scene | None = None
        pause = LOOK_S
        while True:
            await asyncio.sleep(pause)
            seen = scene()
            if seen is None or (seen is last and not self._is_new):
                continue
            self._is_new, last = False, seen
            began = time.perf_counter()
            try:
                self._reconsider(seen, suppose)
                due = list(self._iter_due(seen))
                # Leave the loop its share of time where thousands of jobs are in queues.
                pause = max(LOOK_S, (time.perf_counter() - began) * MOST_REST)
                turns = asyncio.Semaphore(MOST_AT_ONCE)
                await asyncio.gather(*(self._write(each, turns) for each in due))
            except Exception:
                log.exception("cannot settle with Kueue; the next look reads everything again")

    def _iter_due(self, scene: Scene) -> Iterator[_Due]:
        self._read_requests()
        shown = {each["metadata"]["uid"] for each in self._mirrors.workloads.objects.values()}
        self._deleted &= shown
        demands = ((job, self._demand(entry)) for job, entry in scene.entries.items())
        meant = {job: each for job, each in demands if each.queue or job in self._found}
        ceilings = scene.ceilings
        self._returned.keep(
            {
                (job, layer)
                for job, layer in self._returned
                if job in ceilings and layer.high > ceilings[job].gpus
            }
        )
        stays: set[tuple[JobId, Layer]] = set()
        limits, now = self._limits.granting(scene.priorities), self._clock()
        counted = self._count_on(scene)
        for job, decided in iter_demands(scene, meant):
            entry, found = scene.entries[job], self._found.get(job, {})
            requests = self._requests_of(job)
            most = self._settings.most_boost
            boost = find_boost(entry, scene, most=most) if most else None
            demand = replace(decided, known=max(decided.known, counted[job]), boost=boost)
            allowed = limits.priority_of(namespace_of(job))
            for layer, wanted in find_due(demand, requests).items():
                key = job, layer
                stays.add(key)
                may_ask = wanted is not Wanted.ASKED or self._returned.may_try(key, now)
                if may_ask and self._refused.may_try(key, now):
                    layers = split(demand, requests)
                    place = layers.index(layer) if layer in layers else 0
                    workload, _ = found.get(layer, ({}, None))
                    priority = (
                        entry.job.priority if allowed is None else min(entry.job.priority, allowed)
                    )
                    yield _Due(
                        entry.job, demand.queue, layer, wanted, workload, priority, place, boost
                    )
        # A refusal of a write that is no longer due says nothing.
        self._refused.keep(stays)

    def _count_on(self, scene: Scene) -> Counter[JobId]:
        """Return the quota that this scene and the cycles since then count on."""
        # By identity, because a cycle before this scene may have read equal quotas.
        ended = (place for place, each in enumerate(self._counted) if each is scene.ceilings)
        del self._counted[: next(ended, 0)]
        counted: Counter[JobId] = Counter()
        for each in self._counted:
            counted |= Counter({job: ceiling.gpus for job, ceiling in each.items()})
        return counted

    async def _write(self, due: _Due, turns: asyncio.Semaphore) -> None:
        key = due.job.id, due.layer
        async with turns:
            try:
                if due.wanted is Wanted.ASKED:
                    await self._ask(due)
                elif due.wanted in (Wanted.GONE, Wanted.RETURNED):
                    await self._delete(due.workload)
                else:
                    await self._report(due)
            except (Rejected, Unreachable) as error:
                if due.wanted is not Wanted.ASKED and isinstance(error, Conflict | NotFound):
                    return  # Kueue has written since; the watch shows what.
                told = f"layer {due.layer} is not {due.wanted.value} yet: {error}"
                if self._refused.refuse(key, told, self._clock()):
                    log.warning("job %s in queue %s: %s", due.job.id, due.queue, told)
                self._is_new = True
            except Exception:
                # The writes for other jobs go on.
                log.exception("cannot settle layer %s of job %s", due.layer, due.job.id)
            else:
                self._refused.settle(key)
                if due.wanted is Wanted.RETURNED:
                    told = f"Kueue admits layer {due.layer} on other nodes than the layers below it"
                    self._returned.refuse(key, told, self._clock())

    async def _ask(self, due: _Due) -> None:
        document = self._mirrors.jobs.get(name_of(due.job.id))
        if document is None:
            return
        flavor = self._flavor_of(due.job.id) if due.layer.low else ""
        named = (document["metadata"].get("labels") or {}).get(CLASS_LABEL, "")
        # Kueue lets each user name any class, so no grant of DLJob limits it.
        priority = (
            (await self._api.get(PRIORITY_CLASSES, named))["value"] if named else due.priority
        )
        made = workloads.make_workload(
            document,
            due.layer,
            queue=due.queue,
            priority=workloads.priority_of(priority, due.layer, due.place),
            priority_class=named,
            demand=due.job.gpus,
            node_labels=workloads.node_labels(self._mirrors.flavors.objects, flavor),
        )
        shown = await self._api.create(WORKLOADS, made, namespace_of(due.job.id))
        self._mirrors.workloads.show(shown, is_ours=True)

    async def _delete(self, workload: Json) -> None:
        metadata = workload["metadata"]
        uid = metadata["uid"]
        # Before the request, so that no decision counts on it meanwhile.
        self._deleted.add(uid)
        try:
            await self._api.delete(WORKLOADS, metadata["name"], metadata["namespace"], uid=uid)
        except (Rejected, Unreachable):
            self._deleted.discard(uid)
            raise

    async def _report(self, due: _Due) -> None:
        metadata = due.workload["metadata"]
        # Kueue may have written since, and conditions are written as a whole.
        changed: Json = {"resourceVersion": metadata["resourceVersion"]}
        changes: Json
        if due.wanted is Wanted.BOOSTED:
            changes = {"metadata": {**changed, "annotations": {BOOST: str(due.boost)}}}
        else:
            status = workloads.changed_status(due.workload, due.wanted, self._clock())
            changes = {"metadata": changed, "status": status}
        shown = await self._api.merge(
            WORKLOADS,
            metadata["name"],
            changes=changes,
            namespace=metadata["namespace"],
            sub="status" if "status" in changes else "",
        )
        self._mirrors.workloads.show(shown, is_ours=True)

    # --- quota that is not used

    def _reconsider(self, scene: Scene, suppose: Callable[[Scene], Mapping[JobId, int]]) -> None:
        """Find the GPUs that jobs would use: at once where they are more than a job asks for, and else after a while."""
        now = self._clock()
        self._uses = {job: use for job, use in self._uses.items() if job in scene.ceilings}
        lifted = dict(_iter_lifted(scene))
        would = self._suppose(scene, lifted, suppose)
        for job, ceiling in scene.ceilings.items():
            entry = scene.entries[job]
            least, wanted = entry.job.gpus.options[0], _decided(entry)
            use = self._uses.get(job)
            if use is None:
                use = self._uses[job] = _Use(max(least, wanted, self._find_reach(job)), now)
            if job in lifted:
                if would is None:
                    continue
                wanted = would.get(job, wanted)
            if wanted >= use.reach:
                use.reach, use.since = wanted, now
            elif ceiling.gpus < min(least, use.reach):
                use.since = now
            elif now >= use.since + self._settings.idle_seconds:
                use.reach, use.why = wanted, entry.status.message.removeprefix("waits: ")

    def _suppose(
        self,
        scene: Scene,
        lifted: Mapping[JobId, Ceiling],
        suppose: Callable[[Scene], Mapping[JobId, int]],
    ) -> Mapping[JobId, int] | None:
        """
        Return the GPUs that jobs would get with these ceilings; ``None`` if it is not the time to ask.

        Kueue may refuse some of them more for long, and the others would use what is left idle then.
        """
        if not lifted or scene is self._supposed:
            return None
        now = self._clock()
        if now < self._suppose_at:
            self._is_new = True
            return None
        began = time.perf_counter()
        refused = {
            job
            for job, found in self._found.items()
            if any(request.told and not request.is_reserved for _, request in found.values())
        }
        hopeful = {job: each for job, each in lifted.items() if job not in refused}
        try:
            would = Counter(suppose(replace(scene, ceilings={**scene.ceilings, **lifted})))
            if hopeful and len(hopeful) < len(lifted):
                would |= Counter(suppose(replace(scene, ceilings={**scene.ceilings, **hopeful})))
            return would
        except Exception:
            # A policy that fails here must not keep Kueue from its quota.
            log.exception("the policy cannot say how many GPUs jobs in queues would use")
            return None
        finally:
            took = time.perf_counter() - began
            self._supposed, self._suppose_at = scene, now + max(SUPPOSE_S, took * SUPPOSE_REST)


def _decided(entry: Entry) -> int:
    placement = entry.status.placement
    return placement.gpus if placement is not None else 0


def _iter_lifted(scene: Scene) -> Iterator[tuple[JobId, Ceiling]]:
    """Yield the jobs that might use more quota than they have, as if they had it."""
    for job, ceiling in scene.ceilings.items():
        entry = scene.entries[job]
        decided, gpus = _decided(entry), entry.job.gpus
        most = gpus.requested if ceiling.is_whole else gpus.options[-1]
        if decided in (0, ceiling.gpus) and ceiling.gpus < most:
            yield job, replace(ceiling, gpus=most)
