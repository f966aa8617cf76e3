"""SRTF-E: SRTF whose idle GPUs go to the jobs that gain most from them."""

from dataclasses import dataclass
from typing import ClassVar

from dljob_lab.policies.elastic.afs.leftovers import Altruistic


@dataclass(frozen=True, slots=True)
class SrtfE(Altruistic):
    """The jobs that need the least time yet have the GPUs they request, and all others what is left."""

    name: ClassVar[str] = "srtf-e"
    by_service: ClassVar[bool] = False
