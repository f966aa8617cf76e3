"""
Each document of ``data/wrong_jobs`` is refused with exactly the messages that it lists.

A new kind of mistake is one more file there; its lines after ``# wrong:`` are the messages.
"""

from pathlib import Path

import pytest
import yaml

from dljob.core.documents import jobfile
from dljob.core.documents.rules import jobrules, podrules
from dljob_wire.checkpoints import CHECKPOINT_RULES

WRONG_JOBS = sorted((Path(__file__).parent / "data" / "wrong_jobs").glob("*.yaml"))

WRONG = "# wrong: "
FOR_REAL = "# to be run for real"

RULES = (
    *jobrules.GPU_RULES,
    *jobrules.TRAINING_RULES,
    *jobrules.PROGRESS_RULES,
    *CHECKPOINT_RULES,
    *jobrules.BATCH_RULES,
    *jobrules.SPEC_RULES,
    *podrules.CONTAINER_RULES,
    *podrules.TRAINER_RULES,
    *podrules.AUXILIARY_RULES,
    *podrules.POD_RULES,
)


def expected_lines(text: str) -> tuple[str, ...]:
    return tuple(line.removeprefix(WRONG) for line in text.splitlines() if line.startswith(WRONG))


def test_wrong_job_has_exact_messages():
    assert len(WRONG_JOBS) > 150
    lines: set[str] = set()
    for path in WRONG_JOBS:
        text = path.read_text(encoding="utf-8")
        with pytest.raises(jobfile.JobFileError) as caught:
            jobfile.parse(yaml.safe_load(text), require_template=FOR_REAL in text)
        assert caught.value.lines() == expected_lines(text) != (), path.stem
        lines |= {*expected_lines(text)}
    for rule in RULES:
        assert any(f"{rule.message}; {rule.remedy}" in line for line in lines), rule.name
