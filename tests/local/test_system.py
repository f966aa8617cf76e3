"""One server for all users: each job runs as its submitter, and no other user can touch it."""

import asyncio
import contextlib
import json
import os
import re
import shutil
import signal
import socket
import stat
import struct
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from dljob.cli.verbs.server.controller import find_writer, write_unit
from dljob.client.backend import Away, BackendError
from dljob.client.local.local_backend import LocalBackend
from dljob.client.local.socket_client import SocketClient
from dljob.control.sidecars.dialing import DialSettings, Line, Unreachable
from dljob.control.sidecars.peers import Peer
from dljob.control.situation.ports import Address
from dljob.local.api.access import identify, namespace_of
from dljob.local.environments import Submitter
from dljob.local.folders import Folders, StateError
from dljob.local.jobs import user_limits
from dljob.local.jobs.user_limits import MOST_REFUSALS, ConnectionLimits
from dljob.local.pods.rotating import LogLimits, rotate
from dljob.local.state_folder import lock_folder, make_folders
from tests.ctl.running import LONGEST_S, Command, run_apart
from tests.local.histories import SAVER, lost
from tests.local.test_live_changes import TRAINER
from tests.local.ups import ROOT, find_processes, kill_all
from tests.local.users import SCRIPT, User, find_python, made, make_python

TOKEN = "hf_of_one_user"  # noqa: S105 - it is none
TRAINING = (
    "import os, time; print('I am', os.getuid(), os.getgid(), os.getgroups(), os.getcwd(), flush=True)\n"
    "folder = os.environ['DLJOB_CHECKPOINT_DIR']\n"
    "open(folder + '/saved', 'w').write('mine')\n"
    "for step in range(1, 10**6): print('step', step, flush=True); time.sleep(0.2)\n"
)


RANKS = (
    "import time; from dljob import training\n"
    "for step in range(1, 10**6): training.should_save(step); print('step', step, flush=True); time.sleep(0.2)\n"
)


def training(name: str, **metadata: Any) -> dict[str, Any]:
    trainer = {"name": "trainer", "command": ["python3", "-c", TRAINING]}
    return {
        "apiVersion": "dljob.io/v1alpha1",
        "kind": "DLJob",
        "metadata": {"name": name, "labels": {"team": "vision"}, **metadata},
        "spec": {
            "gpus": {"options": [1]},
            "training": {"iterations": 10**6},
            "progress": {"log": r"step (?P<iteration>\d+)"},
            "template": {"spec": {"containers": [trainer]}},
        },
    }


@pytest.fixture(scope="module")
def place():
    folder = Path(tempfile.mkdtemp(prefix="dlt-"))
    folder.chmod(0o755)
    try:
        python = find_python(folder)
        with made(folder / "s", python, "ada", "bob") as (ada, bob):
            yield from _serving(folder, python, ada, bob)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _serving(folder, python, ada, bob, *options):
    state, log = folder / "s", folder / "log"
    words = ("up", "--system", "--virtual-gpus", "4", "--state", state, *options)
    with log.open("ab") as output:
        server = subprocess.Popen(
            [python, "-c", SCRIPT, *words], stdout=output, stderr=output, cwd="/"
        )
    backend = LocalBackend(Folders(state).socket)
    there = SimpleNamespace(ada=ada, bob=bob, state=state, log=log, backend=backend, server=server)
    try:
        _until(there, lambda: _answers(backend))
        for user in (ada, bob):
            submitted = user.submit(training("mine"), HF_TOKEN=TOKEN)
            assert submitted.status == 0, (submitted, log.read_text())
        _until(there, lambda: _steps(there, ada) > 0 and _steps(there, bob) > 0)
        yield there
    finally:
        there.server.kill()
        there.server.wait(LONGEST_S)
        kill_all(state)


def _answers(backend):
    with contextlib.suppress(Away):
        return bool(backend.about())
    return False


