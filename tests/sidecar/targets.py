"""Short targets for tests of the SideCar."""

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
    """A run of a job with this container alone."""
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
    """The same run in the second of two containers."""
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
