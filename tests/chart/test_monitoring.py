"""The alerts and the dashboard use existing metrics in valid PromQL, and are right."""

import json
import re
import subprocess
from typing import Any

import pytest
import yaml

from dljob.control.reporting.metrics import Metrics
from dljob.core.model import Phase
from dljob.store.notebook import Dropped, NotebookState
from dljob.store.tables import GpuState
from dljob_gangs.book import Book
from dljob_gangs.decider import Decider
from dljob_gangs.extender import GangMetrics
from dljob_gangs.members import Rules, Standing
from tests.chart.helms import CHART
from tests.servers.binaries import PROMQL, demand
from tests.sidecar.drivers import ROOT

pytestmark = pytest.mark.cluster

FOLDER = CHART / "files" / "monitoring"
FILES = [FOLDER / "rules.yaml", FOLDER / "rules-gangs.yaml"]
RULES = [
    rule
    for file in FILES
    for group in yaml.safe_load(file.read_text())["groups"]
    for rule in group["rules"]
]
MINUTE = 60.0


def iter_panel_expressions():
    board = json.loads((FOLDER / "dashboard.json").read_text())
    for panel in board["panels"]:
        for target in panel.get("targets", ()):
            yield f"{panel['title']} {target['refId']}", target["expr"]


EXPRESSIONS = {rule["alert"]: rule["expr"] for rule in RULES} | dict(iter_panel_expressions())


def registered() -> set[str]:
    """All metrics of a leading operator and of the extender."""
    metrics = Metrics()
    metrics.watch_store(lambda: NotebookState(True, 0, Dropped(), 0, ""))
    gangs = GangMetrics(Decider(Book("dljob-scheduler"), Rules()))
    return {name for each in (metrics, gangs) for name in each._registry._names_to_collectors}


LABELS = {
    ("dljob_jobs", "phase"): {each.value for each in Phase},
    ("dljob_gpus", "state"): {each.value.replace(" ", "-") for each in GpuState},
    ("dljob_sidecars", "state"): {"answers", "silent", "pending"},
    ("dljob_job_wait_seconds_bucket", "outcome"): {"started", "cancelled", "failed"},
    ("dljob_gangs", "standing"): {each.value for each in Standing},
}
"""The possible values of labels."""


def test_expressions_and_metrics_match():
    for expression in EXPRESSIONS.values():
        names = set(re.findall(r"\bdljob_\w+", expression))
        assert names, expression
        assert names <= registered()
        for name, matchers in re.findall(r"(dljob_\w+)\{([^}]*)\}", expression):
            for label, value in re.findall(r'(\w+)="([^"]*)"', matchers):
                assert value in LABELS[name, label], expression
    used = {name for each in EXPRESSIONS.values() for name in re.findall(r"\bdljob_\w+", each)}
    stems = {re.sub(r"_(bucket|count|sum|total|created)$", "", name) for name in registered()}
    unused = stems - {re.sub(r"_(bucket|count|sum|total)$", "", name) for name in used}
    # The version, and metrics that only help to investigate one job or the extender.
    single = {"dljob_job_iterations", "dljob_gang_answers", "dljob_gang_looks"}
    assert unused == single | {"dljob_build_info"}


def run_promql(*words, stdin=""):
    program = demand(PROMQL)["dljob-test-promql"]
    return subprocess.run(
        [program, *words], input=stdin, capture_output=True, text=True, check=False, timeout=300.0
    )


def ask(load: str, *questions: tuple[str, float]) -> list[list[dict[str, Any]]]:
    asked = {"load": load, "questions": [{"expr": each, "at": at} for each, at in questions]}
    ran = run_promql("ask", stdin=json.dumps(asked))
    assert ran.returncode == 0, ran.stderr
    answers: list[list[dict[str, Any]]] = json.loads(ran.stdout)
    return answers


def test_prometheus_accepts_the_rules(tmp_path):
    ran = run_promql("check", *FILES)
    assert (ran.returncode, ran.stderr) == (0, "")
    broken = tmp_path / "broken.yaml"
    broken.write_text(
        FILES[0].read_text().replace("absent(dljob_leader == 1)", "absent(dljob_leader == 1")
    )
    assert "could not parse expression" in run_promql("check", broken).stderr