def _until(there, true: Callable[[], bool]) -> None:
    end = time.monotonic() + 2 * LONGEST_S
    while not true():
        assert time.monotonic() < end, there.log.read_text()
        assert there.server.poll() is None, there.log.read_text()
        time.sleep(0.1)


def _log_of(there, user):
    logs = list((there.state / "jobs" / f"{user.name}__mine").glob("*.log"))
    return logs[0] if logs else None


def _steps(there, user):
    log = _log_of(there, user)
    return log.read_text().count("step ") if log else 0


def _sidecars(user):
    return [
        pid
        for pid in find_processes(Path("sidecar\0run"))
        if owner_of(Path(f"/proc/{pid}")) == user.uid
    ]


def owner_of(path):
    with contextlib.suppress(OSError):
        return path.stat().st_uid
    return None


real = pytest.mark.processes


@real
def test_a_training_of_each_runs_as_its_user(place):
    for user in (place.ada, place.bob):
        first = _log_of(place, user).read_text().splitlines()[0]
        assert first == f"I am {user.uid} {user.gid} [] {user.home}"
        assert _sidecars(user)
        saved = place.state / "checkpoints" / f"{user.name}__mine" / "saved"
        assert (saved.stat().st_uid, saved.stat().st_gid) == (user.uid, user.gid)
        # Its own user sees all of it, by the short name.
        assert "Phase:" in user("describe", "mine").stdout
        assert "step 1\n" in user("logs", "mine").stdout
        assert TOKEN not in user("get", "mine", "-o", "yaml").stdout
        told = user("exec", "mine", "--", "sh", "-c", "id -u; echo $HF_TOKEN").stdout
        assert told.split() == [str(user.uid), TOKEN]


@real
def test_each_sees_of_the_others_only_name_owner_phase_and_gpus(place):
    listed = json.loads(place.bob("get", "-o", "json").stdout)["items"]
    by_owner = {item["metadata"]["namespace"]: item for item in listed}
    assert by_owner.keys() == {place.ada.name, place.bob.name}
    foreign = by_owner[place.ada.name]
    assert foreign["spec"] == {}
    assert foreign["status"].keys() == {"phase", "allocation", "owner"}
    assert "labels" not in foreign["metadata"]
    table = place.bob("get").stdout
    assert f"{place.ada.name}/mine " in table
    assert "\nmine " in table
    selected = json.loads(place.bob("get", "-l", "team=vision", "-o", "json").stdout)["items"]
    assert [item["metadata"]["namespace"] for item in selected] == [place.bob.name]
    assert "Running" in place.bob("get", f"{place.ada.name}/mine").stdout


@real
def test_jobs_of_others_are_refused_with_the_reason(place):
    theirs, node = f"{place.ada.name}/mine", place.backend.list_nodes()[0]["name"]
    owner = f"belongs to {place.ada.name}; only {place.ada.name} and root may"
    for words, reason in (
        *(((verb, theirs), owner) for verb in ("describe", "logs", "suspend", "cancel")),
        (("exec", theirs, "--", "true"), owner),
        (("gpu", "cordon", f"{node}/0"), "needs root"),
        (("config", "show"), "needs root"),
        (("hold", "--all"), "needs root"),
        (("hold", "--release", place.bob.name), "needs root"),
    ):
        refused = place.bob(*words)
        assert refused.status != 0, words
        assert reason in refused.stderr, words
        assert TOKEN not in refused.stdout + refused.stderr
    refused = place.bob.submit(training("forged", namespace=place.ada.name))
    assert refused.status == 1
    assert f'metadata.namespace: "{place.ada.name}" is not yours' in refused.stderr
    assert "forged" not in place.bob("get").stdout


PRINTED = re.compile(r"The page is at (http://127\.0\.0\.1:[0-9]+/)#token=([\w-]{43})\n")


