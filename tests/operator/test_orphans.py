"""A user removes the finalizer of a running job: no GPU gets a second master (law 1)."""

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
from tests.servers.api import Json

SPACE = "default"
NODES = [Node.of("gpu-a", 4), Node.of("gpu-b", 2)]


def job(name: str, uid: str, version: int) -> Json:
    document = make_manifest(name)
    document["metadata"] |= {"namespace": SPACE, "uid": uid, "resourceVersion": str(version)}
    return document


def pod(of: str, uid: str, node: str, version: int, **status: Any) -> Json:
    metadata: Json = {"name": f"{of}-1", "namespace": SPACE, "uid": f"pod-of-{uid}"}
    metadata |= {"resourceVersion": str(version)}
    metadata["labels"] = {names.JOB_LABEL: of, names.ROLE_LABEL: "trainer"}
    metadata["ownerReferences"] = [{"kind": names.KIND, "name": of, "uid": uid}]
    spec = {"nodeName": node} if node else {}
    return {"metadata": metadata, "spec": spec, "status": {"phase": "Running", **status}}


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


def test_gpus_of_a_vanished_job_wait_for_the_end_of_its_pod():
    document, trainer = job("gone", "u1", 1), pod("gone", "u1", "gpu-a", 2)
    document["status"] = {"pods": [{"node": "gpu-a", "serial": 1}]}
    trainer["metadata"]["labels"][names.SERIAL_LABEL] = "1"
    mirrors = shown(jobs=[document], pods=[trainer])
    orphans = Orphans(mirrors, trusting(mirrors))
    assert usable(orphans, {}) == [(0, 1, 2, 3), (0, 1)]
    mirrors.jobs.show_end(job("gone", "u1", 5))
    orphans.note_end(Name(SPACE, "gone"))
    assert usable(orphans, {}) == [(), (0, 1)]
    ended = {"phase": "Failed", "containerStatuses": [{"name": "trainer", "state": {}}]}
    mirrors.pods.show(pod("gone", "u1", "gpu-a", 6, **ended))
    assert usable(orphans, {}) == [(0, 1, 2, 3), (0, 1)]


def test_namesake_of_the_job_does_not_own_the_pod():
    mirrors = shown(jobs=[job("gone", "u2", 9)], pods=[pod("gone", "u1", "gpu-a", 2)])
    assert usable(Orphans(mirrors, trusting(mirrors)), {})[0] == ()


def test_other_jobs_keep_their_gpus():
    other = job("other", "u3", 3)
    mirrors = shown(jobs=[other], pods=[pod("gone", "u1", "gpu-a", 2)])
    assert usable(
        Orphans(mirrors, trusting(mirrors)), entry_of(other, {NodeName("gpu-a"): [1, 2]})
    )[0] == (1, 2)


def test_node_that_returns_keeps_gpus_of_running_pods():
    document = job("moved", "u1", 1)
    mirrors = shown(jobs=[document], pods=[pod("moved", "u1", "gpu-a", 2)])
    orphans = Orphans(mirrors, trusting(mirrors))
    node = {"metadata": {"name": "gpu-a", "resourceVersion": "3"}}
    mirrors.nodes.show_end(node)
    orphans.note_gone("gpu-a")
    assert usable(orphans, {})[1] == (0, 1)
    # It registers again after the same boot, and its job has moved meanwhile.
    mirrors.nodes.show({"metadata": {"name": "gpu-a", "resourceVersion": "4"}})
    (out, _) = orphans.mark(NODES, {})
    assert out.usable == ()
    assert "pod default/moved-1, which no job accounts for" in out.gpus[0].unavailable_because
    ended = {"terminated": {"exitCode": 0}}
    done = pod("moved", "u1", "gpu-a", 5, containerStatuses=[{"name": "trainer", "state": ended}])
    mirrors.pods.show(done)
    assert usable(orphans, {}) == [(0, 1, 2, 3), (0, 1)]


def test_booked_pod_is_no_orphan():
    document = job("here", "u1", 1)
    document["status"] = {"pods": [{"node": "gpu-a", "serial": 7}]}
    there = pod("here", "u1", "gpu-a", 2)
    there["metadata"]["labels"][names.SERIAL_LABEL] = "7"
    mirrors = shown(jobs=[document], pods=[there])
    orphans = Orphans(mirrors, trusting(mirrors))
    orphans.note_gone("gpu-a")
    assert usable(orphans, {}) == [(0, 1, 2, 3), (0, 1)]
