"""Jobs in containers of this machine: real podman or docker, real SideCars in them, virtual GPUs."""

import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from dljob.core.documents import jobfile
from dljob.local import environments
from dljob.local.containers import keeper, running
from dljob.local.containers.engines import ContainerSpec, Mount
from dljob.local.containers.trying import Trials
from dljob.local.environments import Origin, Submitter
from dljob.local.folders import Folders
from tests.ctl.running import LONGEST_S
from tests.local.stages import job_document
from tests.local.ups import going, kill_all
from tests.local.users import SCRIPT, find_python, made
from tests.servers.binaries import Unavailable
from tests.servers.containers import BARE, IMAGE, SETTINGS, Containers, containers, furnish

SAVER = Path(__file__).with_name("saver.py")
ME = Submitter.of_this_process()
SECRET = "hf_do_not_tell"  # noqa: S105 - it is none


@pytest.fixture(scope="module")
def engine(tmp_path_factory) -> Iterator[Containers]:
    """An engine that runs containers here, and is found by what this process starts."""
    with ExitStack() as stack:
        try:
            found = stack.enter_context(containers(tmp_path_factory.mktemp("engine")))
        except Unavailable as error:
            # Also in CI: an engine is not worth a download, and machines without one are common.
            pytest.skip(f"no containers here: {error}")
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        for name, value in found.variables.items():
            patch.setenv(name, value)
        yield found


def saving(name, root, engine, *, iterations=1_000_000, **spec):
    """A job in a container that saves itself when it is asked to."""
    journal = root / f"{name}.journal"
    words = [
        "python3",
        str(SAVER),
        "good",
        "$(DLJOB_CHECKPOINT_DIR)",
        str(journal),
        str(iterations),
    ]
    trainer = {"name": "trainer", "image": IMAGE, "command": words, "workingDir": str(root)}
    return job_document(
        name,
        training={"iterations": iterations},
        checkpoint={
            "signal": "SIGUSR1",
            "confirm": "file",
            "complete": "rename",
            "path": "$(DLJOB_CHECKPOINT_DIR)",
            "shared": True,
        },
        environment={"container": {"engine": engine.engine, "folders": [str(SAVER.parent)]}},
        template={"spec": {"containers": [trainer]}},
        **spec,
    )


def boxed(**container):
    document = job_document(environment={"container": {"image": IMAGE, **container}})
    return jobfile.parse(document, require_template=True)


def container_of(up, root, engine, name):
    """The id of the container of a job, and the process that is PID 1 in it."""
    [booking] = [path.name for path in (root / "jobs" / name).glob("[0-9]*-*")]
    serial, _, node = booking.partition("-")
    there = up.backend._items("jobs", name, "surroundings")
    told = json.loads(engine("container", "inspect", there[0]["container"]["name"]))
    assert node
    assert int(serial) > 0
    return told[0]["Id"], int(told[0]["State"]["Pid"])


class TestWords:
    """The words of the command for an engine, without an engine."""

    def wanted(self, engine="podman", *, uid=0, sees_gpus=False, **variables):
        client = {"PATH": "/bin"}
        return ContainerSpec(
            engine=engine,
            image=IMAGE,
            user=(uid, uid, (uid, 7)),
            mounts=(Mount("/a,b", "/a,b"), Mount("/c", "/c", is_writable=False)),
            variables=variables,
            client=client,
            sees_gpus=sees_gpus,
        )

    def test_no_value_of_a_variable_is_in_a_command_line_that_all_users_can_read(self):
        container = self.wanted(HF_TOKEN=SECRET, PATH="/opt/bin")
        words = container.words("name", ["train"])
        assert SECRET not in " ".join(words)
        assert "--env=HF_TOKEN" in words
        assert container.environment() == {"HF_TOKEN": SECRET, "PATH": "/bin"}
        # The engine itself needs its own PATH, so that the container's PATH is passed by value.
        assert "--env=PATH=/opt/bin" in words

    def test_files_are_made_as_the_user_of_the_job(self):
        assert "--user=0:0" in self.wanted("podman", uid=1000).words("name", [])
        docker = self.wanted("docker", uid=1000).words("name", [])
        assert {"--user=1000:1000", "--group-add=7"} <= set(docker)
        assert "--group-add=1000" not in docker

    def test_a_path_with_a_comma_is_mounted(self):
        words = self.wanted().words("name", [])
        assert '--mount=type=bind,"source=/a,b","target=/a,b"' in words
        assert "--mount=type=bind,source=/c,target=/c,readonly" in words

    @pytest.mark.parametrize(
        ("engine", "option"), [("podman", "--device=nvidia.com/gpu=all"), ("docker", "--gpus=all")]
    )
    def test_the_container_sees_all_gpus_and_none_where_they_are_pretended(self, engine, option):
        assert option in self.wanted(engine, sees_gpus=True).words("name", [])
        assert option not in self.wanted(engine).words("name", [])

    def test_two_servers_of_one_user_name_their_containers_differently(self):
        names = {running.name_of(boxed(), Path(f"/{state}/run/a.sock")) for state in "ab"}
        assert len(names) == 2

    def test_only_variables_that_are_named_reach_a_container(self):
        origin = Origin(ME, {"PATH": "/bin", "HOME": "/h", "HF_TOKEN": SECRET})
        assert environments.of_job(boxed(), origin) == {}
        document = job_document(
            environment={"variables": ["HF_TOKEN"], "container": {"image": IMAGE}}
        )
        job = jobfile.parse(document, require_template=True)
        assert environments.of_job(job, origin) == {"HF_TOKEN": SECRET}


