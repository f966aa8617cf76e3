"""The declarations of the controller to a SideCar."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Union

from dljob_wire.kinds import Either, Flag, Many, Number, Said, Whole, Wrong, declare, nested
from dljob_wire.messages.limits import (
    GPU_ID,
    HOST,
    INCARNATION,
    INSTALLATION,
    LAST_PORT,
    MOST_GPUS,
    MOST_PEERS,
)


class Term(NamedTuple):
    """The order of declarations: by leader, then by the leader's own count."""

    epoch: int
    """Counts the successive leaders among the controllers."""
    generation: int
    """Counts the declarations for one job."""

    def __str__(self) -> str:
        return f"epoch {self.epoch}, generation {self.generation}"


@dataclass(frozen=True)
class Peer:
    """One container of the job."""

    host: str = declare(HOST)
    """The address at which other containers reach this one."""
    processes: int = declare(Whole(1, MOST_GPUS))
    """The number of training processes in the container."""


@dataclass(frozen=True)
class Run:
    """
    The training runs in this container on these GPUs, as this part of the whole.

    A generation is one start of the processes: another generation causes another start even on the
    same GPUs, and the same generation of a later epoch causes none.
    """

    epoch: int = declare(Whole())
    generation: int = declare(Whole())
    incarnation: str = declare(INCARNATION)
    """The intended start of the container; a command for an earlier start has no effect."""
    gpus: tuple[str, ...] = declare(Many(GPU_ID, MOST_GPUS, min_items=1))
    """The ordered GPUs of the training, by UUID if known, else by index."""
    rank_offset: int = declare(Whole())
    """The rank, in the whole job, of the first process of this container."""
    world_size: int = declare(Whole(1))
    """The number of processes of the whole job."""
    peers: tuple[Peer, ...] = declare(Many(nested(Peer), MOST_PEERS, min_items=1))
    """Every container of the job in the order of their ranks, including this one."""
    rendezvous_port: int = declare(Whole(1, LAST_PORT))
    """The first of the job's ports, one per process of a container, at the first process of the
    first peer; new for each generation, because an old port may linger.
    """
    batch_size: int = declare(Whole(), 0)
    """The global batch size; 0 keeps the job's own."""
    learning_rate_factor: float = declare(Number(0.0, 1000000.0, above=True), 1.0)
    """The factor for the job's own learning rate."""
    trial: int = declare(Whole(), 0)
    """The requested trial of a checkpoint in this start; 0 for none. A higher number may follow in
    the same term, because it starts and ends no process.
    """
    ended: int | None = declare(Whole(), None)
    """The generation of the start that the author has seen end well; 0 for none. Only a run that
    names it restarts a training that ended well by itself. It may follow in the same term. Older
    controllers omit it.
    """
    reason: str = declare(Said(), "")
    """The reason, in words for people and the log."""
    installation: str = declare(INSTALLATION, "", compare=False)
    """The commanding installation, which equality ignores; empty from older controllers."""

    def __post_init__(self) -> None:
        """Refuse a contradictory run on either side."""
        if len(set(self.gpus)) < len(self.gpus):
            raise Wrong("gpus", self.gpus, "names a GPU twice", "name each GPU once")
        processes = sum(peer.processes for peer in self.peers)
        if processes != self.world_size:
            remedy = f"write {processes}, as many as the peers have processes"
            raise Wrong("worldSize", self.world_size, "is not the sum of the peers", remedy)
        if self.rank_offset not in self._offsets():
            remedy = "write the number of processes of the peers before this one"
            raise Wrong("rankOffset", self.rank_offset, "is where no peer begins", remedy)
        most = LAST_PORT + 1 - max(peer.processes for peer in self.peers)
        if self.rendezvous_port > most:
            remedy = (
                f"write {most} at most, since each process of a container has a port of its own"
            )
            raise Wrong("rendezvousPort", self.rendezvous_port, "has too few after it", remedy)

    @property
    def term(self) -> Term:
        return Term(self.epoch, self.generation)

    @property
    def node_rank(self) -> int:
        """The position of this container among its peers."""
        return self._offsets().index(self.rank_offset)

    @property
    def processes(self) -> int:
        """The number of processes in this container."""
        return self.peers[self.node_rank].processes

    def _offsets(self) -> list[int]:
        offsets = [0]
        for peer in self.peers[:-1]:
            offsets.append(offsets[-1] + peer.processes)
        return offsets


@dataclass(frozen=True)
class Stop:
    """No training process runs in this container."""

    epoch: int = declare(Whole())
    generation: int = declare(Whole())
    incarnation: str = declare(INCARNATION)
    checkpoint: bool = declare(Flag(), default=True)
    """True if the job saves itself first; False if its peers are gone: saving would hang."""
    leave: bool = declare(Flag(), default=False)
    """True if the SideCar, and so the container, ends as well: with 0 unless the training failed.
    """
    coming: int = declare(Whole(0, MOST_GPUS), 0)
    """The number of processes that start here next, and of spares to make; 0 if undecided."""
    reason: str = declare(Said(), "")
    installation: str = declare(INSTALLATION, "", compare=False)

    @property
    def term(self) -> Term:
        return Term(self.epoch, self.generation)


Target = Union[Run, Stop]
TARGET = Either(Run, Stop)
