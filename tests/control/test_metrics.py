"""The metrics of GPUs and jobs, in the words that messages use as well."""

from dataclasses import replace

from prometheus_client.parser import text_string_to_metric_families

from dlcontrol.reporting.metrics import MOST_NAMESPACES, OTHER_NAMESPACES, Metrics
from dlcore.model import JobId, NodeName, Phase
from dlstore.tables import GpuState
from tests.control.scenes import cast, make_scene, ready, run, running

N0 = NodeName("n0")


def samples(metrics: Metrics, name: str) -> dict[tuple[str, ...], float]:
    found = text_string_to_metric_families(metrics.text().decode())
    return {
        tuple(value for _, value in sorted(sample.labels.items())): sample.value
        for family in found
        for sample in family.samples
        if sample.name == name
    }


def test_gpus_are_counted_by_the_states_that_gpu_list_and_the_store_know():
    scene = make_scene(
        cast("a", {"n0": (0,)}, job_pods={"n0": running(run(3, 0))}),
        cast("b", {"n0": (1,)}, job_pods={"n0": ready()}, phase=Phase.INITIALIZED),
        nodes={"n0": 4, "n1": 2},
    )
    node = scene.nodes[N0]
    gpus = (*node.gpus[:3], replace(node.gpus[3], unavailable_because="too hot"))
    scene = replace(scene, nodes={**scene.nodes, N0: replace(node, gpus=gpus)})
    metrics = Metrics()
    metrics.show(scene)
    assert samples(metrics, "dljob_gpus") == {
        **{("n0", state.value): 1.0 for state in GpuState},
        **{("n1", state.value): 2.0 * (state is GpuState.FREE) for state in GpuState},
    }
    assert samples(metrics, "dljob_gpu_in_use") == {("0", "a", "n0", ""): 1.0}


def test_who_uses_a_gpu_no_longer_is_not_told_to():
    metrics = Metrics()
    metrics.show(make_scene(cast("a", {"n0": (0,)}, job_pods={"n0": running(run(3, 0))})))
    metrics.show(make_scene())
    assert samples(metrics, "dljob_gpu_in_use") == {}


def test_a_controller_that_suspects_itself_says_so():
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


def test_no_number_of_namespaces_makes_more_series_than_a_bound():
    metrics = Metrics()
    for number in range(MOST_NAMESPACES + 50):
        metrics.waited(JobId(f"lab-{number}/a"), seconds=1.0, outcome="started")
    metrics.waited(JobId("lab-0/b"), seconds=1.0, outcome="started")
    counts = samples(metrics, "dljob_job_wait_seconds_count")
    assert len(counts) == MOST_NAMESPACES + 1
    assert (counts["lab-0", "started"], counts[OTHER_NAMESPACES, "started"]) == (2.0, 50.0)
