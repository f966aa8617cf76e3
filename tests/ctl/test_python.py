"""``import dljob``: in a training, where it must stay small, and in a program beside a played ``dljob up``."""

import asyncio
import base64
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, cast

import pytest

import dljob
import dljob.api
from dljob.api.connection import Connection, Logs
from dljob.api.lines import _Question
from dljob.client.backend import LogLine
from dljob.local.folders import Folders
from dljob.sim.clusters import Machines
from dljob_lab import studies
from tests.ctl.pages import ROOT
from tests.ctl.running import Command
from tests.ctl.terminals import AGAIN_S
from tests.local.stages import job_document

LIMIT_S = 240.0
IMPORTABLE = ROOT / "sidecar" / "dljob_sidecar" / "importable"


@pytest.fixture
def here(played):
    with dljob.connect(played.up.root) as connection:
        yield connection


def run_python(program: str, *path: Path) -> subprocess.CompletedProcess[str]:
    """Run a program that finds the folders of ``path`` and the standard library, and nothing else."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path))}
    command = [sys.executable, "-S", "-c", program]
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False, timeout=LIMIT_S
    )


# --- the package --------------------------------------------------------------------------


@pytest.mark.processes
@pytest.mark.story
def test_in_a_training_only_the_standard_library_is_loaded():
    program = (
        "import sys, dljob; from dljob import training; import dljob.training;"
        "assert dljob.training is training;"
        "print(*{name.partition('.')[0] for name in sys.modules} - set(sys.stdlib_module_names))"
    )
    done = run_python(program, IMPORTABLE)
    assert done.returncode == 0, done.stderr
    assert set(done.stdout.split()) <= {"dljob", "__main__"}
    assert (
        "cannot import name 'connect'" in run_python("from dljob import connect", IMPORTABLE).stderr
    )
    # A package beside the interface shadows nothing of the SideCar's, and loads the interface when it is used.
    program = (
        "import sys; import dljob; import dljob.training;"
        "assert 'dljob.api' not in sys.modules; dljob.Problem; assert 'dljob.api' in sys.modules"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", program], env=environment, check=True, timeout=LIMIT_S)


def test_the_package_has_the_names_of_the_interface():
    assert set(dljob.__dir__()) >= {*dljob.api.__all__, "training"}
    assert dljob.connect is dljob.api.connect
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        dljob.nothing  # type: ignore[attr-defined]  # noqa: B018


# Its own cache is cold, and so it reads the types of all that the interface imports.
@pytest.mark.slow
def test_types_are_checked_in_programs_that_use_it(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        "import dljob\n"
        "job = dljob.Job('a', ['true'], gpus=[1, 2])\n"
        "reveal_type(dljob.connect().submit(job).gpus)\n"
        "dljob.Job('a', ['true'], gpu=1)\n",
        encoding="utf-8",
    )
    found = [str(ROOT / name) for name in ("operator", "sidecar")]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--cache-dir", str(tmp_path / "cache"), str(program)],
        env={**os.environ, "MYPYPATH": os.pathsep.join(found)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=1800,
    )
    assert '3: note: Revealed type is "int"' in done.stdout.replace("builtins.int", "int")
    assert '4: error: Unexpected keyword argument "gpu" for "Job"' in done.stdout


# --- jobs ---------------------------------------------------------------------------------


def test_job_equals_that_of_dljob_run(played):
    job = dljob.Job("mine", ["python", "train.py"], gpus="1-4", priority=3, labels={"team": "a"})
    job.check()
    spec = job.document["spec"]
    assert spec["gpus"] == {"min": 1, "max": 4}
    assert spec["training"] == {"untilExit": True}
    assert (spec["priority"], job.document["metadata"]["labels"]) == (3, {"team": "a"})
    assert dljob.Job("mine", ["x"], gpus=[4, 2]).document["spec"]["gpus"] == {"options": [2, 4]}
    assert dljob.Job("mine", ["x"], namespace="team").name == "team/mine"
    assert job.with_spec(priority=9).document["spec"]["priority"] == 9
    assert job == dljob.Job.from_document(job.document)


def test_all_that_is_wrong_with_files_is_in_one_refusal(played):
    one, two = job_document("one", priority=10**12), job_document("two", gpus={"min": 0, "max": 1})
    path = played.file(one, two)
    with pytest.raises(dljob.WrongJob) as refused:
        dljob.Job.all_from_file(path)
    assert [(each.document, each.path) for each in refused.value.problems] == [
        (0, "spec.priority"),
        (1, "spec.gpus.min"),
    ]
    assert all(each.remedy and each.message for each in refused.value.problems)
    assert str(refused.value).count("\n") == 1
    with pytest.raises(dljob.WrongInput, match="holds 2 jobs"):
        dljob.Job.from_file(played.file(job_document("one"), job_document("two")))
    with pytest.raises(dljob.WrongInput, match=r"missing\.yaml"):
        dljob.Job.from_file("missing.yaml")


# --- a machine ----------------------------------------------------------------------------


def test_jobs_are_submitted_all_or_none_and_refused_by_the_server(here):
    jobs = [dljob.Job.from_document(job_document(name)) for name in ("a", "b")]
    assert [job.name for job in here.submit_all(jobs)] == ["a", "b"]
    wrong = dljob.Job.from_document(job_document("a"))
    with pytest.raises(dljob.Refused) as refused:
        here.submit_all([dljob.Job.from_document(job_document("c")), wrong])
    assert all(each.message for each in refused.value.problems)
    assert [job.name for job in here.jobs()] == ["a", "b"]
    with pytest.raises(dljob.WrongJob) as refused:
        here.submit_all([jobs[0], dljob.Job("d e", ["x"])])
    assert [each.document for each in refused.value.problems] == [1]


def test_field_without_effect_is_a_warning(here):
    with pytest.warns(dljob.Notice, match="image has no effect"):
        here.submit(dljob.Job("noted", ["true"], image="python:3.11"))


def test_a_job_is_read_and_changed_by_name_or_by_itself(here, played):
    job = dljob.Job.from_document(job_document("runs"))
    here.submit(job)
    played.do("give", "runs", {"n1": (0, 1)}, speed=2.0, iteration=500, iterations_total=1000.0)
    assert (here.get(job).gpus, here.get("runs").phase) == (2, "Running")
    assert here.why(job).job == "runs"
    assert str(here.why("runs"))
    assert here.scale(job, "1-2").spec["gpus"] == {"min": 1, "max": 2}
    assert here.scale(job, 4).spec["gpus"] == {"options": [4]}
    assert here.suspend(here.get(job)).is_suspended
    assert not here.resume(job).is_suspended
    assert here.wait(job, "running").phase == "Running"
    with pytest.raises(dljob.TimedOut, match="is not finished after 0 s"):
        here.wait(job, timeout=0)
    with pytest.raises(dljob.WrongUse, match="wait_until_gone"):
        here.wait(job, "deleted")
    with pytest.raises(dljob.WrongUse, match="is not a goal to wait for"):
        here.wait(job, "happy")
    with pytest.raises(dljob.WrongUse, match="not a number of GPUs"):
        here.scale(job, "many")


def test_missing_job_is_refused(here, root):
    with pytest.raises(dljob.NotFound) as refused:
        here.get("nothing")
    assert refused.value.problems[0].remedy == "dljob get lists the jobs"
    with pytest.raises(dljob.NeverHolds):
        here.wait("nothing")
    with dljob.connect(root / "nowhere") as there, pytest.raises(dljob.Unreachable):
        there.jobs()
    with pytest.raises(dljob.WrongUse, match="give one or the other"):
        dljob.connect(root, namespace="team")


# --- studies ------------------------------------------------------------------------------


class Nothing(dljob.Policy):
    """Gives no GPU to any job."""

    def allocate(self, view):
        return dljob.Decision({})


class Silent(dljob.Policy):
    """Forgets to answer."""

    name = "silent"

    def allocate(self, view):
        return None


class Broken(Nothing):
    """Raises."""

    def allocate(self, view):
        raise KeyError("missing")


class Three(Nothing):
    """Gives three GPUs also to jobs that cannot run on three."""

    def allocate(self, view):
        return dljob.Decision({state.job.id: dljob.Share(3) for state in view.pending})


def test_the_figures_are_those_of_the_command(folder, capsys):
    outcomes = dljob.simulate("five.csv", ["fifo", "foresight"], cluster=8)
    options = ("--gpus", 8, "--policy", "fifo", "--policy", "foresight", "-o", "json")
    rows = Command(capsys)("simulate", "five.csv", *options).data
    assert [each.score.avg_jct_s for each in outcomes] == [row["avg_jct_s"] for row in rows]
    below = studies.bound("five.csv", cluster="1x8").avg_jct_s
    assert below <= min(each.score.avg_jct_s for each in outcomes)
    compared = studies.compare("five.csv", ["fifo", "foresight"], cluster=8)
    first, second = (
        spread.mean for line in compared.lines if (spread := line.ratios["avg_jct_s"]) is not None
    )
    assert first == 1.0
    assert second == pytest.approx(outcomes[1].score.avg_jct_s / outcomes[0].score.avg_jct_s)
    seeds = studies.compare("five.csv", ["fifo"], cluster=8, seeds=2).rows
    assert [row["seed"] for row in seeds] == [0, 1]


def test_a_policy_of_ones_own_is_played_and_its_faults_are_named(folder):
    [idle] = dljob.simulate("five.csv", Nothing(), cluster=8)
    assert (idle.score.policy, idle.score.unfinished) == ("Nothing", 5)
    with pytest.raises(dljob.WrongInput, match="policy 'silent' returns None") as refused:
        dljob.simulate("five.csv", Silent(), cluster=8)
    assert refused.value.problems[0].source.startswith(f"{__file__}:")
    with pytest.raises(dljob.WrongInput, match="KeyError: 'missing'"):
        dljob.simulate("five.csv", [Broken()], cluster=8)
    rigid = dljob.Scenario(trace=Path("five.csv"), machines=(Machines(1, 8),), rigid=True)
    with pytest.raises(dljob.BrokenLaw, match="allowed-shape"):
        dljob.simulate(rigid, Three())


def test_meaningless_input_is_refused(folder):
    for given, words in (
        ({"policies": "nope"}, "no policy is named 'nope'"),
        ({"policies": "fifo", "cluster": "many"}, "is not NODESxGPUS"),
        ({"policies": "fifo", "cluster": 0}, "give at least 1"),
    ):
        with pytest.raises(dljob.WrongUse, match=words):
            dljob.simulate("five.csv", **given)
    with pytest.raises(dljob.WrongUse, match="policies"):
        studies.compare("five.csv", [Nothing()])  # type: ignore[list-item]


# --- pictures -----------------------------------------------------------------------------


def test_a_timeline_is_shown_by_the_notebook_that_runs(folder, monkeypatch):
    [outcome] = dljob.simulate("five.csv", "fifo", cluster=8, records=True)
    timeline = dljob.Timeline.of(outcome)
    shown: list[object] = []
    monkeypatch.setattr("builtins.display", shown.append, raising=False)
    timeline.show()
    assert shown == [timeline]
    [address] = re.findall(r'src="data:text/html;base64,([^"]+)"', timeline._repr_html_())
    assert base64.b64decode(address).decode() == timeline.page
    assert 'sandbox="allow-scripts"' in timeline._repr_html_()
    [unrecorded] = dljob.simulate("five.csv", "fifo", cluster=8)
    with pytest.raises(dljob.WrongUse, match="call simulate with records=True"):
        dljob.Timeline.of(unrecorded)


# --- with an event loop -------------------------------------------------------------------


def test_the_coroutines_answer_as_the_methods_do(played):
    played.submit("bert")

    async def ask():
        async with dljob.connect_async(played.up.root) as there:
            names = [each.name for each in await there.jobs()]
            # The limit of the whole wait, and not that of its last look.
            with pytest.raises(dljob.TimedOut, match=r"is not Completed after 0\.2 s"):
                await there.wait("bert", "Completed", timeout=0.2)
            with pytest.raises(dljob.TimedOut, match=r"is not deleted after 0\.2 s"):
                await there.wait_until_gone("bert", timeout=0.2)
            with pytest.raises(dljob.NeverHolds):
                await there.wait("nothing")
            with pytest.raises(dljob.WrongUse, match="wait_until_gone"):
                await there.wait("bert", "deleted")
            with pytest.raises(dljob.NotFound):
                await there.get("nothing")
            is_suspended = (await there.suspend("bert")).is_suspended
        # What is asked after closing is answered as before.
        after = [each.name for each in await there.jobs()]
        await there.close()
        return names, is_suspended, after

    assert asyncio.run(ask()) == (["bert"], True, ["bert"])


def test_each_question_of_a_connection_is_a_coroutine_too():
    def questions(kind):
        return {name for name in vars(kind) if not name.startswith("_")}

    assert questions(dljob.AsyncConnection) == questions(dljob.Connection)


FOLLOWING = """
import asyncio, sys
import dljob

