"""In whose environment jobs run, and what of it is ever shown."""

import json
import os
import shutil
from typing import Any

import pytest

from dljob.core.documents import jobfile
from dljob.core.model import JobId
from dljob.local import environments
from dljob.local.environments import REDACTED, EnvironmentVariablesError, Origin, Submitter
from dljob.local.jobs.registry import Registry
from tests.local.stages import job_document
from tests.local.ups import going, replay

ME = Submitter.of_this_process()
SECRET = "hf_do_not_tell"  # noqa: S105 - it is none


def test_variables_of_a_session_a_service_or_another_job_are_not_recorded():
    kept = {"PATH": "/bin", "VIRTUAL_ENV": "/v", "HF_TOKEN": SECRET, "RANKING": "1"}
    others = (
        *(
            "SSH_AUTH_SOCK",
            "DISPLAY",
            "PWD",
            "DLJOB_STORE_PASSWORD",
            "CUDA_VISIBLE_DEVICES",
            "RANK",
        ),
        *("NOTIFY_SOCKET", "SUDO_USER", "XDG_RUNTIME_DIR", "TERM", "SLURM_JOB_ID", "_"),
    )
    assert environments.record(kept | dict.fromkeys(others, "x")) == kept


def test_only_names_are_shown_of_variables_that_could_hold_secrets():
    variables = {"PATH": "/bin", "HF_TOKEN": SECRET, "DATABASE": f"mongodb://a:{SECRET}@b"}
    shown = environments.shown(variables)
    assert shown == {"PATH": "/bin", "HF_TOKEN": REDACTED, "DATABASE": REDACTED}


def test_impossible_environment_is_refused():
    given: Any
    long = {"A": "x" * (1 << 20)}
    for given in ([], {"A": 1}, {"": "x"}, {"A=B": "x"}, {"A": "x\0y"}, {"A\0": "x"}, long):
        with pytest.raises(EnvironmentVariablesError, match="environment"):
            environments.check(given)
    assert environments.check({"A": "b", "DLJOB_SIDECAR_LISTEN": ":1"}) == {"A": "b"}


def job_with(**environment):
    return jobfile.parse(job_document(environment=environment), require_template=True)


def test_a_job_gets_the_variables_that_it_names_and_the_necessary_ones():
    origin = Origin(ME, {"PATH": "/bin", "HOME": "/h", "HF_TOKEN": SECRET, "A": "1", "B": "2"})
    assert environments.of_job(job_with(variables=["A"]), origin).keys() == {"PATH", "HOME", "A"}
    assert environments.of_job(job_with(variables=[]), origin).keys() == {"PATH", "HOME"}
    assert environments.of_job(job_with(), origin) == origin.variables


@pytest.mark.parametrize(
    ("mark", "name"), [("pyvenv.cfg", "VIRTUAL_ENV"), ("conda-meta", "CONDA_PREFIX")]
)
def test_the_environment_of_a_named_interpreter_is_active(tmp_path, mark, name):
    (tmp_path / "bin").mkdir()
    python = tmp_path / "bin" / "python"
    python.touch(0o755)
    (tmp_path / mark).touch()
    given = {"PATH": "/ours/bin:/bin", "VIRTUAL_ENV": "/ours", "CONDA_PREFIX": "/ours", "A": "1"}
    made = environments.of_job(job_with(python=str(python)), Origin(ME, given))
    path = f"{tmp_path / 'bin'}:/ours/bin:/bin"
    assert made == {"PATH": path, name: str(tmp_path), "A": "1"}


def test_a_job_submitted_without_an_environment_gets_that_of_a_login(monkeypatch):
    monkeypatch.setenv("VIRTUAL_ENV", "/ours")
    monkeypatch.setenv("PATH", "/ours/bin")
    variables = Origin.of(ME, None).variables
    assert "VIRTUAL_ENV" not in variables
    assert "/ours" not in variables["PATH"]
    assert variables["USER"] == ME.user


def test_the_list_of_jobs_keeps_origins_and_forgets_them_with_their_jobs(tmp_path):
    file = tmp_path / "jobs.db"
    registry = Registry.open(file)
    origin = Origin(Submitter("ada", 1000, 1000, (4,)), {"HF_TOKEN": SECRET})
    registry.submit(job_document("kept"), 1.0, origin=origin)
    registry.submit(job_document("gone"), 1.0, origin=origin)
    registry.forget(JobId("gone"))
    registry.close()
    again = Registry.open(file)
    assert again.origin(JobId("kept")) == origin
    assert again.origin(JobId("gone")).submitter == ME
    assert file.stat().st_mode & 0o077 == 0
    again.close()


