"""The MongoDB server of the tests restarts in place, and always ends with the tests."""

import os
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from pymongo import MongoClient

from tests.servers.binaries import find_ferretdb
from tests.servers.mongo import MongoServer
from tests.sidecar.drivers import ROOT, read_proc, wait_until

pytestmark = pytest.mark.processes


@pytest.mark.story
def test_server_keeps_its_place_and_its_data(tmp_path: Path):
    with MongoServer(find_ferretdb(), tmp_path) as server:
        with closing(MongoClient[dict[str, object]](server.url("db"))) as client:
            client["db"].things.insert_one({"_id": 1})
        place = server.place
        server.kill()
        server.start()
        assert server.place == place
        with closing(MongoClient[dict[str, object]](server.url("db"))) as client:
            assert client["db"].things.find_one() == {"_id": 1}


def test_failed_server_says_why(tmp_path: Path):
    server = MongoServer(find_ferretdb(), tmp_path, tls=tmp_path / "nowhere")
    with pytest.raises(RuntimeError, match="no such file or directory"):
        server.start()


START = """
import sys
from pathlib import Path
from tests.servers.mongo import MongoServer
server = MongoServer(Path(sys.argv[1]), Path(sys.argv[2]))
server.start()
print(server.pid, flush=True)
sys.stdin.read()
"""


def test_server_ends_with_the_tests_however_they_end(tmp_path: Path):
    command = [sys.executable, "-c", START, str(find_ferretdb()), str(tmp_path)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, text=True) as tests:
        assert tests.stdout is not None
        server = int(tests.stdout.readline())
        assert b"ferretdb" in read_proc(server, "cmdline")
        tests.send_signal(signal.SIGKILL)
    wait_until(lambda: b"ferretdb" not in read_proc(server, "cmdline"), what="its end")
