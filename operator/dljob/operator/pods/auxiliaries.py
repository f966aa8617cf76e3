"""
The auxiliary pods of jobs (parameter servers and the like): they exist as long as the job has pods.

They have no GPUs, so their end needs no proof. Each pass creates missing pods and deletes superfluous ones; a pod
that has ended is created again under the same name, by which other pods reach it.
"""

import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import NamedTuple

from dljob.core.documents import jobfile
from dljob.core.documents.rules.podrules import TRAINER
from dljob.core.model import Role
from dljob.core.primitives.backoff import Backoff
from dljob.core.primitives.once_per_change import OncePerChange
from dljob.kube.client import ApiServer, Conflict, Rejected, Unreachable
from dljob.kube.constraints.foreign import CDI_MARKS
from dljob.kube.documents import Json
from dljob.kube.names import Name
from dljob.kube.resources import PODS
from dljob.kube.watches.mirror import Mirrors
from dljob.operator.jobs.entries import Specs
from dljob.operator.jobs.trusted_jobs import TrustedJobs
from dljob.operator.podspecs import building
from dljob.operator.proofs import is_of, role_of

log = logging.getLogger(__name__)

Warn = Callable[[Json, str, str], None]
"""Writes a warning Event about a job, with a reason and a message."""

NOT_MADE = "AuxiliaryPodNotMade"


class Removals:
    """Deletes pods; each once, because a deletion may take minutes."""

    def __init__(self, api: ApiServer) -> None:
        self._api = api
        self._asked: set[str] = set()
        """The uids of the deleted pods."""

    async def remove(self, pod: Json) -> None:
        """Delete this pod, and no later pod of the same name."""
        metadata = pod["metadata"]
        uid = metadata["uid"]
        if "deletionTimestamp" not in metadata and uid not in self._asked:
            await self._api.delete(PODS, metadata["name"], metadata["namespace"], uid=uid)
            # Noted after the answer: if that is lost, the next pass asks again.
            self._asked.add(uid)

    def keep(self, there: Collection[str]) -> None:
        """Forget all pods but those with these uids."""
        self._asked &= set(there)


class _Kind(NamedTuple):
    """Pods that differ only by their numbers."""

    job: str
    """Its uid."""
    role: str


class _Wanted(NamedTuple):
    """A pod that should exist."""

    document: Json
    role: Role
    number: int

    @property
    def kind(self) -> _Kind:
        return _Kind(self.document["metadata"]["uid"], self.role.name)


class CannotBe(Exception):
    """The reason why a pod cannot be created."""


class Auxiliaries:
    """One for the life of a leader."""

    def __init__(
        self,
        api: ApiServer,
        mirrors: Mirrors,
        *,
        jobs: TrustedJobs,
        specs: Specs,
        warn: Warn,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._api = api
        self._clock = clock
        self._specs = specs
        self._mirrors = mirrors
        self._jobs = jobs
        self._warn = warn
        self._removals = Removals(api)
        self._complaints: OncePerChange[Name] = OncePerChange()
        self._unmade: Backoff[_Kind] = Backoff()

    async def reconcile(self) -> bool:
        """
        Reconcile the pods of all jobs; return true if everything is done.

        An error with the pods of one job does not affect other jobs.
        """
        there = {
            name: pod
            for name, pod in self._mirrors.pods.objects.items()
            if role_of(pod) not in ("", TRAINER)
        }
        wanted = self._find_wanted()
        unwanted = {
            name: pod
            for name, pod in there.items()
            if name not in wanted
            or not is_of(pod, wanted[name].kind.job)
            or (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")
        }
        is_done = all([await self._remove(name, unwanted[name]) for name in unwanted])
        missing: dict[_Kind, list[Name]] = {}
        for name in sorted(wanted.keys() - there.keys()):
            missing.setdefault(wanted[name].kind, []).append(name)
        # If a job is deleted meanwhile, Kubernetes deletes its pods, because the job owns them.
        for kind, lacking in missing.items():
            is_done = await self._create(kind, {name: wanted[name] for name in lacking}) and is_done
        self._complaints.keep(unwanted.keys())
        self._removals.keep({pod["metadata"]["uid"] for pod in there.values()})
        return is_done

    def _find_wanted(self) -> dict[Name, _Wanted]:
        """Return the pods that should exist; of two jobs with pods of one name the first gets them."""
        wanted: dict[Name, _Wanted] = {}
        all_of_them = list(self._iter_wanted())
        self._unmade.keep({each.kind for _, each in all_of_them})
        for name, each in all_of_them:
            if wanted.setdefault(name, each) is not each:
                self._refuse(each, name, error=CannotBe(_taken_by("another job of DLJob")))
        return wanted

    def _iter_wanted(self) -> Iterator[tuple[Name, _Wanted]]:
        for name, shown in self._mirrors.jobs.objects.items():
            if not shown["spec"].get("auxiliaries"):
                continue
            document = self._jobs.trusted(shown)
            if not (document.get("status") or {}).get("pods"):
                continue
            try:
                roles = self._specs.parse(document).roles
            except jobfile.JobFileError:
                continue  # JobReader reports it.
            for role in roles:
                for number in range(role.replicas):
                    pod_name = building.auxiliary_name(name.name, role.name, number=number)
                    yield Name(name.namespace, pod_name), _Wanted(document, role, number)

    async def _create(self, kind: _Kind, missing: Mapping[Name, _Wanted]) -> bool:
        """Create the missing pods of a role, until one is refused, as the others would be."""
        if not self._unmade.may_try(kind, self._clock()):
            return False
        for name, wanted in missing.items():
            try:
                made = await self._make(name, wanted)
            except Unreachable:
                raise
            except Exception as error:  # noqa: BLE001 - it is reported
                self._refuse(wanted, name, error=error)
                return False
            self._mirrors.pods.show(made, is_ours=True)
        self._unmade.settle(kind)
        return True

    async def _make(self, name: Name, wanted: _Wanted) -> Json:
        document, role, number = wanted
        pod = building.make_auxiliary(dict(document), role, number=number)
        for mark in pod["metadata"].get("annotations") or ():
            if mark.startswith(CDI_MARKS):
                raise CannotBe(f"its annotation {mark} would show it the GPUs of jobs; remove it")
        try:
            # Strict: otherwise no error shows that Kubernetes drops a misspelled field.
            return await self._api.create(PODS, pod, name.namespace, strict=True)
        except Conflict:
            # Our own pod, if the watch has not delivered it yet, or a pod of another owner.
            there = await self._api.get(PODS, name.name, name.namespace)
            if not is_of(there, wanted.kind.job):
                raise CannotBe(_taken_by("another owner")) from None
            return there

    def _refuse(self, wanted: _Wanted, name: Name, *, error: Exception) -> None:
        """Report a refusal once, and retry with growing pauses."""
        if self._unmade.refuse(wanted.kind, str(error), self._clock()):
            is_known = isinstance(error, Rejected | CannotBe)
            log.warning("pod %s cannot be made: %s", name, error, exc_info=not is_known)
            self._warn(wanted.document, NOT_MADE, f"the pod {name.name} cannot be made: {error}")

    async def _remove(self, name: Name, pod: Json) -> bool:
        try:
            await self._removals.remove(pod)
        except Rejected as error:
            if self._complaints.note(name, error):
                log.warning("pod %s cannot be removed yet: %s", name, error)
            return False
        return True


def _taken_by(whom: str) -> str:
    return f"the name is taken by a pod of {whom}; remove that one, or give the job or its role another name"
