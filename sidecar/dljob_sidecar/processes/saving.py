"""The latest request for a checkpoint, from the request to its confirmation or end."""

from __future__ import annotations

from dataclasses import replace
from typing import Callable

from dljob_sidecar.behaviour.events import CheckpointDone, CheckpointFailed
from dljob_sidecar.checkpoints import requests
from dljob_sidecar.checkpoints.storing import CheckpointStore
from dljob_sidecar.contract import Report
from dljob_sidecar.linux.spawning import Reaper
from dljob_sidecar.observing.rank_outputs import Outputs
from dljob_sidecar.processes.starting import RankStarter
from dljob_sidecar.remedies import make_problem


class CheckpointRequests:
    """Asks the ranks of the present attempt to save themselves; only the latest request counts."""

    def __init__(
        self,
        store: CheckpointStore,
        starter: RankStarter,
        *,
        outputs: Outputs,
        reaper: Reaper,
        report: Report,
        list_members: Callable[[], list[int]],
    ) -> None:
        self._store = store
        self._starter = starter
        self._outputs = outputs
        self._reaper = reaper
        self._report = report
        self._list_members = list_members
        self._request: requests.Request | None = None

    def ask(self, *, is_trial: bool, is_blamed: bool, output: requests.LastOutput) -> None:
        """Cancel the previous request, and ask again; report problems only if it ``is_blamed``."""
        attempt = self._starter.attempt
        self.give_up()

        def tell(fault: str) -> None:
            # Ignore the answer to a previous request or of a previous attempt.
            if attempt != self._starter.attempt or request.is_given_up:
                return
            if self._request is request:
                # Clear the request, so a later end does not count as its answer.
                self._request = None
            if not fault:
                if request.is_trial:
                    self._store.learn()
                self._report(CheckpointDone(attempt))
            else:
                self._report(CheckpointFailed(attempt, make_problem("CheckpointFailed", fault)))

        ranks, environment = self._starter.rank_processes, self._starter.environment
        watch = self._store.make_watch(self._list_members)
        request = self._request = requests.Request(
            self._store.saving,
            ranks,
            environment=environment.of(ranks[0]) if ranks else environment.given,
            outputs=self._outputs.common,
            reaper=self._reaper,
            watch=watch if is_blamed else replace(watch, on_problem=lambda *_: None),
            output=output,
            tell=tell,
        )
        request.is_trial = is_trial

    def give_up(self) -> None:
        if self._request is not None:
            self._request.is_given_up = True
        self.cancel()

    def cancel(self) -> None:
        if self._request is not None:
            self._request.cancel()
            self._request = None

    def hear_end(self) -> None:
        """Handle the end of a rank, which may be its answer."""
        if self._request is not None:
            self._request.hear_end()

    def hear_line(self) -> None:
        """Handle a log line that matches the expression of a checkpoint confirmation."""
        if self._request is not None:
            self._request.hear_line()

    @property
    def is_settling(self) -> bool:
        return self._request is not None and self._request.is_settling

    @property
    def is_securing(self) -> bool:
        return self._request is not None and self._request.is_securing

    @property
    def wants_end(self) -> bool:
        return self._request is not None and not self._request.is_trial
