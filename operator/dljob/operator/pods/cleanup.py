"""
Deletes pods that are no longer booked, and removes their finalizer once their end is proven; then that of their job,
if it has ended.

A pod is booked while its job may hold anything there. A pod that is not booked was given back, or was created by an
operator that died before it got the answer; nothing else would ever delete it. The pods of a job that has ended stay
until the job is deleted, so that users can read their logs and exit codes. The job needs the operator no more for that.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from typing import NamedTuple

from dljob.control.acting.task_pool import do_all
from dljob.core.documents.rules.podrules import TRAINER
from dljob.core.model import Phase
from dljob.core.primitives.backoff import Backoff
from dljob.core.primitives.once_per_change import OncePerChange
from dljob.kube import names
from dljob.kube.client import ApiServer, Rejected, Unreachable
from dljob.kube.documents import Json
from dljob.kube.names import Name
from dljob.kube.resources import DLJOBS, PODS
from dljob.kube.watches.mirror import Mirrors
from dljob.operator.jobs.ending import let_go
from dljob.operator.jobs.entries import Specs
from dljob.operator.jobs.trusted_jobs import TrustedJobs
from dljob.operator.nodes.reserving import Reservations
from dljob.operator.pods.auxiliaries import Auxiliaries, Removals, Warn
from dljob.operator.proofs import awaits_proof, is_booked, is_bound, job_of, proof_of_end, role_of

log = logging.getLogger(__name__)


AGAIN_S = 5.0
GONE_S = 300.0
"""The time for which pods of a deleted Node are kept: if the node returns, it can prove their end."""
AT_ONCE = 16
LEAST_REST_S, LONGEST_REST_S = 0.05, 1.0
REST_SHARE = 30.0
NOT_PUT_AWAY = "PodNotPutAway"
_FINAL = (Phase.COMPLETED, Phase.FAILED)
LOOK, JOBS = "look", "jobs"
"""The subjects of errors that concern no single pod."""


class _Looked(NamedTuple):
    """The findings about a pod; they hold until the pod or its job changes."""

    pod: Json
    job_name: Name
    job: Json | None
    is_at_rest: bool


class Cleanup:
    """One for the life of a leader; :meth:`run` is its own task."""

    def __init__(
        self,
        api: ApiServer,
        mirrors: Mirrors,
        *,
        jobs: TrustedJobs,
        specs: Specs,
        reservations: Reservations,
        changed: asyncio.Event,
        warn: Warn,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``changed`` is set after each change of the cluster."""
        self._api = api
        self._clock = clock
        self._warn = warn
        self._mirrors = mirrors
        self._jobs = jobs
        self._auxiliaries = Auxiliaries(api, mirrors, jobs=jobs, specs=specs, warn=warn)
        self._reservations = reservations
        self._changed = changed
        # A former leader may have left pods in a cluster where nothing else changes.
        self._changed.set()
        self._removals = Removals(api)
        self._complaints: OncePerChange[str] = OncePerChange()
        self._stuck: Backoff[Name] = Backoff()
        self._looked: dict[Name, _Looked] = {}
        self._nodes_gone: dict[str, float] = {}
        """When Nodes with pods were first seen to be missing."""
        self._again_at = 0.0
        """When the cleanup begins again without a change, in the time of the event loop."""

    async def run(self) -> None:
        """Clean up after each change, for ever."""
        while True:
            await self._changed.wait()
            # Cleared first, so that a change during the pass causes the next one.
            self._changed.clear()
            began = time.thread_time()
            try:
                is_done = await self.clean_up()
                self._complaints.settle(LOOK)
            except Exception as error:
                is_done = False
                if self._complaints.note(LOOK, error):
                    log.exception("the cleanup of pods failed; it is tried again")
            if not is_done:
                self._retry_later()
            # With thousands of pods a pass takes long, and other tasks need the event loop.
            rest = REST_SHARE * (time.thread_time() - began)
            await asyncio.sleep(min(max(LEAST_REST_S, rest), LONGEST_REST_S))

    async def clean_up(self) -> bool:
        """Make one pass over all pods; return true if everything is done."""
        there = {pod["metadata"]["uid"] for pod in self._mirrors.pods.objects.values()}
        for back in [
            node for node in self._nodes_gone if Name("", node) in self._mirrors.nodes.objects
        ]:
            del self._nodes_gone[back]
        for gone in self._looked.keys() - self._mirrors.pods.objects.keys():
            del self._looked[gone]
        loose = [
            (name, pod)
            for name, pod in self._mirrors.pods.objects.items()
            if not self._is_at_rest(name, pod)
        ]
        turns = asyncio.Semaphore(AT_ONCE)
        is_done = all(
            await asyncio.gather(
                *(self._try_to_clean_up_pod(name, pod, turns=turns) for name, pod in loose)
            )
        )
        is_done = await self._let_ended_jobs_go(turns) and is_done
        self._stuck.keep(self._mirrors.pods.objects)
        self._removals.keep(there)
        try:
            is_done = await self._auxiliaries.reconcile() and is_done
        except Unreachable as error:
            log.warning("not all auxiliary pods could be created or deleted yet: %s", error)
            is_done = False
        return await self._reservations.reconcile() and is_done

    def _job_of(self, name: Name, pod: Json) -> Json | None:
        # Use the present record, not that of the last cycle: pods are created right after the
        # record.
        return self._jobs.get(_name_of_job(name, pod))

    def _is_at_rest(self, name: Name, pod: Json) -> bool:
        """True if no action is due; of thousands of pods hardly any has changed."""
        # Compared by identity: the mirror has another object for each version of a document.
        known = self._looked.get(name)
        if (
            known is None
            or known.pod is not pod
            or known.job is not self._mirrors.jobs.get(known.job_name)
        ):
            job_name = _name_of_job(name, pod)
            try:
                job = self._jobs.get(job_name)
                # The pod is booked, or of a role that never is.
                is_at_rest = role_of(pod) != TRAINER or (job is not None and is_booked(job, pod))
            except Exception:  # noqa: BLE001 - the cleanup of this single pod reports the error
                is_at_rest = False
            shown = self._mirrors.jobs.get(job_name)
            known = self._looked[name] = _Looked(pod, job_name, shown, is_at_rest)
        return known.is_at_rest

    async def _try_to_clean_up_pod(
        self, name: Name, pod: Json, *, turns: asyncio.Semaphore
    ) -> bool:
        if not self._stuck.may_try(name, self._clock()):
            return False
        try:
            async with turns:
                await self._clean_up_pod(name, pod)
        except Exception as error:
            # Counted from now, because the request may have taken longer than the pause.
            if self._stuck.refuse(name, str(error), self._clock()):
                is_known = isinstance(error, Rejected | Unreachable)
                level = logging.WARNING if is_known else logging.ERROR
                text = "pod %s cannot be deleted yet: %s"
                log.log(level, text, name, error, exc_info=not is_known)
                job = self._job_of(name, pod) if isinstance(error, Rejected) else None
                if job is not None:
                    self._warn(job, NOT_PUT_AWAY, text % (name.name, error))
            return False
        self._stuck.settle(name)
        return True

    async def _let_ended_jobs_go(self, turns: asyncio.Semaphore) -> bool:
        """Remove our finalizer from jobs that have ended, so that they can be deleted without an operator."""
        jobs = self._mirrors.jobs

        async def let_job_go(job: Json) -> None:
            async with turns:
                await let_go(
                    self._api, DLJOBS, mirror=jobs, document=job, finalizer=names.FINALIZER
                )

        ended = {
            name: document
            for name, document in jobs.objects.items()
            if names.FINALIZER in names.finalizers_of(document)
            and (status := self._jobs.trusted(document).get("status") or {}).get("phase") in _FINAL
            and not status.get("pods")
        }
        for pod in self._mirrors.pods.objects.values() if ended else ():
            if awaits_proof(pod):
                ended.pop(_name_of_job(Name.of(pod), pod), None)
        try:
            await do_all(let_job_go(job) for job in ended.values())
        except (Rejected, Unreachable) as error:
            if self._complaints.note(JOBS, error):
                log.warning("finalizers of ended jobs cannot be removed yet: %s", error)
            return False
        self._complaints.settle(JOBS)
        return True

    async def _clean_up_pod(self, name: Name, pod: Json) -> None:
        job = self._job_of(name, pod)
        if job is not None and is_booked(job, pod):
            return  # It was booked meanwhile.
        # The pod may have changed as well, so its version or uid is a precondition below.
        node = self._mirrors.nodes.get(Name("", _node_of(pod)))
        ended = proof_of_end(pod, node)
        may_return = False
        if node is None and is_bound(pod):
            # A Node that has been missing for long is not expected back.
            since = self._nodes_gone.setdefault(_node_of(pod), self._clock())
            may_return = self._clock() < since + GONE_S
        # The deletion of the job waits for that, even if a webhook refuses the deletion of the pod.
        if ended and awaits_proof(pod) and not may_return:
            await let_go(
                self._api,
                PODS,
                mirror=self._mirrors.pods,
                document=pod,
                finalizer=names.PROOF_FINALIZER,
            )
        # Users may still want to look at the pods of a job that has ended and is kept.
        is_shown = (
            job is not None
            and (job.get("status") or {}).get("phase") in _FINAL
            and "deletionTimestamp" not in job["metadata"]
        )
        if not (ended and is_shown):
            await self._removals.remove(pod)
        if may_return:
            self._retry_later()

    def _retry_later(self) -> None:
        loop = asyncio.get_running_loop()
        if loop.time() >= self._again_at:
            self._again_at = loop.time() + AGAIN_S
            loop.call_at(self._again_at, self._changed.set)


def _name_of_job(name: Name, pod: Json) -> Name:
    return Name(name.namespace, job_of(pod))


def _node_of(pod: Json) -> str:
    return str((pod.get("spec") or {}).get("nodeName", ""))
