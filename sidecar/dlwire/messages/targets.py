"""The declarations of the controller to a SideCar."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple, Union

from dlwire.kinds import Each, Either, Flag, Maybe, Nested, Number, Text, Whole, Wrong, wire
from dlwire.messages.limits import (
    GPU_ID,
    HOST,
    INCARNATION,
    INSTALLATION,
    LAST_PORT,
    MOST_GPUS,
    MOST_PEERS,
)


class Term(NamedTuple):
    """Which of two declarations is newer: that of the later leader, then the later one of it."""

    epoch: int
    """Counts the controllers that were leaders, one after the other."""
    generation: int
    """Counts the declarations for one job."""

    def __str__(self) -> str:
        return f"epoch {self.epoch}, generation {self.generation}"


@dataclass(frozen=True)
class Peer:
    """One container of the job."""

    host: str = field(metadata=wire(HOST))
    """Where the other containers reach it."""
    processes: int = field(metadata=wire(Whole(1, MOST_GPUS)))
    """How many training processes run in it."""


@dataclass(frozen=True)
class Run:
    """
    The training shall run in this container on these GPUs, as this part of the whole.

    A generation is one start of the processes: another generation means another start even on the
    same GPUs, and the same generation of a later epoch none at all.
    """

    epoch: int = field(metadata=wire(Whole()))
    generation: int = field(metadata=wire(Whole()))
    incarnation: str = field(metadata=wire(INCARNATION))
    """The start of the container that is meant. A command on its way to a container that has been
    restarted since must not start anything there."""
    gpus: tuple[str, ...] = field(metadata=wire(Each(GPU_ID, MOST_GPUS, least=1)))
    """The GPUs that the training may use, in this order: by UUID where that is known, else by index.
    The SideCar names them in ``CUDA_VISIBLE_DEVICES`` as the job wants them named."""
    rank_offset: int = field(metadata=wire(Whole()))
    """The rank, in the whole job, of the first process of this container."""
    world_size: int = field(metadata=wire(Whole(1)))
    """How many processes the whole job has."""
    peers: tuple[Peer, ...] = field(metadata=wire(Each(Nested(Peer), MOST_PEERS, least=1)))
    """Every container of the job in the order of their ranks, this one among them."""
    rendezvous_port: int = field(metadata=wire(Whole(1, LAST_PORT)))
    """Where the first process of the first peer listens; a new one each generation, because the
    former one may linger. The ports following it, one per process of a container, are the job's."""
    batch_size: int = field(default=0, metadata=wire(Whole()))
    """The global batch size; 0 leaves the job its own."""
    learning_rate_factor: float = field(default=1.0, metadata=wire(Number(0.0, 1e6, above=True)))
    """By what the job shall multiply its own learning rate."""
    trial: int = field(default=0, metadata=wire(Whole()))
    """Which trial of its checkpoint the training shall have made in this start; 0 for none. A higher
    number may be said later in the same term, because no process is started or ended for it."""
    ended: int | None = field(default=None, metadata=wire(Maybe(Whole())))
    """The generation of the start whose good end its author has seen here; 0 for none. A training that ended by itself and well
    is started again only by a run that names its generation, because a run that was sent before may be for a job that is
    done. It may be said later in the same term. Absent from a controller that is older than this field."""
    reason: str = field(default="", metadata=wire(Text()))
    """Why, in words for people; it goes into the log."""
    installation: str = field(default="", compare=False, metadata=wire(INSTALLATION))
    """The installation of DLJob that commands; empty from a controller that is older than this field.
    It says who commands and not what, so that it makes no two declarations different."""

    def __post_init__(self) -> None:
        """Refuse what contradicts itself, so that a wrong one cannot be made on either side."""
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
        """How many processes run in this container."""
        return self.peers[self.node_rank].processes

    def _offsets(self) -> list[int]:
        offsets = [0]
        for peer in self.peers[:-1]:
            offsets.append(offsets[-1] + peer.processes)
        return offsets


@dataclass(frozen=True)
class Stop:
    """No training process shall run in this container."""

    epoch: int = field(metadata=wire(Whole()))
    generation: int = field(metadata=wire(Whole()))
    incarnation: str = field(metadata=wire(INCARNATION))
    checkpoint: bool = field(default=True, metadata=wire(Flag()))
    """Whether the job shall save itself before; not where its peers are gone, for it would hang."""
    leave: bool = field(default=False, metadata=wire(Flag()))
    """Whether the SideCar shall end as well, with 0 unless the training failed by itself; as the
    first process of the container it ends that with it."""
    coming: int = field(default=0, metadata=wire(Whole(0, MOST_GPUS)))
    """How many processes are to run here after this stop, as far as that is decided; 0 if it is not. The
    SideCar makes this number of spare interpreters while the job saves itself."""
    reason: str = field(default="", metadata=wire(Text()))
    installation: str = field(default="", compare=False, metadata=wire(INSTALLATION))

    @property
    def term(self) -> Term:
        return Term(self.epoch, self.generation)


Target = Union[Run, Stop]
TARGET = Either((Run, Stop))
