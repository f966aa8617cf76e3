"""
The names of a start's GPUs for the training: in the job's form, or as the controller sent them.

The controller names GPUs by UUID when it knows them, because an index changes when a GPU of lower
index is lost. For a training that wants indices, they come from the order of the SideCar's own
NVML. It is unknown whether CUDA counts a lost GPU, so GPUs behind a lost one get UUIDs, which CUDA
accepts as well.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from dljob_wire.messages import Gpu
from dljob_wire.training import GpuIds

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Naming:
    """The training's names, by the names in the command."""

    names: Mapping[str, str] = field(default_factory=dict)
    unresolved: tuple[str, ...] = ()
    """The GPUs without a name in the wanted form, because NVML does not know them."""


def name_gpus(present: Collection[Gpu], told: Collection[str], *, wanted: GpuIds) -> Naming:
    """Return the names of the command's GPUs; ``present`` are NVML's GPUs, empty without NVML."""
    if wanted is GpuIds.TOLD:
        return Naming()
    names, unresolved = {}, []
    for name in told:
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
