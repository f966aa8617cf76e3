"""
Requests that cost much more to read than to write: the server answers others meanwhile, and refuses them by name.

The duration of each request is printed (``-s``); the limits in the tests are many times the
durations, and far below the durations before the checks existed.
"""

import gzip
import http.client
import json
import socket
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote

import pytest

from tests.local.asking import Answer, Asker
from tests.local.stages import Staged, job_document, staged

Json = dict[str, Any]

LONGEST_S = 20.0


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Staged]:
    with staged(tmp_path_factory.mktemp("hostile")) as played:
        yield played


def socket_of(up: Staged) -> Path:
    assert up.stage is not None
    return up.stage.folders.socket


@pytest.fixture
def ask(up: Staged) -> Asker:
    return Asker(socket_of(up))


class Onlooker:
    """Asks again and again while something goes on, and knows the longest time without an answer."""

    def __init__(self, ask: Asker) -> None:
        self._ask = ask
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look_on)
        self.longest = 0.0

    def _look_on(self) -> None:
        while not self._ended.wait(0.01):
            began = time.monotonic()
            self._ask.get("/v1/jobs")
            self.longest = max(self.longest, time.monotonic() - began)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()


def bodies() -> Iterator[tuple[str, bytes, int, str]]:
    """Yield each request with the status and the words with which it is refused."""

    def listed(items: str) -> bytes:
        return f'{{"kind": "DLJobList", "items": [{items}]}}'.encode()

    yield "eight million items", listed("0" + ",0" * (8 << 20))[: 16 << 20], 400, "not JSON"
    yield "seven million items", listed("0" + ",0" * 7_000_000), 413, "submit fewer"
    yield "ten thousand wrong jobs", listed("0" + ",0" * 9_999), 422, "not a DLJob"
    lists = ",".join([f'{{"x": [{"0" + ",0" * 19_000}]}}'] * 60)
    yield "a million values", listed(lists), 413, "more than 1,000,000 values"
    unknown = job_document("unknown")
    unknown["spec"] |= {f"gpuz{number}": 1 for number in range(15_000)}
    yield "fifteen thousand unknown fields", json.dumps(unknown).encode(), 422, "no such field"
    long = job_document("long")
    long["spec"] |= {f"{'gpuz' * 5_000}{number}": 1 for number in range(200)}
    yield "unknown fields with long names", json.dumps(long).encode(), 422, "no such field"
    slow = job_document("slow", progress={"log": r"(?P<iteration>\d+)" + "[a-\U0010ffff]" * 200})
    jobs = ",".join(json.dumps(slow | {"metadata": {"name": f"s{n}"}}) for n in range(50))
    yield "fifty costly expressions", listed(jobs), 422, "takes too long to compile"
    yield "a deep list", listed("[" * 50_000 + "]" * 50_000), 400, "not JSON"
    yield "a nested document", b'{"a":' * 900 + b"1" + b"}" * 900, 422, "levels deep"


@pytest.mark.parametrize(
    ("body", "status", "words"), [pytest.param(*each, id=name) for name, *each in bodies()]
)
def test_a_costly_request_is_refused_and_keeps_nobody_waiting(
    ask: Asker, body: bytes, status: int, words: str
):
    began, before = time.monotonic(), time.process_time()
    with Onlooker(ask) as onlooker:
        answer = ask("POST", "/v1/jobs", body)
    took, spent = time.monotonic() - began, time.process_time() - before
    sys.stdout.write(
        f"refused after {took:.2f} s; others waited {onlooker.longest:.2f} s at most\n"
    )
    assert answer.status == status, answer.body[:300]
    assert words in answer.json["error"]
    assert len(answer.body) < 1 << 20
    # The server is in this very process, and a busy machine only makes it wait.
    assert spent < LONGEST_S


def send(path: Path, head: str, body: bytes) -> Answer:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(240.0)
        connection.connect(str(path))
        connection.sendall(head.encode() + body)
        response = http.client.HTTPResponse(connection, method="POST")
        response.begin()
        return Answer(response.status, response.read())


def test_a_compressed_request_is_refused_as_it_is(up: Staged):
    body = gzip.compress(b" " * (256 << 20), compresslevel=1)
    head = (
        "POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Encoding: gzip\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    spent = []
    # The kernel may charge one of them for the time that the host has stopped the machine.
    for _ in range(3):
        before = time.process_time()
        answer = send(socket_of(up), head, body)
        assert (answer.status, "compressed" in answer.json["error"]) == (415, True)
        # The server is in this very process.
        spent.append(time.process_time() - before)
    assert min(spent) < 2.0


@pytest.mark.parametrize("selector", [" " * 2_600 + "(", "(" * 2_600, "a in (" * 500, "a " * 1_900])
def test_a_selector_of_thousands_of_characters_is_refused_at_once(ask: Asker, selector: str):
    answer = ask("GET", f"/v1/jobs?selector={quote(selector)}")
    assert answer.status == 400
    assert "write such as team=vision" in answer.json["error"]


def doubled() -> Json:
    """Thirty variables, each of which names the one before twice: a gigabyte, and more with each line."""
    env = [{"name": "A0", "value": "x"}]
    env += [{"name": f"A{n}", "value": f"$(A{n - 1})$(A{n - 1})"} for n in range(1, 31)]
    return with_container(env=env)


def with_container(**fields: Any) -> Json:
    container = {"name": "trainer", "command": ["sleep", "60"], **fields}
    return job_document("never", template={"spec": {"containers": [container]}})


NEVER = {
    "doubled variables": (doubled(), "env[17].value: it has more than"),
    "a long word": (with_container(args=["x" * 65_000 + "$(A)" * 10]), ""),
    "a NUL in a word": (with_container(command=["a\0b"]), "command[0]: it holds a NUL character"),
    "a NUL in a variable": (
        with_container(env=[{"name": "A", "value": "\0"}]),
        "env[0].value: it holds a NUL character",
    ),
    "a NUL in a name": (
        with_container(env=[{"name": "A\0", "value": ""}]),
        "is no name of a variable",
    ),
    "a sign in a name": (
        with_container(env=[{"name": "A=B", "value": ""}]),
        "is no name of a variable",
    ),
    "no folder": (
        with_container(workingDir="/nowhere/at/all"),
        "/nowhere/at/all is not a folder here",
    ),
    "too much together": (
        with_container(args=["x" * 60_000] * 30),
        "more than Linux gives to a program",
    ),
}


@pytest.mark.parametrize(("document", "words"), NEVER.values(), ids=NEVER)
def test_what_can_never_start_is_refused_when_it_is_submitted(
    ask: Asker, document: Json, words: str
):
    answer = ask("POST", "/v1/jobs?dryRun=true", document)
    if not words:
        assert answer.status == 200
        return
    assert answer.status == 422, answer.body[:300]
    assert words in answer.json["error"]
    assert "spec.template.spec.containers[0]" in answer.json["error"]


def test_the_environment_of_the_submitter_counts_as_well(ask: Asker):
    document = with_container(args=["$(LONG)$(LONG)"])
    body = {**document, "environment": {"LONG": "x" * 100_000}}
    listed = {"kind": "DLJobList", "items": [document], "environment": body["environment"]}
    answer = ask("POST", "/v1/jobs", listed)
    assert (answer.status, "args[0]: it has more than" in answer.json["error"]) == (422, True)
