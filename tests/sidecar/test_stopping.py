"""The job saves itself before a stop, and counts as saved only when that is confirmed."""

from __future__ import annotations

import shlex
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from dljob_sidecar.checkpoints import requests
from dljob_wire.messages import Saving
from tests.sidecar.drivers import LIMIT_SECONDS, find_processes, wait_until

pytestmark = pytest.mark.processes


HANDLE = "signal.signal(10, lambda *_: sys.exit(0))"
"""The handler of SIGUSR1 ends the program."""
ENDING = [
    *(sys.executable, "-c"),
    f"import signal, sys, time; {HANDLE}; print('ready', flush=True); time.sleep(1000)",
]


@pytest.mark.parametrize(
    "how", [{"confirm": "file"}, {"confirm": "log", "confirm_log": r"^saved \S+latest"}]
)
def test_new_file_or_log_line_confirms(drive, tmp_path, how):
    path = tmp_path / "checkpoints"
    path.mkdir()
    saving = {"path": str(path), "signal": "SIGUSR1", **how}
    driver = drive(f"save={path / 'latest'}", checkpoint=saving).begin()
    (path / "old").write_text("old")
    driver.save()
    assert (path / "latest").exists()
    driver.stop_all()


@pytest.mark.parametrize("is_tailed", [True, False])
def test_end_with_the_confirming_line_has_saved(drive, tmp_path, is_tailed):
    say = "signal.signal(10, lambda *_: (print('saved', flush=True), os._exit(0)))"
    # One write, because the signal may come between two.
    code = f"import os, signal, time; {say}; os.write(1, b'ready\\n'); time.sleep(1000)"
    saving = {"signal": "SIGUSR1", "confirm": "log", "confirm_log": "^saved"}
    output = tmp_path / "output"
    output.touch()
    way = {"log_file": str(output)} if is_tailed else {"log_file": "", "stdout": str(output)}
    driver = drive(command=[sys.executable, "-c", code], checkpoint=saving, **way)
    driver.log = output
    driver.begin().call("checkpoint")
    driver.wait_for("RankEnded", exit_code=0)
    # The machine terminates after the end of all ranks.
    driver.call("terminate")
    # The line may have been read before the end was seen.
    if all(event["event"] != "CheckpointDone" for event in driver.events):
        driver.wait_for("CheckpointDone")
    driver.wait_for("Gone")


@pytest.mark.parametrize("look_seconds", [0.0, 0.3])
def test_end_without_the_confirming_line_has_not_saved(drive, tmp_path, look_seconds):
    """Both files are read to their ends, even if each look is slow, so the lack of the line is certain."""
    progress = tmp_path / "progress"
    progress.touch()
    saving = {"signal": "SIGUSR1", "confirm": "log", "confirm_log": "^saved"}
    files = {"progress_file": str(progress), "look_seconds": look_seconds}
    driver = drive(command=ENDING, checkpoint=saving, **files).begin()
    assert requests.UNCONFIRMED in str(driver.save("CheckpointFailed")["problem"])
    driver.wait_for("Gone")


@pytest.mark.parametrize(
    ("confirm", "event"), [("exit", "CheckpointDone"), ("file", "CheckpointFailed")]
)
def test_end_confirms_only_if_configured(drive, tmp_path, confirm, event):
    saving = {"signal": "SIGUSR1", "confirm": confirm, "path": str(tmp_path / "none")}
    driver = drive(command=ENDING, checkpoint=saving).begin()
    driver.save(event)
    driver.wait_for("Gone")


def test_job_without_handler_survives(drive):
    saving = {"signal": "SIGUSR1", "confirm": "exit", "timeout_seconds": 0.5}
    driver = drive(checkpoint=saving).begin()
    why = "the training has no handler for SIGUSR1, and has installed none in 0.5 s"
    assert why in str(driver.save("CheckpointFailed")["problem"])
    assert driver.facts()["processes"][0]["signal"] is None
    driver.stop_all()


UNREADY_SECONDS = 1.5
"""Longer than one look for a handler."""
LATE = "time.sleep(float(sys.argv[1]))"
SAVE = "signal.signal(10, lambda *_: (open(sys.argv[2], 'w').write('saved'), sys.exit(0)))"


