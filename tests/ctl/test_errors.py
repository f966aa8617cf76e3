"""
A fault in a user's input ends in one line that names it and says what to do.

Nothing is printed on standard output, nothing is written, and what is right still works beside it.
"""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, cast

import pytest
from click import ClickException

from dljob.core import policies as own
from dljob.core.checking import Law
from dljob.core.contract import Decision, Share, View
from dljob.core.options import rules_of
from dljob.operator.__main__ import make_work
from dljob.operator.settings import OperatorSettings
from dljob.sim import policies
from tests.ctl.running import HEADER, LONGEST_S, run_apart

SPEEDS = "gpu_type,model,global_batch_size,num_gpus,iterations_per_s\n"
FAILURES = "time_s,node,event\n"
NUMBER = "is not a finite number of at least 0; give a number such as 1.5"
HUGE = "is more than 1,000,000,000,000; give a number that can be meant"
COUNT = "is not a whole number of at least 1; give a number such as 1"
KNOWN = f"known are {', '.join(policies.NAMES)}"

# What else can be wrong with a trace is in tests/sim.
TRACES = {
    "0,-5,60,1\n": f"2: submit_time_s: '-5' {NUMBER}",
    "0,0,60,1\n1,0,60,1.5\n": f"3: num_gpus: '1.5' {COUNT}",
    "0,0,60\n": "2: has 3 fields where the header has 4; give one field a column",
    "a,0,60,1\na,5,60,1\n": "3: job_id: 'a' is the job of line 2 already; give every job a name of its own",
    '"0,0,60,1\n': "2: is not CSV (unexpected end of data); check its quotes",
    "": "1: has no rows; add one below the header",
    "0,0,60,1\n1,0,1e300,1\n": f"3: duration_s: '1e300' {HUGE}",
    "0,5000000000,60,1\n": (
        "2: submit_time_s: '5000000000' is more than 4,000,000,000 s, which are 126 years; "
        "give seconds, not milliseconds or a date"
    ),
}


def test_malformed_row_names_file_line_field_and_remedy(dljob, folder):
    for rows, message in TRACES.items():
        (folder / "bad.csv").write_text(HEADER + rows, encoding="utf-8")
        result = dljob("simulate", "bad.csv", "-o", "json", "--jobs-out", "jobs.csv", "--plot")
        assert (result.status, result.stdout) == (1, "")
        assert result.stderr == f"dljob: bad.csv:{message}\n"
        assert sorted(path.name for path in folder.iterdir()) == ["bad.csv", "five.csv"]


def test_file_that_is_no_trace_is_refused(dljob, folder):
    for content, message in (
        (None, "cannot be read (No such file or directory); check the path and its permissions"),
        (b"", "is empty; begin with the line job_id,submit_time_s,duration_s,num_gpus"),
        (b"\xff\xfe\x00\x01", "is not UTF-8 text; save it as UTF-8"),
    ):
        if content is not None:
            (folder / "bad.csv").write_bytes(content)
        result = dljob("simulate", "bad.csv")
        assert (result.status, result.stdout) == (1, "")
        assert result.stderr == f"dljob: bad.csv: {message}\n"
    (folder / "bad.csv.gz").write_bytes(b"nope")
    result = dljob("simulate", "bad.csv.gz")
    assert result.stderr == "dljob: bad.csv.gz: is not a whole gzip file; compress it again\n"


def test_missing_header_lists_known_headers(dljob, folder):
    (folder / "bad.csv").write_text("0,0,60,1\n", encoding="utf-8")
    result = dljob("simulate", "bad.csv")
    assert result.status == 1
    assert result.stderr.startswith(
        "dljob: bad.csv:1: is not the header of a trace; begin with one of "
        "job_id,submit_time_s,duration_s,num_gpus | "
    )
    assert result.stderr.count("\n") == 1


def test_trace_without_fitting_jobs_is_refused(dljob, folder):
    (folder / "wide.csv").write_text(f"{HEADER}0,0,60,64\n", encoding="utf-8")
    result = dljob("simulate", "wide.csv", "--gpus", 8)
    assert (result.status, result.stdout) == (1, "")
    assert result.stderr == (
        "dljob: wide.csv: has no job that fits into 8 GPUs;"
        " give a larger cluster, or the types of GPU that its jobs ask for\n"
    )


