"""Laws of random documents: round trips, and no error but our own."""

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from dljob.core.documents import jobfile
from dljob_wire.checkpoints import SIGNALS
from tests.core.examples import few_examples

GOOD = sorted((Path(__file__).parent / "data" / "good_jobs").glob("*.yaml"))

NAMES = st.from_regex(r"[a-z0-9]([-a-z0-9]{0,20}[a-z0-9])?", fullmatch=True)
WORDS = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,10}", fullmatch=True)
TEXTS = st.text(min_size=1, max_size=20)
FOLDERS = st.from_regex(r"/[^\x00-\x1f]{0,20}", fullmatch=True)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip
SECONDS = st.floats(1, 3600) | st.integers(1, 3600)


def record(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """A mapping with any of these fields."""
    return st.fixed_dictionaries({}, optional=fields)


@st.composite
def gpus(draw: st.DrawFn) -> dict[str, Any]:
    if draw(st.booleans()):
        counts = draw(st.lists(st.integers(1, 64), min_size=1, max_size=6, unique=True))
        drawn: dict[str, Any] = {"options": counts}
        if draw(st.booleans()):
            drawn["max"] = draw(st.integers(min(counts), 64))
    else:
        low = draw(st.integers(1, 20))
        drawn = {"max": low + draw(st.integers(0, 20))}
        counts = [drawn["max"]]
        if low > 1 or draw(st.booleans()):
            drawn["min"] = low
    others = record(
        requested=st.sampled_from(counts),
        types=st.lists(NAMES, min_size=1, max_size=3, unique=True),
        mixed=st.booleans(),
        maxNodes=st.integers(1, 9),
        ids=st.sampled_from(["index", "uuid"]),
    )
    return drawn | draw(others)


@st.composite
def training(draw: st.DrawFn) -> dict[str, Any]:
    target = st.fixed_dictionaries(
        {"metric": WORDS, "value": st.floats(-1e9, 1e9) | st.integers(-9, 9)},
        optional={"patience": st.integers(1, 9), "direction": st.sampled_from(["rises", "falls"])},
    )
    lengths = (
        st.fixed_dictionaries({"iterations": st.integers(1, 10**12)})
        | st.fixed_dictionaries(
            {"epochs": st.integers(1, 999), "iterationsPerEpoch": st.integers(1, 999)}
        )
        | st.fixed_dictionaries({"target": target})
    )
    return {
        **draw(record(target=target, iterationsPerEpoch=st.integers(1, 99))),
        **draw(lengths),
        "batchSize": draw(st.integers(1, 1024)),
    }


PROGRESS = st.tuples(
    st.fixed_dictionaries({"file": FOLDERS}) | st.just({"http": True}),
    record(stallSeconds=SECONDS, samplesPerIteration=st.integers(1, 10**6)),
    record(restartSeconds=st.integers(10_000, 20_000)),
).map(lambda parts: parts[0] | parts[1] | parts[2])

REQUESTS: st.SearchStrategy[dict[str, Any]] = (
    st.just({})
    | st.fixed_dictionaries({"signal": st.sampled_from(SIGNALS)})
    | st.fixed_dictionaries({"command": st.lists(TEXTS, min_size=1, max_size=3)})
    | st.just({"http": ":8080/save"})
)
CONFIRMATIONS: st.SearchStrategy[dict[str, Any]] = (
    st.just({})
    | st.just({"confirm": "exit"})
    | st.fixed_dictionaries({"confirm": st.just("file"), "path": FOLDERS})
    | st.just({"confirm": "log", "confirmLog": "saved"})
)
CHECKPOINTS = st.tuples(
    REQUESTS,
    CONFIRMATIONS,
    record(
        to=st.sampled_from(["leader", "all"]),
        shared=st.booleans(),
        timeoutSeconds=SECONDS,
        graceSeconds=SECONDS,
    ),
).map(lambda parts: parts[0] | parts[1] | parts[2])


def pods(container: str) -> st.SearchStrategy[dict[str, Any]]:
    trainer = st.fixed_dictionaries(
        {"name": st.just(container), "command": st.lists(TEXTS, min_size=1, max_size=2)},
        optional={"args": st.lists(TEXTS, max_size=2), "image": JSON},
    )
    spec = st.fixed_dictionaries(
        {"containers": st.lists(trainer, min_size=1, max_size=1)}, optional={"volumes": JSON}
    )
    return st.fixed_dictionaries({"spec": spec})


AUXILIARIES = st.lists(
    st.fixed_dictionaries(
        {"name": NAMES.filter(lambda name: name != "trainer")},
        optional={"replicas": st.integers(1, 9), "template": pods("server")},
    ),
    max_size=3,
    unique_by=lambda auxiliary: auxiliary["name"],
)
SPECS = st.fixed_dictionaries(
    {"gpus": gpus(), "training": training(), "progress": PROGRESS},
    optional={
        "framework": st.sampled_from(["pytorch", "tensorflow", "horovod", "jax", "none"]),
        "processes": st.sampled_from(["perGpu", "perNode"]),
        "profile": st.fixed_dictionaries({"model": WORDS}, optional={"dataset": WORDS}),
        "checkpoint": CHECKPOINTS,
        "environment": st.fixed_dictionaries(
            {},
            optional={
                "python": st.sampled_from(["/usr/bin/python3", "/opt/e/bin/python"]),
                "variables": st.lists(st.sampled_from(["A", "HF_TOKEN"]), unique=True),
            },
        ),
        "warmStart": st.fixed_dictionaries(
            {"preload": st.lists(WORDS, min_size=1, max_size=3, unique=True)}
        ),
        "liveSeconds": st.integers(0, 9999),
        "batch": st.just({"elastic": True, "max": 4096}) | st.just({"elastic": False}),
        "managedBy": st.sampled_from(["kueue.x-k8s.io/multikueue", "dljob.io/operator"]),
        "priority": st.integers(-(10**9), 10**9),
        "suspend": st.booleans(),
        "ttlSecondsAfterFinished": st.integers(0, 9999),
        "activeDeadlineSeconds": st.integers(1, 9999),
        "backoffLimit": st.integers(0, 9),
        "auxiliaries": AUXILIARIES,
        "template": pods("trainer"),
    },
)
METADATA = st.fixed_dictionaries(
    {"name": NAMES},
    optional={
        "namespace": NAMES,
        "labels": st.dictionaries(WORDS.filter(lambda word: word[0] != "_"), NAMES, max_size=3),
        "annotations": st.fixed_dictionaries(
            {"dljob.io/submit-at": st.integers(0, 10**6).map(str) | st.just("0.125")}
        ),
    },
).filter(lambda metadata: not any(key.endswith("_") for key in metadata.get("labels", {})))
DOCUMENTS = st.builds(
    lambda metadata, spec: {
        "apiVersion": "dljob.io/v1alpha1",
        "kind": "DLJob",
        "metadata": metadata,
        "spec": spec,
    },
    METADATA,
    SPECS,
)


@few_examples(25)
@given(DOCUMENTS)
def test_rendered_job_parses_to_the_same_job(document: dict[str, Any]):
    job = jobfile.parse(document)
    rendered = jobfile.render(job)
    assert json.loads(json.dumps(rendered)) == rendered
    again = jobfile.parse(rendered)
    assert again == job
    assert jobfile.render(again) == rendered
    assert jobfile.change_problems(job, again) == []


def test_example_survives_a_round_trip():
    for path in GOOD:
        job = jobfile.parse(yaml.safe_load(path.read_text(encoding="utf-8")))
        rendered = jobfile.render(job)
        assert jobfile.parse(yaml.safe_load(yaml.safe_dump(rendered))) == job, path.stem


JUNK = JSON | st.sampled_from(
    [float("nan"), float("inf"), b"bytes", (), {1: 2}, 10**400, "", [[]], {"": {}}, {None}, object]
)


@few_examples(50)
@given(DOCUMENTS, JUNK, st.data())
def test_any_junk_raises_only_jobfile_error(
    document: dict[str, Any], junk: object, data: st.DataObject
):
    broken = deepcopy(document)
    parents: list[Any] = [broken]
    for parent in parents:
        children = parent.values() if isinstance(parent, dict) else parent
        parents.extend(child for child in children if isinstance(child, dict | list) and child)
    parent = data.draw(st.sampled_from(parents))
    if isinstance(parent, dict):
        parent[data.draw(st.sampled_from(sorted(parent)) | st.text(max_size=5))] = junk
    else:
        parent[data.draw(st.integers(0, len(parent) - 1))] = junk
    lines: tuple[str, ...] = ()
    try:
        jobfile.parse(broken, source="f.yaml", require_template=data.draw(st.booleans()))
    except jobfile.JobFileError as error:
        lines = error.lines()
    for line in lines:
        assert line.startswith("f.yaml: ")
        assert line.isprintable()


@given(JUNK)
def test_junk_is_no_document(junk: object):
    with pytest.raises(jobfile.JobFileError):
        jobfile.parse(junk)
