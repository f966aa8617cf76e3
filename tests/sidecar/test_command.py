"""``dljob-sidecar run`` as a whole, with real processes, through its socket and its exit status."""

import os
import select
import signal
import sys

import pytest

from dljob_sidecar import EXIT_UNAVAILABLE
from dljob_sidecar.living import EXIT_USAGE
from dljob_sidecar.processes.keeper import FORWARDED
from dljob_wire.codec import decode_left
from dljob_wire.messages import Phase, Saving
from tests.sidecar.drivers import HERE, ROOT, find_processes, run_program, wait_until
from tests.sidecar.sidecars import SideCar

pytestmark = pytest.mark.processes


def wait_log(sidecar: SideCar, text: str) -> None:
    wait_until(lambda: text in sidecar.read_log(), what=text)


@pytest.mark.story
def test_training_saves_moves_stops_and_restarts(start, tmp_path):
    latest = tmp_path / "latest"
    saving = {
        "checkpoint.signal": "SIGUSR1",
        "checkpoint.confirm": "log",
        "checkpoint.confirmLog": "^saved ",
    }
    sidecar = start(f"save={latest}", options={**saving, "checkpoint.timeoutSeconds": 240})
    before = sidecar.wait_ready()
    assert (before.phase, before.released, before.generation) == (Phase.READY, True, 0)
    former = None
    for generation, gpus in ((1, ("0", "1", "2", "3")), (2, ("2", "3")), (4, ("0",))):
        state = sidecar.train(generation, *gpus)
        wait_log(sidecar, f"gpus={','.join(gpus)}\n")
        assert (state.held, state.incarnation) == (gpus, before.incarnation)
        assert state.processes[0].pid != former
        former = state.processes[0].pid
        if generation == 2:
            assert state.change.saving is Saving.CONFIRMED
            latest.unlink()
            sidecar.stop(3)
            state = sidecar.wait_for(lambda s: s.released)
            assert (state.phase, state.held, state.change.saving) == (
                Phase.STOPPED,
                (),
                Saving.CONFIRMED,
            )
            assert latest.exists()
            assert sidecar.trainings() == []
    sidecar.stop(5, leave=True)
    assert sidecar.wait_ended() == 0
    assert sidecar.trainings() == []


@pytest.mark.story
@pytest.mark.parametrize(("code", "phase"), [(0, Phase.EXITED), (3, Phase.FAILED)])
def test_end_is_reported_and_leave_exits_with_zero(start, code, phase):
    sidecar = start(command=("sh", "-c", f"exit {code}"))
    sidecar.run(1)
    state = sidecar.wait_phase(phase)
    assert state.processes[0].exit_code == code
    sidecar.stop(2, leave=True)
    # Otherwise Kubernetes would start its container once more, and with it take the log away.
    assert sidecar.wait_ended() == 0


def left_by(sidecar: SideCar) -> bytes:
    return sidecar.socket.with_name(f"{sidecar.socket.name}.left").read_bytes()