def test_malformed_option_file_is_refused_alike(dljob, folder):
    for option, content, message in (
        (
            "--speeds",
            f"{SPEEDS},a,32,1,0\n",
            "2: iterations_per_s: '0' is not above 0; leave out the rows that were not measured",
        ),
        (
            "--failures",
            f"{FAILURES}10,nope,lost\n",
            "2: node: the cluster has no node 'nope'; its nodes are node-0 to node-7",
        ),
        (
            "--failures",
            f"{FAILURES}20,node-0,lost\n10,node-0,lost\n",
            "2: event: node-0 is lost already, since 10 s; add the row that says when it came back",
        ),
    ):
        (folder / "bad.csv").write_text(content, encoding="utf-8")
        result = dljob("simulate", "five.csv", option, "bad.csv")
        assert (result.status, result.stdout) == (1, "")
        assert result.stderr == f"dljob: bad.csv:{message}\n"


CLUSTER = "is not NODESxGPUS[:TYPE]; write for example 4x8 or 2x8:V100"
USAGE = {
    "--gpus 0": "'--gpus': 0 GPUs train nothing; give at least 1",
    "--gpus many": "'--gpus': 'many' is not a whole number of GPUs; give at least 1",
    "--cluster 0x8": "'--cluster': '0x8' has no GPUs; write for example 4x8 or 2x8:V100",
    "--cluster 4": f"'--cluster': '4' {CLUSTER}",
    "--policy adaptve": f"'--policy': no policy is named 'adaptve'; did you mean adaptive? {KNOWN}",
    "--policy tiresias:threshold=1": (
        "'--policy': tiresias has no option 'threshold';"
        " did you mean thresholds? known are thresholds, exact"
    ),
    "--policy tiresias:thresholds": (
        "'--policy': 'thresholds' is no option of a policy; write tiresias:OPTION=VALUE"
    ),
    "--policy tiresias:thresholds=2,1": (
        "'--policy': tiresias: thresholds cannot be '2,1';"
        " write rising numbers above 0, as in 3250,7200"
    ),
    "--policy tiresias:exact=true:exact=true": (
        "'--policy': exact is given twice for tiresias; keep one of them"
    ),
    "--restart-cost -1": (
        "'--restart-cost': '-1' is not a number of seconds from 0 to 100,000,000; write such as 30"
    ),
    "--load 1e300": "'--load': '1e300' is not a load from 0.001 to 1000; write such as 0.9",
    "--period 1e300": "'--period': 1e+300 is not in the range 0.1<=x<=100000000.0.",
    "--speed-error 1e300": "'--speed-error': '1e300' is not an error from 0 to 3; write such as 0.2",
    "--plot five.csv": "'--plot': Directory 'five.csv' is a file.",
}


def test_wrong_option_says_how_to_write_it(dljob, folder):
    for words, message in USAGE.items():
        result = dljob("simulate", "five.csv", *words.split())
        assert (result.status, result.stdout) == (2, "")
        assert result.stderr == f"dljob simulate: Invalid value for {message}\n"


LINES = {
    "simulate": "dljob simulate: Missing argument 'TRACE'.",
    "simulate five.csv more.csv": "dljob simulate: Got unexpected extra argument (more.csv)",
    "simulate five.csv --gpus 8 --cluster 1x8": (
        "dljob simulate: --gpus and --cluster exclude each other; give one of them"
    ),
    "simulate five.csv --placement counted --failures five.csv": (
        "dljob simulate: --failures needs nodes that can fail; use --placement packed"
    ),
    "reproduce everything": (
        "dljob reproduce: Invalid value for 'NAME': 'everything' is not one of 'sidecar', 'gang',"
        " 'dragon', 'afs', 'ones', 'sia', 'shockwave', 'rubick', 'pollux', 'peers'."
    ),
    "reproduce shockwave --full": "dljob reproduce: shockwave has one form only; leave --full out",
    "reproduce peers --traces .": "dljob reproduce: --traces is for afs, gang; peers has its own",
    "simulat five.csv": "dljob: No such command 'simulat'. Did you mean 'simulate'?",
}


def test_wrong_usage_is_one_line(dljob, folder):
    for words, line in LINES.items():
        result = dljob(*words.split())
        assert (result.status, result.stdout) == (2, "")
        assert result.stderr == f"{line}\n"


def test_unwritable_result_is_refused_before_the_run(dljob, folder):
    result = dljob("simulate", "five.csv", "--jobs-out", folder)
    assert (result.status, result.stdout) == (1, "")
    assert result.stderr == f"dljob: {folder}: is a folder; name a file\n"
    result = dljob("simulate", "five.csv", "--jobs-out", "five.csv/jobs.csv")
    assert (result.status, result.stdout) == (1, "")
    assert result.stderr.endswith("five.csv; name another folder\n")


def test_bare_command_lists_verbs(dljob):
    result = dljob()
    assert (result.status, result.stdout) == (2, "")
    assert all(verb in result.stderr for verb in ("simulate", "reproduce", "policies"))


