"""``dljob-sidecar run`` as a whole, with real processes, through its socket and its exit status."""

import asyncio
import os
import random
import select
import signal
import subprocess
import sys
from collections import Counter

import pytest

from dlsidecar import EXIT_UNAVAILABLE
from dlsidecar.living import EXIT_USAGE
from dlsidecar.processes.keeper import FORWARDED
from dlwire.messages import Phase
from tests.sidecar.drivers import HERE, ROOT, find_processes, wait_until
from tests.sidecar.nonsense import REFUSALS, make_nonsense
from tests.sidecar.sidecars import SideCar, read_children, read_memory_kib

pytestmark = [pytest.mark.processes, pytest.mark.slow]


def is_phase(phase: Phase):
    return lambda state: state.phase is phase


def test_a_training_is_started_reshaped_and_stopped_in_place(start):
    sidecar = start()
    before = sidecar.wait_ready()
    assert (before.phase, before.released, before.generation) == (Phase.READY, True, 0)
    sidecar.run(1, "0", "1", "2", "3")
    first = sidecar.wait_for(is_phase(Phase.RUNNING))
    wait_until(lambda: "gpus=0,1,2,3" in sidecar.told(), what="the first start")
    sidecar.run(2, "2", "3")
    second = sidecar.wait_for(lambda s: s.phase is Phase.RUNNING and s.held_generation == 2)
    wait_until(lambda: "gpus=2,3" in sidecar.told(), what="the second start")
    assert second.held == ("2", "3")
    assert second.processes[0].pid != first.processes[0].pid
    assert second.incarnation == first.incarnation == before.incarnation
    sidecar.stop(3)
    state = sidecar.wait_for(lambda s: s.released)
    assert (state.phase, state.held) == (Phase.STOPPED, ())
    assert sidecar.trainings() == []


def test_released_is_never_said_while_a_process_of_the_job_lives(start):
    sidecar = start("deaf", "fork")
    sidecar.wait_ready()
    for generation in range(1, 6):
        sidecar.run(generation, str(generation))
        sidecar.wait_for(is_phase(Phase.RUNNING))
    sidecar.stop(9)
    sidecar.wait_for(lambda s: s.released)
    assert sidecar.trainings() == []


def test_the_newest_of_a_burst_is_what_runs_in_the_end(start):
    sidecar = start("deaf")
    sidecar.wait_ready()
    for generation in range(1, 21):
        assert sidecar.run(generation, str(generation % 8)).status == 200
    assert sidecar.run(7, "7").status == 409
    state = sidecar.wait_for(lambda s: s.phase is Phase.RUNNING and s.held_generation == 20)
    assert state.held == ("4",)
    assert len(state.processes) == 1


@pytest.mark.parametrize(("code", "phase"), [(0, Phase.EXITED), (3, Phase.FAILED)])
def test_how_the_training_ends_is_reported_and_a_sidecar_that_is_told_to_leave_ends_well(
    start, code, phase
):
    sidecar = start(command=("sh", "-c", f"exit {code}"))
    sidecar.wait_ready()
    sidecar.run(1)
    state = sidecar.wait_for(is_phase(phase))
    assert state.processes[0].exit_code == code
    sidecar.stop(2, leave=True)
    # Otherwise Kubernetes would start its container once more, and with it take the log away.
    assert sidecar.wait_ended() == 0


def test_a_command_that_does_not_exist_is_reported_by_name(start):
    sidecar = start(command=("no-such-command",))
    sidecar.wait_ready()
    sidecar.run(1)
    state = sidecar.wait_for(is_phase(Phase.FAILED))
    assert "no-such-command" in state.problems[0].message
    # It is no reason to die.
    assert sidecar.run(2).status == 200


def test_a_slow_reader_gets_the_last_words_of_the_training(start, tmp_path):
    pipe = tmp_path / "output"
    os.mkfifo(pipe)
    # Open at both ends, so that no process waits before there is something to read.
    reader = os.open(pipe, os.O_RDWR)
    slowly = ("sh", "-c", 'exec "$@" > "$0"', str(pipe), sys.executable)
    size = 500_000
    command = ("sh", "-c", f"printf '%0{size}d' 7")
    sidecar = start(
        command=command, python=slowly, program=(str(HERE / "lenient.py"), "-m", "dlsidecar")
    )
    sidecar.wait_ready()
    sidecar.run(1)
    sidecar.wait_for(is_phase(Phase.EXITED))
    sidecar.stop(2, leave=True)
    count, block = 0, b""
    while count < size:
        assert select.select([reader], [], [], 240)[0], f"only {count} bytes have come"
        block = os.read(reader, 65536)
        count += len(block)
    os.close(reader)
    assert block.endswith(b"7")
    assert sidecar.wait_ended() == 0


def test_an_interrupt_ends_the_training_and_then_the_sidecar(start):
    sidecar = start()
    sidecar.wait_ready()
    sidecar.run(1)
    sidecar.wait_for(is_phase(Phase.RUNNING))
    wait_until(lambda: "ready" in sidecar.told(), what="the training")
    sidecar.process.send_signal(signal.SIGTERM)
    assert sidecar.wait_ended() == 128 + signal.SIGTERM
    assert sidecar.trainings() == []
    assert not sidecar.socket.exists()


