"""The requests of pods: their sum, and the sentence for a job whose pods fit on no node."""

import pytest

from dljob.core.explaining.sentences import why_no_node
from dljob.core.placement.amounts import NoAmount, read_amount, requests_of, show
from dljob.core.placement.needs import Needs
from tests.builders import make_cluster, make_node, make_snapshot, make_state


def test_amounts_are_read_like_kubernetes():
    read = [read_amount(text) for text in ("500m", "4Gi", "1e3", 8, "1.0001")]
    assert read == [500, 4 * 1024**3 * 1000, 1_000_000, 8000, 1001]
    assert [show("memory", read[1]), show("cpu", 1500)] == ["4Gi memory", "1.5 cpu"]
    for wrong in ("", "4 Gi", "1x", "9" * 500):
        with pytest.raises(NoAmount):
            read_amount(wrong)


def asking(cpus: int, **fields: str) -> dict[str, object]:
    return {"resources": {"requests": {"cpu": cpus}}, **fields}


def test_pod_requests_add_up():
    def cpus(**spec: object) -> int:
        return requests_of(spec)["cpu"] // 1000

    assert cpus(containers=[asking(1), asking(2)], overhead={"cpu": 1}) == 4
    assert cpus(containers=[asking(1)], initContainers=[asking(5), asking(3)]) == 5
    stays = asking(2, restartPolicy="Always")
    assert cpus(containers=[asking(1)], initContainers=[stays, asking(4)]) == 6
    assert cpus(containers=[asking(9)], resources={"requests": {"cpu": 7}}) == 7


def why(needs: Needs | None, *free: dict[str, int], alone: bool = False) -> str:
    """Explain why a job for two GPUs finds no node; each node has two GPUs and these amounts free."""
    nodes = (make_node(f"n{number}", 2, free=each) for number, each in enumerate(free))
    state = make_state(options=(2,), needs=needs)
    return why_no_node(make_snapshot(make_cluster(*nodes), state), state, gpus=2, alone=alone)


def test_pods_without_room_are_explained():
    cpu = Needs((("cpu", 4000), ("memory", 1024_000)))
    both = {"cpu": 1000, "memory": 9_000_000}
    assert why(None, both) == "needs 2 GPUs on nodes that take its pods"
    assert why(cpu, both, {**both, "cpu": 3000}) == (
        "its pod asks 4 cpu; the most that any node of the pool has free is 3 cpu (n1)"
    )
    assert why(cpu, both, {"cpu": 9000, "memory": 0}) == (
        "its pod asks 4 cpu, 1Ki memory: n0 has too little cpu, n1 has too little memory"
    )
    assert why(cpu, both, {**both, "cpu": 4000}) == (
        "needs 2 GPUs, and its pod (4 cpu, 1Ki memory) has room on n1 only, with 2 GPUs in all"
    )
    assert why(Needs((("pods", 1000),)), {"pods": 0}, alone=True) == (
        "no node of the pool takes more pods; n0 has at all 0 pods"
    )
    barred = Needs(nodes=frozenset(), refusals=(("is tainted", 3), ("is of another zone", 5)))
    assert why(barred, both, both) == (
        "its pod may be on none of the 2 nodes of the pool: 5 is of another zone; 3 is tainted"
    )
