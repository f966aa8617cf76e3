"""Declarations for the tests of the SideCar, made short."""

from dataclasses import replace

from dljob_wire.messages import Peer, Run, Stop

INCARNATION = "first-start"


def run(
    generation: int,
    *,
    epoch: int = 1,
    gpus: int = 2,
    processes: int = 2,
    batch_size: int = 0,
    trial: int = 0,
) -> Run:
    """Declare that this container is the whole job."""
    return Run(
        epoch=epoch,
        generation=generation,
        incarnation=INCARNATION,
        gpus=tuple(str(index) for index in range(gpus)),
        rank_offset=0,
        world_size=processes,
        peers=(Peer("localhost", processes),),
        rendezvous_port=20000 + generation,
        batch_size=batch_size,
        trial=trial,
    )


def as_follower(whole: Run) -> Run:
    """Make it the second container of its job, of two alike."""
    count = whole.processes
    peers = (Peer("leader", count), *whole.peers)
    return replace(whole, rank_offset=count, world_size=2 * count, peers=peers)


def stop(generation: int, *, epoch: int = 1, checkpoint: bool = True, leave: bool = False) -> Stop:
    return Stop(
        epoch=epoch,
        generation=generation,
        incarnation=INCARNATION,
        checkpoint=checkpoint,
        leave=leave,
    )