def test_prometheus_accepts_the_dashboard():
    asked = list(EXPRESSIONS.values())
    assert len(ask("load 1m", *((each, 0.0) for each in asked))) == len(asked)


HEALTHY = """load 1m
  dljob_leader{pod="a"} 1x180
  dljob_leader{pod="b"} 0x180
  dljob_jobs{phase="Running"} 3x180
  dljob_jobs{phase="Queued"} 2x180
  dljob_jobs{phase="Failed"} 1x180
  dljob_gpus{node="a", state="in-use"} 8x180
  dljob_gpus{node="a", state="free"} 0x180
  dljob_gpus{node="a", state="unavailable"} 0x180
  dljob_sidecars{state="answers"} 3x180
  dljob_sidecars{state="silent"} 0x180
  dljob_sidecars{state="pending"} 0x180
  dljob_breaker_tripped 0x180
  dljob_store_connected 1x180
  dljob_store_dropped_total 0x180
  dljob_cycle_seconds_count{decided="yes"} 0+4x180
  dljob_cycle_seconds_bucket{decided="yes", le="0.1"} 0+4x180
  dljob_cycle_seconds_bucket{decided="yes", le="10"} 0+4x180
  dljob_cycle_seconds_bucket{decided="yes", le="+Inf"} 0+4x180
  dljob_sidecar_polls_total 0+60x180
  dljob_sidecar_failures_total 0x180
  dljob_reshape_seconds_bucket{mechanism="in-place", le="40"} 0+1x180
  dljob_reshape_seconds_bucket{mechanism="in-place", le="320"} 0+1x180
  dljob_reshape_seconds_bucket{mechanism="in-place", le="+Inf"} 0+1x180
  dljob_prediction_error_bucket{le="0.1"} 0+1x180
  dljob_prediction_error_bucket{le="1"} 0+1x180
  dljob_prediction_error_bucket{le="+Inf"} 0+1x180
  dljob_broken_laws_total{law="room-for-pods"} 0x180
  dljob_gangs{standing="GangNeverFits"} 0x180
  dljob_gangs{standing="GangWaiting"} 0x180
"""
AT = 170 * MINUTE


def but(*lines: str) -> str:
    """The healthy metrics with these lines instead of the same series; a name alone removes it."""
    load = HEALTHY
    for line in lines:
        series, _, values = line.rpartition(" ") if " " in line else (line, "", "")
        pattern = (
            rf"(?m)^  {re.escape(series)}(\{{.*\}})? .*\n"
            if not values
            else rf"(?m)^  {re.escape(series)} .*\n"
        )
        load, count = re.subn(pattern, "", load)
        assert count or values, line
        load += f"  {line}\n" if values else ""
    return load


ILL = {
    "DLJobNobodyLeads": but('dljob_leader{pod="a"} 0x180'),
    "DLJobTwoLead": but('dljob_leader{pod="b"} 1x180'),
    "DLJobDoesNotDecide": but('dljob_cycle_seconds_count{decided="yes"} 7x180'),
    "DLJobDecidesSlowly": but('dljob_cycle_seconds_bucket{decided="yes", le="0.1"} 0x180'),
    "DLJobPlanRefused": but('dljob_broken_laws_total{law="room-for-pods"} 0x160 1x20'),
    "DLJobSuspectsItself": but("dljob_breaker_tripped 1x180"),
    "DLJobSideCarsSilent": but('dljob_sidecars{state="silent"} 2x180'),
    "DLJobSideCarsFail": but("dljob_sidecar_failures_total 0+20x180"),
    "DLJobPodsDoNotStart": but('dljob_sidecars{state="pending"} 0x145 1x35'),
    "DLJobGpusUnavailable": but('dljob_gpus{node="a", state="unavailable"} 1x180'),
    "DLJobGpusIdle": but('dljob_gpus{node="a", state="free"} 1x180'),
    "DLJobJobsFail": but('dljob_jobs{phase="Failed"} 1x160 2x20'),
    "DLJobReshapesSlow": but('dljob_reshape_seconds_bucket{mechanism="in-place", le="40"} 0x180'),
    "DLJobPredictsBadly": but('dljob_prediction_error_bucket{le="0.1"} 0x180'),
    "DLJobStoreAway": but("dljob_store_connected 0x180"),
    "DLJobStoreForgets": but("dljob_store_dropped_total 0x160 9x20"),
    "DLJobGangSchedulerAway": but("dljob_gangs"),
    "DLJobGangNeverFits": but('dljob_gangs{standing="GangNeverFits"} 1x180'),
    "DLJobGangsWait": but('dljob_gangs{standing="GangWaiting"} 1x180'),
}