async def read(there, lines, begun):
    async for line in there.logs("bert", dljob.Logs(follow=True)):
        lines.append(line)
        begun.set()

async def main():
    lines, begun = [], asyncio.Event()
    async with dljob.connect_async(sys.argv[1]) as there:
        reading = asyncio.create_task(read(there, lines, begun))
        await begun.wait()
        print([job.name for job in await there.jobs()])
        try:
            async with asyncio.timeout(0.3):
                async for line in there.logs("bert", dljob.Logs(follow=True, lines=0)):
                    print("not written yet", line)
        except TimeoutError:
            print("timed out")
        print((await there.get("bert")).name)
    await reading
    print(lines)

asyncio.run(main())
"""


@pytest.mark.processes
@pytest.mark.story
def test_a_followed_log_holds_up_no_question_no_time_out_and_no_close(played):
    played.submit("bert")
    folder = played.up.root / "jobs" / "bert"
    folder.mkdir(parents=True)
    (folder / "n1.log").write_text("step 1\n", encoding="utf-8")
    # Nothing is written meanwhile, and the job does not end.
    command = [sys.executable, "-c", FOLLOWING, str(played.up.root)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=LIMIT_S)
    assert done.stderr == ""
    assert done.stdout.splitlines() == ["['bert']", "timed out", "bert", "['step 1\\n']"]


UNANSWERED = """
import asyncio, sys
import dljob
from dljob.client.local import socket_client

