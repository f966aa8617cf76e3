"""The lock of a state folder, when the controller that holds it dies while it starts a process."""

import os
import signal
import subprocess
import sys

import pytest

from dljob.local import state_folder
from dljob.local.folders import Folders, StateError
from dljob.local.state_folder import lock_folder, read_epoch

# A child that has not yet run its program has what its parent has open, the lock among it.
CONTROLLER = """
import os, sys, time
from pathlib import Path
from dljob.local.folders import Folders
from dljob.local.state_folder import lock_folder, make_folders, note_epoch

folders = Folders(Path(sys.argv[1]))
make_folders(folders)
note_epoch(lock_folder(folders), 1)
if os.fork() == 0:
    time.sleep(float(sys.argv[2]))
    os._exit(0)
print("holds", flush=True)
time.sleep(600)
"""


@pytest.fixture
def controller(root):
    started = []

    def start(seconds):
        process = subprocess.Popen(
            [sys.executable, "-c", CONTROLLER, str(root), str(seconds)],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            start_new_session=True,
        )
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "holds\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate(timeout=240.0)


@pytest.mark.processes
def test_start_waits_for_starts_of_a_killed_controller(controller, root):
    process = controller(1.0)
    process.send_signal(signal.SIGKILL)
    process.wait(240.0)
    held = lock_folder(Folders(root))
    assert read_epoch(held) == 1
    os.close(held)


@pytest.mark.processes
def test_a_start_is_refused_at_once_while_a_controller_lives(controller, root, monkeypatch):
    # If it waited, the test would not end.
    monkeypatch.setattr(state_folder, "LEAVING_S", 1e6)
    process = controller(0.0)
    with pytest.raises(StateError, match=rf"runs there already \(process {process.pid}\)"):
        lock_folder(Folders(root))