def test_leaving_sidecar_writes_the_end_of_its_training(start, tmp_path):
    """If the controller dies after the order to leave, the next one must not restart the training."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    unanswered = {
        "iterations": 25,
        "progress.log": r"step (?P<iteration>\d+)",
        "checkpoint.signal": "SIGUSR1",
        "checkpoint.confirm": "file",
        "checkpoint.path": "/no",
        "checkpoint.timeoutSeconds": 240,
    }
    command = ("sh", "-c", f"trap '' USR1; cat {pipe}; echo step 25; exit 0")
    sidecar = start(command=command, options=unanswered)
    begun = sidecar.train(1)
    sidecar.stop(2, leave=True)
    pipe.write_text("evaluated\n")
    assert sidecar.wait_ended() == 0
    left = decode_left(left_by(sidecar))
    assert left is not None
    assert (left.incarnation, left.phase) == (begun.incarnation, Phase.EXITED)
    assert (left.epoch, left.generation, left.held_generation) == (1, 2, 1)
    assert [each.exit_code for each in left.processes] == [0]
    assert left.progress.iteration == 25


def test_killed_sidecar_has_written_the_end_of_its_training(start):
    sidecar = start(command=("true",))
    sidecar.run(1)
    ended = sidecar.wait_phase(Phase.EXITED)
    sidecar.kill()
    left = decode_left(left_by(sidecar))
    assert left is not None
    assert (left.incarnation, left.phase) == (ended.incarnation, Phase.EXITED)


@pytest.mark.parametrize("says", [b"", b"the loss is NaN\n"])
def test_failed_training_has_the_last_word(start, tmp_path, says):
    """Without a message of the container, Kubernetes shows the end of its log."""
    again, message = tmp_path / "again", tmp_path / "message"
    write = f"echo the loss is NaN > {message}; " if says else ""
    program = f"if test ! -e {again}; then touch {again}; exit 0; fi; {write}exit 3"
    sidecar = start(command=("sh", "-c", program), environment={"DLJOB_SIDECAR_LEFT": str(message)})
    sidecar.run(1)
    sidecar.wait_phase(Phase.EXITED)
    assert decode_left(message.read_bytes()) is not None
    sidecar.run(2)
    sidecar.wait_phase(Phase.FAILED)
    assert message.read_bytes() == says


def test_slow_reader_gets_all_output(start, tmp_path):
    pipe = tmp_path / "output"
    os.mkfifo(pipe)
    # Open at both ends, so that no process waits before there is something to read.
    reader = os.open(pipe, os.O_RDWR)
    slowly = ("sh", "-c", 'exec "$@" > "$0"', str(pipe), sys.executable)
    size = 500_000
    command = ("sh", "-c", f"printf '%0{size}d' 7")
    sidecar = start(
        command=command, python=slowly, program=(str(HERE / "lenient.py"), "-m", "dljob_sidecar")
    )
    sidecar.run(1)
    sidecar.wait_phase(Phase.EXITED)
    sidecar.stop(2, leave=True)
    count, block = 0, b""
    while count < size:
        assert select.select([reader], [], [], 240)[0], f"only {count} bytes have come"
        block = os.read(reader, 65536)
        count += len(block)
    os.close(reader)
    assert block.endswith(b"7")
    assert sidecar.wait_ended() == 0


def test_interrupt_ends_training_and_sidecar(start):
    sidecar = start()
    sidecar.train(1)
    wait_log(sidecar, "ready")
    sidecar.process.send_signal(signal.SIGTERM)
    assert sidecar.wait_ended() == 128 + signal.SIGTERM
    assert sidecar.trainings() == []
    assert not sidecar.socket.exists()


def test_usage_errors_start_nothing(tmp_path, token):
    folder = str(tmp_path / "missing")
    # The certificates are looked at before the port is.
    network = ["--listen", "127.0.0.1:1", "--tls", folder, "--job-uid", "u"]
    for options, status, words in (
        ([], EXIT_USAGE, "dljob-sidecar: the SideCar has no address to answer on"),
        (["--socket", f"{folder}/control"], EXIT_UNAVAILABLE, "ListenersCannotOpen"),
        (network, EXIT_UNAVAILABLE, f"{folder}/tls.crt"),
    ):
        command = [sys.executable, "-m", "dljob_sidecar", "run", *options, "--", "echo", token]
        ran = run_program(command, env={**os.environ, "PYTHONPATH": str(ROOT / "sidecar")})
        assert (ran.returncode, ran.stdout) == (status, "")
        assert words in ran.stderr
    assert find_processes(token) == []


POST = """
import http.client, os, socket, time
connection = http.client.HTTPConnection("sidecar")
connection.sock = socket.socket(socket.AF_UNIX)
connection.sock.connect(os.environ["DLJOB_PROGRESS_SOCKET"])
connection.request("POST", "/v1/progress", b'{"iteration": 7}')
connection.getresponse()
time.sleep(1000)
"""


def test_training_posts_progress_to_its_socket(start, tmp_path, token):
    command = (sys.executable, "-S", "-c", POST, token)
    sidecar = start(command=command, options={"progressSocket": str(tmp_path / "inner")})
    sidecar.run(1)
    sidecar.wait_for(lambda s: s.progress.iteration == 7)


HEAR = """
import signal, time
for name in ("SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGCONT", "SIGWINCH"):
    signal.signal(signal.Signals[name], lambda _, __, name=name: print("heard", name, flush=True))
print("listening", flush=True)
while True:
    time.sleep(1000)
"""


def test_signals_are_forwarded_to_the_training(start, token):
    sidecar = start(command=(sys.executable, "-S", "-c", HEAR, token))
    before = sidecar.train(1)
    wait_log(sidecar, "listening")
    for signum in set(FORWARDED) - {signal.SIGTERM, signal.SIGINT}:
        sidecar.process.send_signal(signum)
        wait_log(sidecar, f"heard {signal.Signals(signum).name}\n")
    assert sidecar.state().processes == before.processes