class OwnPage(NamedTuple):
    """The page that ``dljob web`` serves to a user."""

    address: str
    token: str

    def __call__(
        self, path: str, body: bytes | None = None, *, token: str | None = None
    ) -> tuple[int, str]:
        request = urllib.request.Request(f"{self.address}api/v1/{path}", body)  # noqa: S310 - ours
        request.add_header("Authorization", f"Bearer {self.token if token is None else token}")
        try:
            with urllib.request.urlopen(request, timeout=LONGEST_S) as answer:  # noqa: S310 - ours
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as refused:
            with refused:
                return refused.code, refused.read().decode()


@contextlib.contextmanager
def opened_page(user):
    process = user.start(*user.type("web", "--no-browser"))
    try:
        found = PRINTED.fullmatch(process.stdout.readline())
        assert found is not None, process.communicate(timeout=LONGEST_S)
        yield OwnPage(*found.groups())
        process.send_signal(signal.SIGINT)
        assert process.wait(LONGEST_S) == 130
    finally:
        process.kill()
        process.communicate(timeout=LONGEST_S)


@pytest.mark.story
@real
def test_the_page_of_each_user_has_own_jobs_whole_and_those_of_others_as_blocks(place):
    with opened_page(place.ada) as as_ada, opened_page(place.bob) as as_bob:
        for ask, user, other in ((as_ada, place.ada, place.bob), (as_bob, place.bob, place.ada)):
            for token in {"", as_ada.token, as_bob.token} - {ask.token}:
                assert ask("page", token=token)[0] == 401
            page = json.loads(ask("page")[1])
            assert [job["name"] for job in page["jobs"]] == [f"{user.name}/mine"]
            [node] = page["nodes"]
            has_spans = [bool(lane["spans"]) for lane in node["lanes"]]
            has_blocks = [bool(lane["others"]) for lane in node["lanes"]]
            assert (sum(has_spans), sum(has_blocks)) == (1, 1)
            assert not any(
                span and block for span, block in zip(has_spans, has_blocks, strict=True)
            )
            assert page["sums"]["held_by_others"] > 0
            for path in ("page", "record", "usage.csv"):
                status, told = ask(path)
                assert (status, other.name in told, user.name in told) == (200, False, True), path
            # Lists are those of dljob get and dljob gpu list.
            jobs = json.loads(ask("jobs")[1])["items"]
            whole = {each["metadata"]["namespace"]: bool(each["spec"]) for each in jobs}
            assert whole == {user.name: True, other.name: False}
            gpus = json.loads(ask("nodes")[1])["items"][0]["gpus"]
            held = [gpu.get("job") for gpu in gpus]
            # The time of the latest decision would count the changes of another user's job.
            assert {gpu["job"] for gpu in gpus if "since" in gpu} == {f"{user.name}/mine"}
            assert f"{other.name}/mine" in held
            assert ask(f"jobs/{user.name}/mine")[0] == 200
            status, told = ask(f"jobs/{other.name}/mine")
            assert (status, f"belongs to {other.name}" in told) == (403, True)
            assert ask(f"logs/{other.name}/mine")[0] == 403
            assert "step 1" in ask(f"logs/{user.name}/mine")[1]
            assert json.loads(ask("what-if")[1])["allowed"] is False
            assert ask("what-if", b"{}")[0] == 403
    with opened_page(User("root", place.ada.python, place.state)) as ask:
        page = json.loads(ask("page")[1])
        assert {job["name"].partition("/")[0] for job in page["jobs"]} == {
            place.ada.name,
            place.bob.name,
        }
        assert page["sums"]["held_by_others"] == 0
        assert json.loads(ask("what-if")[1])["allowed"] is True


@real
def test_a_user_gets_the_record_and_the_report_of_own_jobs(place):
    words = (("record",), ("record", "--since", "1s"), ("report", "--by", "job"))
    told = [place.bob(*each) for each in words]
    for each in told:
        assert each.status == 0, each
        assert f"{place.bob.name}/mine" in each.stdout
        assert place.ada.name not in each.stdout + each.stderr
        assert "not complete: you see your own jobs" in each.stderr
    assert "held by other jobs" in told[-1].stdout


