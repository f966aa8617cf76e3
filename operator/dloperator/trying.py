"""
Whether Kubernetes would take the pods of a job, asked when the job is submitted.

Of a pod template only what rules need is typed in the custom resource, so whether the rest is a pod
is found out by a dry run of making one. Until that is answered the job is not looked at; a job whose
pods would be refused is set aside with the words of the API server, and tried again from time to
time, because what refuses it may be a quota or a missing class that somebody brings.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from dlcontrol.records import Booking
from dlcore import jobfile
from dlcore.amounts import NoAmount
from dlcore.model import NodeName
from dloperator import podmaking
from dloperator.apiserver import ApiServer, Conflict, Rejected, Unreachable
from dloperator.asking import Asks, read_asks
from dloperator.jobs import Specs
from dloperator.mirror import Name
from dloperator.podmaking import PodSettings
from dloperator.resources import PODS

log = logging.getLogger(__name__)

Json = Mapping[str, Any]

AT_ONCE = 8
NOWHERE = NodeName("dry-run")
AGAIN_S = (1.0, 5.0, 15.0, 60.0)
SERVER_ERROR = 500
LONGEST = 800


@dataclass(slots=True)
class _Trial:
    of: tuple[str, int]
    verdict: str | None = None
    asks: Asks | None = None
    task: asyncio.Task[None] | None = None


class Templates:
    """Remembers what was found out; one for the life of an operator."""

    def __init__(
        self, api: ApiServer, specs: Specs, settings: PodSettings, wake: Callable[[], None]
    ) -> None:
        self._api = api
        self.specs = specs
        self._settings = settings
        self._wake = wake
        self._trials: dict[Name, _Trial] = {}
        self._news: set[Name] = set()
        self._turns = asyncio.Semaphore(AT_ONCE)

    def verdict(self, document: Json) -> str | None:
        """Say why the pods would be refused, empty if they would not; none while nobody knows."""
        name, metadata = Name.of(document), document["metadata"]
        of = (metadata["uid"], metadata["generation"])
        trial = self._trials.get(name)
        if trial is None or trial.of != of:
            self.forget(name)
            # What was found about the former spec is true until we know better.
            known = trial.verdict if trial is not None and trial.of[0] == of[0] else None
            trial = self._trials[name] = _Trial(of, known)
            trial.task = asyncio.get_running_loop().create_task(self._try(name, trial, document))
        return trial.verdict

    def asks(self, name: Name) -> Asks | None:
        """Say what the pods of a job ask of a node, as Kubernetes would take them."""
        trial = self._trials.get(name)
        return trial.asks if trial is not None else None

    def news(self) -> set[Name]:
        """Tell of which jobs something was found out since this was asked last."""
        news, self._news = self._news, set()
        return news

    def forget(self, name: Name) -> None:
        """Forget a job that is gone."""
        trial = self._trials.pop(name, None)
        if trial is not None and trial.task is not None:
            trial.task.cancel()

    async def close(self) -> None:
        """Ask no more."""
        for name in list(self._trials):
            self.forget(name)

    async def _try(self, name: Name, trial: _Trial, document: Json) -> None:
        if "deletionTimestamp" in document["metadata"]:
            self._find(name, trial, "")
            return
        try:
            job = self.specs.parse(document)
        except jobfile.JobFileError:
            # Whoever reads the job says so himself.
            self._find(name, trial, "")
            return
        pod = podmaking.make_trainer(dict(document), job, Booking(NOWHERE, 0), self._settings)
        self._learn(name, trial, pod)
        attempt = 0
        while not await self._ask(name, trial, pod):
            await asyncio.sleep(AGAIN_S[min(attempt, len(AGAIN_S) - 1)])
            attempt += 1

    async def _ask(self, name: Name, trial: _Trial, pod: Json) -> bool:
        """Ask once; tell whether the pod would be taken."""
        try:
            async with self._turns:
                taken = await self._api.create(PODS, pod, name.namespace, dry_run=True)
            # With what the cluster adds to it: usual requests, the overhead of its runtime.
            self._learn(name, trial, taken)
        except Conflict:
            pass  # There is one of that name, which was taken.
        except Unreachable as error:
            log.warning("cannot find out whether the pods of job %s are right: %s", name, error)
            return False
        except Rejected as error:
            if error.status < SERVER_ERROR:
                why = f"Kubernetes would refuse its pods: {error}"
                self._find(name, trial, f"{why[:LONGEST]}; correct spec.template")
            return False
        self._find(name, trial, "")
        return True

    def _learn(self, name: Name, trial: _Trial, pod: Json) -> None:
        try:
            asks = read_asks(pod, NOWHERE)
        except NoAmount:
            return  # The API server says so itself, and better.
        if asks != trial.asks:
            trial.asks = asks
            self._news.add(name)
            self._wake()

    def _find(self, name: Name, trial: _Trial, verdict: str) -> None:
        if verdict != trial.verdict:
            trial.verdict = verdict
            self._news.add(name)
            self._wake()