def firing(load: str) -> set[str]:
    """The alerts whose expressions hold."""
    answers = ask(load, *((rule["expr"], AT) for rule in RULES))
    return {rule["alert"] for rule, answer in zip(RULES, answers, strict=True) if answer}


def test_each_fault_fires_its_alert_only():
    assert firing(HEALTHY) == set(), "no alert while all is well"
    for alert, load in ILL.items():
        assert firing(load) == {alert}
    assert ILL.keys() == {rule["alert"] for rule in RULES}
    # Pods that start one after the other are no fault.
    assert firing(but('dljob_sidecars{state="pending"} 0x150 1x5 0x2 1x25')) == set()


def test_each_alert_has_a_runbook():
    guide = (ROOT / "docs" / "operations.md").read_text()
    told = re.findall(r"(?m)^### (\w+)$", guide)
    assert told == [rule["alert"] for rule in RULES], "in the order of the rules"
    for rule in RULES:
        assert rule["labels"]["severity"] in {"critical", "warning", "info"}
        notes = rule["annotations"]
        assert notes["runbook"] == f"docs/operations.md, {rule['alert']}"
        assert notes["summary"].endswith(".")
        assert notes["description"].endswith(".")


def test_chart_contains_the_same_files(helm):
    values = {
        "metrics": {"rules": True, "dashboard": {"enabled": True}},
        "scheduler": {"enabled": True},
    }
    rendered = helm.render(values)
    for name, file in (("dljob", "rules.yaml"), ("dljob-gangs", "rules-gangs.yaml")):
        rules = rendered.find("PrometheusRule", name)["spec"]
        assert rules == yaml.safe_load((FOLDER / file).read_text())
    board = rendered.find("ConfigMap", "dljob-dashboard")
    assert board["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert json.loads(board["data"]["dljob.json"]) == json.loads(
        (FOLDER / "dashboard.json").read_text()
    )


DCGM = FOLDER / "rules-dcgm.yaml"
RECORDED = {
    rule["record"]: rule["expr"]
    for group in yaml.safe_load(DCGM.read_text())["groups"]
    for rule in group["rules"]
}


def written_out(record: str) -> str:
    """A record's expression, without other records in it."""
    expression: str = RECORDED[record]
    return expression.replace(
        "gpu_dljob:dljob_gpu_in_use:max", f"({RECORDED['gpu_dljob:dljob_gpu_in_use:max']})"
    )


def test_records_are_named_by_level_metric_and_operation():
    """https://prometheus.io/docs/practices/rules/"""
    for record, expression in RECORDED.items():
        level, metric, operation = record.split(":")
        assert level == "gpu_dljob"
        assert metric in expression
        assert operation == "max"


def test_dcgm_metrics_are_recorded_for_the_job_of_the_gpu():
    scraped = 'job="dljob", exported_job="lab/net"'
    assert run_promql("check", DCGM).returncode == 0
    load = f"""load 1m
  dljob_gpu_in_use{{node="a", gpu="0", uuid="GPU-0", {scraped}}} 1x9
  dljob_gpu_in_use{{node="a", gpu="1", uuid="", {scraped}}} 1x9
  DCGM_FI_DEV_GPU_UTIL{{Hostname="a", gpu="0", modelName="H100", UUID="GPU-0", job="dcgm"}} 97x9
  DCGM_FI_DEV_GPU_UTIL{{Hostname="a", gpu="1", modelName="H100", UUID="GPU-1", job="dcgm"}} 3x9
"""
    (found,) = ask(load, (written_out("gpu_dljob:DCGM_FI_DEV_GPU_UTIL:max"), MINUTE))
    assert [(each["labels"]["dljob"], each["labels"]["UUID"], each["value"]) for each in found] == [
        ("lab/net", "GPU-0", 97.0)
    ]