ASK = """
import json, socket
connection = socket.socket(socket.AF_UNIX)
connection.connect({socket!r})
body = json.dumps({body!r}).encode()
head = "{method} {target} HTTP/1.1\\r\\nHost: x\\r\\nConnection: close\\r\\nContent-Length: LENGTH\\r\\n\\r\\n"
connection.sendall(head.replace("LENGTH", str(len(body))).encode() + body)
answer = b""
while block := connection.recv(1 << 16):
    answer += block
print(answer.decode())
"""

RAW = (
    ("GET", "/v1/events?job={name}%2Fmine"),
    ("GET", "/v1/jobs/{name}%2Fmine/why"),
    ("GET", "/v1/jobs/{name}%2Fmine/surroundings"),
    ("PUT", "/v1/jobs/{name}%2Fmine"),
    ("GET", "/v1/jobs/{name}%2Fgone/history"),
    ("DELETE", "/v1/nodes/n/gpus/0/cordon"),
    ("GET", "/metrics"),
)


@real
def test_socket_refuses_on_its_own(place):
    for method, target in RAW:
        code = ASK.format(
            socket=str(Folders(place.state).socket),
            body=training("mine", namespace=place.bob.name),
            method=method,
            target=target.format(name=place.ada.name),
        )
        answer = place.bob.run("/usr/bin/python3", "-c", code).stdout
        assert answer.startswith("HTTP/1.1 403 "), (target, answer)
        assert TOKEN not in answer


@real
def test_the_kernel_keeps_files_sockets_and_processes_of_a_job_from_others(place):
    folders = Folders(place.state, shared=True)
    job = f"{place.ada.name}/mine"
    attempts = {
        "read the log": f"open({str(_log_of(place, place.ada))!r})",
        "list the folder of the job": f"os.listdir({str(folders.job(job))!r})",
        "list its sockets": f"os.listdir({str(folders.sockets_of(job))!r})",
        "speak to its SideCar": f"speak({str(folders.sockets_of(job))!r})",
        "read the list of jobs": f"open({str(folders.registry)!r})",
        "read the log of the server": f"open({str(folders.log)!r})",
        "list all jobs' folders": f"os.listdir({str(place.state / 'jobs')!r})",
        "write a checkpoint": f"open({str(folders.checkpoints(job) / 'saved')!r}, 'w')",
        "take its place": f"os.rename({str(folders.job(job))!r}, '/tmp/x')",
        "make a socket for it": f"os.mkdir({str(folders.sockets / 'mine')!r})",
        "end its SideCar": f"os.kill({_sidecars(place.ada)[0]}, 9)",
        "read its environment": f"open('/proc/{_sidecars(place.ada)[0]}/environ').read()",
    }
    names = [path.name for path in folders.sockets_of(job).glob("*.sock")]
    code = f"""
import os, socket
def speak(folder):
    socket.socket(socket.AF_UNIX).connect(folder + "/{names[0]}")
for name, attempt in {attempts!r}.items():
    try:
        eval(attempt)
    except PermissionError:
        print("refused:", name)
    else:
        print("DONE:", name)
"""
    told = place.bob.run("/usr/bin/python3", "-c", code)
    assert told.stdout.splitlines() == [f"refused: {name}" for name in attempts], told.stderr
    before = _steps(place, place.ada)
    _until(place, lambda: _steps(place, place.ada) > before)


@real
def test_a_link_in_the_place_of_a_log_is_not_cut_by_root(place, tmp_path):
    precious = tmp_path / "precious"
    precious.write_text("x" * 10_000)
    folder = place.bob.home / "logs"
    folder.mkdir()
    os.chown(folder, place.bob.uid, place.bob.gid)
    limits = LogLimits(largest_bytes=4096)
    log = folder / "node.log"
    log.symlink_to(precious)
    with pytest.raises(OSError, match="symbolic links"):
        rotate(log, limits)
    log.unlink()
    log.hardlink_to(precious)
    with pytest.raises(OSError, match="is not a log of its job"):
        rotate(log, limits)
    log.unlink()
    # Rotated parts overwrite nothing either, and belong to the user.
    log.write_text("y" * 10_000)
    os.chown(log, place.bob.uid, place.bob.gid)
    (folder / "node.log.unfinished").symlink_to(precious)
    assert rotate(log, limits)
    assert (folder / "node.log.1").stat().st_uid == place.bob.uid
    assert precious.read_text() == "x" * 10_000


