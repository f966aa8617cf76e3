"""The metrics of GPUs and jobs use the words of messages."""

from dataclasses import replace

from prometheus_client.parser import text_string_to_metric_families

from dljob.control.reporting.metrics import MOST_NAMESPACES, OTHER_NAMESPACES, Metrics
from dljob.core.model import JobId, NodeName, Phase
from dljob.store.notebook import Dropped, NotebookState
from tests.control.scenes import cast, make_scene, ready, run, running

N0 = NodeName("n0")
GPU_STATES = ("free", "reserved", "in-use", "unavailable")


def samples(metrics: Metrics, name: str) -> dict[tuple[str, ...], float]:
    found = text_string_to_metric_families(metrics.text().decode())
    return {
        tuple(value for _, value in sorted(sample.labels.items())): sample.value
        for family in found
        for sample in family.samples
        if sample.name == name
    }


def test_gpu_states_are_those_of_gpu_list():
    scene = make_scene(
        cast("a", {"n0": (0,)}, n0=running(run(3, 0))),
        cast("b", {"n0": (1,)}, n0=ready(), phase=Phase.INITIALIZED),
        nodes={"n0": 4, "n1": 2},
    )
    node = scene.nodes[N0]
    gpus = (*node.gpus[:3], replace(node.gpus[3], unavailable_because="too hot"))
    scene = replace(scene, nodes={**scene.nodes, N0: replace(node, gpus=gpus)})
    metrics = Metrics()
    metrics.show(scene)
    assert samples(metrics, "dljob_gpus") == {
        **{("n0", state): 1.0 for state in GPU_STATES},
        **{("n1", state): 2.0 * (state == "free") for state in GPU_STATES},
    }
    assert samples(metrics, "dljob_gpu_in_use") == {("0", "a", "n0", ""): 1.0}


def test_pauses_of_live_changes_are_counted_apart():
    metrics = Metrics()
    metrics.reshaped(0.02, "live")
    metrics.reshaped(3.0, "in-place")
    assert samples(metrics, "dljob_reshape_seconds_sum") == {("live",): 0.02, ("in-place",): 3.0}
    buckets = samples(metrics, "dljob_reshape_seconds_bucket")
    assert (buckets["0.01", "live"], buckets["0.03", "live"]) == (0.0, 1.0)


def test_ended_use_is_no_longer_shown():
    metrics = Metrics()
    metrics.show(make_scene(cast("a", {"n0": (0,)}, n0=running(run(3, 0)))))
    metrics.text()
    metrics.show(make_scene())
    assert samples(metrics, "dljob_gpu_in_use") == {}
    assert samples(metrics, "dljob_namespace_gpus_in_use") == {}


def test_gpus_in_use_are_counted_by_namespace():
    metrics = Metrics()
    trains = running(run(3, 0))
    metrics.show(
        make_scene(
            cast("lab/a", {"n0": (0,)}, n0=trains),
            cast("lab/b", {"n1": (0,)}, n1=trains),
            cast("x/c", {"n2": (0,)}, n2=trains),
            cast("y/d", {"n2": (1,)}, n2=ready(), phase=Phase.INITIALIZED),
        )
    )
    assert samples(metrics, "dljob_namespace_gpus_in_use") == {("lab",): 2.0, ("x",): 1.0}


def test_only_a_leader_reports_leadership():
    leads = [False, True]
    metrics = Metrics(lambda: leads.pop(0))
    assert samples(metrics, "dljob_leader") == {(): 0.0}
    assert samples(metrics, "dljob_leader") == {(): 1.0}


def test_names_and_values_follow_prometheus():
    metrics = Metrics()
    metrics.watch_store(lambda: NotebookState(True, 0, Dropped(1, 2), 0, ""))
    pods = {"n0": running(run(3, 0))}
    metrics.show(make_scene(cast("a", {"n0": (0,)}, job_pods=pods, reshapes=3)))
    assert samples(metrics, "dljob_job_reshapes_total") == {("a",): 3.0}
    assert samples(metrics, "dljob_store_dropped_total") == {(): 3.0}
    for family in text_string_to_metric_families(metrics.text().decode()):
        for sample in family.samples:
            assert sample.name.endswith("_total") == (family.type == "counter"), sample
            assert not any(" " in value for value in sample.labels.values()), sample


def test_suspicion_of_itself_is_a_metric():
    scene, metrics = make_scene(), Metrics()
    metrics.show(replace(scene, suspected_until=scene.now))
    assert samples(metrics, "dljob_breaker_tripped") == {(): 1.0}
    metrics.show(replace(scene, suspected_until=scene.now - 1.0))
    assert samples(metrics, "dljob_breaker_tripped") == {(): 0.0}


def test_waits_are_counted_by_namespace_and_outcome():
    metrics = Metrics()
    metrics.waited(JobId("lab/a"), seconds=30.0, outcome="started")
    metrics.waited(JobId("lab/b"), seconds=90.0, outcome="started")
    metrics.waited(JobId("lab/c"), seconds=7.0, outcome="cancelled")
    assert samples(metrics, "dljob_job_wait_seconds_count") == {
        ("lab", "started"): 2.0,
        ("lab", "cancelled"): 1.0,
    }
    assert samples(metrics, "dljob_job_wait_seconds_sum")["lab", "started"] == 120.0
    buckets = samples(metrics, "dljob_job_wait_seconds_bucket")
    assert (buckets["15.0", "lab", "started"], buckets["60.0", "lab", "started"]) == (0.0, 1.0)


def test_number_of_namespaces_is_bounded():
    metrics = Metrics()
    for number in range(MOST_NAMESPACES + 50):
        metrics.waited(JobId(f"lab-{number}/a"), seconds=1.0, outcome="started")
    metrics.waited(JobId("lab-0/b"), seconds=1.0, outcome="started")
    counts = samples(metrics, "dljob_job_wait_seconds_count")
    assert len(counts) == MOST_NAMESPACES + 1
    assert (counts["lab-0", "started"], counts[OTHER_NAMESPACES, "started"]) == (2.0, 50.0)
