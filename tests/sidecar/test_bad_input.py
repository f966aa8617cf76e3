"""
The state and the log name faults of users and machines, and the SideCar survives them.

Each test has a real SideCar and ends with a good training.
"""

import os
import sys
import uuid
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from dljob_sidecar import EXIT_UNAVAILABLE
from dljob_wire.messages import Phase, State
from tests.disks import on_small_disk
from tests.sidecar.drivers import read_children, wait_until
from tests.sidecar.sidecars import SideCar, problem_names

pytestmark = pytest.mark.processes

POLL = {"pollSeconds": 0.1}
WAIT = "import time; time.sleep(1000)"
MIB = 1 << 20


def wait_reported(sidecar: SideCar, name: str, *what: str) -> State:
    """Wait for a problem in the state, with a remedy, and find it in the log."""
    state = sidecar.wait_for(lambda s: name in problem_names(s))
    problem = next(one for one in state.problems if one.name == name)
    assert all(word in problem.message for word in what), problem
    assert problem.remedy
    assert name in sidecar.read_log()
    return state


@pytest.mark.story
def test_missing_command_is_reported(start, tmp_path, token):
    program = tmp_path / "train"
    sidecar = start(command=(str(program), token))
    sidecar.run(1)
    state = wait_reported(sidecar, "CommandNotFound", str(program))
    assert (sidecar.wait_for(lambda s: s.released).phase, state.processes) == (Phase.FAILED, ())
    program.write_text(f"#!{sys.executable} -S\n{WAIT}\n")
    sidecar.run(2)
    wait_reported(sidecar, "CommandNotExecutable", str(program))
    program.chmod(0o755)
    assert sidecar.train(3, "0").problems == ()


def test_missing_log_folder_is_reported(start, tmp_path):
    sidecar = start(options={"logFile": str(tmp_path / "missing" / "log")}, waits=False)
    assert sidecar.wait_ended() == EXIT_UNAVAILABLE
    [line] = [line for line in sidecar.read_log().splitlines() if "LogCannotOpen" in line]
    assert str(tmp_path / "missing") in line
    assert "logFile" in line


def test_missing_gpu_is_reported(start):
    if any(Path("/dev").glob("nvidia[0-9]*")):
        pytest.skip("this machine has GPUs")
    sidecar = start(options=POLL, expects_gpus=True)
    wait_reported(sidecar, "GPUsNotVisible")
    # Without NVML the SideCar cannot know which ids are right: the training has to find out.
    sidecar.train(1, "0")


def test_full_disk_under_the_training_log(start, tmp_path):
    folder = tmp_path / "disk"
    folder.mkdir()
    log = folder / "log"
    # It prints much, and ends if it cannot, as most programs do.
    command = ("sh", "-c", "printf '%030000d\\n' 0 && echo well && exec sleep 1000")
    python = on_small_disk(folder, size=64 * 1024)
    sidecar = start(command=command, options={**POLL, "logFile": str(log)}, python=python)
    [pid] = read_children(sidecar.process.pid)
    inside = Path(f"/proc/{pid}/root{folder}")
    filler = inside / "filler"
    filler.write_bytes(bytes(48 * 1024))
    sidecar.run(1)
    wait_reported(sidecar, "DiskFull", str(log))
    state = sidecar.wait_phase(Phase.FAILED)
    assert problem_names(state) == {"DiskFull", "TrainingFailed"}
    filler.unlink()
    sidecar.run(2)
    sidecar.wait_for(lambda s: s.phase is Phase.RUNNING and not s.problems)
    wait_until(lambda: "well" in (inside / "log").read_text(), what="a word of the training")


STEPS = """
import time
for step in range(100_000):
    print("step", step, flush=True)
    time.sleep(0.01)
"""
READ_STEPS = {**POLL, "progress.log": r"step (?P<iteration>\d+)"}


def test_full_disk_under_own_output_does_not_stop_training(start, tmp_path, token):
    folder = tmp_path / "disk"
    folder.mkdir()
    command = (sys.executable, "-S", "-c", STEPS, token)
    *mounted, last = on_small_disk(folder, size=64 * 1024)
    written = ("sh", "-c", 'exec "$@" >> "$0"', str(folder / "output"), last)
    sidecar = start(command=command, options=READ_STEPS, python=(*mounted, *written))
    [pid] = read_children(sidecar.process.pid)
    inside = Path(f"/proc/{pid}/root{folder}")
    (inside / "filler").write_bytes(bytes(64 * 1024))
    first = sidecar.train(1, "0")
    state = wait_reported(sidecar, "DiskFull", "No space left on device")
    later = sidecar.wait_for(lambda s: s.progress.iteration > state.progress.iteration)
    assert later.processes == first.processes
    (inside / "filler").unlink()
    assert sidecar.wait_for(lambda s: not s.problems).processes == first.processes
    assert "step" in (inside / "output").read_text()


MOST_GROWTH_KIB = 24 * 1024
"""Far less than the output. Each thread that looks at files needs some memory."""

