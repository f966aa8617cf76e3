"""Each framework gets its ranks and peers in its own variables."""

from __future__ import annotations

import json
from dataclasses import replace

from dljob_sidecar.processes.rank_environment import find_interface
from dljob_sidecar.processes.ranks import lay_out
from dljob_wire.messages import Peer, Run


def run_of(*peers, offset=0, gpus=("0", "1"), **more):
    return Run(
        epoch=1,
        generation=1,
        incarnation="x",
        gpus=gpus,
        rank_offset=offset,
        world_size=sum(peers),
        peers=tuple(Peer(f"node-{index}", count) for index, count in enumerate(peers)),
        rendezvous_port=29500,
        **more,
    )


def environments(run, framework):
    return [rank.environment for rank in lay_out(run, framework=framework)]


def test_second_pytorch_node():
    """Lightning and torchrun read some of it."""
    first, second = environments(run_of(2, 2, offset=2), "pytorch")
    assert first == {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": "0,1",
        "NVIDIA_VISIBLE_DEVICES": "0,1",
        "RANK": "2",
        "LOCAL_RANK": "0",
        "WORLD_SIZE": "4",
        "LOCAL_WORLD_SIZE": "2",
        "NODE_RANK": "1",
        "MASTER_ADDR": "node-0",
        "MASTER_PORT": "29500",
        "DLJOB_RANK": "2",
        "DLJOB_WORLD_SIZE": "4",
        "DLJOB_LOCAL_WORLD_SIZE": "2",
        "GROUP_RANK": "1",
        "GROUP_WORLD_SIZE": "2",
        "ROLE_NAME": "default",
        "ROLE_RANK": "2",
        "ROLE_WORLD_SIZE": "4",
        "TORCHELASTIC_RUN_ID": "dljob",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "PET_NNODES": "2",
        "PET_NODE_RANK": "1",
        "PET_NPROC_PER_NODE": "2",
        "PET_MASTER_ADDR": "node-0",
        "PET_MASTER_PORT": "29500",
    }
    assert (second["RANK"], second["LOCAL_RANK"]) == ("3", "1")
    assert (second["ROLE_RANK"], second["GROUP_RANK"]) == ("3", "1")


def test_tensorflow_processes_know_each_other():
    first, second = environments(run_of(2, 2, offset=2), "tensorflow")
    config = json.loads(second["TF_CONFIG"])
    assert config["cluster"]["worker"] == [
        "node-0:29500",
        "node-0:29501",
        "node-1:29500",
        "node-1:29501",
    ]
    assert config["task"] == {"type": "worker", "index": 3}
    assert (first["CUDA_VISIBLE_DEVICES"], second["CUDA_VISIBLE_DEVICES"]) == ("0", "1")


def test_horovod_ranks():
    first, second = environments(run_of(1, 2, offset=1), "horovod")
    assert (first["HOROVOD_RANK"], second["HOROVOD_RANK"]) == ("1", "2")
    assert first["HOROVOD_HOSTNAME"] == "node-1"
    # Both nodes have a first process, only this one has a second.
    assert (first["HOROVOD_CROSS_RANK"], first["HOROVOD_CROSS_SIZE"]) == ("1", "2")
    assert (second["HOROVOD_CROSS_RANK"], second["HOROVOD_CROSS_SIZE"]) == ("0", "1")
    assert first["HOROVOD_GLOO_RENDEZVOUS_ADDR"] == "node-0"
    assert first["HOROVOD_GLOO_RENDEZVOUS_PORT"] == "29500"


def test_horovod_interface_has_the_container_address():
    assert find_interface(run_of(2)) == "lo"
    run = replace(run_of(1, 1), peers=(Peer("127.0.0.1", 1), Peer("localhost", 1)))
    assert find_interface(run) == find_interface(replace(run, rank_offset=1)) == "lo"
    assert find_interface(run_of(1, 1)) == ""


def test_single_container_needs_no_rendezvous():
    first, _ = environments(run_of(2), "horovod")
    assert first["HOROVOD_GLOO_RENDEZVOUS_ADDR"] == "127.0.0.1"
    (only,) = environments(run_of(1), "horovod")
    assert not [name for name in only if "RENDEZVOUS" in name]
    (only,) = environments(run_of(1), "tensorflow")
    assert "TF_CONFIG" not in only
    assert only["CUDA_VISIBLE_DEVICES"] == "0,1"


def test_jax_always_has_a_coordinator():
    first, second = environments(run_of(2), "jax")
    assert first["JAX_COORDINATOR_ADDRESS"] == "node-0:29500"
    assert (second["JAX_NUM_PROCESSES"], second["JAX_PROCESS_ID"]) == ("2", "1")
    run = replace(run_of(1), peers=(Peer("fd00::1", 1),))
    (only,) = environments(run, "jax")
    assert (only["JAX_NUM_PROCESSES"], only["JAX_PROCESS_ID"]) == ("1", "0")
    assert only["JAX_COORDINATOR_ADDRESS"] == "[fd00::1]:29500"


def test_no_framework_gets_only_gpus():
    first, second = environments(run_of(2), "none")
    names = {name for name in first if not name.startswith("DLJOB_")}
    assert names == {"CUDA_DEVICE_ORDER", "CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"}
    assert (first["CUDA_VISIBLE_DEVICES"], second["CUDA_VISIBLE_DEVICES"]) == ("0", "1")


def test_batch_size_is_set_only_if_changed():
    for framework in ("pytorch", "tensorflow", "horovod", "jax", "none"):
        assert "DLJOB_BATCH_SIZE" not in environments(run_of(1), framework)[0]
        (changed,) = environments(run_of(1, batch_size=512, learning_rate_factor=2.0), framework)
        assert changed["DLJOB_BATCH_SIZE"] == "512"
        assert changed["DLJOB_PROCESS_BATCH_SIZE"] == "512"
        assert changed["DLJOB_LEARNING_RATE_FACTOR"] == "2.0"


def test_process_batches_sum_to_the_batch():
    nodes = [run_of(2, 1, offset=offset, batch_size=100) for offset in (0, 2)]
    given = [each for run in nodes for each in environments(run, "pytorch")]
    assert [each["DLJOB_PROCESS_BATCH_SIZE"] for each in given] == ["33", "33", "34"]
    assert {each["DLJOB_BATCH_SIZE"] for each in given} == {"100"}


def test_extra_processes_share_gpus():
    ranks = lay_out(run_of(3, gpus=("0", "1")), framework="none")
    assert [rank.gpus for rank in ranks] == [("0",), ("0",), ("1",)]
