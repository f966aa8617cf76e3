"""The job saves itself before it is stopped, and is believed only when it has."""

from __future__ import annotations

import shlex
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from dljob_sidecar.checkpoints import requests
from dljob_wire.messages import Phase, Saving
from tests.sidecar.drivers import LIMIT_SECONDS, find_processes, wait_until
from tests.sidecar.sidecars import SideCar

pytestmark = pytest.mark.processes


HANDLE = "signal.signal(10, lambda *_: sys.exit(0))"
"""It catches SIGUSR1, and the handler ends it."""
ENDING = [
    *(sys.executable, "-c"),
    f"import signal, sys, time; {HANDLE}; print('ready', flush=True); time.sleep(1000)",
]


def begin(driver):
    driver.start()
    driver.wait_for_log("ready")
    return driver


@pytest.mark.parametrize(
    "how", [{"confirm": "file"}, {"confirm": "log", "confirm_log": r"^saved \S+latest"}]
)
def test_a_signal_confirmed_by_a_new_file_or_by_a_line_of_the_log(drive, tmp_path, how):
    path = tmp_path / "checkpoints"
    path.mkdir()
    saving = {"path": str(path), "signal": "SIGUSR1", **how}
    driver = begin(drive(f"save={path / 'latest'}", checkpoint=saving))
    (path / "old").write_text("old")
    driver.call("checkpoint")
    driver.wait_for("CheckpointDone", attempt=1)
    assert (path / "latest").exists()
    driver.stop_all()


@pytest.mark.parametrize("is_tailed", [True, False])
def test_one_that_ends_with_the_word_that_confirms_has_saved(drive, tmp_path, is_tailed):
    say = "signal.signal(10, lambda *_: (print('saved', flush=True), os._exit(0)))"
    # In one piece: an unbuffered print writes the end of its line apart, and the signal may come between.
    code = f"import os, signal, time; {say}; os.write(1, b'ready\\n'); time.sleep(1000)"
    saving = {"signal": "SIGUSR1", "confirm": "log", "confirm_log": "^saved"}
    output = tmp_path / "output"
    output.touch()
    way = {"log_file": str(output)} if is_tailed else {"log_file": "", "stdout": str(output)}
    driver = drive(command=[sys.executable, "-c", code], checkpoint=saving, **way)
    driver.log = output
    begin(driver).call("checkpoint")
    driver.wait_for("RankEnded", exit_code=0)
    # As the machine has it, which knows by now that all have ended.
    driver.call("terminate")
    # The word may have been read before its end was seen.
    if all(event["event"] != "CheckpointDone" for event in driver.events):
        driver.wait_for("CheckpointDone")
    driver.wait_for("Gone")


@pytest.mark.parametrize("look_seconds", [0.0, 0.3])
def test_one_that_ends_without_the_word_that_confirms_has_not_saved(drive, tmp_path, look_seconds):
    """Two files are read to their ends, however long each look takes, so that the lack of the word is certain."""
    progress = tmp_path / "progress"
    progress.touch()
    saving = {"signal": "SIGUSR1", "confirm": "log", "confirm_log": "^saved"}
    files = {"progress_file": str(progress), "look_seconds": look_seconds}
    driver = begin(drive(command=ENDING, checkpoint=saving, **files))
    driver.call("checkpoint")
    assert requests.UNCONFIRMED in str(driver.wait_for("CheckpointFailed")["problem"])
    driver.wait_for("Gone")


@pytest.mark.parametrize(
    ("confirm", "event"), [("exit", "CheckpointDone"), ("file", "CheckpointFailed")]
)
def test_the_end_confirms_where_the_job_says_so_and_nowhere_else(drive, tmp_path, confirm, event):
    saving = {"signal": "SIGUSR1", "confirm": confirm, "path": str(tmp_path / "none")}
    driver = begin(drive(command=ENDING, checkpoint=saving))
    driver.call("checkpoint")
    driver.wait_for(event)
    driver.wait_for("Gone")


def test_a_job_without_a_handler_is_not_killed_by_the_signal(drive):
    saving = {"signal": "SIGUSR1", "confirm": "exit", "timeout_seconds": 0.5}
    driver = begin(drive(checkpoint=saving))
    driver.call("checkpoint")
    why = "the training has no handler for SIGUSR1, and has installed none in 0.5 s"
    assert why in str(driver.wait_for("CheckpointFailed")["problem"])
    assert driver.facts()["processes"][0]["signal"] is None
    driver.stop_all()