@real
@pytest.mark.parametrize("what", ["link", "listener"])
def test_a_sidecar_of_another_user_is_never_taken_for_that_of_the_job(place, what):
    """Ada puts something else in the place of her socket: what her job says is of hers, or nothing."""
    (own,) = _sockets(place, place.ada)
    (other,) = _sockets(place, place.bob)
    aside = own.with_suffix(".aside")

    async def story():
        patient = DialSettings(silence_seconds=LONGEST_S, dial_seconds=LONGEST_S)
        line = Line(Address(socket=str(own), owner=place.ada.uid), patient, credentials=None)
        try:
            return await line.read_state(None)
        finally:
            await line.close()

    assert asyncio.run(story()).version >= 0
    own.rename(aside)
    try:
        if what == "listener":
            other_name = own.with_suffix(".other")
            os.link(other, other_name)
            other_name.rename(own)
        else:
            own.symlink_to(other)
        with pytest.raises(
            Unreachable, match=r"cannot connect to .* (it is not a socket|listens there)"
        ):
            asyncio.run(story())
        # A server that looks at it is still there, and Bob's job goes on.
        steps = _steps(place, place.bob)
        _until(place, lambda: _steps(place, place.bob) > steps)
        assert _answers(place.backend)
    finally:
        aside.replace(own)


def _sockets(there, user):
    folder = Folders(there.state, shared=True).sockets_of(f"{user.name}/mine")
    return [path for path in folder.glob("*.sock") if path.is_socket()]


@real
def test_root_may_all(place):
    job = f"{place.ada.name}/mine"
    state = ("--state", place.state)
    assert "Phase:" in run_apart("describe", job, *state).stdout
    assert "step 1\n" in run_apart("logs", job, *state).stdout
    # `dljob exec` also runs as the user, whose PATH it uses.
    assert run_apart("exec", job, *state, "--", "id", "-u").stdout == f"{place.ada.uid}\n"
    assert run_apart("suspend", job, *state).status == 0
    place.backend.delete_job(f"{place.bob.name}/mine")
    _until(place, lambda: not _sidecars(place.bob))
    _until(place, lambda: len(place.backend.list_jobs().items) == 1)
    assert not (place.state / "jobs" / f"{place.bob.name}__mine").exists()
    assert not (place.state / "pods" / f"{place.bob.name}__mine").exists()


@real
def test_the_next_server_knows_the_owners_of_jobs(place):
    assert place.ada("resume", "mine").status == 0
    _until(place, lambda: bool(_sidecars(place.ada)))
    place.server.send_signal(signal.SIGTERM)
    place.server.wait(LONGEST_S)
    # Without --system it would run their jobs as root.
    refused = run_apart("up", "--virtual-gpus", 4, "--state", place.state)
    assert refused.status == 1
    assert "has jobs of a server of all users; start it with --system" in refused.stderr
    with place.log.open("ab") as output:
        place.server = subprocess.Popen(place.server.args, stdout=output, stderr=output, cwd="/")
    _until(place, lambda: _answers(place.backend))
    assert place.bob("cancel", f"{place.ada.name}/mine").status != 0
    _until(place, lambda: place.ada("cancel", "mine").status == 0)
    _until(place, lambda: not _sidecars(place.ada))


# --- what needs no server


def test_the_shipped_unit_is_the_printed_one():
    shipped = ROOT / "manifests" / "systemd" / "dljob.service"
    made = write_unit(["up", "--system"], program="/opt/dljob/bin/dljob")
    assert shipped.read_text() == made


def test_a_user_is_the_namespace():
    for user in ("ada", "www-data", "7"):
        assert namespace_of(Submitter(user, 7, 7)) == user
    for user in ("John.Doe", "a_b", "uid-1001", "1001"):
        assert namespace_of(Submitter(user, 7, 7)) == "uid-7", user


