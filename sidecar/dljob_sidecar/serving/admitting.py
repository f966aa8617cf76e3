"""
Checks before a start that the GPUs of its command exist, work, have names and are empty.

:mod:`dljob_sidecar.processes.supervising` calls it right before each start. A GPU that looks used is
checked again for some seconds, because NVML still shows a process that has just ended: utilisation
averages the last second, and the driver frees memory later.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Callable, Union

from dljob_sidecar.observing.gpus import nvml as gpus
from dljob_sidecar.observing.gpus.gpu_thread import GpuThread, Reading
from dljob_sidecar.observing.gpus.naming import name_gpus
from dljob_sidecar.processes.releasing import Release, measure
from dljob_sidecar.remedies import make_problem
from dljob_wire.messages import Gpu, Problem, Run
from dljob_wire.training import GpuIds

AGAIN_SECONDS = 0.25


@dataclass(frozen=True)
class Admitted:
    """The GPU facts that a start needs."""

    release: Release = Release({})
    names: Mapping[str, str] = field(default_factory=dict)
    """The training's names of the GPUs, by their names in the command."""


Answer = Union[Admitted, Problem]


class Admission:
    """Checks the GPUs before each start."""

    patience_seconds = 3.0
    """The time for which a GPU may look used before the start is refused."""

    def __init__(
        self,
        gpu_thread: GpuThread,
        gpu_ids: GpuIds,
        *,
        show: Callable[[Reading], None] = lambda _: None,
    ) -> None:
        """``show`` gets each reading, so the state shows the reason of a refusal."""
        self.gpu_thread = gpu_thread
        self._gpu_ids = gpu_ids
        self._show = show
        self._loop = asyncio.get_running_loop()

    def ask(
        self, run: Run, hear: Callable[[Answer], None], *, is_wanted: Callable[[], bool]
    ) -> None:
        """Call back with the answer while it is wanted; without NVML, from within this call."""
        until = self._loop.time() + self.patience_seconds

        # There is no handle to cancel: a check for an ended attempt stops by `is_wanted`.
        def query_gpus() -> None:
            if is_wanted():
                self.gpu_thread.ask(take)

        def take(reading: Reading) -> None:
            if not is_wanted():
                return
            if reading is not None:
                self._show(reading)
            # The base lines were updated from this very reading.
            used = self.gpu_thread.bases.find_used(reading or [], run.gpus)
            if used and self._loop.time() < until:
                self._loop.call_later(AGAIN_SECONDS, query_gpus)
            else:
                hear(self._judge(run, reading or [], used=used))

        # Known once the thread has looked for NVML; an earlier query gets an empty reading.
        if self.gpu_thread.missing:
            hear(self._judge(run, [], used={}))
        else:
            query_gpus()

    def _judge(self, run: Run, present: list[Gpu], *, used: Mapping[str, str]) -> Answer:
        unknown = gpus.find_unknown(present, run.gpus) if present else []
        if unknown:
            return make_problem("UnknownGPUs", f"this machine has no GPU {', '.join(unknown)}")
        lost = gpus.find_lost(present, run.gpus)
        if lost:
            return make_problem("GPUsVanished", "; ".join(lost))
        naming = name_gpus(present, run.gpus, wanted=self._gpu_ids)
        if naming.unresolved:
            why = self.gpu_thread.missing or "NVML does not answer"
            message = f"GPU {', '.join(naming.unresolved)} cannot be named by {self._gpu_ids.value}"
            return make_problem("GPUsNotResolved", f"{message}: {why}")
        if used:
            return make_problem("GPUNotEmpty", "; ".join(used.values()), gpus=tuple(used))
        return Admitted(measure(present, run.gpus), naming.names)
