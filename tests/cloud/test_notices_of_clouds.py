"""The ends of machines, as the metadata services of three clouds announce them: played by a server of ours."""

import asyncio
import json
import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dljob.local.cloud import endings
from dljob.local.cloud.asking import EndWatch, MetadataService, Unanswered
from dljob.local.cloud.endings import Cloud, CloudSettings, Ending, Unreadable, choose_ending
from tests.cloud.metadata import MACHINE, azure_event, played_cloud, scheduled, spot
from tests.loops import on_loop

NINE = 1_548_061_243.0
"""21 Jan 2019 09:00:43 GMT."""
NINE_TEXT = "21 Jan 2019 09:00:43 GMT"
CLOUDS = (Cloud.AWS, Cloud.GCP, Cloud.AZURE)


@pytest.fixture
def cloud():
    with played_cloud() as played:
        yield played


async def read(cloud: Cloud, address: str, *, limit_seconds: float = 5.0) -> list[Ending]:
    service = MetadataService(cloud, address, limit_seconds=limit_seconds)
    try:
        return await service.read()
    finally:
        await service.close()


EVENTS = [
    azure_event("Preempt", f"Mon, {NINE_TEXT}", "gpu-pool_1", MACHINE.upper()),
    azure_event("Preempt", NINE_TEXT, "gpu-pool_1"),
    azure_event("Freeze", NINE_TEXT),
    azure_event("Reboot", "", status="Started"),
]
SCHEDULED = [
    scheduled("system-reboot", NINE_TEXT),
    scheduled("system-maintenance", NINE_TEXT),
    scheduled("instance-stop", NINE_TEXT, state="canceled"),
]
STOP = "TERMINATE_ON_HOST_MAINTENANCE"
SAID: list[tuple[Cloud, dict[str, object], list[tuple[str, float | None]]]] = [
    *((each, {}, []) for each in CLOUDS),
    (Cloud.AWS, {"spot": spot(NINE)}, [("spot-terminate", NINE)]),
    (Cloud.AWS, {"scheduled": SCHEDULED}, [("system-reboot", NINE)]),
    (Cloud.GCP, {"preempted": "TRUE"}, [("preempted", None)]),
    (Cloud.GCP, {"maintenance": "MIGRATE_ON_HOST_MAINTENANCE"}, []),
    (Cloud.GCP, {"maintenance": STOP}, [("terminate-on-host-maintenance", None)]),
    (Cloud.AZURE, {"events": EVENTS}, [("preempt", NINE), ("reboot", None)]),
]


@pytest.mark.parametrize(("name", "said", "expected"), SAID)
@on_loop
async def test_each_cloud_announces_the_end_of_this_machine(cloud, name, said, expected):
    vars(cloud).update(said)
    found = [(each.kind, each.at) for each in await read(name, cloud.address)]
    assert found == expected


@on_loop
async def test_a_token_of_aws_is_asked_for_once_and_again_when_it_has_expired(cloud):
    service = MetadataService(Cloud.AWS, cloud.address)
    try:
        assert await service.read() == []
        assert await service.read() == []
        assert cloud.paths.count("/latest/api/token") == 1
        cloud.tokens.clear()
        with pytest.raises(Unanswered, match="401"):
            await service.read()
        assert await service.read() == []
        assert cloud.paths.count("/latest/api/token") == 2
    finally:
        await service.close()


@pytest.mark.parametrize("name", CLOUDS)
@pytest.mark.parametrize(
    ("fault", "why"),
    [
        ("hangs", "in time"),
        ("garbage", "UnicodeDecodeError"),
        ("huge", "longer than 64 KiB"),
        ("302", "302"),
        ("403", "403"),
        ("404", "has no"),
        ("500", "500"),
    ],
)
@on_loop
async def test_an_answer_that_does_not_count_is_none(cloud, name, fault, why, monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    cloud.fault = fault
    with pytest.raises(Unanswered, match=why):
        await read(name, cloud.address, limit_seconds=0.2 if fault == "hangs" else 5.0)
    assert "/elsewhere" not in cloud.paths


READERS = (
    endings.read_instance_action,
    endings.read_scheduled_events,
    endings.read_preempted,
    endings.read_maintenance_event,
    lambda text: endings.read_azure_events(text, MACHINE),
)
WORDS = ("Events", "EventType", "Resources", "NotBefore", "Code", "State", "action", "time")
JSON = st.recursive(
    st.none() | st.floats() | st.text() | st.sampled_from(["Preempt", "active"]),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(WORDS), inner),
    max_leaves=12,
)


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("text", ["", "[" * 50_000, "TRUE!", "null", "[1]", '{"Events": [[]]}'])
def test_garbage_is_refused(reader, text):
    with pytest.raises(Unreadable):
        [*([found] if isinstance(found := reader(text), Ending) else found)]


@given(document=JSON)
def test_no_document_breaks_a_reader(document):
    for reader in READERS:
        try:
            found = reader(json.dumps(document))
            read = [found] if isinstance(found, Ending) else list(found)
        except Unreadable:
            continue
        assert all(str(each) for each in read)


def test_jobs_leave_shortly_before_a_scheduled_stop_and_at_once_without_a_time():
    later = Ending(kind="system-reboot", at=NINE)
    assert choose_ending([later], NINE - 601, lead_seconds=600) is None
    assert choose_ending([later], NINE - 600, lead_seconds=600) == later
    assert choose_ending([later], NINE + 60, lead_seconds=600) == later
    soon = Ending(kind="preempted")
    assert choose_ending([later, soon], NINE - 9999, lead_seconds=600) == soon
    assert str(later) == "the cloud ends this machine at 2019-01-21T09:00:43Z (system-reboot)"
    assert str(soon) == "the cloud ends this machine soon (preempted)"


@on_loop
async def test_an_announced_end_stays_until_it_is_withdrawn_by_an_answer(cloud, caplog):
    caplog.set_level(logging.INFO)
    cloud.spot = spot(NINE)
    settings = CloudSettings(provider=Cloud.AWS, address=cloud.address)
    watch = EndWatch(settings, every_seconds=0.01, clock=lambda: NINE)
    changed = asyncio.Event()

    async def until_changed() -> str:
        await changed.wait()
        changed.clear()
        return watch.why

    task = asyncio.create_task(watch.run(changed.set))
    try:
        assert "spot-terminate" in await until_changed()
        cloud.fault = "500"
        while "are not known" not in caplog.text:
            await asyncio.sleep(0.01)
        count = len(cloud.paths)
        cloud.fault = ""
        while len(cloud.paths) < count + 5:
            await asyncio.sleep(0.01)
        assert (changed.is_set(), bool(watch.why)) == (False, True)
        cloud.spot = None
        assert await until_changed() == ""
    finally:
        task.cancel()
    lines = [each.message for each in caplog.records if each.name.startswith("dljob.local.cloud")]
    assert len(lines) == 4, lines
    assert lines[-1] == "the cloud has withdrawn the end of this machine"