class _Peer:
    """A connection whose other end has the highest numbers that the kernel gives."""

    def getsockopt(self, _level: int, option: int, _size: int) -> bytes:
        is_credentials = option == socket.SO_PEERCRED
        return struct.pack("iII", 4711, 2**32 - 2, 2**31) if is_credentials else b""


def test_a_user_of_a_high_number_is_that_user():
    known = identify(_Peer())
    assert (known.uid, known.gid) == (2**32 - 2, 2**31)


def test_linked_folder_is_refused_and_left(tmp_path):
    with tempfile.TemporaryDirectory(prefix="dlt-") as place:
        other = Path(place) / "other"
        other.mkdir(mode=0o700)
        root = Path(place) / "s"
        root.symlink_to(other)
        with pytest.raises(StateError, match="belongs to another user"):
            make_folders(Folders(root, shared=True))
        assert stat.S_IMODE(other.stat().st_mode) == 0o700


def test_a_shared_server_has_no_sockets_below_tmp(tmp_path):
    with pytest.raises(StateError, match="too long for sockets"):
        make_folders(Folders(tmp_path / ("x" * 100), shared=True))


def test_users_reach_the_sockets_under_any_umask():
    old = os.umask(0o077)
    try:
        with tempfile.TemporaryDirectory(prefix="dlt-") as place:
            folders = Folders(Path(place) / "s", shared=True)
            make_folders(folders)
            folders.sockets.rmdir()
            os.close(lock_folder(folders))
            assert stat.S_IMODE(folders.sockets.stat().st_mode) == 0o711
    finally:
        os.umask(old)


@pytest.mark.skipif(os.getuid() != 0, reason="only root would run it as root")
def test_root_runs_no_command_for_a_job_of_an_unknown_user(monkeypatch, tmp_path):
    there = {"node": "n", "folder": "/", "environment": {}}
    backend = LocalBackend(tmp_path / "s")
    monkeypatch.setattr(LocalBackend, "home", "")
    monkeypatch.setattr(backend, "_items", lambda *_: [there])
    with pytest.raises(BackendError, match="does not name the owner of the job"):
        backend.execute("a", ["true"])


def _open_to_group(place):
    os.chown(place, 0, 65534)
    place.chmod(0o775)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give files to others")
@pytest.mark.parametrize(
    ("change", "writer"),
    [
        (lambda place: os.chown(place, 65534, 0), "the user nobody"),
        (_open_to_group, "the group nogroup"),
        (lambda place: place.chmod(0o1777), "every user"),
        (lambda place: place.chmod(0o775), None),
    ],
)
def test_writers_of_an_installation_are_found(change, writer):
    with tempfile.TemporaryDirectory(prefix="dlt-") as place:
        folder = Path(place) / "lib"
        folder.mkdir()
        # The folder around it is of all users, as /tmp is, where no other user may replace files of
        # root.
        Path(place).chmod(0o1777)
        change(folder)
        assert find_writer(folder) == (None if writer is None else (folder, writer))
        if writer is not None and stat.S_IMODE(folder.stat().st_mode) != 0o1777:
            (folder / "package").mkdir()
            assert find_writer(folder / "package") == (folder, writer)


@real
def test_an_installation_that_a_user_can_change_serves_no_other_user():
    with tempfile.TemporaryDirectory(prefix="dlt-") as place:
        Path(place).chmod(0o755)
        python = find_python(Path(place))
        venv = make_python(Path(place) / "own") if python == Path(sys.executable) else python
        packages = next((venv.parents[1] / "lib").glob("python*/site-packages"))
        os.chown(packages, 65534, -1)
        words = ["up", "--system", "--virtual-gpus", "1", "--state", f"{place}/s"]
        done = subprocess.run(
            [venv, "-c", SCRIPT, *words],
            capture_output=True,
            text=True,
            cwd="/",
            check=False,
            timeout=LONGEST_S,
        )
        assert done.returncode == 1
        assert f"because the user nobody may change {packages.resolve()}" in done.stderr
        assert not (Path(place) / "s").exists()


