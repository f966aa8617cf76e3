"""
The ranks of a run: their environments, in the terms of each framework, and their processes.

:func:`lay_out` takes a declaration and returns environments. It sets only the variables that a
framework reads; the rest of the environment stays as the user made it.

===========  ==============================================================================
pytorch      as ``torchrun`` sets it; every process sees all GPUs of its container and
             takes the one that LOCAL_RANK names. Also the options of a torchrun that is itself
             started on each node, as variables
tensorflow   ``TF_CONFIG`` where there are several processes (MultiWorkerMirroredStrategy),
             nothing for a single one (MirroredStrategy); each process sees its own GPUs
horovod      as ``horovodrun`` sets it for its Gloo controller; the processes meet at a server
             that the user starts. A single process gets none of these variables
jax          the address that ``jax.distributed.initialize()`` reads, and the two numbers that it
             requires, also for one process; each process sees its own GPUs
none         only the GPUs; each process has its own
===========  ==============================================================================
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from dljob_sidecar.linux.spawning import Ended
from dljob_sidecar.observing.rank_outputs import ProcessOutput
from dljob_wire.messages import Process, Run

LOOPBACK = "127.0.0.1"


class RankProcess:
    """One training process of the latest start."""

    def __init__(self, rank: Rank, *, is_alone: bool = False) -> None:
        self.rank = rank.rank
        self.signature = None if is_alone else rank.rank
        """The rank before each output line; None if the process is alone in its job."""
        self.local_rank = rank.local_rank
        self.gpus = rank.gpus
        self.own_gpus = rank.own_gpus
        self.environment = rank.environment
        self.pid = 0
        self.warm = False
        self.is_running = False
        """False until a spare has become the user's program."""
        self.ended: Ended | None = None
        self.is_member = True
        """False before the process has joined in a live change, and once it has left."""
        self.slot = -1
        """Its place on the board of live changes; -1 without one."""
        self.output: ProcessOutput | None = None

    @property
    def is_living(self) -> bool:
        return bool(self.pid) and self.ended is None

    def describe(self) -> Process:
        return Process(
            rank=self.rank,
            pid=self.pid,
            gpus=self.gpus,
            warm=self.warm,
            exit_code=self.ended.code if self.ended else None,
            signal=self.ended.signal if self.ended else None,
        )


@dataclass(frozen=True)
class Rank:
    """One process to start."""

    rank: int
    local_rank: int
    gpus: tuple[str, ...]
    """The GPUs that it sees."""
    own_gpus: tuple[str, ...]
    """The GPUs that it is to use."""
    environment: Mapping[str, str]
    """Variables that extend the container's environment."""


def lay_out(
    run: Run, *, framework: str, names: Mapping[str, str] = MappingProxyType({})
) -> list[Rank]:
    """Return the ranks of this container; ``names`` maps GPUs to the training's names."""
    describe = FRAMEWORKS[framework]
    ranks = []
    for local_rank in range(run.processes):
        own = share_of(run, local_rank)
        gpus = own if framework not in SEE_ALL_GPUS else run.gpus
        visible = ",".join(names.get(gpu, gpu) for gpu in gpus)
        environment = {
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
            "CUDA_VISIBLE_DEVICES": visible,
            "NVIDIA_VISIBLE_DEVICES": visible,
            **describe_place(run, local_rank),
            **describe(run, local_rank),
            **describe_batch(run, local_rank),
        }
        ranks.append(Rank(run.rank_offset + local_rank, local_rank, gpus, own, environment))
    return ranks


def lay_out_joining(
    run: Run,
    joins: Collection[int],
    *,
    taken: Collection[int],
    framework: str,
    names: Mapping[str, str],
) -> list[Rank]:
    """
    Return the ranks that join the others of a run; ``taken`` are the local ranks of the others.

    The local rank of a process is the ordinal of its GPU among those that it sees, which cannot change
    while it lives. So a process that joins gets a free one, and sees its own GPU at this place.
    """
    free = (one for one in range(run.processes) if one not in taken)
    return [
        _place(rank, run, local_rank, names=names)
        for rank, local_rank in zip(
            (one for one in lay_out(run, framework=framework, names=names) if one.rank in joins),
            free,
        )
    ]


def _place(rank: Rank, run: Run, local_rank: int, *, names: Mapping[str, str]) -> Rank:
    if "LOCAL_RANK" not in rank.environment:
        return replace(rank, local_rank=local_rank)
    gpus = [names.get(gpu, gpu) for gpu in run.gpus]
    own = rank.local_rank
    gpus[own], gpus[local_rank] = gpus[local_rank], gpus[own]
    visible = ",".join(gpus)
    seen = {"CUDA_VISIBLE_DEVICES": visible, "NVIDIA_VISIBLE_DEVICES": visible}
    environment = {**rank.environment, **seen, "LOCAL_RANK": str(local_rank)}
    return replace(rank, local_rank=local_rank, environment=environment)


def share_of(run: Run, local_rank: int) -> tuple[str, ...]:
    """Return the GPUs of one process: consecutive, and equally many per process where possible."""
    begin = len(run.gpus) * local_rank // run.processes
    end = len(run.gpus) * (local_rank + 1) // run.processes
    # With more processes than GPUs, some processes share a GPU.
    return run.gpus[begin:end] or (run.gpus[min(begin, len(run.gpus) - 1)],)