def test_no_secret_is_in_anything_that_is_served(ask):
    body = {"kind": "DLJobList", "items": [job_document()], "environment": {"HF_TOKEN": SECRET}}
    assert ask("POST", "/v1/jobs", body).status == 201
    for path in ("jobs", "jobs/resnet", "jobs/resnet/why", "jobs?watch=0", "events"):
        assert SECRET.encode() not in ask("GET", f"/v1/{path}").body
    status = ask.get("/v1/jobs/resnet")["status"]
    assert status["environment"] == {"HF_TOKEN": REDACTED}


def test_a_named_interpreter_that_is_no_program_is_refused_by_name(ask, tmp_path):
    there = tmp_path / "python"
    there.touch(0o644)
    document = job_document(environment={"python": str(there)})
    answer = ask("POST", "/v1/jobs", document)
    assert answer.status == 422
    (problem,) = answer.json["problems"]
    assert problem["path"] == "spec.environment.python"
    assert problem["message"] == f"{there} is not a program here"


def prints(root, name):
    script = (
        "import os, json, time; print(json.dumps(dict(os.environ)), flush=True); time.sleep(1e4)"
    )
    document = replay(name, root, iterations=1, faster=1.0, gpus={"options": [1]})
    (trainer,) = document["spec"]["template"]["spec"]["containers"]
    trainer["command"] = ["python3", "-c", script]
    return document


def seen_by(up, name):
    log = up.root / "jobs" / name

    def printed():
        texts = [path.read_text(encoding="utf-8") for path in log.glob("*.log")]
        return [line for text in texts for line in text.splitlines() if line.startswith("{")]

    up.until_phase(name, "Running")
    up.until(lambda: any(line.endswith("}") for line in printed()))
    return json.loads(printed()[0])


@pytest.mark.story
@pytest.mark.processes
def test_a_job_runs_in_the_environment_of_its_submitter_and_never_in_that_of_the_server(
    root, tmp_path, monkeypatch
):
    plain = {"PATH": os.environ["PATH"]}
    # The server is started in a virtual environment, with a password of its store.
    monkeypatch.setenv("VIRTUAL_ENV", "/of/the/server")
    monkeypatch.setenv("PATH", f"/of/the/server/bin:{plain['PATH']}")
    monkeypatch.setenv("DLJOB_STORE_PASSWORD", SECRET)
    monkeypatch.setenv("ONLY_THE_SERVER", "has this")
    with going(root / "state", "--virtual-gpus", 2) as up:
        monkeypatch.delenv("ONLY_THE_SERVER")
        monkeypatch.delenv("DLJOB_STORE_PASSWORD")
        bin_ = tmp_path / "venv" / "bin"
        bin_.mkdir(parents=True)
        (tmp_path / "venv" / "pyvenv.cfg").touch()
        (bin_ / "python3").symlink_to(
            shutil.which("python3", path="/usr/bin:/usr/local/bin:" + plain["PATH"])
        )
        monkeypatch.setenv("VIRTUAL_ENV", str(bin_.parent))
        monkeypatch.setenv("PATH", f"{bin_}:{plain['PATH']}")
        monkeypatch.setenv("HF_TOKEN", SECRET)
        # A file next to the training that hides a module of the standard library.
        (tmp_path / "uuid.py").write_text("raise SystemExit('loaded by the SideCar')")
        document = prints(root, "own")
        document["metadata"]["annotations"] = {"dljob.io/working-directory": str(tmp_path)}
        assert up.submit(document).status == 0
        seen = seen_by(up, "own")
        assert seen["VIRTUAL_ENV"] == str(bin_.parent)
        assert seen["PATH"].startswith(f"{bin_}:")
        assert seen["HF_TOKEN"] == SECRET
        assert not {"ONLY_THE_SERVER", "DLJOB_STORE_PASSWORD", "PYTHONHOME"} & seen.keys()
        assert "/of/the/server" not in json.dumps(seen)
        # Its user sees the names, and no secret.
        described, shown = up("describe", "own").stdout, up("get", "own", "-o", "yaml").stdout
        assert SECRET not in described + shown
        assert f"HF_TOKEN: {REDACTED}" in shown.replace("'", "")
        assert f"VIRTUAL_ENV={bin_.parent};" in described
        assert SECRET not in up.log.read_text() + (root / "state" / "dljob.log").read_text()
        # `dljob exec` runs in the same environment.
        told = up("exec", "own", "--", "sh", "-c", "echo $VIRTUAL_ENV $HF_TOKEN").stdout
        assert told == f"{bin_.parent} {SECRET}\n"
        assert up("cancel", "--wait", "own").status == 0
        assert up.end() == 0
