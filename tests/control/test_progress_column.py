"""The progress of a job in one column."""

from typing import Any

import pytest

from dljob.control.reporting import formatting


def ended(reason: str, **progress: Any) -> dict[str, Any]:
    condition = {"type": "Finished", "reason": reason}
    return {"phase": "Completed", "conditions": [condition], "progress": progress}


@pytest.mark.parametrize(
    ("status", "shown"),
    [
        ({}, "-"),
        ({"phase": "Running", "progress": {"iteration": 12}}, "12 it"),
        ({"phase": "Running", "progress": {"iteration": 0, "fraction": 0.0}}, "0%"),
        ({"phase": "Running", "progress": {"iteration": 100, "fraction": 1.0}}, "99.9%"),
        (ended("Finished", iteration=100, fraction=1.0), "100%"),
        (ended("Finished", iteration=99, fraction=0.99), "100%"),
        (ended("EndedEarly", iteration=40, fraction=0.4), "40%"),
        (ended("Finished", fraction=0.0), "-"),
        (ended("Finished"), "100%"),
    ],
)
def test_progress_is_a_share_a_count_or_unknown(status: dict[str, Any], shown: str):
    assert formatting.progress(status) == shown
