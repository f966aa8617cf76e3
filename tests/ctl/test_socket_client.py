"""
Every wrong answer at the socket, or none, leads to a message that names the fault and the remedy.
"""

import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager

import pytest

from dljob.cli.verbs.server import down
from dljob.client.backend import Away
from dljob.client.local import socket_client
from dljob.client.local.socket_client import SocketClient
from dljob.local.api import serving
from dljob.local.folders import Folders
from dljob.local.state_folder import make_folders
from tests.local.stages import job_document


@contextmanager
def answering(folder, answer):
    """Let a server at the socket of this state folder answer one request with these bytes."""
    folders = Folders(folder)
    make_folders(folders)
    ended = threading.Event()

    def serve():
        connection, _ = listener.accept()
        with connection:
            connection.recv(4096)
            if answer is None:
                ended.wait(240.0)
            else:
                connection.sendall(answer)

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folders.socket))
        listener.listen()
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield folders.socket
        ended.set()
        thread.join(60)
        assert not thread.is_alive()
    folders.socket.unlink()


def test_garbled_answer_is_reported(dljob, root):
    no_server = "the server that answers is not dljob up (status 200, and no JSON)"
    too_early = "ended before its answer was complete; check that it runs, and try again"
    for answer, error in (
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nno", no_server),
        (b"HTTP/1.1 200 OK\r\nContent-Len", no_server),
        (b"", too_early),
        (b'HTTP/1.1 200 OK\r\nContent-Length: 200\r\n\r\n{"items": []}', too_early),
        (
            b"SSH-2.0-OpenSSH\r\n",
            "the server that answers is not dljob up (it does not speak HTTP)",
        ),
    ):
        with answering(root, answer):
            result = dljob("get", "--state", root)
        assert (result.status, result.stdout) == (1, "")
        assert error in result.stderr
        assert result.stderr.count("\n") == 1


def test_silent_server_hits_a_timeout(dljob, root, monkeypatch):
    monkeypatch.setattr(socket_client, "PATIENCE_S", 0.2)
    with answering(root, None) as path:
        result = dljob("get", "--state", root)
    assert result.stderr.startswith(f"dljob: dljob up at {path} has not answered for 0 s; read its")


SILENT_SERVER = """
import socket, sys
listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[1])
listener.listen()
print("listens", flush=True)
while True:
    kept = listener.accept()
"""


@pytest.mark.processes
def test_down_claims_nothing_about_the_jobs_of_a_server_that_does_not_answer(
    dljob, root, monkeypatch
):
    monkeypatch.setattr(down, "PATIENCE_S", 0.2)
    folders = Folders(root)
    make_folders(folders)
    words = [sys.executable, "-c", SILENT_SERVER, str(folders.socket)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            assert server.stdout.readline() == "listens\n"
            result = dljob("down", "--state", root)
        finally:
            server.kill()
    assert (result.status, result.stdout) == (0, "")
    assert f"dljob up (process {server.pid}) has ended. It did not name its jobs" in result.stderr
    assert "No job has GPUs" not in result.stderr
    assert server.returncode == -signal.SIGTERM
    folders.socket.unlink()


def test_dead_socket_is_reported(dljob, root):
    folders = Folders(root)
    make_folders(folders)
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(folders.socket))
    result = dljob("get", "--state", root)
    assert result.stderr.startswith(f"dljob: no dljob up answers at {folders.socket}; start one")
    folders.socket.unlink()


def test_a_server_that_takes_in_others_first_is_waited_for(root):
    path = root / "dljob.sock"
    root.chmod(0o700)
    with socket.socket(socket.AF_UNIX) as door, socket.socket(socket.AF_UNIX) as other:
        door.bind(str(path))
        door.listen(0)
        other.connect(str(path))

        def serve():
            time.sleep(0.3)
            door.accept()[0].close()
            connection, _ = door.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n{}")

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        assert SocketClient(path).ask("GET", ("about",)) == {}
        thread.join()


def test_full_server_hits_a_timeout(root):
    path = root / "dljob.sock"
    with socket.socket(socket.AF_UNIX) as door, socket.socket(socket.AF_UNIX) as other:
        door.bind(str(path))
        door.listen(0)
        other.connect(str(path))
        with pytest.raises(Away, match="has not answered for 1 s"):
            SocketClient(path, patience_s=1.0).ask("GET", ("about",))


@pytest.fixture
def narrow(monkeypatch):
    """A server that takes less, so that what is too much is read by the command in no time."""
    monkeypatch.setattr(serving, "LARGEST_REQUEST", 1 << 20)


def test_too_large_request_is_reported(narrow, played):
    """The answer comes while the request is still being sent."""
    large = job_document("large")
    large["metadata"]["annotations"] = {f"note-{number}": "x" * 200_000 for number in range(6)}
    result = played("submit", played.file(large))
    assert (result.status, result.stdout) == (1, "")
    assert result.stderr == "dljob: the request is too large; submit fewer jobs at once\n"


def test_a_long_answer_comes_whole(played):
    documents = [job_document(f"job-{number:04}") for number in range(60)]
    for document in documents:
        document["metadata"]["annotations"] = {"note": "é" * 5_000}
    # Not by the command, which would read them as YAML for longer than all the rest takes.
    played.up.do(lambda stage: [stage.registry.submit(each, now=0.0) for each in documents])
    items = played("get", "-o", "json").data["items"]
    assert [item["metadata"]["annotations"]["note"] for item in items] == ["é" * 5_000] * 60
