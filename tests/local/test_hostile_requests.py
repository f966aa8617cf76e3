"""Requests that cost much more to read than to write: the server refuses them by name."""

import gzip
import http.client
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.local.asking import PATIENCE_S, Asker
from tests.local.stages import Staged, job_document, staged

Json = dict[str, Any]


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


def listed(items: str) -> bytes:
    return f'{{"kind": "DLJobList", "items": [{items}]}}'.encode()


def bodies() -> Iterator[tuple[str, bytes, int, str]]:
    """Yield each request with the status and the words with which it is refused."""
    yield "ten thousand wrong jobs", listed("0" + ",0" * 9_999), 422, "not a DLJob"
    lists = ",".join([f'{{"x": [{"0" + ",0" * 19_000}]}}'] * 60)
    yield "a million values", listed(lists), 413, "more than 1,048,576 values"
    unknown = job_document("unknown")
    unknown["spec"] |= {f"gpuz{number}": 1 for number in range(15_000)}
    yield "fifteen thousand unknown fields", json.dumps(unknown).encode(), 422, "no such field"
    slow = job_document("slow", progress={"log": r"(?P<iteration>\d+)" + "[a-\U0010ffff]" * 200})
    jobs = ",".join(json.dumps(slow | {"metadata": {"name": f"s{n}"}}) for n in range(50))
    yield "fifty costly expressions", listed(jobs), 422, "takes too long to compile"
    yield "a deep list", listed("[" * 50_000 + "]" * 50_000), 400, "not JSON"
    yield "a nested document", b'{"a":' * 900 + b"1" + b"}" * 900, 422, "levels deep"


def test_a_request_that_costs_much_more_to_read_than_to_write_is_refused(ask: Asker):
    for name, body, status, words in bodies():
        answer = ask("POST", "/v1/jobs", body)
        assert answer.status == status, (name, answer.body[:300])
        assert words in answer.json["error"], name
        assert len(answer.body) < 1 << 20, name


@pytest.mark.slow
def test_a_request_of_many_megabytes_is_refused(ask: Asker):
    answer = ask("POST", "/v1/jobs", listed('"' + "0" * (16 << 20))[: 16 << 20])
    assert (answer.status, "not JSON" in answer.json["error"]) == (400, True)
    answer = ask("POST", "/v1/jobs", listed("0" + ",0" * 7_000_000))
    assert (answer.status, "submit fewer" in answer.json["error"]) == (413, True)


def test_a_compressed_request_is_refused_as_it_is(up: Staged):
    body = gzip.compress(b" " * (1 << 20), compresslevel=1)
    connection = http.client.HTTPConnection("localhost", timeout=PATIENCE_S)
    connection.sock = socket.socket(socket.AF_UNIX)
    connection.sock.settimeout(PATIENCE_S)
    connection.sock.connect(str(socket_of(up)))
    connection.request("POST", "/v1/jobs", body, {"Content-Encoding": "gzip"})
    answer = connection.getresponse()
    assert (answer.status, b"compressed" in answer.read()) == (415, True)
    connection.close()


def test_a_selector_of_thousands_of_characters_is_refused(ask: Asker):
    for selector in (" " * 2_600 + "(", "(" * 2_600, "a in (" * 500, "a " * 1_900):
        answer = ask("GET", f"/v1/jobs?selector={quote(selector)}")
        assert answer.status == 400, selector[:20]
        assert "write such as team=vision" in answer.json["error"]


def doubled() -> Json:
    """Thirty variables, each of which names the one before twice: a gigabyte, and more with each line."""
    env = [{"name": "A0", "value": "x"}]
    env += [{"name": f"A{n}", "value": f"$(A{n - 1})$(A{n - 1})"} for n in range(1, 31)]
    return with_container(env=env)


def with_container(**fields: Any) -> Json:
    container = {"name": "trainer", "command": ["sleep", "60"], **fields}
    return job_document("never", template={"spec": {"containers": [container]}})


NEVER = (
    (doubled(), "env[17].value: it has more than"),
    (with_container(command=["a\0b"]), "command[0]: it holds a NUL character"),
    (with_container(env=[{"name": "A", "value": "\0"}]), "env[0].value: it holds a NUL character"),
    (with_container(env=[{"name": "A\0", "value": ""}]), "is no name of a variable"),
    (with_container(env=[{"name": "A=B", "value": ""}]), "is no name of a variable"),
    (with_container(workingDir="/nowhere/at/all"), "/nowhere/at/all is not a folder here"),
    (with_container(args=["x" * 60_000] * 30), "more than Linux gives to a program"),
)


def test_unstartable_job_is_refused_at_submission(ask: Asker):
    for document, words in NEVER:
        answer = ask("POST", "/v1/jobs?dryRun=true", document)
        assert answer.status == 422, (words, answer.body[:300])
        assert words in answer.json["error"]
        assert "spec.template.spec.containers[0]" in answer.json["error"]
    long = with_container(args=["x" * 65_000 + "$(A)" * 10])
    assert ask("POST", "/v1/jobs?dryRun=true", long).status == 200


def test_the_environment_of_the_submitter_counts_as_well(ask: Asker):
    document = with_container(args=["$(LONG)$(LONG)"])
    environment = {"LONG": "x" * 100_000}
    body = {"kind": "DLJobList", "items": [document], "environment": environment}
    answer = ask("POST", "/v1/jobs", body)
    assert (answer.status, "args[0]: it has more than" in answer.json["error"]) == (422, True)
