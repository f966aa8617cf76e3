"""
Checks before a start that the GPUs of its command exist, work, have names and are empty.

:mod:`dljob_sidecar.processes.supervising` calls it right before each start. A GPU that looks used is
checked again for some seconds, because NVML still shows a process that has just ended: utilisation
averages the last second, and the driver frees memory later.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Callable, Union

from dljob_sidecar.observing.gpus import nvml as gpus
from dljob_sidecar.observing.gpus.gpu_thread import GpuThread, Reading
from dljob_sidecar.processes.releasing import Release, measure
from dljob_sidecar.remedies import make_problem
from dljob_wire.messages import Gpu, Problem, Run
from dljob_wire.training import GpuIds

log = logging.getLogger(__name__)

AGAIN_SECONDS = 0.25


@dataclass(frozen=True)
class Naming:
    """The training's names, by the names in the command."""

    names: Mapping[str, str] = field(default_factory=dict)
    unresolved: tuple[str, ...] = ()
    """The GPUs without a name in the wanted form, because NVML does not know them."""


def name_gpus(present: Collection[Gpu], given: Collection[str], *, wanted: GpuIds) -> Naming:
    """
    Return the names of the command's GPUs; ``present`` are NVML's GPUs, empty without NVML.

    The controller names GPUs by UUID when it knows them, because an index changes when a GPU of
    lower index is lost. For a training that wants indices, they come from the order of the
    SideCar's own NVML. It is unknown whether CUDA counts a lost GPU, so GPUs behind a lost one get
    UUIDs, which CUDA accepts as well.
    """
    if wanted is GpuIds.GIVEN:
        return Naming()
    names, unresolved = {}, []
    for name in given:
        found = next((gpu for gpu in present if name in {gpu.uuid, str(gpu.index)}), None)
        if found is None:
            # A UUID needs no NVML, and a controller that knows no UUID sends an index.
            if wanted is GpuIds.INDEX and name.startswith("GPU-"):
                unresolved.append(name)
        elif wanted is GpuIds.UUID:
            names[name] = found.uuid or name
        elif not name.isdigit():
            names[name] = _index_of(found, present)
    return Naming(names, tuple(unresolved))


def _index_of(gpu: Gpu, present: Collection[Gpu]) -> str:
    lost = [each.index for each in present if each.lost_because and each.index < gpu.index]
    if not lost:
        return str(gpu.index)
    log.warning(
        "GPU %d is named to the training by its UUID, because GPU %d is lost: what CUDA counts as"
        " index %d is not known",
        gpu.index,
        lost[0],
        gpu.index,
    )
    return gpu.uuid


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
        self,
        run: Run,
        hear: Callable[[Answer], None],
        *,
        is_wanted: Callable[[], bool],
        empty: Collection[str] | None = None,
    ) -> None:
        """
        Call back with the answer while it is wanted; without NVML, from within this call.

        ``empty`` are the GPUs of the run that must be empty, and are measured; all if left out.
        """
        empty = run.gpus if empty is None else empty
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
            used = self.gpu_thread.bases.find_used(reading or [], empty)
            if used and self._loop.time() < until:
                self._loop.call_later(AGAIN_SECONDS, query_gpus)
            else:
                hear(self._judge(run, reading or [], used=used, empty=empty))

        # Known once the thread has looked for NVML; an earlier query gets an empty reading.
        if self.gpu_thread.missing:
            hear(self._judge(run, [], used={}, empty=empty))
        else:
            query_gpus()

    def _judge(
        self, run: Run, present: list[Gpu], *, used: Mapping[str, str], empty: Collection[str]
    ) -> Answer:
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
        return Admitted(measure(present, empty), naming.names)