@real
def test_a_user_has_a_limited_number_of_jobs():
    with tempfile.TemporaryDirectory(prefix="dlt-") as place:
        folder = Path(place)
        folder.chmod(0o755)
        python = find_python(folder)
        settings = folder / "settings.yaml"
        settings.write_text("users: {mostJobs: 2}\n")
        with made(folder / "s", python, "ada", "bob") as (ada, bob):
            for _there in _serving(folder, python, ada, bob, "--config", settings):
                assert ada.submit(training("second")).status == 0
                third = ada.submit(training("third"))
                assert third.status == 1
                assert (
                    "has 2 jobs that have not ended and asks for 1 more, but 2 is the most"
                    in third.stderr
                )


@real
def test_ranks_of_a_user_agree_on_the_step_to_save_at(place):
    document = training("ranks")
    document["spec"] |= {"gpus": {"options": [2]}, "framework": "pytorch", "processes": "perGpu"}
    [container] = document["spec"]["template"]["spec"]["containers"]
    container["command"] = ["python3", "-c", RANKS]
    assert place.ada.submit(document).status == 0
    job = f"{place.ada.name}/ranks"

    def steps() -> int:
        status = place.backend.get_job(job)["status"]
        assert (status["restarts"], status["failures"]) == (0, 0), status
        return int(status.get("progress", {}).get("iteration", 0))

    try:
        _until(place, lambda: steps() > 3)
    finally:
        place.ada("cancel", "ranks")


@pytest.mark.story
@pytest.mark.parametrize("how", ["saved", "live"])
@real
def test_owed_gpus_come_back_from_a_running_job(how):
    with tempfile.TemporaryDirectory(prefix="dlt-") as place:
        folder = Path(place)
        folder.chmod(0o755)
        python = find_python(folder)
        with made(folder / "s", python, "ada", "bob") as (ada, bob):
            for there in _serving(folder, python, ada, bob, "--policy", "fifo"):
                _give_back(there, _describe_shrinking(there.ada, python, how=how))
                _check_kept(there, how=how)


def _check_kept(there: SimpleNamespace, *, how: str) -> None:
    if how == "saved":
        journal = there.ada.home / "journal"
        _until(there, lambda: lost(journal.read_text().splitlines()) == [0])
    else:
        status = there.backend.get_job(f"{there.ada.name}/shrinks")["status"]
        assert status["live"]["changes"] == 1


def _describe_shrinking(user: User, python: Path, *, how: str) -> dict[str, Any]:
    """Describe a job of 1 or 2 GPUs, with a checkpoint or with ranks that stay when their GPUs change."""
    document, saves = training("shrinks"), user.home / "saves"
    program = user.home / "train.py"
    spec: dict[str, Any] = {"gpus": {"options": [1, 2]}}
    if how == "live":
        shutil.copy(TRAINER, program)
        spec["processes"] = "perGpu"
        words: tuple[object, ...] = ("python3", program, 10**6)
    else:
        shutil.copy(SAVER, program)
        saves.mkdir()
        os.chown(saves, user.uid, user.gid)
        kept = {"signal": "SIGUSR1", "confirm": "file", "complete": "rename", "path": str(saves)}
        spec["checkpoint"] = {**kept, "shared": True, "trusted": True}
        words = (python, "-S", program, "good", saves, user.home / "journal", 10**6)
    document["spec"] |= spec
    [container] = document["spec"]["template"]["spec"]["containers"]
    container["command"] = [str(word) for word in words]
    return document