def problems_of(job, tmp_path, *, path=None, sees_gpus=False, folder="/"):
    variables = dict(os.environ) if path is None else {"PATH": path}
    trials = Trials(tmp_path / "state", sees_gpus=sees_gpus, seconds=300.0)
    origin = Origin(ME, variables)
    found = trials.problems(job, origin, folder, until=trials.deadline())
    return [f"{each.path}: {each.message}" for each in found]


def test_a_slow_engine_keeps_no_request_waiting_and_no_job_from_being_taken_in(tmp_path):
    """Its container says what is wrong when the job starts."""
    engine = tmp_path / "podman"
    engine.write_text("#!/bin/sh\nexec sleep 1000\n")
    engine.chmod(0o755)
    trials = Trials(tmp_path / "state", sees_gpus=False, seconds=0.2)
    origin = Origin(ME, {"PATH": f"{tmp_path}:{os.environ['PATH']}"})
    assert [*trials.problems(boxed(), origin, "/", until=trials.deadline())] == []


def test_missing_engine_is_refused_with_a_remedy(tmp_path):
    [said] = problems_of(boxed(), tmp_path, path=str(tmp_path))
    assert said == "spec.environment.container.engine: neither podman nor docker is installed here"
    [said] = problems_of(boxed(engine="docker"), tmp_path, path=str(tmp_path))
    assert said == "spec.environment.container.engine: docker is not installed here"


def test_an_interpreter_of_the_machine_and_a_container_exclude_each_other():
    document = job_document(environment={"python": "/usr/bin/python3", "container": {}})
    with pytest.raises(jobfile.JobFileError, match=r"environment\.python.*runs in a container"):
        jobfile.parse(document, require_template=True)


@pytest.mark.processes
@pytest.mark.xdist_group("containers")
def test_problems_of_a_container_are_reported_at_the_submission(engine, tmp_path):
    assert problems_of(boxed(engine=engine.engine), tmp_path) == []
    [said] = problems_of(boxed(engine=engine.engine, image="localhost/none:1"), tmp_path)
    assert f"image: {engine.engine} has no image localhost/none:1 on this machine" in said
    [said] = problems_of(boxed(engine=engine.engine, image=BARE), tmp_path)
    assert "container.image" in said
    [said] = problems_of(boxed(engine=engine.engine, folders=[str(tmp_path / "none")]), tmp_path)
    assert "container.folders" in said
    # This machine has no way from a container to a GPU.
    if not Path("/dev/nvidiactl").exists():
        [said] = problems_of(boxed(engine=engine.engine), tmp_path, sees_gpus=True)
        assert "container.engine" in said
    document = job_document(
        environment={"container": {"engine": engine.engine, "image": IMAGE}},
        checkpoint={"path": "/elsewhere/ckpt"},
    )
    job = jobfile.parse(document, require_template=True)
    [said] = problems_of(job, tmp_path)
    assert said == "spec.checkpoint.path: /elsewhere/ckpt is not seen in the container"