def test_a_sidecar_that_has_hardly_begun_hears_an_interrupt(start):
    sidecar = start()
    # A process with children has begun: the SideCar, or still the one that tries out namespaces.
    wait_until(lambda: read_children(sidecar.process.pid), what="the SideCar")
    sidecar.process.send_signal(signal.SIGTERM)
    assert sidecar.wait_ended() == 0


def test_a_killed_sidecar_takes_its_training_with_it_and_the_next_begins_anew(start, token):
    first = start("deaf", "fork")
    before = first.wait_ready()
    first.run(5)
    first.wait_for(is_phase(Phase.RUNNING))
    first.kill()
    second = start()
    after = second.wait_ready()
    assert second.trainings() == []
    assert (after.phase, after.generation) == (Phase.READY, 0)
    assert after.incarnation != before.incarnation
    # A target for the first start is not carried out by the second.
    second.incarnation = before.incarnation
    assert second.run(6).status == 409


def test_there_is_one_sidecar_at_a_socket(start):
    first = start()
    first.wait_ready()
    first.run(1)
    first.wait_for(is_phase(Phase.RUNNING))
    second = start()
    assert second.wait_ended() == EXIT_UNAVAILABLE
    assert "another SideCar listens there" in second.told()
    assert first.state().phase is Phase.RUNNING


def test_ten_thousand_nonsensical_requests_disturb_nobody_and_leave_nothing(start):
    sidecar = start()
    sidecar.wait_ready()
    sidecar.run(1, "0", epoch=10**9)
    before = sidecar.wait_for(is_phase(Phase.RUNNING))
    chance = random.Random(4)
    statuses: Counter[bytes] = Counter()

    async def send(how_many: int) -> None:
        for _ in range(how_many):
            answer = await sidecar.client.send(make_nonsense(chance), is_all=True)
            statuses[answer[9:12]] += 1

    asyncio.run(send(1000))
    memory = read_memory_kib(sidecar)
    asyncio.run(send(9000))
    assert read_memory_kib(sidecar) < memory + 1024
    assert set(statuses) <= REFUSALS
    after = sidecar.state()
    assert (after.phase, after.target, after.processes) == (
        Phase.RUNNING,
        before.target,
        before.processes,
    )
    # Nearly all have been requests, and the answers named their faults.
    assert statuses[b""] < 500


def test_the_training_sees_its_own_environment_and_none_of_ours(start, monkeypatch):
    monkeypatch.setenv("DLJOB_SIDECAR_POLL_SECONDS", "1")
    show = ("sh", "-c", "env; echo done")
    sidecar = start(command=show)
    sidecar.wait_ready()
    sidecar.run(1, "GPU-1a", "GPU-2b")
    sidecar.wait_for(is_phase(Phase.EXITED))
    wait_until(lambda: "done\n" in sidecar.told(), what="the environment")
    lines = sidecar.told().splitlines()
    assert "CUDA_VISIBLE_DEVICES=GPU-1a,GPU-2b" in lines
    assert f"HOME={os.environ['HOME']}" in lines
    assert not [line for line in lines if line.startswith("DLJOB_SIDECAR_")]


def run_command(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "sidecar")}
    return subprocess.run(
        [sys.executable, "-m", "dlsidecar", *arguments],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )


def test_a_wrong_command_line_is_told_in_one_line():
    ran = run_command("run", "--", "true")
    assert (ran.returncode, ran.stdout) == (EXIT_USAGE, "")
    assert ran.stderr.startswith("dljob-sidecar: the SideCar has no address to answer on")
    assert ran.stderr.count("\n") == 1


def test_doors_that_cannot_be_opened_are_told_before_anything_is_started(tmp_path, token):
    folder = str(tmp_path / "missing")
    # The certificates are looked at before the port is.
    network = ["--listen", "127.0.0.1:1", "--tls", folder, "--job-uid", "u"]
    ran = run_command("run", "--socket", f"{folder}/control", "--", "echo", token)
    assert ran.returncode == EXIT_UNAVAILABLE
    assert "DoorsCannotOpen" in ran.stderr
    ran = run_command("run", *network, "--", "echo", token)
    assert ran.returncode == EXIT_UNAVAILABLE
    assert "DoorsCannotOpen" in ran.stderr
    assert f"{folder}/tls.crt" in ran.stderr
    assert token not in ran.stdout
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


def test_a_training_tells_its_progress_where_its_environment_says(start, tmp_path, token):
    command = (sys.executable, "-S", "-c", POST, token)
    sidecar = start(command=command, options=("--inner-socket", str(tmp_path / "inner")))
    sidecar.wait_ready()
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


def test_signals_that_are_meant_for_the_training_reach_it(start, token):
    sidecar = start(command=(sys.executable, "-S", "-c", HEAR, token))
    sidecar.wait_ready()
    sidecar.run(1)
    before = sidecar.wait_for(is_phase(Phase.RUNNING))
    wait_until(lambda: "listening" in sidecar.told(), what="the training")
    for signum in set(FORWARDED) - {signal.SIGTERM, signal.SIGINT}:
        sidecar.process.send_signal(signum)
        wait_heard(sidecar, f"heard {signal.Signals(signum).name}\n")
    assert sidecar.state().processes == before.processes


def wait_heard(sidecar: SideCar, line: str) -> None:
    wait_until(lambda: line in sidecar.told(), what=line)
