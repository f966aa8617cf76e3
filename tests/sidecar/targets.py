"""Short targets for tests of the SideCar."""

from collections.abc import Collection
from dataclasses import replace

from dljob_wire.messages import Live, Peer, Run, Stop

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


def live_run(
    before: Run, generation: int, *, keep: Collection[int], joins: int = 0, epoch: int = 0
) -> Run:
    """A run that keeps these processes of the container, in this order, before others that join."""
    empty = (str(index) for index in range(100) if str(index) not in before.gpus)
    gpus = [*(before.gpus[rank - before.rank_offset] for rank in keep)]
    gpus += [next(empty) for _ in range(joins)]
    whole = run(generation, epoch=epoch or before.epoch, processes=len(gpus))
    live = Live(before.generation, (*keep, *[-1] * joins))
    return replace(whole, gpus=tuple(gpus), live=live)


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
