"""
The processes of Horovod find each other without its launcher, and other clients cannot stay for
long.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
from functools import partial
from pathlib import Path

import pytest

from dlsidecar.processes import ranks, rendezvous
from dlsidecar.processes.rendezvous import (
    CannotOpen,
    Full,
    Rendezvous,
    Store,
)
from dlwire.messages import Peer, Run
from tests.servers.ports import choose_ports
from tests.sidecar import gloo
from tests.sidecar.clients import lived
from tests.sidecar.drivers import HERE, find_processes, wait_until

LISTENING = "0A"
"""As ``/proc/net/tcp`` says it."""


def run_of(*peers, offset=0, hosts=(), port=29500):
    hosts = hosts or [f"10.0.0.{number}" for number in range(1, len(peers) + 1)]
    return Run(
        epoch=1,
        generation=1,
        incarnation="x",
        gpus=("0", "1"),
        rank_offset=offset,
        world_size=sum(peers),
        peers=tuple(map(Peer, hosts, peers)),
        rendezvous_port=port,
    )


def find_port():
    return choose_ports(1)[0]


@contextlib.asynccontextmanager
async def meeting(*peers, hosts=()):
    """Open the place where these meet, and speak to it from threads as they would."""
    run = run_of(*peers, hosts=hosts, port=find_port())
    place = Rendezvous()
    place.open(run)

    async def ask(scope, method, key, body=b""):
        store = gloo.Store("127.0.0.1", run.rendezvous_port, scope, 0)
        return await asyncio.to_thread(store.ask, method, key, body)

    try:
        yield run, ask
    finally:
        place.close()


# --- its words ----------------------------------------------------------------------------


@lived
async def test_a_value_is_there_for_all_as_soon_as_one_has_put_it():
    async with meeting(2) as (_, ask):
        assert await ask("global", "GET", "0") == (404, b"")
        assert await ask("global", "PUT", "0", b"a\0\r\n\r\nb") == (200, b"")
        assert await ask("global", "GET", "0") == (200, b"a\0\r\n\r\nb")
        assert await ask("cross_0", "GET", "0") == (404, b"")
        await ask("global", "PUT", "0", b"")
        assert await ask("global", "GET", "0") == (200, b"")


def test_a_scope_is_empty_again_when_all_of_it_need_it_no_longer():
    store = Store(run_of(2, 1))
    for scope, size in {"global": 3, "local_10.0.0.1": 2, "cross_0": 2, "cross_1": 1}.items():
        store.put(scope, "0", value=b"way")
        for rank in range(size - 1):
            store.finish(scope, str(rank))
            # A process that heard no answer repeats its request, and still counts once.
            store.finish(scope, str(rank))
            assert store.get(scope, "0") == b"way"
        store.finish(scope, str(size - 1))
        assert store.get(scope, "0") is None
    # That of a process set loses no more than the key.
    for key in ("0", "1"):
        store.put("global_process_set_hash_1f", key, value=b"way")
    store.finish("global_process_set_hash_1f", "0")
    assert store.get("global_process_set_hash_1f", "0") is None
    assert store.get("global_process_set_hash_1f", "1") == b"way"


# --- its limits ---------------------------------------------------------------------------


def test_there_is_room_for_what_the_largest_job_tells_and_for_its_next_beginning():
    size = 300
    store = Store(run_of(*[6] * (size // 6)))
    for scope in ("global", "global_process_set_hash_1"):
        for rank in range(size):
            store.put(scope, f"rank_{rank}", value=b"a-host-name")
            store.put(scope, str(rank), value=bytes(gloo.ADDRESS_BYTES * (size - 1)))
    store = Store(run_of(2))
    for _ in range(300):
        for scope in ("global", "process_set"):
            for key in ("0", "1"):
                store.put(scope, key, value=bytes(4096))
            store.finish(scope, "0")
            store.finish(scope, "1")


def test_nobody_fills_our_memory():
    for value in (b"", bytes(4096)):
        store = Store(run_of(2))
        with pytest.raises(Full):  # noqa: PT012 - it is not said when
            for number in range(10**6):
                store.put(f"scope-{number}", "key", value=value)
        store.put("scope-0", "key", value=value)  # This replaces the old value.


@lived
async def test_what_is_too_large_or_too_much_is_refused_and_said():
    async with meeting(2) as (_, ask):
        # As it was not read, the answer may not be either.
        with contextlib.suppress(ConnectionError):
            assert (await ask("global", "PUT", "0", bytes(1 << 20)))[0] == 400
        assert (await ask("global", "GET", "0"))[0] == 404
        statuses = [(await ask("a", "PUT", str(n), bytes(16384)))[0] for n in range(80)]
        assert set(statuses) == {200, 507}
        assert (await ask("a", "POST", "0"))[0] == 405
        assert (await ask("a/b", "GET", "0"))[0] == 404
        assert (await ask("a", "GET", "0"))[0] == 200


# --- where and when -----------------------------------------------------------------------


def test_the_processes_of_one_container_meet_where_no_other_machine_can_come():
    run = run_of(2, hosts=["10.9.8.7"], port=find_port())
    with rendezvous.listen(run) as listening:
        assert listening.getsockname() == ("127.0.0.1", run.rendezvous_port)
    assert ranks.meeting_host(run) == "127.0.0.1"
    assert rendezvous.find_interface(run) == "lo"


def test_those_of_several_meet_at_the_address_of_the_first():
    for host, bound in (
        ("127.0.0.2", "127.0.0.2"),
        ("localhost", "127.0.0.1"),
        ("192.0.2.7", "0.0.0.0"),  # noqa: S104
    ):
        run = run_of(1, 1, hosts=[host, "10.9.8.7"], port=find_port())
        with rendezvous.listen(run) as listening:
            assert listening.getsockname() == (bound, run.rendezvous_port)


def test_a_place_that_is_taken_or_cannot_be_reached_is_told():
    with socket.create_server(("127.0.0.1", 0)) as server:
        with pytest.raises(CannotOpen, match="in use"):
            rendezvous.listen(run_of(2, port=server.getsockname()[1]))
        with pytest.raises(CannotOpen, match="IPv4"):
            rendezvous.listen(run_of(1, 1, hosts=["fd00::1", "fd00::2"]))


def test_containers_of_one_machine_are_told_apart():
    run = run_of(1, 1, hosts=["localhost", "localhost"])
    assert [ranks.name_of(run, node) for node in (0, 1)] == ["localhost-0", "localhost-1"]
    assert rendezvous.find_interface(run) == "lo"
    assert ranks.name_of(run_of(1, 1), 1) == "10.0.0.2"


@pytest.mark.processes
@pytest.mark.story
def test_real_processes_meet_and_the_place_goes_with_their_generation(drive, token):
    command = [sys.executable, "-S", str(HERE / "gloo.py"), token]
    driver = drive(command=command, framework="horovod", processes="perGpu")
    ports = []
    for attempt, processes in enumerate((3, 2), start=1):
        driver.start(attempt, gpus=processes, processes=processes)
        driver.wait_for("Started", attempt=attempt)
        driver.wait_for_log("met ['global:", 3 if attempt == 1 else 5)
        driver.wait_for_log("met [] over lo", 3 if attempt == 1 else 5)
        ports += wait_until(partial(find_listeners, driver.pid), what="the place")
        assert len(ports) == attempt
        driver.stop_all(attempt)
        assert find_listeners(driver.pid) == []
    assert len(find_processes(token)) == 1


@pytest.mark.processes
def test_a_port_that_is_taken_fails_the_start_by_name(drive):
    driver = drive(framework="horovod", processes="perGpu")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        driver.call("start", gpus=["0", "1"], processes=2, attempt=1, port=port)
        assert "RendezvousCannotOpen" in str(driver.wait_for("StartFailed")["problem"])
        driver.wait_for("Gone")


def find_listeners(pid):
    """Return the ports at which a process listens, by what the kernel knows."""
    table = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    listening = {
        f"socket:[{fields[9]}]": int(fields[1].split(":")[1], 16)
        for fields in table
        if fields[3] == LISTENING
    }
    descriptors = []
    for link in Path(f"/proc/{pid}/fd").iterdir():
        # One that was closed meanwhile.
        with contextlib.suppress(FileNotFoundError):
            descriptors.append(str(link.readlink()))
    return [listening[name] for name in descriptors if name in listening]
