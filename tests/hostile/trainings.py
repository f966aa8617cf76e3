"""
Trainings that do harm instead of training, kind by kind; runs without the project on its path.

``python trainings.py KIND FOLDER`` leaves the file ``FOLDER/KIND`` when it begins. A kind does its harm to
what it can reach: its output, its SideCar, its files, its own processes. Then it stays until it is ended.
"""

import contextlib
import os
import pathlib
import shutil
import signal
import socket
import sys
import time

HARM_S = 4.0
"""The duration of a flood."""
PROCESSES = 40
CONNECTIONS = 200
LOG_BYTES = 300 * 2**20


def write(data):
    while data:
        data = data[os.write(1, data) :]


def flood(make):
    """Write as fast as the reader lets us."""
    end, number = time.monotonic() + HARM_S, 0
    while time.monotonic() < end:
        write(make(number))
        number += 1


def slow_lines():
    flood(lambda _: b"step " + b"1" * 4000 + b"!\n")


def endless_line():
    flood(lambda _: b"x" * 0x10000)


def huge_numbers():
    flood(
        lambda n: (
            b"step " + b"9" * (1 + n % 4000) + b"\nstep -1\nstep 1e308\nstep 9007199254740991\n"
        )
    )


def flood_of_progress():
    flood(lambda n: b"".join(b"step %d\n" % (n * 100 + each) for each in range(100)))


def progress_up_and_down():
    flood(lambda n: b"step %d\nstep 1\n" % 10 ** (n % 15))


def writes_garbage():
    flood(lambda _: os.urandom(0x1000))


def control_characters():
    flood(lambda n: b"\x1b]0;owned\x07\x1b[2J\xe2\x80\xae\x9b31m step %d\r\n\0" % n)


def forks_daemons():
    """Leave processes behind, of sessions of their own, that hear no signal."""
    for _ in range(PROCESSES):
        if os.fork() == 0:
            os.setsid()
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            stay()


def kills_its_parent():
    os.kill(os.getppid(), signal.SIGKILL)


def stops_its_parent():
    os.kill(os.getppid(), signal.SIGSTOP)


def ends_its_parents_session():
    with contextlib.suppress(OSError):
        os.killpg(os.getpgid(os.getppid()), signal.SIGTERM)


def hears_no_signal():
    for signum in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}:
        with contextlib.suppress(OSError, ValueError):
            signal.signal(signum, signal.SIG_IGN)


def deletes_its_working_directory():
    shutil.rmtree(pathlib.Path.cwd())


def deletes_its_checkpoints():
    shutil.rmtree(os.environ["HOSTILE_CHECKPOINTS"], ignore_errors=True)


def saves_a_fifo():
    _replace_checkpoint(os.mkfifo)


def saves_an_endless_file():
    _replace_checkpoint(lambda path: pathlib.Path(path).symlink_to("/dev/zero"))


def saves_a_loop():
    _replace_checkpoint(lambda path: pathlib.Path(path).symlink_to(path))


def saves_a_tree():
    def make(path):
        deep = pathlib.Path(path)
        deep.mkdir()
        for number in range(2000):
            (deep / str(number)).touch()

    _replace_checkpoint(make)


def _replace_checkpoint(make):
    folder = pathlib.Path(os.environ["HOSTILE_CHECKPOINTS"])
    folder.mkdir(parents=True, exist_ok=True)
    make(folder / "iteration")


def removes_its_socket():
    sidecar_socket().unlink()


def removes_its_lock():
    path = sidecar_socket()
    path.with_name(f"{path.name}.lock").unlink(missing_ok=True)


def connects_without_end():
    """Take all connections that the SideCar has, and say nothing over them."""
    held = []
    for _ in range(CONNECTIONS):
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(1.0)
        with contextlib.suppress(OSError):
            connection.connect(str(sidecar_socket()))
            held.append(connection)
    stay(held)


def closes_its_output():
    os.close(1)
    os.close(2)


def fills_its_log():
    """Write far more than is kept, right before the end."""
    for _ in range(LOG_BYTES // 2**20):
        write((b"y" * 1023 + b"\n") * 1024)
    sys.exit(1)


def sidecar_socket():
    words = pathlib.Path(f"/proc/{os.getppid()}/cmdline").read_bytes().split(b"\0")
    [path] = [os.fsdecode(word[9:]) for word in words if word.startswith(b"--socket=")]
    return pathlib.Path(path)


def stay(*_kept):
    while True:
        time.sleep(60.0)


KINDS = {
    harm.__name__.replace("_", "-"): harm
    for harm in (
        slow_lines,
        endless_line,
        huge_numbers,
        flood_of_progress,
        progress_up_and_down,
        writes_garbage,
        control_characters,
        forks_daemons,
        kills_its_parent,
        stops_its_parent,
        ends_its_parents_session,
        hears_no_signal,
        deletes_its_working_directory,
        deletes_its_checkpoints,
        saves_a_fifo,
        saves_an_endless_file,
        saves_a_loop,
        saves_a_tree,
        removes_its_socket,
        removes_its_lock,
        connects_without_end,
        closes_its_output,
        fills_its_log,
    )
}

if __name__ == "__main__":
    kind, folder = sys.argv[1:3]
    (pathlib.Path(folder) / kind).touch()
    KINDS[kind]()
    stay()