@pytest.mark.processes
@pytest.mark.xdist_group("containers")
def test_gpus_change_while_the_container_lives_and_nothing_is_left_of_it(engine, root):
    state = root / "state"
    with going(state, "--virtual-gpus", 2) as up:
        assert up.submit(saving("long", root, engine)).status == 0
        up.until_phase("long", "Running")
        before = container_of(up, state, engine, "long")
        gpus = ("exec", "long", "--", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES $HOSTNAME")
        assert up(*gpus).stdout.split()[0] == "0,1"

        # Another one makes it shrink once its checkpoint is known to work.
        one = {"options": [1]}
        short = saving("short", root, engine, iterations=100, priority=10, gpus=one)
        assert up.submit(short).status == 0
        up.until_phase("short", "Completed")
        journal = root / "long.journal"
        up.until(lambda: journal.read_text().count("begins") >= 3)
        assert container_of(up, state, engine, "long") == before
        begins = [
            int(line.split()[1]) for line in journal.read_text().splitlines() if "begins" in line
        ]
        assert begins[0] == 0
        assert begins == sorted(begins)
        assert begins[-1] > 0

        # The server is replaced, and finds the container as it is.
        up.end(signal.SIGKILL)
        with going(state, "--virtual-gpus", 2) as again:
            again.until_phase("long", "Running")
            assert container_of(again, state, engine, "long") == before
            assert again("cancel", "long", "short", "--wait").status == 0
    assert engine("ps", "--all", "--quiet").split() == []
    assert not Path(f"/proc/{before[1]}").exists()


@pytest.mark.processes
@pytest.mark.xdist_group("containers")
def test_on_a_system_server_a_container_is_run_as_the_user_of_its_job():
    """Without root, by the user's own podman and images."""
    folder = Path(tempfile.mkdtemp(prefix="dlt-"))
    folder.chmod(0o755)
    state = folder / "s"
    try:
        python = find_python(folder)
        with made(state, python, "ada", "bob") as (ada, bob):
            variables = podman_of(ada, folder)
            words = [
                python,
                "-c",
                SCRIPT,
                "up",
                "--system",
                "--virtual-gpus",
                "1",
                "--state",
                state,
            ]
            with (folder / "log").open("ab") as log:
                server = subprocess.Popen(list(map(str, words)), stdout=log, stderr=log, cwd="/")
            try:
                until(lambda: ada("get").status == 0, folder / "log")
                submitted = ada.submit(counting(), **variables)
                assert submitted.status == 0, submitted
                until(lambda: "step 3" in ada("logs", "counts").stdout, folder / "log")
                # PID 1 of the container is root there, and the user outside.
                told = ada("logs", "counts").stdout
                assert "I am 0 of 1" in told
                [inside] = first_processes(state, shared=True)
                assert Path(f"/proc/{inside}").stat().st_uid == ada.uid
                assert bob("cancel", "counts").status != 0
                assert ada("cancel", "counts", "--wait").status == 0
                assert not Path(f"/proc/{inside}").exists()
            finally:
                server.kill()
                server.wait(LONGEST_S)
                kill_all(state)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def podman_of(user, folder):
    """Give a user an image of its own; return what the user's environment has to say of it."""
    if shutil.which("podman") is None:
        pytest.skip("no podman here")
    root = folder / "python"
    furnish(root, with_python=True)
    archive = shutil.make_archive(str(root), "tar", root)
    settings, storage = user.home / "containers.conf", user.home / "storage.conf"
    settings.write_text(SETTINGS)
    places = f'graphroot = "{user.home}/graph"\nrunroot = "{user.home}/run"\n'
    storage.write_text(f'[storage]\ndriver = "vfs"\n{places}')
    variables = {"CONTAINERS_CONF": str(settings), "CONTAINERS_STORAGE_CONF": str(storage)}
    words = ("podman", "run", "--rm", "--network=host", "--ipc=host", IMAGE, "python3", "-c", "")
    for each in (("podman", "import", archive, IMAGE), words):
        done = user.run(*each, **variables)
        if done.status != 0:
            pytest.skip(f"podman without root does not work here: {done.stderr.strip()[-300:]}")
    return variables


def counting():
    program = (
        "import os, time; print('I am', os.getuid(), 'of', os.getppid(), flush=True)\n"
        "for step in range(1, 10**6): print('step', step, flush=True); time.sleep(0.2)"
    )
    trainer = {"name": "trainer", "image": IMAGE, "command": ["python3", "-c", program]}
    return job_document(
        "counts",
        gpus={"options": [1]},
        training={"iterations": 10**6},
        progress={"log": r"step (?P<iteration>\d+)"},
        environment={"container": {"engine": "podman"}},
        template={"spec": {"containers": [trainer]}},
    )


def until(true, log):
    end = time.monotonic() + 2 * LONGEST_S
    while not true():
        assert time.monotonic() < end, log.read_text()
        time.sleep(0.1)


@pytest.mark.processes
@pytest.mark.xdist_group("containers")
def test_after_the_death_of_its_keeper_no_second_container_runs(engine, root):
    state = root / "state"
    with going(state, "--virtual-gpus", 1) as up:
        assert up.submit(saving("long", root, engine, gpus={"options": [1]})).status == 0
        up.until_phase("long", "Running")
        before = container_of(up, state, engine, "long")
        [keeping] = (state / "jobs" / "long").glob("*/pid")
        os.kill(int(keeping.read_text().split()[0]), signal.SIGKILL)
        up.until(lambda: is_in_another(state, before[1]))
        assert not Path(f"/proc/{before[1]}").exists()
        up.until_phase("long", "Running")

        # PID 1 of the container is killed as well; the job goes on in another one, perhaps of a new
        # pod.
        [inside] = first_processes(state)
        with suppress(ProcessLookupError):
            os.kill(inside, signal.SIGKILL)
        up.until(lambda: is_in_another(state, inside))
        assert up("cancel", "long", "--wait").status == 0
    assert first_processes(state) == []


def first_processes(state, *, shared=False):
    """Return PID 1 of a container of this server; never more than one, as there is one GPU."""
    sockets = [
        str(path).removesuffix(".lock")
        for path in Folders(state, shared=shared).sockets.rglob("*.lock")
    ]
    found = [pid for socket in sockets for pid in keeper.find_first_processes(socket)]
    assert len(found) <= 1
    return found


def is_in_another(state, former):
    return bool(found := first_processes(state)) and found[0] != former
