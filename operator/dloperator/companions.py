"""
The auxiliary pods of jobs (parameter servers and the like): there as long as the job has pods.

They have no GPUs, so nothing needs to be proven of them. Each look brings about what is missing and
takes away what is too much; one that has ended is made anew under the same name, by which the others
know it.
"""

import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from dlcore import jobfile
from dlcore.model import Role
from dlcore.podrules import TRAINER
from dloperator import podmaking
from dloperator.apiserver import ApiServer, Conflict, Rejected, Unreachable
from dloperator.complaining import Complaints
from dloperator.jobs import Specs
from dloperator.mirror import Mirrors, Name
from dloperator.reading import role_of
from dloperator.removing import Removals
from dloperator.resources import PODS

log = logging.getLogger(__name__)

Json = Mapping[str, Any]
Warn = Callable[[Json, str, str], None]
"""Warns people about a job: with a reason, and a message."""

NOT_MADE = "AuxiliaryPodNotMade"


class _Kind(NamedTuple):
    """Pods that differ by nothing but their numbers."""

    job: str
    """By its uid."""
    role: str


class _Wanted(NamedTuple):
    """A pod that is to be there; it is made only if it is missing."""

    document: Json
    role: Role
    number: int

    @property
    def kind(self) -> _Kind:
        return _Kind(self.document["metadata"]["uid"], self.role.name)


class Companions:
    """One for the life of a leader; to be asked after each change."""

    def __init__(self, api: ApiServer, mirrors: Mirrors, specs: Specs, warn: Warn) -> None:
        self._api = api
        self._specs = specs
        self._mirrors = mirrors
        self._warn = warn
        self._removals = Removals(api)
        self._complaints = Complaints()

    async def tend(self) -> bool:
        """
        Look at all jobs once; tell whether everything could be done.

        What is wrong with the pods of one job is no reason to leave others without theirs.
        """
        there = {
            name: pod
            for name, pod in self._mirrors.pods.objects.items()
            if role_of(pod) not in ("", TRAINER)
        }
        wanted = dict(self._iter_wanted())
        unwanted = {n: pod for n, pod in there.items() if n not in wanted or _has_ended(pod)}
        is_done = all([await self._remove(name, unwanted[name]) for name in unwanted])
        missing: dict[_Kind, list[Name]] = {}
        for name in sorted(wanted.keys() - there.keys()):
            missing.setdefault(wanted[name].kind, []).append(name)
        for kind, lacking in missing.items():
            is_done = await self._create(kind, {name: wanted[name] for name in lacking}) and is_done
        self._complaints.keep(missing.keys() | unwanted.keys())
        self._removals.keep({pod["metadata"]["uid"] for pod in there.values()})
        return is_done

    def _iter_wanted(self) -> Iterator[tuple[Name, _Wanted]]:
        for name, document in self._mirrors.jobs.objects.items():
            if not (document["spec"].get("auxiliaries") and _has_pods(document)):
                continue
            try:
                roles = self._specs.parse(document).roles
            except jobfile.JobFileError:
                continue  # Whoever reads the job says so.
            for role in roles:
                for number in range(role.replicas):
                    pod_name = podmaking.auxiliary_name(name.name, role.name, number)
                    yield Name(name.namespace, pod_name), _Wanted(document, role, number)

    async def _create(self, kind: _Kind, missing: Mapping[Name, _Wanted]) -> bool:
        """Make what is missing of a role; where one is refused, so would be the others."""
        for name, (document, role, number) in missing.items():
            try:
                pod = podmaking.make_auxiliary(dict(document), role, number)
                made = await self._api.create(PODS, pod, name.namespace)
            except Conflict:
                log.info("pod %s is there already", name)
            except Unreachable:
                raise  # Nothing else could be done either.
            except Exception as error:
                if self._complaints.is_new(kind, error):
                    is_known = isinstance(error, Rejected)
                    log.warning("pod %s cannot be made: %s", name, error, exc_info=not is_known)
                    self._warn(document, NOT_MADE, f"the pod {name.name} cannot be made: {error}")
                return False
            else:
                self._mirrors.pods.show(made, is_ours=True)
        return True

    async def _remove(self, name: Name, pod: Json) -> bool:
        try:
            await self._removals.remove(pod)
        except Rejected as error:
            if self._complaints.is_new(name, error):
                log.warning("pod %s cannot be removed yet: %s", name, error)
            return False
        return True


def _has_pods(job: Json) -> bool:
    return bool((job.get("status") or {}).get("pods"))


def _has_ended(pod: Json) -> bool:
    return (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")
