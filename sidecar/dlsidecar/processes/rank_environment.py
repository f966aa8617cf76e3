"""The environment in which ranks are started: what they all get, and how those of Horovod find each other."""

from __future__ import annotations

from collections.abc import Mapping

from dlsidecar.checkpoints.storing import CheckpointStore
from dlsidecar.processes import ranks, rendezvous
from dlsidecar.processes.rank_process import RankProcess
from dlsidecar.warm import offering
from dlwire.messages import Run
from dlwire.training import Framework, Training

RESUME = "DLJOB_CHECKPOINT_RESUME"
"""The variable that names the latest complete checkpoint, where one is known."""


class RankEnvironment:
    """The variables of all ranks of a start; it also opens the meeting that they need."""

    def __init__(
        self, training: Training, given: Mapping[str, str], *, store: CheckpointStore
    ) -> None:
        self._training = training
        self.given = dict(given)
        self._store = store
        self._defaults: dict[str, str] = {}
        """The variables that the environment of the training may overrule."""
        self._rendezvous, self._agreement = rendezvous.Rendezvous(), offering.RankAgreement()

    def open(self, run: Run) -> None:
        """
        Do for Horovod's processes what its launcher would, and clear the board for a new start.

        Raises :class:`~dlsidecar.processes.rendezvous.CannotOpen`.
        """
        self._defaults = {}
        if self._training.framework is Framework.HOROVOD and ranks.needs_meeting(run):
            interface = rendezvous.find_interface(run)
            self._defaults = {rendezvous.INTERFACE: interface} if interface else {}
            if run.node_rank == 0:
                self._rendezvous.open(run)
        self._agreement.renew()

    def end_start(self) -> None:
        """Close what only processes of this start need."""
        self._rendezvous.close()

    def close(self) -> None:
        self._rendezvous.close()
        self._agreement.close()

    def of(self, rank_process: RankProcess) -> dict[str, str]:
        """Return the environment of one rank; its own variables overrule all others."""
        resume = {RESUME: self._store.resume} if self._store.resume else {}
        given = {**self._defaults, **resume, **self.given, **self._store.variables}
        return {**given, **self._agreement.variables, **rank_process.environment}