def _give_back(there: SimpleNamespace, document: dict[str, Any]) -> None:
    assert there.ada.submit(document).status == 0
    shrinks, comes = f"{there.ada.name}/shrinks", f"{there.bob.name}/comes"

    def read(job: str) -> Any:
        return there.backend.get_job(job)["status"]

    def trains(job: str, gpus: int) -> bool:
        status = read(job)
        has = status.get("allocation", {}).get("gpus")
        return (status["phase"], has) == ("Running", gpus)

    def is_ready() -> bool:
        conditions = read(shrinks).get("conditions", [])
        is_live = any((each["type"], each["status"]) == ("Live", "True") for each in conditions)
        return trains(shrinks, 2) and (is_live or "checkpoint" in document["spec"])

    _until(there, is_ready)
    # Ada has 3 of 4 GPUs, because one was idle until bob submits a second job.
    assert f"borrows 1 of 2 GPUs: {there.ada.name} has 3 GPUs" in there.ada("why", "shrinks").stdout
    assert there.bob.submit(training("comes")).status == 0
    _until(there, lambda: trains(comes, 1) and trains(shrinks, 1))
    for job in (shrinks, f"{there.ada.name}/mine"):
        status = read(job)
        assert [status[each] for each in ("phase", "restarts", "failures")] == ["Running", 0, 0]
    said = there.ada("why", "shrinks").stdout
    assert "goes from 2 to 1 GPU on " in said
    assert f"given back to {there.bob.name}, which is owed 2 GPUs" in said
    assert "QueueQuota" in there.ada("describe", "shrinks").stdout
    assert "borrows none of 1 GPU" in there.ada("describe", "shrinks").stdout


class Caller(asyncio.Transport):
    def __init__(self, limits: ConnectionLimits, uid: int) -> None:
        super().__init__({"socket": uid})
        self.written, self.is_open = b"", True
        self._protocol = limits()
        self._protocol.connection_made(self)

    def write(self, data: Any) -> None:
        self.written += data

    def close(self) -> None:
        self.is_open = False
        self._protocol.connection_lost(None)

    abort = close


def test_a_user_holds_few_connections_open_by_those_that_are_refused(monkeypatch):
    monkeypatch.setattr(user_limits, "read_peer", lambda uid: Peer(1, uid, uid))

    async def story():
        limits = ConnectionLimits(asyncio.Protocol, 1)
        let_in, *refused = [Caller(limits, 1000) for _ in range(1 + MOST_REFUSALS)]
        assert all(b"429" in each.written and each.is_open for each in refused)
        more = Caller(limits, 1000)
        assert (more.written, more.is_open) == (b"", False)
        assert (let_in.written, let_in.is_open) == (b"", True)
        # Another user gets answers, and this user as well after closing some connections.
        assert Caller(limits, 1001).is_open
        assert b"429" in Caller(limits, 1001).written
        refused[0].close()
        assert b"429" in Caller(limits, 1000).written
        assert Caller(limits, 1000).written == b""
        let_in.close()
        assert Caller(limits, 1000).is_open

    asyncio.run(story())


def test_only_root_runs_jobs_of_others(tmp_path, capsys, monkeypatch):
    up = partial(Command(capsys), "up", "--state", tmp_path)
    assert "add --system" in up("--group", "x").stderr
    assert "there is no such group" in up("--system", "--group", "no-such-group").stderr
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    monkeypatch.setattr("os.getuid", lambda: 1000)
    assert "only root can run jobs as other users" in up("--system", "--virtual-gpus", 1).stderr


def test_nothing_is_sent_to_a_server_of_another_user(tmp_path, monkeypatch):
    path, heard = tmp_path / "dljob.sock", []
    with socket.socket(socket.AF_UNIX) as door:
        door.bind(str(path))
        door.listen()

        def serve():
            connection, _ = door.accept()
            with connection:
                heard.append(connection.recv(1000))

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        # The kernel reports the server's user ID; the test changes only our own.
        uid = os.getuid()
        monkeypatch.setattr("os.getuid", lambda: uid + 1)
        monkeypatch.setattr("dljob.client.local.socket_client.ROOT", uid + 2)
        with pytest.raises(BackendError, match=f"user {uid} answers at .*; nothing was sent"):
            SocketClient(path).ask("GET", ("about",))
        thread.join(LONGEST_S)
    assert heard == [b""]