FLOOD = """
import os, sys, time
block = b"a line of a hundred bytes or so that says nothing of interest to a human who reads the log" * 700
block = block[:65535] + b"\\n"
enough, done = sys.argv[1:3]
began, count = time.monotonic(), 0
while count < LEAST or count < MOST and not os.path.exists(enough):
    count += os.write(1, block)
    # No faster than the limit that is promised, 100 MB/s; slower where it is held back.
    time.sleep(max(0.0, began + count / 100e6 - time.monotonic()))
with open(done + ".new", "w") as file:
    file.write(str(count))
os.rename(done + ".new", done)
time.sleep(1000)
""".replace("LEAST", str(150 * MIB)).replace("MOST", str(400 * MIB))


def read_peak_kib(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0])


def test_output_flood_uses_bounded_memory(start, tmp_path, token):
    enough, done, sink = tmp_path / "enough", tmp_path / "done", tmp_path / "sink"
    command = (sys.executable, "-S", "-c", FLOOD, str(enough), str(done), token)
    options = {"progress.log": r"step (?P<iteration>\d+)", "logFile": str(sink)}
    sidecar = start(command=command, options=options)
    [agent] = read_children(sidecar.process.pid)
    before = {pid: read_peak_kib(pid) for pid in [agent, *read_children(agent)]}
    sidecar.train(1, "0")
    for _ in range(10):
        assert sidecar.state().phase is Phase.RUNNING
    enough.touch()
    count = int(wait_until(lambda: done.exists() and done.read_text(), what="the end of the flood"))
    peaks = {pid: read_peak_kib(pid) - peak for pid, peak in before.items()}
    assert len(peaks) == 2
    assert max(peaks.values()) < MOST_GROWTH_KIB, peaks
    assert sink.stat().st_size == count
    sidecar.train(2, "0")


BOMB = """
import os, time
while True:
    try:
        os.fork()
    except OSError:
        time.sleep(0.05)
"""


@contextmanager
def limited(controller, **limits):
    """Make a control group with a limit; the name of the limit depends on the version."""
    folder = Path("/sys/fs/cgroup", controller, f"dljob-{uuid.uuid4().hex}")
    if not folder.parent.is_dir():
        folder = Path("/sys/fs/cgroup", folder.name)
    try:
        folder.mkdir()
        name = next(name for name in limits if (folder / f"{controller}.{name}").exists())
        (folder / f"{controller}.{name}").write_text(limits[name])
    except (OSError, StopIteration) as error:
        if folder.is_dir():
            folder.rmdir()
        pytest.skip(f"no limit on {controller} can be set here: {error!r}")
    yield folder

    def is_empty() -> bool:
        for pid in (folder / "cgroup.procs").read_text().split():
            # It may end by itself between the two.
            with suppress(ProcessLookupError):
                os.kill(int(pid), 9)
        return not (folder / "cgroup.procs").read_text()

    wait_until(is_empty, what="the end of all in the group")
    folder.rmdir()


def inside(group):
    """Return the words before a command that put it into a control group."""
    return ("sh", "-c", 'echo $$ > "$0" && exec "$@"', str(group / "cgroup.procs"))


@pytest.fixture
def crowded():
    """A control group with room for a few processes."""
    with limited("pids", max="48") as folder:
        yield folder


@pytest.fixture
def tight():
    """A control group with room for little more than a SideCar."""
    with limited("memory", max="128M", limit_in_bytes="128M") as folder:
        yield folder


HUNGRY = """
taken = [bytearray(1 << 24) for _ in range(64)]
"""


def test_out_of_memory_kill_is_reported(start, tmp_path, token, tight):
    """Unless the kernel kills the whole container, only its SideCar can name the cause."""
    script = tmp_path / "train.py"
    script.write_text(HUNGRY)
    command = (sys.executable, "-S", str(script), token)
    sidecar = start(command=command, options=POLL, python=(*inside(tight), sys.executable))
    sidecar.run(1, "0")
    wait_reported(sidecar, "OutOfMemory", "128 MiB")
    state = sidecar.wait_phase(Phase.FAILED)
    assert "OutOfMemory" in problem_names(state)
    assert [process.signal for process in state.processes] == [9]
    script.write_text(WAIT)
    sidecar.train(2, "0")
    sidecar.wait_for(lambda s: not s.problems)


def test_fork_bomb_is_reported_and_ended(start, tmp_path, token, crowded):
    script = tmp_path / "train.py"
    script.write_text(BOMB)
    command = (sys.executable, "-S", str(script), token)
    sidecar = start(command=command, options=POLL, python=(*inside(crowded), sys.executable))
    sidecar.train(1, "0")
    wait_reported(sidecar, "TooManyProcesses", "48")
    assert len(sidecar.trainings()) > 30
    script.write_text(WAIT)
    sidecar.train(2, "0")
    wait_until(lambda: len(sidecar.trainings()) == 1, what="the end of all others")
    sidecar.wait_for(lambda s: not s.problems)
