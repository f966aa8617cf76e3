"""
The list of jobs on a faulty disk: after every damage, no decision is forgotten without a message.
"""

import random
import shutil
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from dljob.control.situation.clocks import Stamp
from dljob.control.situation.ports import Entry, Fenced
from dljob.control.situation.status import DecisionNumber, Status
from dljob.core.model import JobId, NodeName, Placement
from dljob.local.folders import StateError
from dljob.local.jobs import journal
from dljob.local.jobs.registry import Registry
from tests.local.stages import job_document

NAMES = [f"job-{number}" for number in range(6)]
FILES = ("jobs.db", "jobs.db-wal", "jobs.db.journal")


def decided(entry: Entry, gpu: int) -> Status:
    placement = Placement.of({NodeName("n0"): (gpu,)}, "")
    status = replace(entry.status, placement=placement, generation=DecisionNumber(gpu + 1))
    return status.with_pods((NodeName("n0"),), 1000.0)


def live(path: Path) -> Registry:
    """Have a list as a controller has it after some time, with two epochs and many transactions."""
    Registry.open(path).close()
    registry = Registry.open(path)
    for gpu, name in enumerate(NAMES):
        registry.submit(job_document(name), 1000.0)
        registry.record({JobId(name): decided(registry.entries[JobId(name)], gpu)})
    registry.cancel(JobId(NAMES[0]), keep_checkpoints=True)
    registry.submit(job_document("gone"), 1000.0)
    registry.forget(JobId("gone"))
    registry.cordon("n0", 7, "loud")
    return registry


class State:
    """The files of a list as they were when its controller ended, or was killed."""

    def __init__(self, root: Path, *, killed: bool) -> None:
        self.pristine, self.root = root / "pristine", root / "state"
        (root / "life").mkdir()
        registry = live(root / "life" / "jobs.db")
        self.expected, self.epoch = dict(registry.entries), registry.epoch
        if not killed:
            registry.close()
        shutil.copytree(root / "life", self.pristine)
        registry.close()

    def restore(self) -> None:
        shutil.rmtree(self.root, ignore_errors=True)
        shutil.copytree(self.pristine, self.root)

    def has(self, name: str) -> bool:
        return (self.pristine / name).exists()

    def opens(self) -> str:
        """Open it: it must be the whole list again, or refused."""
        try:
            registry = Registry.open(self.root / "jobs.db")
        except StateError as error:
            return str(error)
        with closing(registry):
            assert dict(registry.entries) == self.expected
            assert registry.keeps_checkpoints(JobId(NAMES[0]))
            assert registry.cordons() == {("n0", 7): "loud"}
            assert registry.epoch > self.epoch
            # It is a list that can be written, and is well at its next opening.
            registry.submit(job_document("later"), 2000.0)
        return "whole"


@pytest.fixture(params=[False, True], ids=["ended", "killed"])
def state(request, tmp_path):
    return State(tmp_path, killed=request.param)


def flip(data: bytes, chance: random.Random) -> bytes:
    changed = bytearray(data)
    changed[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    return bytes(changed)


DAMAGES: dict[str, Callable[[bytes], bytes | None]] = {
    "removed": lambda _: None,
    "emptied": lambda _: b"",
    "halved": lambda data: data[: len(data) // 2],
    "shortened": lambda data: data[:-1],
    "garbled": lambda data: bytes(len(data)),
    **{f"flip {n}": partial(flip, chance=random.Random(n)) for n in range(5)},
}


def damage(path: Path, how: str) -> None:
    data = DAMAGES[how](path.read_bytes())
    path.unlink()
    if data is not None:
        path.write_bytes(data)


def test_one_file_that_is_gone_shorter_or_changed_is_restored(state, caplog):
    for name in filter(state.has, FILES):
        for how in DAMAGES:
            state.restore()
            damage(state.root / name, how)
            assert state.opens() == "whole", (name, how)
    assert "jobs.db: is gone; it was restored from its journal" in caplog.text


def test_where_both_witnesses_are_damaged_no_controller_begins(state):
    for how in ("removed", "emptied", "garbled"):
        state.restore()
        damage(state.root / "jobs.db.journal", "halved")
        for name in filter(state.has, FILES[:2]):
            damage(state.root / name, how)
        refused = state.opens()
        assert "put copies of both back, or move both away" in refused, how
        assert "\n" not in refused


def test_a_transaction_at_which_a_controller_was_killed_is_there_wholly_or_not_at_all(tmp_path):
    path = tmp_path / "jobs.db"
    registry = live(path)
    whole = (tmp_path / "jobs.db.journal").read_bytes()
    before = dict(registry.entries)
    registry.submit(job_document("last"), 1000.0)
    longer = (tmp_path / "jobs.db.journal").read_bytes()
    registry.close()
    for length in (len(whole) + 1, len(longer) - 1):
        (tmp_path / "jobs.db.journal").write_bytes(longer[:length])
        with closing(Registry.open(path)) as again:
            assert set(again.entries) == {*before, JobId("last")}


def test_a_controller_whose_list_was_replaced_by_another_ends(tmp_path):
    path = tmp_path / "jobs.db"
    with closing(live(path)) as deposed:
        path.unlink()
        with closing(Registry.open(path)), pytest.raises(Fenced):
            deposed.submit(job_document("late"), 1000.0)


def test_a_journal_that_grows_long_is_written_afresh(tmp_path, monkeypatch):
    monkeypatch.setattr(journal, "SHORTEST_BYTES", 1000)
    path = tmp_path / "jobs.db"
    with closing(live(path)) as registry:
        job = JobId(NAMES[1])
        for iteration in range(50):
            registry.record({job: replace(registry.entries[job].status, iteration=iteration)})
        expected = dict(registry.entries)
        assert (tmp_path / "jobs.db.journal").stat().st_size < 50_000
    path.unlink()
    with closing(Registry.open(path)) as again:
        assert dict(again.entries) == expected


@pytest.mark.parametrize(("step", "told"), [(-3600.0, "back"), (3600.0, "forward")])
def test_recorded_times_follow_a_clock_that_was_set_between_two_controllers(
    tmp_path, step, told, monkeypatch, caplog
):
    path, now = tmp_path / "jobs.db", 1_000_000.0
    stamps = iter([Stamp("boot", 100.0), Stamp("boot", 150.0)])
    monkeypatch.setattr(Stamp, "now", classmethod(lambda cls: next(stamps)))
    with closing(Registry.open(path, clock=lambda: now)) as registry:
        registry.submit(job_document("job"), now)
    with closing(Registry.open(path, clock=lambda: now + 50.0 + step)) as registry:
        assert registry.entries[JobId("job")].status.submitted_at == now + step
    assert f"was set {told} by 3600 s" in caplog.text
