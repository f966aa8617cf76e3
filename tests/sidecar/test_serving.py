"""
The answers and refusals of the SideCar over a Unix socket, as on one machine.

test_trust.py tests the rights of clients on a network.
"""

import asyncio
import random
import socket
import stat
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import pytest

from dljob_sidecar.serving import trust
from dljob_sidecar.serving.listening import LONGEST_SOCKET_PATH, MOST_CONNECTIONS, Servers
from dljob_sidecar.settings import Serving
from dljob_wire import codec
from dljob_wire.messages import Phase, Post, Problem, Refusal, Refused
from tests.sidecar.clients import Client, ask_over, hang_up, live_through, lived, parse_answer
from tests.sidecar.fakes import Container
from tests.sidecar.nonsense import REFUSALS, make_nonsense
from tests.sidecar.targets import INCARNATION, run, stop

USUAL = Serving()
SMALL = Serving(largest_body=4096, most_waiting=2, longest_wait_seconds=60.0)
HURRIED = replace(SMALL, header_seconds=0.3)
"""Disconnects slow clients, and any client if this process stalls."""
T = TypeVar("T")


class ServedContainer(Container):
    """A real server above fakes, with a client for each listener."""

    def __init__(self, folder: Path, settings: Serving) -> None:
        super().__init__()
        control, inner = folder / "control", folder / "inner"
        local = replace(settings, socket=str(control), progress_socket=str(inner))
        local = replace(local, health_address="127.0.0.1", health_port=0)
        self.servers = Servers(self.agent, local)
        self.servers.open()
        self.control = Client(socket=control)
        self.inner = Client(socket=inner)
        self.health = Client(port=self.servers.health_port)

    async def waits(self, how_many: int = 1) -> None:
        while self.servers.waiting != how_many:
            await asyncio.sleep(0)


@asynccontextmanager
async def serving(folder: Path, settings: Serving = USUAL):
    container = ServedContainer(folder, settings)
    try:
        yield container
    finally:
        await container.servers.close()


def served(settings: Serving = USUAL):
    """Make a test from a coroutine with a served container."""

    def decorate(story):
        def test(tmp_path):
            async def live():
                async with serving(tmp_path, settings) as container:
                    await story(container)

            live_through(live())

        return test

    return decorate


async def insist(ask: Callable[[], Awaitable[T]]) -> T:
    """Ask a ``HURRIED`` container again if it disconnected because this process stalled."""
    while True:
        with suppress(ConnectionError):
            return await ask()
        # The limit of time needs a turn of the loop.
        await asyncio.sleep(0)


def refusal(answer) -> Refusal:
    return codec.decode(Refusal, answer.body)


@served()
async def test_declaration_returns_its_state_and_repeat_does_nothing(container):
    state = (await container.control.put(run(3))).state()
    assert (state.phase, state.held, state.target) == (Phase.STARTING, ("0", "1"), run(3))
    assert state.incarnation == INCARNATION
    assert (await container.control.get("/v1/state")).state() == state
    assert (await container.control.put(run(3))).state() == state
    assert container.supervisor.demanded == ["start 3"]


@served()
async def test_contradiction_is_refused_with_the_known_target(container):
    await container.control.put(run(3))
    for target, error in (
        (run(2), Refused.OLDER),
        (run(3, gpus=1), Refused.CONFLICT),
        (stop(3), Refused.CONFLICT),
        (replace(run(4), incarnation="another"), Refused.OTHER_INCARNATION),
    ):
        answer = await container.control.put(target)
        refused = refusal(answer)
        assert (answer.status, refused.error) == (409, error), target
        assert (refused.epoch, refused.generation, refused.incarnation) == (1, 3, INCARNATION)
        assert refused.remedy
    assert container.supervisor.demanded == ["start 3"]


@served()
async def test_other_installation_is_refused(container):
    ours = await container.control.put(replace(run(3), installation="ours"))
    assert ours.state().installation == "ours"
    answer = await container.control.put(replace(run(4, epoch=9), installation="theirs"))
    refused = refusal(answer)
    assert (answer.status, refused.error) == (409, Refused.OTHER_INSTALLATION)
    assert (refused.installation, refused.epoch) == ("ours", 1)
    assert container.supervisor.demanded == ["start 3"]