async def main():
    async with dljob.connect_async(sys.argv[1]) as there:
        for _ in range(2):
            try:
                async with asyncio.timeout(0.2):
                    await there.jobs()
            except TimeoutError:
                print("timed out")

socket_client.PATIENCE_S = 3600.0
asyncio.run(main())
"""


class Following:
    """A backend whose log goes on for ever; its reader is interrupted while it waits."""

    def __init__(self):
        self.has_ended = False

    def read_logs(self, _name, query):
        yield LogLine("n1", b"first\n")
        main = threading.main_thread().ident
        assert main is not None
        until, again = time.monotonic() + LIMIT_S, 0.0
        while not query.is_over() and time.monotonic() < until:
            # Python overlooks an interrupt right before it begins to wait; a user presses again.
            if time.monotonic() > again:
                signal.pthread_kill(main, signal.SIGINT)
                again = time.monotonic() + AGAIN_S
            time.sleep(0.01)
        self.has_ended = query.is_over()

    def close(self):
        """Nothing is open."""


def test_an_interrupt_of_a_followed_log_in_a_notebook_holds_up_no_close():
    backend, loop = Following(), asyncio.new_event_loop()

    async def cell():
        with Connection(cast("Any", backend)) as connection:
            for line in connection.logs("a", Logs(follow=True)):
                assert line == "first\n"

    try:
        # Not asyncio.run, which has a handler of its own for the signal; the kernel of a notebook has none.
        with pytest.raises(KeyboardInterrupt):
            loop.run_until_complete(cell())
    finally:
        loop.close()
    assert backend.has_ended


@pytest.mark.processes
def test_a_server_that_does_not_answer_holds_up_no_time_out_and_no_exit(root):
    place = Folders(root).socket
    place.parent.mkdir()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as silent:
        silent.bind(str(place))
        silent.listen()
        command = [sys.executable, "-c", UNANSWERED, str(root)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=LIMIT_S)
    assert (done.stdout.splitlines(), done.stderr) == (["timed out"] * 2, "")


class Leaving:
    """The future of a caller that leaves right after the thread has looked whether it waits."""

    def __init__(self, question):
        self.question = question
        self.saw_it_begun = None

    def cancelled(self):
        self.saw_it_begun = self.question.has_begun
        return False

    def done(self):
        return True


def test_a_caller_that_leaves_while_its_question_begins_sees_that_it_has_begun():
    async def ask():
        question = _Question(lambda: None)
        caller = Leaving(question)
        question.answer = cast("Any", caller)
        question.ask()
        return caller.saw_it_begun

    assert asyncio.run(ask())
