import math
from collections.abc import Callable
from functools import cache
from pathlib import Path
from statistics import median

import pytest

from dljob.core.predicting.growths import SPREAD_EXPONENT, USUAL_TIME
from dljob.core.predicting.relating import TYPE_SPEED, Atlas
from dljob.core.predicting.speed_curves import (
    Point,
    fit_iteration_time,
    points_by_type,
    type_ratio_alone,
)
from dljob.core.profiles import JobType, Profile, Speed
from dljob.sim.errors import BadInput
from dljob.sim.inputs.shipped import find_folder, load_shipped, load_speeds
from dljob.sim.inputs.tables import Table
from dljob_wire.messages import Shape

HEADER = "gpu_type,model,global_batch_size,num_gpus,iterations_per_s"
SHIPPED = cache(load_shipped)


@pytest.fixture
def speeds_file(tmp_path: Path) -> Callable[[str], Path]:
    def write(text: str) -> Path:
        path = tmp_path / "speeds.csv"
        path.write_text(text, encoding="utf-8")
        return path

    return write


def test_every_source_has_readme_and_licence():
    folder = find_folder()
    readme = (folder / "README.md").read_text(encoding="utf-8")
    for part in ("elasticflow", "gavel", "pollux", "chronus"):
        assert f"`{part}/`" in readme
    licences = " ".join(path.name for path in (folder / "LICENSES").iterdir()).lower()
    for origin in ("elasticflow", "gavel", "adaptdl", "chronus"):
        assert origin in licences


def test_every_shipped_speed_is_plausible():
    for kind, profile in SHIPPED().items():
        assert profile.type == kind
        assert profile.speeds
        for shape, speed in profile.speeds.items():
            assert 0.0 < speed.iterations_per_s < 1000.0
            assert 1 <= shape.nodes <= shape.gpus <= 64
            assert shape.gpu_type in {"K80", "P100", "V100", "A100", "T4"}


def test_spread_exponent_matches_chronus():
    columns = ("model", "num_gpus", "num_nodes", "relative_speed")
    table = Table.read(find_folder() / "chronus" / "placement_slowdown.csv", required=columns)
    slowdowns = [(row.whole("num_nodes", least=1), row.positive("relative_speed")) for row in table]
    exponents = [-math.log(speed) / math.log(nodes) for nodes, speed in slowdowns if nodes > 1]
    assert median(exponents) == pytest.approx(SPREAD_EXPONENT, abs=0.005)


def test_type_speeds_match_gavel():
    for kind in ("P100", "V100"):
        ratios = [
            ratio
            for profile in SHIPPED().values()
            if (ratio := type_ratio_alone(_on_one_gpu(profile), "K80", new=kind)) is not None
            # Larger batches than were measured repeat the ratio of the largest that was.
            and profile.type.batch_size <= 256
        ]
        assert median(ratios) == pytest.approx(TYPE_SPEED[kind], rel=0.15)


def _on_one_gpu(profile: Profile) -> Profile:
    return Profile(
        profile.type, {shape: each for shape, each in profile.speeds.items() if shape.gpus == 1}
    )


def test_iteration_time_matches_elasticflow():
    profiles = load_speeds(find_folder() / "elasticflow" / "throughput.csv").values()
    curves = [
        {point.gpus: point.speed for point in points}
        for profile in profiles
        for points in points_by_type(profile).values()
    ]
    gains = {
        gpus: [each[2 * gpus] / each[gpus] for each in curves if gpus in each and 2 * gpus in each]
        for gpus in (1, 2, 4, 8, 16, 32)
    }
    curve = [Point(1, 1, 1.0, 1.0)]
    for gpus, gain in gains.items():
        curve.append(Point(2 * gpus, 1, curve[-1].speed * median(gain), 1.0))
    terms = fit_iteration_time(curve)
    assert [term / sum(terms) for term in terms] == pytest.approx(USUAL_TIME, abs=0.02)


def errors_without(
    kinds: str, hide: Callable[[Shape, Shape], bool], ask: Callable[[Shape, list[int]], bool]
) -> list[float]:
    """Return the relative errors at the chosen shapes, each predicted with some shapes hidden."""
    errors = []
    for kind, profile in SHIPPED().items():
        for shape, speed in profile.speeds.items():
            counts = sorted(
                {each.gpus for each in profile.speeds if each.gpu_type == shape.gpu_type}
            )
            if shape.gpu_type not in kinds or len(counts) < 3 or not ask(shape, counts):
                continue
            left = {each: s for each, s in profile.speeds.items() if not hide(each, shape)}
            predicted = Atlas({**SHIPPED(), kind: Profile(kind, left)}).estimate(kind, shape)
            errors.append(abs(predicted.value / speed.iterations_per_s - 1.0))
    assert len(errors) > 10
    return errors