@pytest.mark.parametrize("confirm", ["exit", "file"])
def test_late_handler_is_asked(drive, tmp_path, confirm):
    code = f"import signal, sys, time; print('ready', flush=True); {LATE}; {SAVE}; time.sleep(1000)"
    made = tmp_path / "checkpoints" / "latest"
    made.parent.mkdir()
    saving = {"signal": "SIGUSR1", "confirm": confirm, "path": str(made.parent)}
    command = [sys.executable, "-c", code, str(UNREADY_SECONDS), str(made)]
    driver = drive(command=command, checkpoint=saving).begin()
    driver.save()
    assert made.read_text() == "saved"
    driver.wait_for("Gone")


def test_end_before_a_handler_has_not_saved(drive):
    code = f"import sys, time; print('ready', flush=True); {LATE}"
    command = [sys.executable, "-c", code, str(UNREADY_SECONDS)]
    driver = drive(command=command, checkpoint={"signal": "SIGUSR1", "confirm": "exit"}).begin()
    assert requests.UNCONFIRMED in str(driver.save("CheckpointFailed")["problem"])
    driver.wait_for("Gone")


def test_command_confirms_by_its_end(drive, tmp_path):
    made = tmp_path / "made"
    command = ["sh", "-c", f"echo $CUDA_VISIBLE_DEVICES > {shlex.quote(str(made))}"]
    driver = drive(checkpoint={"command": command, "confirm": "exit"}).begin()
    driver.save()
    assert made.read_text() == "0\n"
    driver.stop_all()


@pytest.mark.parametrize(
    ("command", "reason"),
    [(["sh", "-c", "exit 4"], "exit code 4"), (["no-such-command"], "not found in PATH")],
)
def test_failing_command_is_reported(drive, command, reason):
    driver = drive(checkpoint={"command": command, "confirm": "exit"}).begin()
    assert reason in str(driver.save("CheckpointFailed")["problem"])
    driver.stop_all()


def test_hanging_command_is_killed_too(drive, token):
    hang = [sys.executable, "-S", "-c", "import time; time.sleep(1000)", token]
    driver = drive(checkpoint={"command": hang, "confirm": "exit"}).begin()
    driver.call("checkpoint")
    wait_until(lambda: len(find_processes(token)) == 3, what="the command")
    driver.stop_all()
    assert len(find_processes(token)) == 1


@pytest.mark.parametrize(("status", "event"), [(200, "CheckpointDone"), (500, "CheckpointFailed")])
def test_http_hook(drive, tmp_path, status, event):
    class Hook(BaseHTTPRequestHandler):
        def do_POST(self):
            if status == 200:
                (tmp_path / "latest").write_text("saved")
            self.send_response(status)
            self.end_headers()

        def log_message(self, *_):
            pass

    with HTTPServer(("127.0.0.1", 0), Hook) as server:
        server.timeout = LIMIT_SECONDS
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        hook = f":{server.server_port}/save"
        driver = drive(checkpoint={"http": hook, "confirm": "file", "path": str(tmp_path)}).begin()
        driver.save(event)
        thread.join(LIMIT_SECONDS)
    driver.stop_all()


IMPORTING = """
import pathlib, signal, sys, time
former = pathlib.Path(sys.argv[1])
is_first = not former.exists()
former.touch()
signal.signal(signal.SIGUSR1, lambda *_: print("saved" if is_first else "not yet", flush=True))
print("step 1" if is_first else "importing", flush=True)
time.sleep(1000)
"""


def test_start_without_a_step_is_not_asked(start, tmp_path, token):
    saving = {
        "checkpoint.signal": "SIGUSR1",
        "checkpoint.confirm": "log",
        "checkpoint.confirmLog": "^saved",
        "checkpoint.timeoutSeconds": 600,
        "progress.log": r"step (?P<iteration>\d+)",
    }
    command = (sys.executable, "-c", IMPORTING, str(tmp_path / "former"), token)
    sidecar = start(command=command, options=saving)
    sidecar.run(1, "0")
    sidecar.wait_for(lambda s: s.progress.iteration == 1)
    sidecar.stop(2)
    assert sidecar.wait_for(lambda s: s.released).change.saving is Saving.CONFIRMED
    sidecar.train(3, "0")
    wait_until(lambda: "importing" in sidecar.read_log(), what="the second start")
    sidecar.stop(4)
    stopped = sidecar.wait_for(lambda s: s.released)
    assert (stopped.change.saving, stopped.problems) == (Saving.NONE, ())
