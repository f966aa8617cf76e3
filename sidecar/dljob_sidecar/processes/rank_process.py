"""One training process, from its rank in the job to its end."""

from __future__ import annotations

from dljob_sidecar.linux.spawning import Ended
from dljob_sidecar.processes import ranks
from dljob_wire.messages import Process


class RankProcess:
    """One training process of the latest start."""

    def __init__(self, rank: ranks.Rank, *, is_alone: bool = False) -> None:
        self.rank = rank.rank
        self.signature = None if is_alone else rank.rank
        """The rank before each output line; None if the process is alone in its job."""
        self.local_rank = rank.local_rank
        self.gpus = rank.gpus
        self.environment = rank.environment
        self.pid = 0
        self.warm = False
        self.is_running = False
        """False until a spare has become the user's program."""
        self.ended: Ended | None = None

    def describe(self) -> Process:
        return Process(
            rank=self.rank,
            pid=self.pid,
            gpus=self.gpus,
            warm=self.warm,
            exit_code=self.ended.code if self.ended else None,
            signal=self.ended.signal if self.ended else None,
        )
