"""
The API server and the parser refuse the same jobs: the rules in CEL and in Python agree.

Jobs are drawn, and a few of their fields are changed to values that each make sense alone, so that
nearly all refusals are about combinations of fields.
"""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dljob.core.documents import jobfile
from tests.core.test_jobfile_laws import DOCUMENTS
from tests.operator.manifests import completed, make_manifest
from tests.operator.refusing import refusal
from tests.servers.api import Api, Json

pytestmark = pytest.mark.cluster

Where = tuple[str | int, ...]


TRAINER: Where = ("template", "spec", "containers", 0)
ASKS_GPU = {"limits": {"nvidia.com/gpu": 1}}
CHOOSES_GPU = [{"name": "CUDA_VISIBLE_DEVICES", "value": "0"}]
VALUES: dict[Where, dict[str, list[Any]]] = {
    ("gpus",): {
        "options": [[1], [1, 2], [4, 2]],
        "min": [1, 2, 20],
        "max": [1, 4, 1024, 1025],
        "requested": [1, 2, 3, 4],
    },
    ("training",): {
        "iterations": [1],
        "epochs": [3],
        "iterationsPerEpoch": [10],
        "batchSize": [1, 64, 9999],
        "target": [{"metric": "loss", "value": 1}, {"metric": "top5", "value": 0.5}],
    },
    ("progress",): {
        "log": [
            "(?P<iteration>x)",
            "(?P<epoch>x)",
            "(?P<epoch>x)(?P<loss>y)",
            "(?P<iteration>x)(?P<top5>y)",
            "(?P<loss>x)",
            "nothing",
        ],
        "file": ["/progress"],
        "http": [True, False],
        "stallSeconds": [60, 601],
        "restartSeconds": [59.5, 60, 600],
    },
    ("checkpoint",): {
        "signal": ["SIGUSR1"],
        "command": [["save"]],
        "http": [":8080/save"],
        "confirm": ["file", "log", "exit"],
        "confirmLog": ["saved"],
        "path": ["/ckpt"],
    },
    ("batch",): {"elastic": [True, False], "max": [1, 64, 10_000]},
    ("template", "spec"): {
        "hostPID": [True, False],
        "shareProcessNamespace": [True, False],
        "nodeName": ["node"],
        "initContainers": [[{"name": "first", "resources": ASKS_GPU}], [{"name": "first"}]],
    },
    TRAINER: {
        "name": ["trainer", "other"],
        "command": [["train"]],
        "livenessProbe": [{}],
        "startupProbe": [{}],
        "env": [[{"name": "A"}], CHOOSES_GPU],
        "resources": [{}, {"limits": {"cpu": 0.5}}, ASKS_GPU],
    },
    ("auxiliaries", 0): {"name": ["trainer", "ps"], "replicas": [1, 2]},
    ("auxiliaries", 0, "template", "spec"): {"hostPID": [True], "nodeName": ["node"]},
    ("auxiliaries", 0, *TRAINER): {
        "livenessProbe": [{}],
        "env": [CHOOSES_GPU],
        "resources": [ASKS_GPU],
    },
}
LEFT_OUT = object()
CHANGES = st.sampled_from(
    [
        (where, name, value)
        for where, fields in VALUES.items()
        for name, values in fields.items()
        for value in (LEFT_OUT, *values)
    ]
)


def record_at(spec: Json, where: Where) -> Json | None:
    """Find a record of a spec; make one that is left out, but no item of a list."""
    found: Any = spec
    for step in where:
        if isinstance(found, dict):
            found = found.setdefault(step, [] if step == "auxiliaries" else {})
        elif isinstance(step, int) and step < len(found):
            found = found[step]
        else:
            return None
    record: Json = found
    return record


def change(spec: Json, where: Where, name: str, value: Any) -> None:
    record = record_at(spec, where)
    if record is not None and value is LEFT_OUT:
        record.pop(name, None)
    elif record is not None:
        record[name] = value


def verdicts(api: Api, job: Json) -> tuple[tuple[str, ...], list[str]]:
    """The objections of the parser and of the API server to a job."""
    try:
        jobfile.parse(job, require_template=True)
        ours: tuple[str, ...] = ()
    except jobfile.JobFileError as error:
        ours = error.lines()
    return ours, refusal(api, "default", job)


@settings(max_examples=100)
@given(document=DOCUMENTS, changes=st.lists(CHANGES, min_size=1, max_size=4))
def test_both_refuse_the_same_jobs(api: Api, document: Json, changes: list[Any]):
    job = json.loads(json.dumps(completed(document)))
    for where, name, value in changes:
        change(job["spec"], where, name, value)
    ours, theirs = verdicts(api, job)
    assert bool(ours) == bool(theirs), (ours, theirs)


TARGET = {"iterations": 9, "target": {"metric": "a", "value": 0.5}}
BORDERS: list[tuple[Json, Json]] = [
    *(
        ({"gpus": right}, {"gpus": wrong})
        for right, wrong in (
            ({"min": 4, "max": 4}, {"min": 5, "max": 4}),
            ({"max": 1024}, {"max": 1025}),
            ({"min": 3, "max": 1026}, {"min": 3, "max": 1027}),
            ({"min": 2, "max": 4, "requested": 2}, {"min": 2, "max": 4, "requested": 1}),
            ({"max": 4, "requested": 4}, {"max": 4, "requested": 5}),
            ({"options": [1, 4], "requested": 4}, {"options": [1, 4], "requested": 2}),
        )
    ),
    *(
        ({"progress": {"http": True, **right}}, {"progress": {"http": True, **wrong}})
        for right, wrong in (
            (
                {"stallSeconds": 60, "restartSeconds": 60},
                {"stallSeconds": 60, "restartSeconds": 59},
            ),
            ({"restartSeconds": 600}, {"restartSeconds": 599.5}),
        )
    ),
    ({"training": TARGET}, {"training": TARGET, "progress": {"log": "(?P<iteration>x)"}}),
]


def test_both_have_the_same_limits(api: Api):
    for right, wrong in BORDERS:
        assert verdicts(api, make_manifest("job", **right)) == ((), []), right
        assert all(verdicts(api, make_manifest("job", **wrong))), wrong