def test_a_name_with_a_line_break_stays_in_its_line(dljob, folder):
    Path("bad\nname.csv").write_text(f"{HEADER}0,0,60,0\n", encoding="utf-8")
    result = dljob("simulate", "bad\nname.csv")
    assert result.stderr.count("\n") == 1
    assert "bad\\nname.csv:2: num_gpus" in result.stderr


@pytest.mark.processes
@pytest.mark.story
def test_the_exit_status_reaches_the_shell_and_a_reader_that_has_seen_enough_ends_it_quietly(
    folder,
):
    (folder / "bad.csv").write_text(f"{HEADER}0,0,60,0\n", encoding="utf-8")
    result = run_apart("simulate", "bad.csv", cwd=folder)
    assert (result.status, result.stdout) == (1, "")
    assert result.stderr == f"dljob: bad.csv:2: num_gpus: '0' {COUNT}\n"

    reader, writer = os.pipe()
    # Before it starts, because all of the output would have room in the pipe.
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-c", "from dljob.cli.main import main; main()", "policies", "-o", "json"],
        stdout=writer,
        stderr=subprocess.PIPE,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        timeout=LONGEST_S,
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (1, b"")


@dataclass(frozen=True)
class Greedy:
    """Gives the first job three GPUs, even if it cannot run on three."""

    name: ClassVar[str] = "greedy"
    paper: ClassVar[str] = "none"
    needs: ClassVar[str] = "nothing"
    breaks: ClassVar[frozenset[Law]] = frozenset()

    def allocate(self, view: View) -> Decision:
        return Decision({state.job.id: Share(3) for state in view.pending})


def test_broken_law_is_one_line(dljob, folder, monkeypatch):
    monkeypatch.setitem(cast(dict[str, object], own.POLICIES), "greedy", Greedy)
    result = dljob("simulate", "five.csv", "--rigid", "--gpus", 8, "--policy", "greedy")
    assert (result.status, result.stdout) == (1, "")
    assert result.stderr == (
        "dljob: Policy 'greedy' broke the law \"allowed-shape\" at t=0 s: "
        'job 0 cannot run on 3 GPUs. See "Laws" in docs/policies.md.\n'
    )


# --- options of policies ----------------------------------------------------------------------

UP = ("up", "--virtual-gpus", "2", "--state", "state")
SURFACES = {
    "simulate": ("simulate", "five.csv", "--policy", "{}"),
    "compare": ("compare", "five.csv", "--policy", "{}"),
    "up": (*UP, "--policy", "{}"),
    "a settings file": (*UP, "--config", "settings.yaml"),
    "the environment": UP,
}
"""Where a policy can be given; the other tests of options ask ``dljob.core.policies`` alone."""


def test_an_option_of_a_policy_out_of_range_is_refused_wherever_it_is_given(
    dljob, folder, monkeypatch
):
    rule = rules_of(policies.POLICIES["foresight"])["ageing"]
    text = "foresight:ageing=nan"
    (folder / "settings.yaml").write_text(f'policy: "{text}"\n', encoding="utf-8")
    for place, words in SURFACES.items():
        if place == "the environment":
            monkeypatch.setenv("DLJOB_POLICY", text)
        result = dljob(*(part.format(text) for part in words))
        assert (result.status != 0, result.stdout) == (True, ""), place
        assert result.stderr.endswith(f"foresight: ageing cannot be 'nan'; write {rule.allowed}\n")


def test_the_operator_refuses_them_before_it_leads():
    with pytest.raises(ClickException) as refused:
        make_work(OperatorSettings(policy="foresight:ageing=9"))
    refusal = "policy: foresight: ageing cannot be '9'; write a number from 0 to 2"
    assert refused.value.message == refusal


ENDLESS_JOB = """\
apiVersion: dljob.io/v1alpha1
kind: DLJob
metadata: {{name: x, annotations: {{dljob.io/submit-at: "{at}"}}}}
spec: {{gpus: {{options: [1]}}, training: {{iterations: {iterations}}}}}
"""


def test_a_job_file_of_numbers_that_cannot_be_meant_is_refused(dljob, folder):
    for at, iterations, told in (
        ("1e300", 10, "jobs.yaml:3: metadata.annotations"),
        ("0", 10**18, "jobs.yaml:4: spec.training.iterations: "),
        ("0", 10**12, "jobs: job x would train for "),
    ):
        text = ENDLESS_JOB.format(at=at, iterations=iterations)
        (folder / "jobs.yaml").write_text(text, encoding="utf-8")
        result = dljob("simulate", "jobs.yaml", "--gpus", 8)
        assert (result.status, result.stdout) == (1, "")
        assert result.stderr.startswith(f"dljob: {told}")