def describe_place(run: Run, local_rank: int) -> dict[str, str]:
    """Return the variables that :mod:`dljob.training` reads if the framework has none."""
    return {
        "DLJOB_RANK": str(run.rank_offset + local_rank),
        "DLJOB_WORLD_SIZE": str(run.world_size),
        "DLJOB_LOCAL_WORLD_SIZE": str(run.processes),
    }


def describe_batch(run: Run, local_rank: int) -> dict[str, str]:
    """
    Return the declared batch size of the whole job and of this process.

    The parts of the processes differ by one sample at most and add up to the whole.
    """
    if not run.batch_size:
        return {}
    rank = run.rank_offset + local_rank
    before = run.batch_size * rank // run.world_size
    after = run.batch_size * (rank + 1) // run.world_size
    return {
        "DLJOB_BATCH_SIZE": str(run.batch_size),
        "DLJOB_PROCESS_BATCH_SIZE": str(after - before),
        "DLJOB_LEARNING_RATE_FACTOR": repr(run.learning_rate_factor),
    }


def describe_pytorch(run: Run, local_rank: int) -> dict[str, str]:
    return {
        **describe_launch(run, local_rank),
        **describe_torchrun(run),
        "RANK": str(run.rank_offset + local_rank),
        "LOCAL_RANK": str(local_rank),
        "WORLD_SIZE": str(run.world_size),
        "LOCAL_WORLD_SIZE": str(run.processes),
        "NODE_RANK": str(run.node_rank),
        "MASTER_ADDR": run.peers[0].host,
        "MASTER_PORT": str(run.rendezvous_port),
    }


def describe_launch(run: Run, local_rank: int) -> dict[str, str]:
    """Return further variables of torchrun, by which Lightning and others recognise it."""
    rank = str(run.rank_offset + local_rank)
    return {
        "GROUP_RANK": str(run.node_rank),
        "GROUP_WORLD_SIZE": str(len(run.peers)),
        "ROLE_NAME": "default",
        "ROLE_RANK": rank,
        "ROLE_WORLD_SIZE": str(run.world_size),
        "TORCHELASTIC_RUN_ID": "dljob",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
    }


def describe_torchrun(run: Run) -> dict[str, str]:
    """Return the options of torchrun as variables, so its command line needs none."""
    return {
        "PET_NNODES": str(len(run.peers)),
        "PET_NODE_RANK": str(run.node_rank),
        "PET_NPROC_PER_NODE": str(len(run.gpus)),
        "PET_MASTER_ADDR": run.peers[0].host,
        "PET_MASTER_PORT": str(run.rendezvous_port),
    }


def describe_tensorflow(run: Run, local_rank: int) -> dict[str, str]:
    if run.world_size == 1:
        return {}
    workers = [
        join_address(peer.host, run.rendezvous_port + local)
        for peer in run.peers
        for local in range(peer.processes)
    ]
    task = {"type": "worker", "index": run.rank_offset + local_rank}
    return {"TF_CONFIG": json.dumps({"cluster": {"worker": workers}, "task": task})}


# --- Horovod, which names what others number ---------------------------------------------


def needs_meeting(run: Run) -> bool:
    return run.world_size > 1


def name_of(run: Run, node: int) -> str:
    """Return a name for a container; containers on one machine may share an address."""
    host = run.peers[node].host
    is_shared = sum(peer.host == host for peer in run.peers) > 1
    return f"{host}-{node}" if is_shared else host


def describe_horovod(run: Run, local_rank: int) -> dict[str, str]:
    # The containers that have a process of this local rank.
    nodes = [node for node, peer in enumerate(run.peers) if peer.processes > local_rank]
    environment = {
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        "HOROVOD_HOSTNAME": name_of(run, run.node_rank),
        "HOROVOD_RANK": str(run.rank_offset + local_rank),
        "HOROVOD_SIZE": str(run.world_size),
        "HOROVOD_LOCAL_RANK": str(local_rank),
        "HOROVOD_LOCAL_SIZE": str(run.processes),
        # The position and the number of processes with the same local rank.
        "HOROVOD_CROSS_RANK": str(nodes.index(run.node_rank)),
        "HOROVOD_CROSS_SIZE": str(len(nodes)),
    }
    if needs_meeting(run):
        host = LOOPBACK if len(run.peers) == 1 else run.peers[0].host
        environment["HOROVOD_GLOO_RENDEZVOUS_ADDR"] = host
        environment["HOROVOD_GLOO_RENDEZVOUS_PORT"] = str(run.rendezvous_port)
    return environment


def describe_jax(run: Run, local_rank: int) -> dict[str, str]:
    return {
        "JAX_COORDINATOR_ADDRESS": join_address(run.peers[0].host, run.rendezvous_port),
        "JAX_NUM_PROCESSES": str(run.world_size),
        "JAX_PROCESS_ID": str(run.rank_offset + local_rank),
    }


def join_address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


FRAMEWORKS: Mapping[str, Callable[[Run, int], dict[str, str]]] = {
    "pytorch": describe_pytorch,
    "tensorflow": describe_tensorflow,
    "horovod": describe_horovod,
    "jax": describe_jax,
    "none": lambda run, local_rank: {},  # noqa: ARG005 - as the others
}
SEE_ALL_GPUS = frozenset({"pytorch", "horovod"})
