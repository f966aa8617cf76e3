"""Looks at files that never answer take nothing from other requests, and hold up no end."""

import asyncio
import os
import threading
from functools import partial

import pytest

from dljob.local.api.jobs import intake
from dljob.local.files import bounded_checks
from dljob.local.files.bounded_checks import BoundedChecks, NoAnswerError
from dljob.local.files.file_threads import AllBusyError, FileThreads
from dljob.local.pods import trainers
from tests.local.asking import Asker
from tests.local.stages import job_document, staged

LONGEST_S = 240.0
"""No law of ours: after this time something hangs."""


class Hanging:
    def __init__(self) -> None:
        self.begun = threading.Event()
        self.may_go_on = threading.Event()
        self.calls = 0

    def __call__(self, *_):
        self.calls += 1
        self.begun.set()
        assert self.may_go_on.wait(LONGEST_S)
        return ()


@pytest.fixture
def hanging():
    look = Hanging()
    yield look
    look.may_go_on.set()


def test_a_look_is_refused_while_all_threads_hang_and_made_when_one_is_back(hanging):
    async def story():
        threads = FileThreads(1, patience_s=0.01)
        first = asyncio.create_task(threads.run(hanging))
        await asyncio.to_thread(hanging.begun.wait, LONGEST_S)
        with pytest.raises(AllBusyError):
            await threads.run(lambda: "more")
        # A caller that leaves does not free the thread.
        first.cancel()
        await asyncio.wait({first})
        with pytest.raises(AllBusyError):
            await threads.run(lambda: "more")
        hanging.may_go_on.set()
        async with asyncio.timeout(LONGEST_S):
            while True:
                try:
                    return await threads.run(lambda: "more")
                except AllBusyError:
                    continue

    assert asyncio.run(story()) == "more"


def test_a_look_that_hangs_holds_up_no_end(hanging):
    async def story():
        look = asyncio.create_task(FileThreads().run(hanging))
        await asyncio.to_thread(hanging.begun.wait, LONGEST_S)
        look.cancel()

    asyncio.run(story())
    assert not hanging.may_go_on.is_set()


def test_submissions_are_refused_while_files_hang_and_all_else_goes_on(root, monkeypatch, hanging):
    few = partial(FileThreads, 1, patience_s=0.05)
    monkeypatch.setattr(intake, "FileThreads", few)
    monkeypatch.setattr(trainers, "folder_problems", hanging)
    with staged(root, n1=4) as up:
        assert up.stage is not None
        ask, answers = Asker(up.stage.folders.socket), []
        first = threading.Thread(
            target=lambda: answers.append(ask("POST", "/v1/jobs", job_document("first")))
        )
        first.start()
        assert hanging.begun.wait(LONGEST_S)
        refused = ask("POST", "/v1/jobs", job_document("second"))
        assert refused.status == 503
        assert "look for a file system that hangs" in refused.json["error"]
        assert ask.get("/v1/jobs")["items"] == []
        hanging.may_go_on.set()
        first.join(LONGEST_S)
        assert [answer.status for answer in answers] == [201]


def test_a_look_that_hangs_is_made_once_and_holds_up_no_other_up_to_a_number(monkeypatch, hanging):
    monkeypatch.setattr(bounded_checks, "WAIT_S", 0.01)
    monkeypatch.setattr(bounded_checks, "WAIT_BESIDE_S", LONGEST_S)
    looks = BoundedChecks()
    for _ in range(3):
        with pytest.raises(NoAnswerError, match=r"^/away: its file system does not answer$"):
            looks.ask("/away", hanging)
    assert looks.ask("/here", lambda path: path == "/here")
    monkeypatch.setattr(bounded_checks, "MOST", 1)
    with pytest.raises(NoAnswerError, match="1 looks at files hang already"):
        looks.ask("/b", hanging)
    assert hanging.calls == 1
    hanging.may_go_on.set()
    looks._asked["/away", hanging].is_done.wait(LONGEST_S)
    looks.ask("/away", hanging)
    assert hanging.calls == 1


def test_jobs_are_shown_while_the_files_of_their_interpreter_hang(
    root, tmp_path, monkeypatch, hanging
):
    python = tmp_path / "venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.touch(0o755)
    (tmp_path / "venv" / "pyvenv.cfg").touch()
    exists = os.path.exists

    def look(path):
        return hanging() if str(path).endswith("pyvenv.cfg") else exists(path)

    def variables(up):
        (item,) = Asker(up.stage.folders.socket).get("/v1/jobs")["items"]
        return item["status"]["environment"]

    with staged(root, n1=4) as up:
        ask = Asker(up.stage.folders.socket)
        document = job_document("a", environment={"python": str(python)})
        assert ask("POST", "/v1/jobs", document).status == 201
        monkeypatch.setattr(bounded_checks, "WAIT_S", LONGEST_S)
        assert variables(up)["VIRTUAL_ENV"] == str(tmp_path / "venv")
        up.do(lambda stage: stage.give("a", {"n1": [0]}))
        monkeypatch.setattr(bounded_checks, "WAIT_S", 0.01)
        monkeypatch.setattr(os.path, "exists", look)
        assert "VIRTUAL_ENV" not in variables(up)
        assert variables(up)["PATH"].startswith(f"{python.parent}:")
        refused = ask("GET", "/v1/jobs/a/surroundings")
        assert refused.status == 503
        assert "look for a file system that hangs" in refused.json["error"]
        assert hanging.calls == 1