@served()
async def test_long_poll_returns_on_a_change(container):
    before = (await container.control.put(run(1))).state()
    path = f"/v1/state?after={before.version}&wait=60"
    poll = asyncio.ensure_future(container.control.get(path))
    await container.waits()
    container.agent.happen(container.supervisor.started())
    state = (await poll).state()
    assert state.phase is Phase.RUNNING
    assert state.version > before.version


@served()
async def test_uninformed_or_expired_poll_returns_at_once(container):
    for query in (
        *("", "?after=1", "?after=0&wait=60", "?after=9999&wait=60", "?after=1&wait=0.05"),
        "?after=1&incarnation=older&wait=60",
    ):
        state = (await container.control.get(f"/v1/state{query}")).state()
        assert (state.version, state.incarnation) == (1, INCARNATION), query


@served(SMALL)
async def test_waiting_polls_are_limited(container):
    path = "/v1/state?after=1&wait=60"
    polls = [asyncio.ensure_future(container.control.get(path)) for _ in range(2)]
    await container.waits(2)
    answer = await container.control.get(path)
    assert (answer.status, refusal(answer).error) == (503, Refused.TOO_MANY)
    for poll in polls:
        poll.cancel()
    await container.waits(0)
    assert (await container.control.get("/v1/state?after=1&wait=0.01")).status == 200


@served()
async def test_closed_poll_frees_its_place(container):
    for _ in range(20):
        reader, writer = await container.control.connect()
        writer.write(b"GET /v1/state HTTP/1.1\r\nHost: dljob\r\n\r\n")
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"GET /v1/state?after=1&wait=60 HTTP/1.1\r\nHost: dljob\r\n\r\n")
        writer.close()
        await writer.wait_closed()
    # The answer to another client comes after all of them.
    assert (await container.control.get("/v1/state")).status == 200
    await container.waits(0)


async def progress(container: ServedContainer, iteration: int) -> None:
    container.agent.post(Post(iteration=iteration))
    container.agent.changed()
    # Let the waiting poll see it.
    for _ in range(5):
        await asyncio.sleep(0)


@served()
async def test_progress_may_wait_and_problems_may_not(container):
    path = "/v1/state?after=1&wait=60&progress=60"
    poll = asyncio.ensure_future(container.control.get(path))
    await container.waits()
    for iteration in (5, 6):
        await progress(container, iteration)
    assert not poll.done()
    assert container.servers.waiting == 1
    container.agent.complain(Problem("Something", "is not as it should be"))
    state = (await poll).state()
    assert (state.progress.iteration, state.problems[0].name) == (6, "Something")


@served()
async def test_progress_is_sent_when_patience_ends(container):
    for iteration, query in ((5, "wait=60&progress=0.05"), (6, "wait=0.3&progress=60")):
        path = f"/v1/state?after={container.agent.version}&{query}"
        poll = asyncio.ensure_future(container.control.get(path))
        await container.waits()
        await progress(container, iteration)
        assert (await poll).state().progress.iteration == iteration


@served()
async def test_leaving_sidecar_answers_waiting_polls(container):
    first = asyncio.ensure_future(container.control.get("/v1/state?after=1&wait=60"))
    await container.waits()
    last = (await container.control.put(stop(1, leave=True))).state()
    assert (await first).state() == last
    assert last.leaving
    path = f"/v1/state?after={last.version}&wait=60"
    second = asyncio.ensure_future(container.control.get(path))
    await container.waits()
    await container.servers.close()
    assert (await second).state() == last
    assert await container.agent.left == 0


@lived
async def test_last_state_may_be_asked_once_more(tmp_path, monkeypatch):
    # Even if this process stalls between the two answers.
    monkeypatch.setattr(trust, "ASKS_AGAIN_SECONDS", 240.0)
    async with serving(tmp_path) as container:
        reader, writer = await container.control.connect()
        try:
            known = (await ask_over(reader, writer, "/v1/state?after=0&wait=60")).state()
            await container.control.put(stop(1, leave=True))
            closing = asyncio.ensure_future(container.servers.close())
            await asyncio.sleep(0)
            path = f"/v1/state?after={known.version}&wait=60"
            last = await ask_over(reader, writer, path)
            assert last.state().leaving
            assert last.headers["connection"] == "close"
            await closing
        finally:
            await hang_up(writer)


