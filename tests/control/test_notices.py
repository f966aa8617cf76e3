"""Notices to a real web server and a real command: their events, retries, limits and secrets."""

import asyncio
import json
import sys
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from dljob.control.reporting import notices
from dljob.control.reporting.notices import MOST_WAITING, Notices
from dljob.control.settings import Notify, Settings, SettingsError, load_tree
from dljob.control.situation.rules import News
from dljob.control.situation.status import Condition, ConditionType
from dljob.core.model import JobId, Phase
from tests.control.scenes import NOW, cast, make_scene
from tests.loops import on_loop

JOB = JobId("a")


async def at_once(_seconds):
    await asyncio.sleep(0)


@asynccontextmanager
async def receiver(*answers):
    """A server with these answers in turn, then 200; yields its address and its requests."""
    got: list[tuple[dict[str, str], str]] = []
    left = list(answers)

    async def take(request):
        got.append((await request.json(), request.headers.get("Authorization", "")))
        return web.Response(status=left.pop(0) if left else 200)

    app = web.Application()
    app.router.add_post("/secret", take)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    try:
        yield f"http://{host}:{port}/secret", got
    finally:
        await runner.cleanup()


async def until(true):
    while not true():
        await asyncio.sleep(0.01)


def ended(phase, *, reason):
    condition = Condition(ConditionType.FINISHED, status=True, reason=reason, message="it is over")
    return (
        make_scene(cast("a", phase=phase, conditions=(condition,), message="it is over"))
        .entries[JOB]
        .status
    )


@pytest.mark.parametrize(("phase", "event"), [(Phase.COMPLETED, "done"), (Phase.FAILED, "failed")])
@on_loop
async def test_end_is_posted_with_a_token_until_accepted(tmp_path, phase, event):
    token = tmp_path / "token"
    token.write_text("s3cret\n", encoding="utf-8")
    async with receiver(500, 503) as (url, got):
        settings = Notify(url=url, token_file=str(token))
        sent = Notices(settings, lambda: NOW, sleep=at_once)
        sent.take(make_scene(cast("a")), {JOB: ended(phase, reason="Why")}, news=())
        await until(lambda: len(got) == 3)
        await sent.end()
    assert {authorization for _, authorization in got} == {"Bearer s3cret"}
    told = [got[-1][0][key] for key in ("job", "event", "reason", "text")]
    assert told == ["a", event, "Why", "a: it is over"]


@pytest.mark.parametrize(("status", "attempts"), [(400, 1), (404, 1), (408, 2), (425, 2), (429, 2)])
@on_loop
async def test_refusal_is_final_unless_retryable(caplog, status, attempts):
    async with receiver(status) as (url, got):
        sent = Notices(Notify(url=url), lambda: NOW, sleep=at_once)
        sent.take(make_scene(cast("a")), {JOB: ended(Phase.FAILED, reason="Why")}, news=())
        await until(lambda: len(got) == attempts and not sent._sending)
    assert ("the server answers" in caplog.text) == (attempts == 1)


@on_loop
async def test_notices_do_not_delay_each_other():
    first = asyncio.Event()

    async def pause(seconds):
        if seconds:
            first.set()
            await asyncio.Event().wait()

    news = [(JOB, News("GpuBroken", "Xid 79", warning=True))]
    async with receiver(500) as (url, got):
        sent = Notices(Notify(url=url, events=("GpuBroken",)), lambda: NOW, sleep=pause)
        sent.take(make_scene(cast("a")), {}, news=news)
        await first.wait()
        sent.take(make_scene(cast("a")), {}, news=news)
        await until(lambda: len(got) == 2)
        await sent.end()


@on_loop
async def test_only_chosen_events_or_reasons_are_sent():
    news = [
        (JOB, News("CheckpointNotConfirmed", "not confirmed", warning=True)),
        (JOB, News("GpuBroken", "Xid 79", warning=True)),
        (JOB, News("Running", "trains")),
    ]
    async with receiver() as (url, got):
        sent = Notices(Notify(url=url, events=("noCheckpoint", "GpuBroken")), lambda: NOW)
        sent.take(make_scene(cast("a")), {}, news=news)
        await until(lambda: len(got) == 2)
        await sent.end()
    # Each is sent by itself.
    assert {document["event"] for document, _ in got} == {"noCheckpoint", "GpuBroken"}


@on_loop
async def test_long_wait_is_reported_once():
    waits = Condition(ConditionType.SCHEDULED, status=False, reason="NoRoom", message="", since=NOW)

    def at(now):
        return make_scene(cast("a", conditions=(waits,), message="waits: needs 4 GPUs"), now=now)

    async with receiver() as (url, got):
        sent = Notices(Notify(url=url, wait_seconds=60.0), lambda: NOW)
        for seconds in (30.0, 61.0, 90.0, 500.0):
            sent.find_waits(at(NOW + seconds))
        await until(lambda: got)
        await sent.end()
    [(document, _)] = got
    assert (document["event"], document["message"]) == ("waits", "waits for 61s: needs 4 GPUs")


@on_loop
async def test_command_reads_the_notice_from_stdin(tmp_path):
    file = tmp_path / "got"
    script = "import pathlib, sys; pathlib.Path(sys.argv[1]).write_text(sys.stdin.read())"
    settings = Notify(command=(sys.executable, "-c", script, str(file)))
    sent = Notices(settings, lambda: NOW)
    sent.take(make_scene(cast("a")), {JOB: ended(Phase.FAILED, reason="Why")}, news=())
    await until(lambda: file.exists() and file.read_text(encoding="utf-8"))
    await sent.end()
    assert json.loads(file.read_text(encoding="utf-8"))["event"] == "failed"


@on_loop
async def test_hanging_receiver_delays_no_other_and_secrets_stay_out(monkeypatch, caplog):
    monkeypatch.setattr(notices, "LIMIT_S", 0.05)
    hangs = Notices(Notify(command=("sleep", "60")), lambda: NOW, sleep=at_once)
    hangs.take(make_scene(cast("a")), {JOB: ended(Phase.FAILED, reason="Why")}, news=())
    await until(lambda: "drops the notice" in caplog.text)
    url = "http://127.0.0.1:1/hooks/s3cret"
    away = Notices(Notify(url=url), lambda: NOW, sleep=at_once)
    away.take(make_scene(cast("a")), {JOB: ended(Phase.FAILED, reason="Why")}, news=())
    await until(lambda: caplog.text.count("drops the notice") == 2)
    assert "s3cret" not in caplog.text
    await hangs.end()
    await away.end()


@on_loop
async def test_number_of_waiting_notices_is_bounded(caplog):
    sent = Notices(Notify(command=("true",), events=("GpuBroken",)), lambda: NOW)
    sent.take(make_scene(cast("a")), {}, news=[(JOB, News("GpuBroken", "X"))] * (MOST_WAITING + 1))
    assert "too many notices" in caplog.text
    await sent.end()


def test_address_is_checked_and_shown_without_its_secret():
    with pytest.raises(SettingsError, match="http:// or https://"):
        load_tree(Settings(), {"notify": {"url": "ftp://x"}})
    loaded = load_tree(Settings(), {"notify": {"url": "https://chat.example/hooks/s3cret"}})
    shown = {each.path: each.value for each in loaded.described()}
    assert shown["notify.url"] == "https://chat.example/***"