def same_count(one: Shape, other: Shape) -> bool:
    return one.gpus == other.gpus and one.gpu_type == other.gpu_type


@pytest.mark.parametrize(
    ("kind", "at_most"), [("A100", 0.06), ("T4", 0.08), ("V100 P100 K80", 0.12)]
)
def test_count_between_measured_ones_is_predicted(kind, at_most):
    errors = errors_without(
        kind, same_count, lambda shape, counts: counts[0] < shape.gpus < counts[-1]
    )
    assert median(errors) <= at_most


@pytest.mark.parametrize(
    ("kind", "at_most"), [("A100", 0.08), ("T4", 0.1), ("V100 P100 K80", 0.15)]
)
def test_unmeasured_batch_is_predicted(kind, at_most):
    errors = []
    for held_back, profile in SHIPPED().items():
        others = {each: known for each, known in SHIPPED().items() if each != held_back}
        if not any(each.model == held_back.model for each in others):
            continue
        atlas = Atlas(others)
        errors += [
            abs(atlas.estimate(held_back, shape).value / speed.iterations_per_s - 1.0)
            for shape, speed in profile.speeds.items()
            if shape.gpu_type in kind
        ]
    assert median(errors) <= at_most


def test_speeds_file_becomes_profiles(speeds_file):
    path = speeds_file(f"{HEADER}\nV100,gpt,64,1,2.5\nV100,gpt,64,4,7.5\n,gpt,,2,1\n")
    profiles = load_speeds(path)
    assert dict(profiles[JobType("gpt", "", 64)].speeds) == {
        Shape(1, 1, "V100"): Speed(2.5),
        Shape(4, 1, "V100"): Speed(7.5),
    }
    assert dict(profiles[JobType("gpt")].speeds) == {Shape(2, 1, ""): Speed(1.0)}


@pytest.mark.parametrize(
    ("text", "where", "what", "remedy"),
    [
        ("", "speeds.csv", "is empty", HEADER),
        (f"{HEADER}\n", "speeds.csv:1", "no rows", "below the header"),
        ("gpu_type,model\nV100,gpt\n", "speeds.csv:1: global_batch_size", "no column", "add it"),
        (f"{HEADER},node\nV100,gpt,64,1,2,1\n", "speeds.csv:1: node", "not a column", "nodes?"),
        (f"{HEADER}\nV100,gpt,64,1\n", "speeds.csv:2", "4 fields", "one field a column"),
        (f"{HEADER}\nV100,gpt,x,1,2\n", "speeds.csv:2: global_batch_size", "'x'", "number"),
        (f"{HEADER}\nV100,gpt,64,1,0\n", "speeds.csv:2: iterations_per_s", "above 0", "leave out"),
        (f"{HEADER}\nV100,gpt,64,1,nan\n", "speeds.csv:2: iterations_per_s", "'nan'", "number"),
        (
            f"{HEADER}\nV100,gpt,64,1,2\nV100,gpt,64,1,3\n",
            "speeds.csv:3",
            "gpt/64 on 1 GPU (V100) was already given on line 2",
            "keep one",
        ),
        (f"{HEADER},nodes\nV100,gpt,64,2,2,3\n", "speeds.csv:2: nodes", "2 GPUs", "at most"),
        (f'{HEADER}\nV100,"gpt,64,1,2\n', "speeds.csv:2", "not CSV", "quotes"),
    ],
)
def test_wrong_speeds_file_has_a_one_line_error(speeds_file, text, where, what, remedy):
    with pytest.raises(BadInput) as caught:
        load_speeds(speeds_file(text))
    message = str(caught.value)
    assert f"{where}:" in message
    assert what in message
    assert remedy in message.rpartition("; ")[2]
    assert "\n" not in message


def test_error_for_any_file_is_one_printable_line(speeds_file):
    path = speeds_file(f'{HEADER}\nV100,"a\nb",64,1,"\x1b[31m{"9" * 500}"\n')
    with pytest.raises(BadInput) as caught:
        load_speeds(path)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < len(str(path)) + 200
