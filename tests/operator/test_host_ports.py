"""Pods on their node's network: each job has its own ports."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dljob.operator.podspecs.host_ports import (
    BLOCK,
    HOST_PORTS,
    OWN,
    PortRange,
    choose_block,
    first_port,
    meeting_port,
)
from tests.operator.stages import Stage

LONG = 10**6


def pod(uid: str, first: int, phase: str = "Running") -> dict[str, object]:
    metadata = {"ownerReferences": [{"uid": uid}], "annotations": {HOST_PORTS: str(first)}}
    return {"metadata": metadata, "spec": {"hostNetwork": True}, "status": {"phase": phase}}


def test_job_keeps_its_block_and_a_new_one_gets_a_free_one():
    ports = PortRange.parse("20000-20299")
    assert list(ports.blocks) == [20_000, 20_100, 20_200]
    pods = [pod("a", 20_000), pod("b", 20_200), pod("c", 20_100, "Succeeded")]
    assert choose_block("b", pods, ports=ports) == 20_200
    assert choose_block("d", pods, ports=ports) == 20_100, "ended pods free their ports"
    assert choose_block("d", [*pods, pod("c", 20_100)], ports=ports) == 0


def test_blocks_of_a_former_range_do_not_overlap():
    pods = [pod("a", 20_000)]
    moved = PortRange.parse("20050-20349")
    assert choose_block("b", pods, ports=moved) == 20_150
    assert choose_block("a", pods, ports=moved) == 20_000, "a job keeps its ports"


@given(st.integers(0, 2**53), st.integers(0, 200))
def test_processes_meet_within_the_block(generation, processes):
    port = meeting_port(20_000, generation, processes=processes)
    assert port >= 20_000 + OWN
    assert port + min(processes, BLOCK - OWN) <= 20_000 + BLOCK


NODES = {"gpu-a": 2}


def submit_on_host(stage: Stage, name: str) -> None:
    document = stage.make_job(name, iterations=LONG)
    document["spec"]["gpus"] = {"options": [1]}
    document["spec"]["template"]["spec"]["hostNetwork"] = True
    stage.api.post(stage.path(), document)


@pytest.mark.cluster
@pytest.mark.processes
def test_jobs_on_the_host_network_have_their_own_ports(stage: Stage):
    # Without a range such jobs are refused with the remedy.
    operator = stage.start_operator()
    submit_on_host(stage, "first")
    stage.wait(lambda: "pods.hostPorts" in str(stage.status("first").get("conditions")))
    operator.stop()
    settings = {"pods.hostPorts": "20000-20199"}
    stage.start_operator(settings=settings)
    submit_on_host(stage, "second")
    for name in ("first", "second"):
        stage.wait_for_phase(name, "Running")
    assert {first_port(each) for each in stage.pods()} == {20_000, 20_100}
    for each in stage.pods():
        [container] = each["spec"]["containers"]
        first = first_port(each)
        # Kubernetes knows the ports, and binds no other pod with them to this node.
        assert [port["hostPort"] for port in container["ports"]] == [first, first + 1]
        assert f"--listen=:{first}" in container["command"]
    # The next leader finds the SideCars there.
    stage.operators[-1].stop()
    stage.start_operator(settings=settings)
    before = {name: iteration(stage, name) for name in ("first", "second")}
    stage.wait(lambda: all(iteration(stage, name) > at for name, at in before.items()))
    assert not any(stage.status(name).get("restarts", 0) for name in before)


def iteration(stage: Stage, name: str) -> int:
    return int(stage.status(name)["progress"]["iteration"])