UNREADY_SECONDS = 1.5
"""Longer than a request waited for a handler when it looked for one only once."""
LATE = "time.sleep(float(sys.argv[1]))"
SAVE = "signal.signal(10, lambda *_: (open(sys.argv[2], 'w').write('saved'), sys.exit(0)))"


@pytest.mark.parametrize("confirm", ["exit", "file"])
def test_one_that_gets_its_handler_after_the_request_is_asked_then(drive, tmp_path, confirm):
    code = f"import signal, sys, time; print('ready', flush=True); {LATE}; {SAVE}; time.sleep(1000)"
    made = tmp_path / "checkpoints" / "latest"
    made.parent.mkdir()
    saving = {"signal": "SIGUSR1", "confirm": confirm, "path": str(made.parent)}
    command = [sys.executable, "-c", code, str(UNREADY_SECONDS), str(made)]
    driver = begin(drive(command=command, checkpoint=saving))
    driver.call("checkpoint")
    driver.wait_for("CheckpointDone")
    assert made.read_text() == "saved"
    driver.wait_for("Gone")


def test_one_that_ends_before_it_has_a_handler_has_not_saved(drive):
    code = f"import sys, time; print('ready', flush=True); {LATE}"
    command = [sys.executable, "-c", code, str(UNREADY_SECONDS)]
    driver = begin(drive(command=command, checkpoint={"signal": "SIGUSR1", "confirm": "exit"}))
    driver.call("checkpoint")
    failed = driver.wait_for("CheckpointFailed")
    assert requests.UNCONFIRMED in str(failed["problem"])
    driver.wait_for("Gone")


def test_a_command_confirms_by_its_end(drive, tmp_path):
    made = tmp_path / "made"
    command = ["sh", "-c", f"echo $CUDA_VISIBLE_DEVICES > {shlex.quote(str(made))}"]
    driver = begin(drive(checkpoint={"command": command, "confirm": "exit"}))
    driver.call("checkpoint")
    driver.wait_for("CheckpointDone")
    assert made.read_text() == "0\n"
    driver.stop_all()


@pytest.mark.parametrize(
    ("command", "reason"),
    [(["sh", "-c", "exit 4"], "exit code 4"), (["no-such-command"], "not found in PATH")],
)
def test_a_command_that_fails_is_told(drive, command, reason):
    driver = begin(drive(checkpoint={"command": command, "confirm": "exit"}))
    driver.call("checkpoint")
    assert reason in str(driver.wait_for("CheckpointFailed")["problem"])
    driver.stop_all()


def test_a_hanging_command_goes_down_with_the_rest(drive, token):
    hang = [sys.executable, "-S", "-c", "import time; time.sleep(1000)", token]
    driver = begin(drive(checkpoint={"command": hang, "confirm": "exit"}))
    driver.call("checkpoint")
    wait_until(lambda: len(find_processes(token)) == 3, what="the command")
    driver.stop_all()
    assert len(find_processes(token)) == 1


@pytest.mark.parametrize(("status", "event"), [(200, "CheckpointDone"), (500, "CheckpointFailed")])
def test_a_hook_over_http(drive, tmp_path, status, event):
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
        driver = begin(drive(checkpoint={"http": hook, "confirm": "file", "path": str(tmp_path)}))
        driver.call("checkpoint")
        driver.wait_for(event)
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


def test_a_start_that_took_no_step_is_not_asked_for_a_checkpoint(tmp_path, token):
    saving = {
        "checkpoint.signal": "SIGUSR1",
        "checkpoint.confirm": "log",
        "checkpoint.confirmLog": "^saved",
        "checkpoint.timeoutSeconds": 600,
        "progress.log": r"step (?P<iteration>\d+)",
    }
    command = (sys.executable, "-c", IMPORTING, str(tmp_path / "former"))
    sidecar = SideCar(tmp_path, token, *command, options=saving)
    try:
        sidecar.wait_ready()
        sidecar.run(1, "0")
        sidecar.wait_for(lambda s: s.progress.iteration == 1)
        sidecar.stop(2)
        saved = sidecar.wait_for(lambda s: s.released)
        assert saved.change is not None
        assert saved.change.saving is Saving.CONFIRMED
        sidecar.run(3, "0")
        sidecar.wait_for(lambda s: s.phase is Phase.RUNNING)
        wait_until(lambda: "importing" in sidecar.told(), what="the second start")
        sidecar.stop(4)
        stopped = sidecar.wait_for(lambda s: s.released)
        assert stopped.change is not None
        assert (stopped.change.saving, stopped.problems) == (Saving.NONE, ())
    finally:
        sidecar.close()
