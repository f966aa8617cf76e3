"""
A user removes our finalizer from a job that trains: no GPU gets a second master by it (law 1).
"""

from typing import Any

from dljob.control.situation.ports import Entry
from dljob.control.situation.status import Status
from dljob.core.documents import jobfile
from dljob.core.model import JobId, Node, NodeName, Placement
from dljob.kube import names
from dljob.kube.names import Name
from dljob.kube.watches.mirror import Mirrors
from dljob.operator.observing import Orphans
from tests.operator.leaders import trusting
from tests.operator.manifests import make_manifest

Json = dict[str, Any]

SPACE = "default"
NODES = [Node.of("gpu-a", 4), Node.of("gpu-b", 2)]


def job(name: str, uid: str, version: int) -> Json:
    document = make_manifest(name)
    document["metadata"] |= {"namespace": SPACE, "uid": uid, "resourceVersion": str(version)}
    return document


def pod(of: str, uid: str, node: str, version: int, **status: Any) -> Json:
    return {
        "metadata": {
            "name": f"{of}-1",
            "namespace": SPACE,
            "uid": f"pod-of-{uid}",
            "resourceVersion": str(version),
            "labels": {names.JOB_LABEL: of, names.ROLE_LABEL: "trainer"},
            "ownerReferences": [{"kind": names.KIND, "name": of, "uid": uid}],
        },
        "spec": {"nodeName": node} if node else {},
        "status": {"phase": "Running", **status},
    }


def shown(*, jobs: list[Json], pods: list[Json]) -> Mirrors:
    mirrors = Mirrors()
    for each in jobs:
        mirrors.jobs.show(each)
    for each in pods:
        mirrors.pods.show(each)
    for node in NODES:
        mirrors.nodes.show({"metadata": {"name": node.name, "resourceVersion": "1"}})
    return mirrors


def usable(orphans: Orphans, entries: dict[JobId, Entry]) -> list[tuple[int, ...]]:
    return [node.usable for node in orphans.mark(NODES, entries)]


def entry_of(document: Json, gpus: dict[NodeName, list[int]]) -> dict[JobId, Entry]:
    parsed = jobfile.parse(document, require_template=True)
    status = Status(placement=Placement.of(gpus, "A100"))
    return {JobId("default/other"): Entry(parsed, 0, status, document=document)}


def test_the_gpus_of_a_job_that_vanishes_are_free_only_when_its_pod_has_ended():
    document, trainer = job("gone", "u1", 1), pod("gone", "u1", "gpu-a", 2)
    document["status"] = {"pods": [{"node": "gpu-a", "serial": 1}]}
    trainer["metadata"]["labels"][names.SERIAL_LABEL] = "1"
    mirrors = shown(jobs=[document], pods=[trainer])
    orphans = Orphans(mirrors, trusting(mirrors))
    assert usable(orphans, {}) == [(0, 1, 2, 3), (0, 1)]
    mirrors.jobs.show_end(job("gone", "u1", 5))
    orphans.note_end(Name(SPACE, "gone"))
    assert usable(orphans, {}) == [(), (0, 1)]
    mirrors.pods.show(
        pod(
            "gone",
            "u1",
            "gpu-a",
            6,
            phase="Failed",
            containerStatuses=[{"name": "trainer", "state": {}}],
        )
    )
    assert usable(orphans, {}) == [(0, 1, 2, 3), (0, 1)]


def test_a_job_of_the_same_name_has_nothing_to_do_with_them():
    mirrors = shown(jobs=[job("gone", "u2", 9)], pods=[pod("gone", "u1", "gpu-a", 2)])
    assert usable(Orphans(mirrors, trusting(mirrors)), {})[0] == ()


def test_what_others_hold_there_stays_theirs():
    other = job("other", "u3", 3)
    mirrors = shown(jobs=[other], pods=[pod("gone", "u1", "gpu-a", 2)])
    assert usable(
        Orphans(mirrors, trusting(mirrors)), entry_of(other, {NodeName("gpu-a"): [1, 2]})
    )[0] == (1, 2)


def test_a_node_that_registers_again_gives_nobody_the_gpus_of_pods_that_may_train_yet():
    document = job("moved", "u1", 1)
    mirrors = shown(jobs=[document], pods=[pod("moved", "u1", "gpu-a", 2)])
    orphans = Orphans(mirrors, trusting(mirrors))
    node = {"metadata": {"name": "gpu-a", "resourceVersion": "3"}}
    mirrors.nodes.show_end(node)
    orphans.note_gone("gpu-a")
    assert usable(orphans, {})[1] == (0, 1)
    # It registers again, from the same start of the machine, and its job has gone elsewhere meanwhile.
    mirrors.nodes.show({"metadata": {"name": "gpu-a", "resourceVersion": "4"}})
    (out, _) = orphans.mark(NODES, {})
    assert out.usable == ()
    assert "pod default/moved-1, which no job accounts for" in out.gpus[0].unavailable_because
    ended = {"terminated": {"exitCode": 0}}
    done = pod("moved", "u1", "gpu-a", 5, containerStatuses=[{"name": "trainer", "state": ended}])
    mirrors.pods.show(done)
    assert usable(orphans, {}) == [(0, 1, 2, 3), (0, 1)]


def test_a_pod_that_is_booked_is_no_stray_when_its_node_is_back():
    document = job("here", "u1", 1)
    document["status"] = {"pods": [{"node": "gpu-a", "serial": 7}]}
    there = pod("here", "u1", "gpu-a", 2)
    there["metadata"]["labels"][names.SERIAL_LABEL] = "7"
    mirrors = shown(jobs=[document], pods=[there])
    orphans = Orphans(mirrors, trusting(mirrors))
    orphans.note_gone("gpu-a")
    assert usable(orphans, {}) == [(0, 1, 2, 3), (0, 1)]