@served()
async def test_paths_exist_at_their_own_listener_only(container):
    elsewhere = {
        "control": ["/v1/progress", "/healthz", "/metrics"],
        "inner": ["/v1/target", "/v1/state", "/healthz", "/metrics"],
        "health": ["/v1/target", "/v1/state", "/v1/progress"],
    }
    for listener, paths in elsewhere.items():
        for path in paths:
            answer = await getattr(container, listener).get(path)
            assert (answer.status, refusal(answer).error) == (404, Refused.NOT_FOUND)


@served()
async def test_invalid_metrics_keep_the_iteration(container):
    odd = b'"loss": NaN, "top5": Infinity, "val loss": 1, "1st": 2, "note": "high", "big": 1e999'
    body = b'{"iteration": 7, "mood": "good", "metrics": {"good": 0.9, ' + odd + b"}}"
    assert (await container.inner.ask("POST", "/v1/progress", body)).status == 204
    assert container.facts.posts == [Post(iteration=7, metrics={"good": 0.9})]
    for wrong in (b'{"iteration": NaN}', b'{"epoch": NaN}', b'{"metrics": [NaN]}', b"NaN"):
        assert (await container.inner.ask("POST", "/v1/progress", wrong)).status == 400


@served()
async def test_plain_port_is_read_only(container):
    for path in ("/healthz", "/metrics"):
        assert (await container.health.get(path)).status == 200
        for method in ("PUT", "POST", "DELETE"):
            answer = await container.health.ask(method, path, b"{}")
            assert (answer.status, answer.headers["allow"]) == (405, "GET")


@served()
async def test_metrics_are_readable_by_prometheus(container):
    await container.control.put(run(1))
    text = (await container.health.get("/metrics")).body.decode()
    assert 'dljob_sidecar_phase{phase="Starting"} 1\n' in text
    assert "dljob_sidecar_gpus_held 2\n" in text
    values = [line for line in text.splitlines() if not line.startswith("#")]
    assert all(line.startswith("dljob_sidecar_") for line in values)


@lived
async def test_sockets_are_private(tmp_path):
    async with serving(tmp_path):
        for name in ("control", "inner"):
            assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600
    assert not [path for path in tmp_path.iterdir() if path.is_socket()]


@lived
async def test_too_long_socket_path_is_refused(tmp_path):
    deep = tmp_path / ("x" * LONGEST_SOCKET_PATH)
    servers = Servers(Container().agent, Serving(socket=str(deep)))
    with pytest.raises(OSError, match=f"at most {LONGEST_SOCKET_PATH} bytes"):
        servers.open()


@lived
async def test_dead_socket_is_replaced_and_live_one_is_not(tmp_path):
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(tmp_path / "control"))
    async with serving(tmp_path) as container:
        with pytest.raises(OSError, match="another SideCar listens there"):
            ServedContainer(tmp_path, USUAL)
        answer = await container.control.get("/v1/state")
        assert answer.status == 200
        assert answer.headers["server"] == "dljob-sidecar"


WRONG_BODIES = {
    "nothing": (b"", ""),
    "no JSON": (b"{", ""),
    "no object": (b"[]", ""),
    "no UTF-8": (b'{"kind": "\xff"}', ""),
    "neither run nor stop": (b'{"kind": "dance"}', "kind"),
    "a key twice": (b'{"kind": "stop", "kind": "run"}', "kind"),
    "a field missing": (b'{"kind": "stop", "epoch": 1}', "generation"),
    "a wrong type": (b'{"kind": "stop", "epoch": "1"}', "epoch"),
    "a negative number": (b'{"kind": "stop", "epoch": -1}', "epoch"),
    "a huge number": (b'{"kind": "stop", "epoch": 1e400}', "epoch"),
    "not a number": (b'{"kind": "stop", "epoch": NaN}', ""),
    "a true number": (b'{"kind": "stop", "epoch": true}', "epoch"),
    "too deep": (b"[" * 2000, ""),
}


@served(SMALL)
async def test_malformed_body_is_refused_with_its_path(container):
    for wrong, (body, path) in WRONG_BODIES.items():
        answer = await container.control.ask("PUT", "/v1/target", body)
        refused = refusal(answer)
        assert (answer.status, refused.error, refused.path) == (400, Refused.MALFORMED, path), wrong
        assert refused.remedy
    assert container.supervisor.demanded == []


