"""The effects of larger batches on the jobs of the simulated world: speed, samples, convergence."""

from dataclasses import dataclass, replace

import pytest

from dljob.core.contract import Decision, Share, View
from dljob.core.model import BatchRange, Cause, CauseCode
from dljob.core.profiles import Costs, JobType, Profile, Speed
from dljob.sim.engine.settings import Setting
from dljob.sim.engine.world import World
from dljob.sim.inputs.shipped import find_folder
from dljob.sim.inputs.tables import Table
from dljob.sim.jobs.noise import Noise, find_noise
from dljob.sim.jobs.workloads import Workload
from dljob_wire.messages import Shape
from tests.builders import FakePolicy
from tests.sim.worlds import ONE_NODE, make_traced

FREE = Costs()
SMALLEST = {"bert": 12, "cifar10": 128, "deepspeech2": 20, "imagenet": 200, "ncf": 256, "yolov3": 8}


@dataclass(frozen=True)
class Batched(FakePolicy):
    """Gives the only job one GPU, and batches at given times."""

    batches: tuple[tuple[float, int], ...]

    def allocate(self, view: View) -> Decision:
        past = [batch for at, batch in self.batches if at <= view.now]
        later = [at for at, _ in self.batches if at > view.now]
        shares = {
            state.id: Share(
                1, Cause(CauseCode.FASTER_WITH_MORE), batch_size=past[-1] if past else None
            )
            for state in (*view.running, *view.pending)
        }
        return Decision(shares, wake_at=min(later, default=None))


def make_elastic(noise: Noise | None) -> Workload:
    """A job with 1 iteration/s at batch 64, and 2/3 at batch 128."""
    traced = make_traced("job", iterations=1000.0)
    training = replace(traced.job.training, batch_size=64)
    job = replace(traced.job, training=training, batch=BatchRange(elastic=True, maximum=256))
    speeds = {JobType("linear"): 1.0, JobType("linear", "", 128): 2.0 / 3.0}
    profiles = {
        kind: Profile(kind, {Shape(1, 1, ""): Speed(speed)}) for kind, speed in speeds.items()
    }
    return Workload("elastic", (replace(traced, job=job, noise=noise),), profiles, profiles)


def end_of(workload: Workload, *batches: tuple[float, int], costs: Costs = FREE) -> float:
    world = World(workload, Setting(nodes=ONE_NODE, costs=costs), policy=Batched(batches))
    (job,) = world.play().completed
    assert job.completed_at is not None
    return job.completed_at


def test_larger_batch_has_its_own_speed_and_samples():
    # Two thirds of an iteration a second, each with the samples of two.
    assert end_of(make_elastic(None), (0.0, 128)) == pytest.approx(750.0)


def test_batch_change_costs_a_restart():
    costs = Costs(process_initialization=10.0, checkpoint=3.0, process_termination=2.0)
    noise = Noise((0.0,), (192.0,))
    own = end_of(make_elastic(noise), costs=costs)
    changed = end_of(make_elastic(noise), (510.0, 128), costs=costs)
    back = end_of(make_elastic(noise), (110.0, 128), (710.0, 64), costs=costs)
    assert own == pytest.approx(1010.0)
    assert changed == pytest.approx(510.0 + 15.0 + 0.5 * 750.0 / 0.8)
    # From 125 to 710 it does 585 * 4/3 * 0.8 = 624 iterations' worth; 276 are left at 725.
    assert back == pytest.approx(725.0 + 276.0)


def test_policy_sees_samples_and_total_for_the_batch():
    seen: list[tuple[float, float]] = []

    class Looking(Batched):
        def allocate(self, view: View) -> Decision:
            seen.extend((s.iterations_at(view.now), s.iterations_total) for s in view.running)
            return Batched.allocate(self, view)

    workload = make_elastic(Noise((0.0,), (192.0,)))
    World(workload, Setting(nodes=ONE_NODE), policy=Looking(((0.0, 128), (300.0, 128)))).play()
    assert seen[-1] == pytest.approx((400.0, 1250.0))


def test_noise_scales_match_measured_iterations():
    columns = ("application", "global_batch_size", "iterations")
    rows = list(Table.read(find_folder() / "pollux_iterations.csv", required=columns))
    own = {
        row.name("application"): row.positive("iterations")
        for row in rows
        if row.whole("global_batch_size", least=1) == SMALLEST[row.name("application")]
    }
    for row in rows:
        model, batch = row.name("application"), row.whole("global_batch_size", least=1)
        smallest, noise = SMALLEST[model], find_noise(model, SMALLEST[model])
        worths = [noise.worth(batch, own=smallest, progress=0.1 * k + 0.05) for k in range(10)]
        foreseen = own[model] * smallest / batch * sum(1.0 / worth for worth in worths) / 10
        assert foreseen == pytest.approx(row.positive("iterations"), rel=0.08)


def test_unmeasured_model_has_usual_noise():
    small, large = find_noise("unheard-of", 32), find_noise("unheard-of", 64)
    assert large.scales == pytest.approx([2.0 * scale for scale in small.scales])
    assert small.worth(64, own=32, progress=0.0) < small.worth(64, own=32, progress=0.95) < 1.0
