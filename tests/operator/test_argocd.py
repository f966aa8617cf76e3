"""Argo CD shows a job's health by a Lua script, which a real interpreter runs on real statuses."""

import json
import shutil
import subprocess
from dataclasses import replace
from typing import Any

import pytest
import yaml

from dljob.control.situation.status import Condition, ConditionType, Status
from dljob.core.model import Phase
from dljob.operator.jobs.entries import status_document
from tests.operator.kubelets import ROOT

pytestmark = pytest.mark.processes

LUA = shutil.which("lua5.4") or shutil.which("lua")
FILE = ROOT / "manifests" / "argocd" / "health.yaml"
REFUSED = Condition(
    ConditionType.TEMPLATE_VALID, status=False, reason="Refused", message="no such field"
)
TAKEN = replace(REFUSED, status=True, reason="Accepted")
ASIDE = Condition(ConditionType.SET_ASIDE, status=True, reason="SetAside", message="cannot be read")


def in_lua(value: Any) -> str:
    """Write a JSON document as a Lua literal."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"[{json.dumps(k)}] = {in_lua(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "{" + ", ".join(map(in_lua, value)) + "}"
    return json.dumps(value, ensure_ascii=False)


def health(job: dict[str, Any]) -> tuple[str, str]:
    if LUA is None:
        pytest.skip("there is no interpreter of Lua; install the package lua5.4")
    script = yaml.safe_load(FILE.read_text())["data"][
        "resource.customizations.health.dljob.io_DLJob"
    ]
    program = f"""
local obj = {in_lua(job)}
local function health()
{script}
end
local found = health()
print(found.status)
print(found.message)
"""
    ran = subprocess.run(
        [LUA, "-"], input=program, capture_output=True, text=True, check=False, timeout=60.0
    )
    assert ran.returncode == 0, ran.stderr
    status, message = ran.stdout.splitlines()
    return status, message


@pytest.mark.parametrize(
    ("status", "shown"),
    [
        (
            Status(phase=Phase.QUEUED, message="waits for 2 GPUs"),
            ("Progressing", "waits for 2 GPUs"),
        ),
        (Status(phase=Phase.RUNNING, message="trains"), ("Progressing", "trains")),
        (Status(phase=Phase.SUSPENDED, message="is suspended"), ("Suspended", "is suspended")),
        (Status(phase=Phase.COMPLETED, message="finished"), ("Healthy", "finished")),
        (Status(phase=Phase.FAILED, message="exit 1"), ("Degraded", "exit 1")),
        (
            Status(phase=Phase.QUEUED, message="is set aside", conditions=(REFUSED,)),
            ("Degraded", "no such field"),
        ),
        (
            Status(phase=Phase.RUNNING, message="trains", conditions=(ASIDE,)),
            ("Degraded", "cannot be read"),
        ),
        (
            Status(phase=Phase.RUNNING, message="trains", conditions=(TAKEN,)),
            ("Progressing", "trains"),
        ),
    ],
)
def test_health_shows_phase_and_reason(status, shown):
    document = status_document(status, epoch=1, generation=1)
    assert health({"status": document}) == shown


def test_unseen_job_progresses():
    assert health({"metadata": {"name": "job"}}) == (
        "Progressing",
        "waits for the operator of DLJob",
    )
