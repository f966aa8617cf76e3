"""SRSF-E: SRSF whose idle GPUs go to the jobs that gain most from them."""

from dataclasses import dataclass
from typing import ClassVar

from dljob_lab.policies.elastic.afs.leftovers import Altruistic


@dataclass(frozen=True, slots=True)
class SrsfE(Altruistic):
    """The jobs that need the fewest GPU-seconds yet have the GPUs they request, and all others what is left."""

    name: ClassVar[str] = "srsf-e"
    by_service: ClassVar[bool] = True
