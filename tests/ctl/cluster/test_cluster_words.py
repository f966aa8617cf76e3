"""The output from the answers of a cluster, and the choice of the place: without any cluster."""

import asyncio
import itertools
import json
import socket
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import click
import pytest

from dljob.client import places
from dljob.client.backend import Away, BackendError, LogQuery, NotThere
from dljob.client.cluster import backend, kubectl, podlogs, submitting
from dljob.client.cluster.backend import ClusterBackend
from dljob.client.cluster.connecting import Connection
from dljob.client.cluster.reading import gpus, past, wording
from dljob.client.cluster.reading.operators import Operator
from dljob.client.cluster.refusals import complaints, explain
from dljob.client.local.local_backend import LocalBackend
from dljob.client.places import Place, choose, decide
from dljob.control.reporting.events import event_name
from dljob.kube.client import Listing, NotFound, Rejected, Unreachable
from dljob.local.folders import Folders
from dljob.operator.nodes.nodes import Pool
from dljob.operator.nodes.placeholders import PoolMode
from tests.loops import on_loop
from tests.servers.nodes import make_node

SERVER = "https://cluster:6443"
NOW = 1_769_860_800.0
"""2026-01-31T12:00:00Z"""


# --- which place --------------------------------------------------------------------------


@pytest.fixture
def nowhere(tmp_path, monkeypatch):
    """Neither a dljob up nor a cluster to be found; returns the home of the user."""
    for name in ("KUBECONFIG", "DLJOB_STATE", "DLJOB_PLATFORM", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path


@pytest.fixture
def kubeconfig(nowhere):
    document = {
        "clusters": [{"name": "c", "cluster": {"server": SERVER}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
        "contexts": [
            {"name": "one", "context": {"cluster": "c", "user": "u", "namespace": "team-a"}},
            {"name": "two", "context": {"cluster": "c", "user": "u"}},
        ],
        "current-context": "one",
    }
    path = nowhere / ".kube" / "config"
    path.parent.mkdir()
    path.write_text(json.dumps(document), encoding="utf-8")
    return path


def chosen(place=None, started_as="dljob"):
    """Choose as the command does that was started under this name."""
    with click.Context(click.Command("x"), info_name=started_as):
        backend = choose(place or Place())
    backend.close()
    return backend


def is_cluster(backend):
    return isinstance(backend, ClusterBackend)


def test_a_place_that_is_decided_stays_the_same(nowhere, kubeconfig):
    cluster = decide(Place())
    document = json.loads(kubeconfig.read_text(encoding="utf-8"))
    document["clusters"].append({"name": "d", "cluster": {"server": "https://other:6443"}})
    document["contexts"][1]["context"]["cluster"] = "d"
    document["current-context"] = "two"
    kubeconfig.write_text(json.dumps(document), encoding="utf-8")
    assert cluster.target is not None
    assert cluster.target.connect().access.address == SERVER
    assert cluster.open().home == "team-a"
    assert decide(Place()).open().home == "default"
    with click.Context(click.Command("x"), info_name="kubectl-dljob"):
        plugin = decide(Place())
    kubeconfig.unlink()
    machine = decide(Place())
    kubeconfig.write_text(json.dumps(document), encoding="utf-8")
    assert isinstance(machine.open(), LocalBackend)
    assert is_cluster(plugin.open())


@pytest.mark.parametrize(
    ("document", "field"),
    [
        ({}, "metadata"),
        ({"metadata": {"name": "a"}}, "spec"),
        ({"metadata": {"name": 3}, "spec": {}}, "metadata.name"),
        ({"metadata": {"name": "a", "namespace": ".."}, "spec": {}}, "metadata.namespace"),
        ({"metadata": {"name": "a"}, "spec": None}, "spec"),
    ],
)
def test_a_document_without_its_parts_is_refused_by_the_field(kubeconfig, document, field):
    with pytest.raises(BackendError) as refused:
        chosen().create_jobs([{"metadata": {"name": "whole"}, "spec": {}}, document])
    assert [(each.document, each.path) for each in refused.value.complaints] == [
        (1, path) for path in ([field, "spec"] if not document else [field])
    ]


def test_a_name_that_leads_elsewhere_is_no_job(kubeconfig):
    for name, ask in itertools.product(
        ("", ".", "..", "../a", "a/..", "/a", "a/b/c"), ("get_job", "delete_job", "explain")
    ):
        with pytest.raises(NotThere, match="there is no such job"):
            getattr(chosen(), ask)(name)


def test_a_kubeconfig_is_a_cluster_with_the_namespace_of_its_context(kubeconfig):
    backend = chosen()
    assert is_cluster(backend)
    assert backend.home == "team-a"
    assert chosen(Place(context="two")).home == "default"
    assert chosen(Place(namespace="team-b")).home == "team-b"
    assert chosen(Place(everywhere=True)).home == ""


def test_named_place_precedes_a_found_one(kubeconfig, tmp_path, monkeypatch):
    assert not is_cluster(chosen(Place(state=tmp_path)))
    monkeypatch.setenv("DLJOB_STATE", str(tmp_path / "up"))
    assert not is_cluster(chosen())
    monkeypatch.setenv("DLJOB_PLATFORM", "cluster")
    assert is_cluster(chosen())
    monkeypatch.setenv("DLJOB_PLATFORM", "machine")
    assert not is_cluster(chosen())
    assert is_cluster(chosen(Place(namespace="team-b")))
    assert is_cluster(chosen(started_as="kubectl dljob"))
    monkeypatch.setenv("DLJOB_PLATFORM", "moon")
    with pytest.raises(
        click.UsageError, match="'moon' is not a platform; write machine or cluster"
    ):
        chosen()
    with pytest.raises(click.UsageError, match="--state is one machine"):
        chosen(Place(state=tmp_path, context="one"))


def test_a_dljob_up_that_answers_counts_more_than_a_kubeconfig(kubeconfig, root, monkeypatch):
    monkeypatch.setattr(places, "default_root", lambda _: root)
    assert is_cluster(chosen())
    path = Folders(root).socket
    path.parent.mkdir(parents=True, exist_ok=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as up:
        up.bind(str(path))
        assert is_cluster(chosen()), "it does not answer"
        up.listen()
        assert not is_cluster(chosen())


# --- refusals -----------------------------------------------------------------------------


def forbidden(verb, resource, where):
    group = ' in API group "dljob.io"' if resource == "dljobs" else ' in API group ""'
    name = f'{resource} is forbidden: User "ada" cannot {verb} resource "{resource}"{group} {where}'
    return Rejected(403, {"message": name, "reason": "Forbidden"})


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (
            forbidden("list", "dljobs", 'in the namespace "a"'),
            (
                "ada may not list dljobs in namespace a; ask for a RoleBinding there to the ClusterRole"
                " dljob-view"
            ),
        ),
        (
            Rejected(403, {"message": "exceeded quota: jobs,\n used 3", "reason": "Forbidden"}),
            "exceeded quota: jobs, used 3",
        ),
        (
            NotFound(404, {"message": "404 page not found"}),
            (
                f"the API server at {SERVER} does not know the kind DLJob; install DLJob there:"
                " kubectl apply -k manifests/install"
            ),
        ),
    ],
)
def test_refusal_names_the_right_and_its_granter(error, told):
    assert str(explain(error, SERVER)) == told


def test_each_rule_that_is_broken_is_a_line_of_its_own():
    causes = [
        {"field": "spec.gpus", "message": 'Invalid value: "object": give options; or a range'},
        {"field": "spec.priority", "message": 'Invalid value: "string": must be an integer'},
        {"message": "some validation rules were not checked because the object was invalid; x"},
    ]
    lines = complaints(Rejected(422, {"message": "all", "details": {"causes": causes}}), 3)
    assert [tuple(line) for line in lines] == [
        (3, "spec.gpus: give options; or a range", "spec.gpus"),
        (3, "spec.priority: must be an integer", "spec.priority"),
    ]


def test_field_unknown_to_an_older_crd_is_reported():
    message = 'strict decoding error: unknown field "spec.new", unknown field "spec.other"'
    lines = [found.line for found in complaints(Rejected(400, {"message": message}))]
    assert [line.split(":")[0] for line in lines] == ["spec.new", "spec.other"]
    assert "kubectl apply -k manifests/install" in lines[0]


class GoingAway:
    """An API server that creates some jobs, or tries them, and then does not answer any more."""

    def __init__(self, answers, error, *, while_trying):
        self.answers = answers
        self.error = error
        self.while_trying = while_trying

    async def create(self, _resource, document, _namespace, *, dry_run, strict):
        assert strict
        if dry_run is self.while_trying:
            self.answers -= 1
            if self.answers < 0:
                raise self.error
        return document


RESET = Unreachable("the API server at x does not answer (reset)")


def submitted(answers, *names, error=RESET, while_trying=False):
    jobs = [{"metadata": {"name": each, "namespace": "team"}} for each in names]
    api = GoingAway(answers, error, while_trying=while_trying)
    return asyncio.run(submitting.create(cast("Any", api), jobs, dry_run=False))


def test_an_api_server_that_goes_away_half_way_leaves_jobs_that_are_named():
    with pytest.raises(Away) as refused:
        submitted(2, "a", "b", "c", "d")
    assert str(refused.value) == (
        "the API server at x does not answer (reset); a, b were submitted before it and exist now;"
        " c may exist too: dljob get lists the jobs"
    )
    with pytest.raises(Away, match=r"\(reset\); a may exist: dljob get lists the jobs"):
        submitted(0, "a", "b")
    with pytest.raises(Unreachable):
        submitted(0, "a")


def test_a_proxy_that_gives_up_leaves_a_job_that_may_exist_and_blames_no_document():
    late = Rejected(504, {"message": "<h1>Gateway\nTime-out</h1>"})
    what = "the API server, or a proxy before it, answers 504 (<h1>Gateway Time-out</h1>)"
    with pytest.raises(Away) as refused:
        submitted(1, "a", "b", "c", error=late)
    assert str(refused.value) == (
        f"{what}; a were submitted before it and exist now; b may exist too: dljob get lists the jobs"
    )
    with pytest.raises(Rejected) as plain:
        submitted(1, "a", "b", error=late, while_trying=True)
    assert plain.value is late


# --- sentences ----------------------------------------------------------------------------


def job(metadata=None, spec=None, **status):
    base = {"name": "a", "namespace": "ns", "creationTimestamp": "2026-01-31T11:59:50Z"}
    return {"metadata": {**base, **(metadata or {})}, "spec": spec or {}, "status": status}


ALLOCATION = {
    "gpus": 3,
    "gpuType": "A100",
    "decidedAt": "2026-01-31T11:00:00Z",
    "nodes": [{"name": "n1", "gpuIds": [0, 2]}, {"name": "n2", "gpuIds": [1]}],
}


@pytest.mark.parametrize(
    ("document", "told"),
    [
        (job(), "was submitted just now, and nothing is decided about it yet"),
        (
            job({"creationTimestamp": "2026-01-31T11:50:00Z"}),
            (
                "was submitted 10m ago, and no operator has read it; check that one runs (kubectl"
                " get pods -n dljob-system) and whether it watches this namespace"
            ),
        ),
        (
            job({"deletionTimestamp": "2026-01-31T12:00:00Z"}, pods=[{"node": "n1", "serial": 1}]),
            "is cancelled; on n1 its pod is ending",
        ),
        (
            job({"creationTimestamp": "2026-01-31T11:50:00Z"}, {"managedBy": "acme.io/jobs"}),
            "is managed by acme.io/jobs, so DLJob leaves it alone",
        ),
        (
            job(spec={"managedBy": "acme.io/jobs"}, phase="Running", message="starts on 2 GPUs"),
            "is managed by acme.io/jobs, so DLJob leaves it alone. Its status says: starts on 2 GPUs",
        ),
        (job(spec={"managedBy": "dljob.io/operator"}, phase="Completed", message="done"), "done"),
        (
            job(phase="Queued", message="it crashed", retryAt="2026-01-31T12:00:30Z"),
            "is tried again in about 30s: it crashed",
        ),
        (
            job(
                phase="Queued",
                message="waits",
                conditions=[{"type": "SetAside", "status": "True", "message": "no such type"}],
            ),
            "is set aside: no such type",
        ),
        (
            job(
                phase="Running",
                message="starts on 3 GPUs",
                allocation=ALLOCATION,
                progress={"iterationsPerSecond": 2.0, "fraction": 0.25, "etaSeconds": 90},
            ),
            (
                "trains on 3 A100 GPUs on n1 and n2 at 2 iterations/s; 25 % is done, and about 90s is"
                " left. Lately: starts on 3 GPUs"
            ),
        ),
        (
            job(
                phase="Running",
                message="starts on 3 GPUs",
                allocation=ALLOCATION,
                conditions=[
                    {"type": "QuotaReserved", "status": "True", "message": "Kueue admits 3"}
                ],
            ),
            "trains on 3 A100 GPUs on n1 and n2; Kueue admits 3. Lately: starts on 3 GPUs",
        ),
        (
            job(
                phase="Queued",
                message="waits: Kueue has admitted none",
                conditions=[
                    {"type": "Scheduled", "status": "False", "reason": "QueueQuota"},
                    {"type": "QuotaReserved", "status": "False", "message": "the queue is stopped"},
                ],
            ),
            "waits: the queue is stopped",
        ),
        (
            job(
                phase="Adjusting",
                message="goes from 4 to 2 GPUs on n1: Kueue takes layer 2-4 back",
                conditions=[
                    {"type": "Scheduled", "status": "True", "reason": "QueueQuota"},
                    {"type": "QuotaReserved", "status": "True", "message": "Kueue takes layer 2-4"},
                ],
            ),
            "goes from 4 to 2 GPUs on n1: Kueue takes layer 2-4 back",
        ),
        (
            job(
                phase="Queued",
                message="waits: bob is owed 4 GPUs",
                conditions=[{"type": "Scheduled", "status": "False", "reason": "QueueQuota"}],
            ),
            "waits: bob is owed 4 GPUs",
        ),
    ],
)
def test_a_status_is_put_into_the_present(document, told):
    assert wording.sentence(document, NOW) == told


def test_assumptions_are_shown_until_known_or_ended():
    lacks = {"type": "Informed", "status": "False", "message": "its length is unknown"}
    assert wording.assumptions(job(phase="Queued", conditions=[lacks])) == ["its length is unknown"]
    assert wording.assumptions(job(phase="Failed", conditions=[lacks])) == []
    knows = {"type": "Informed", "status": "True", "message": "all is known"}
    assert wording.assumptions(job(phase="Queued", conditions=[knows])) == []
    assert wording.assumptions(job(phase="Queued")) == []


def test_waiting_job_shows_why_gpus_are_out():
    told = "needs 4 GPUs; 4 are out of service (n1: it lacks the taint dljob.io/pool)"
    known = {
        "n1": {"out": {"0": "its plugin offers them", "1": "its plugin offers them"}},
        "n2": {},
    }
    waits = job(phase="Queued", message=told)
    assert wording.outages(waits, lambda: known) == [
        "out of service now: n1: its plugin offers them"
    ]
    assert wording.outages(waits, dict) == []
    for other in (job(phase="Running", message=told), job(phase="Queued", message="is next")):
        assert wording.outages(other, lambda: known) == []


# --- GPUs ---------------------------------------------------------------------------------


POOL = Pool(mode=PoolMode.DEDICATED)
LABELS = {"dljob.io/pool": "", "dljob.io/gpu-count": "3", "dljob.io/gpu-type": "A100"}


def shown(nodes, jobs, *, sees_all_jobs=True):
    listed = gpus.list_gpus(
        nodes, gpus.find_holdings(jobs, "ns"), pool=POOL, sees_all_jobs=sees_all_jobs
    )
    return {
        f"{node['name']}/{gpu['index']}": (gpu["state"], gpu.get("job"), gpu.get("reason"))
        for node in listed
        for gpu in node["gpus"]
    }


def test_each_gpu_has_a_holder_or_is_free_or_out():
    node = make_node("n1", labels=LABELS)
    node["metadata"]["annotations"] = {"dljob.io/cordoned-gpus": '{"1": "Xid 79"}'}
    away = make_node("n2", labels=LABELS)
    away["status"]["conditions"][0]["status"] = "Unknown"
    other = make_node("n3")
    running = job(phase="Running", allocation=ALLOCATION)
    found = shown([away, node, other], [running])
    assert found["n1/0"] == ("in use", "a", None)
    assert found["n1/1"] == ("unavailable", None, "Xid 79")
    assert found["n2/1"] == ("in use", "a", "its node is not ready")
    assert found["n2/0"] == ("unavailable", None, "its node is not ready")
    assert not any(name.startswith("n3") for name in found)
    # Somebody who does not see all jobs is not told that a GPU is free.
    found = shown([make_node("n1", labels=LABELS)], [], sees_all_jobs=False)
    assert set(found.values()) == {("unknown", None, "free, or held by a job that you may not see")}


def test_releasing_job_holds_the_gpu_before_its_successor():
    new = job({"name": "new"}, phase="Initialized", allocation=ALLOCATION)
    old = job({"name": "old", "namespace": "x"}, leftover=[{"name": "n1", "gpuIds": [2]}])
    found = shown([make_node("n1", labels=LABELS)], [new, old])
    assert found["n1/0"] == ("reserved", "new", None)
    assert found["n1/2"] == ("in use", "x/old", None)
    assert found["n1/1"] == ("free", None, None)


def test_cordon_overwrites_only_the_read_version():
    node = make_node("n1", labels=LABELS)
    node["metadata"] |= {
        "resourceVersion": "7",
        "annotations": {"dljob.io/cordoned-gpus": '{"1": "Xid 79"}'},
    }
    cordons = "dljob.io/cordoned-gpus"
    assert gpus.read_numbered(node, cordons) == {"1": "Xid 79"}
    change = gpus.write_numbered(node, {cordons: {"10": "b", "2": "a"}})["metadata"]
    assert change["resourceVersion"] == "7"
    assert change["annotations"] == {cordons: '{"2": "a", "10": "b"}'}
    assert gpus.write_numbered(node, {cordons: {}})["metadata"]["annotations"] == {cordons: None}
    with pytest.raises(NotThere, match="n1/3: there is no such GPU; n1 has 0, 1, 2"):
        gpus.insist_on_gpu(node, 3, pool=POOL)
    with pytest.raises(NotThere, match=r"n9: is not a node of the pool; label it dljob.io/pool"):
        gpus.insist_on_gpu({"metadata": {"name": "n9"}}, 0, pool=POOL)


class PlayedAsker:
    """Asks an API server that has one node, and what an operator tells of it."""

    def __init__(self, node, told):
        self.node = node
        self.changes: list[dict[str, object]] = []
        self.told = {"data": {"gpus.json": json.dumps(told)}}

    def ask(self, act):
        return asyncio.run(act(self))

    async def get(self, resource, name, namespace=""):
        if resource.kind == "ConfigMap" and name == "dljob-gpus":
            return self.told
        if resource.kind == "Node":
            return self.node
        raise NotThere(name)

    async def merge(self, _resource, _name, changes):
        self.changes.append(changes)
        return self.node


def gives_back(told, *numbers):
    """Uncordon GPUs of a node of which the operator tells this."""
    backend = chosen()
    node = make_node("n1", labels={"dljob.io/pool": "", "dljob.io/gpu-count": "4"})
    node["metadata"]["resourceVersion"] = "7"
    backend._asker = asker = PlayedAsker(node, {"n1": told})
    backend._operator = Operator(backend._asker)
    said: list[str] = []
    backend._notice = said.append
    was = [backend.uncordon("n1", number)["wasCordoned"] for number in numbers]
    return was, asker.changes, said


def test_uncordon_of_a_faulty_gpu_says_it_is_repaired(kubeconfig):
    told = {"out": {"3": "it reported Xid 79"}, "faults": {"3": "it reported Xid 79"}}
    was, [change], said = gives_back(told, 2, 3)
    assert (was, said) == ([False, True], [])
    annotations = change["metadata"]["annotations"]
    assert annotations["dljob.io/cordoned-gpus"] is None
    assert list(json.loads(annotations["dljob.io/pardoned-gpus"])) == ["3"]
    _, changes, _ = gives_back(told, 3, 3)
    words = [change["metadata"]["annotations"]["dljob.io/pardoned-gpus"] for change in changes]
    assert len(set(words)) == 2, "what is found after it has to count again"


# --- the past -----------------------------------------------------------------------------


def event(second, reason, message="", **more):
    at = f"2026-01-31T12:00:{second:02}Z"
    metadata = {"name": reason, "creationTimestamp": at, "resourceVersion": str(second)}
    return {"metadata": metadata, "lastTimestamp": at, "reason": reason, "message": message, **more}


def test_decisions_are_called_as_the_operator_calls_them():
    names = {event_name(kind): kind for kind in ("start", "reshape", "move", "stop", "wait")}
    assert names.items() <= past._KINDS_BY_EVENT.items()


def test_decisions_and_events_share_one_order():
    status = {
        "history": [
            {"at": "2026-01-31T12:00:10.500Z", "kind": "reshape", "gpusBefore": 1, "gpus": 2},
            {"at": "2026-01-31T12:00:20.500Z", "kind": "stop", "gpusBefore": 2, "gpus": 0},
        ]
    }
    events = past.list_events(
        [
            event(11, "Running", count=2),
            event(10, "Reshaping", "is known from the status"),
            event(20, "Stopping"),
            event(5, "Scheduled", "is older than what the status tells"),
        ],
        "a",
    )
    entries = past.list_history(status, events, job="a")
    assert [entry["kind"] for entry in entries] == ["start", "reshape", "running", "stop"]
    assert entries[1]["old"] == {"gpus": 1, "nodes": []}
    assert "new" not in entries[3]
    assert entries[2]["message"] == " (2 times)"


# --- logs and commands --------------------------------------------------------------------


class CutLogs:
    """An API server whose log of a pod is cut after two of its lines, for a job that ends meanwhile."""

    def __init__(self):
        self.asked: list[dict[str, str]] = []

    async def get(self, resource, _name, _namespace):
        if resource.kind == "DLJob":
            return {"status": {"phase": "Completed" if self.asked else "Running"}}
        return self._pod()

    async def list(self, *_, **__):
        return Listing([self._pod()], "1")

    def _pod(self):
        state = {"terminated" if self.asked else "running": {"startedAt": "now"}}
        trainer = {"name": "trainer", "restartCount": 0, "state": state}
        metadata, status = {"name": "a-1"}, {"containerStatuses": [trainer]}
        return {"metadata": metadata, "spec": {"nodeName": "n1"}, "status": status}

    @asynccontextmanager
    async def stream(self, _path, query):
        self.asked.append(dict(query))
        lines = [b"2026-01-31T12:00:00.%09dZ line %d\n" % (n, n) for n in range(4)]
        content = asyncio.StreamReader()
        content.feed_data(
            b"".join(lines[:2]) + lines[2][:30] if len(self.asked) == 1 else b"".join(lines)
        )
        content.feed_eof()
        yield cast("Any", SimpleNamespace(iter_any=lambda: _blocks(content)))


async def _blocks(content):
    while block := await content.read(64):
        yield block


@on_loop
async def test_a_log_is_followed_on_where_it_was_cut(monkeypatch):
    monkeypatch.setattr(podlogs, "LOOK_S", 0.0)
    api = CutLogs()
    flow = podlogs.follow(
        cast("Any", api), podlogs.Job("team", "a"), LogQuery(lines=5), notice=pytest.fail
    )
    assert [line.text async for line in flow] == [b"line %d\n" % n for n in range(4)]
    first, second = api.asked
    assert (first["tailLines"], "sinceTime" in first) == ("5", False)
    assert second["sinceTime"] == "2026-01-31T12:00:00.000000001Z"
    assert "tailLines" not in second


@on_loop
async def test_a_reader_that_leaves_a_silent_log_leaves_no_task_behind():
    reader = asyncio.ensure_future(podlogs._next(asyncio.Queue()))
    await asyncio.sleep(0)
    reader.cancel()
    await asyncio.wait({reader})
    assert reader.cancelled()
    assert asyncio.all_tasks() == {asyncio.current_task()}


def test_without_kubectl_the_command_to_run_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    there = Connection(cast("Any", None), "team", options=("--context=one",))
    with pytest.raises(BackendError) as refused:
        kubectl.execute(there, "team", pod="a-1", command=["nvidia-smi", "-L"])
    assert str(refused.value) == (
        "kubectl is not on PATH; install it (https://kubernetes.io/docs/tasks/tools), or run this where it"
        " is: kubectl --context=one --namespace=team exec --quiet --stdin a-1 --container=trainer --"
        " nvidia-smi -L"
    )


# --- watching -----------------------------------------------------------------------------


class Refusing:
    """An API server that refuses each watch with the next of these, and then tells of a job."""

    def __init__(self, *errors):
        self.errors = list(errors)
        self.versions = []

    async def watch(self, _resource, _namespace, *, version, labels):
        assert labels == "team=vision"
        self.versions.append(version)
        if self.errors:
            raise self.errors.pop(0)
        yield {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "8"}}}
        yield {"type": "DELETED", "object": {"metadata": {"name": "a", "resourceVersion": "9"}}}

    async def list(self, _resource, _namespace, *, labels):
        assert labels == "team=vision"
        return Listing([{"metadata": {"name": "a"}}], "7")