@served()
async def test_malformed_query_is_refused(container):
    for query in ("after=x", "after=-1", "after=1&wait=nan", "after=1&wait=-1"):
        answer = await container.control.get(f"/v1/state?{query}")
        assert (answer.status, refusal(answer).error) == (400, Refused.MALFORMED), query


@served(SMALL)
async def test_too_large_body_is_not_read(container):
    # With an announced length the answer comes before the body.
    head = b"PUT /v1/target HTTP/1.1\r\nHost: d\r\nContent-Length: 999999999999\r\n\r\n"
    assert (await container.control.send(head)).startswith(b"HTTP/1.1 413 ")
    # Without it the answer comes as soon as the body is too large.
    head = b"PUT /v1/target HTTP/1.1\r\nHost: d\r\nTransfer-Encoding: chunked\r\n\r\n"
    chunk = b"2000\r\n" + b" " * 0x2000 + b"\r\n"
    assert (await container.control.send(head + chunk)).startswith(b"HTTP/1.1 413 ")
    assert (await container.control.get("/v1/state")).status == 200


@served(SMALL)
async def test_malformed_length_is_refused(container):
    for length in ("²2", "-1", "+5", "5, 6", "0x5", "", "1" * 500):
        head = f"PUT /v1/target HTTP/1.1\r\nHost: d\r\nContent-Length: {length}\r\n\r\n"
        answer = await container.control.send(head.encode("latin-1") + b"{}")
        assert answer[9:12] in {b"400", b"413"}, length


@pytest.mark.processes
@served(HURRIED)
async def test_slow_client_is_disconnected(container):
    for beginning in (b"", b"GET /v1/state HTTP/1.1\r\nHo"):
        slow = asyncio.ensure_future(insist(partial(container.control.send, beginning)))
        # Other clients do not wait for it.
        assert (await insist(lambda: container.control.get("/v1/state"))).status == 200
        assert await slow == b""


@pytest.mark.processes
@served(HURRIED)
async def test_slow_body_times_out(container):
    for length in (b"Content-Length: 10", b"Transfer-Encoding: chunked"):
        head = b"PUT /v1/target HTTP/1.1\r\nHost: d\r\n" + length + b"\r\n\r\n"

        async def send(head=head):
            return parse_answer(await container.control.send(head + b"5\r\n{"))

        answer = await insist(send)
        assert (answer.status, refusal(answer).error) == (408, Refused.TOO_SLOW)
    assert container.supervisor.demanded == []
    # A poll has no body, and may last longer than one.
    path = f"/v1/state?after=1&wait={HURRIED.header_seconds * 2}"
    assert (await insist(lambda: container.control.get(path))).status == 200


@pytest.mark.processes
@served()
async def test_idle_connections_do_not_block_others(container):
    doors = ((container.inner, 404), (container.health, 404), (container.control, 200))
    poll = asyncio.ensure_future(container.control.get("/v1/state?after=1&wait=60"))
    await container.waits()
    for client, status in doors:
        held = [await client.connect() for _ in range(MOST_CONNECTIONS + 20)]
        # The oldest are closed first.
        assert await held[0][0].read() == b""
        assert (await client.get("/v1/state")).status == status
        await hang_up(*(writer for _, writer in held))
    # A connection with a request is kept.
    await container.control.put(run(1))
    assert (await poll).state().generation == 1


@served()
async def test_odd_paths_are_not_found(container):
    for path in (
        *("/", "/v1", "/v1/state/", "//v1/state", "/v1/../v1/state", "/v1/%2e%2e/etc/passwd"),
        *("/v1/state%00", "/V1/STATE", "/v2/state", "/static/../../etc/passwd"),
    ):
        answer = await container.control.get(path)
        assert (answer.status, refusal(answer).error) == (404, Refused.NOT_FOUND), path


@lived
async def test_nonsense_changes_nothing(tmp_path):
    chance = random.Random(4)
    async with serving(tmp_path, SMALL) as container:
        # No nonsense has a newer epoch.
        await container.control.put(run(1, epoch=10**9))
        for _ in range(100):
            answer = await container.control.send(make_nonsense(chance), is_all=True)
            assert answer[9:12] in REFUSALS
        state = (await container.control.get("/v1/state")).state()
        assert container.supervisor.demanded == ["start 1"]
        assert state.target == run(1, epoch=10**9)