@pytest.fixture
def watched(monkeypatch):
    monkeypatch.setattr(backend, "RETRY_S", 0.0)

    async def watch(server, count):
        news = backend._watch(server, "ns", labels="team=vision", version="5")
        return [await anext(news) for _ in range(count)]

    return lambda server, count: asyncio.run(watch(server, count))


def test_watch_resumes_after_any_cut(watched):
    starting = Rejected(429, {"message": "storage is (re)initializing"})
    server = Refusing(Unreachable("away"), starting, Rejected(403, {"message": "not yet"}))
    bookmark, deleted = watched(server, 2)
    assert (bookmark.items, bookmark.version) == ([], "8")
    assert (deleted.removed, deleted.version) == (("a",), "9")
    assert server.versions == ["5", "5", "5", "5"]


def test_expired_watch_starts_from_a_full_list(watched):
    server = Refusing(Rejected(410, {"message": "too old resource version"}))
    everything, *_ = watched(server, 2)
    assert everything.complete
    assert server.versions == ["5", "7"]


def test_final_refusal_ends_a_watch(watched, monkeypatch):
    class Forbidding(Refusing):
        async def watch(self, _resource, _namespace, **_):
            for error in (Rejected(403, {"message": "no longer"}),):
                raise error
            yield {}

    monkeypatch.setattr(backend, "PATIENCE_S", 0.05)
    with pytest.raises(Rejected, match="no longer"):
        watched(Forbidding(), 1)
