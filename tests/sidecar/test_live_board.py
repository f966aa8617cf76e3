"""The board of live changes, the places of processes that join, and the proof that others left."""

from __future__ import annotations

import fcntl
import os
import struct
from types import SimpleNamespace
from typing import Any, cast

import pytest

from dljob_sidecar.linux.spawning import Ended
from dljob_sidecar.processes.departing import Departure
from dljob_sidecar.processes.live_board import NOT_AGREED, SLOTS, Boards, Entry, Header
from dljob_sidecar.processes.live_changes import LiveChanges
from dljob_sidecar.processes.ranks import Rank, RankProcess, lay_out_joining
from dljob_sidecar.processes.releasing import Base, Release, measure
from dljob_sidecar.serving.admitting import Admitted
from dljob_wire.messages import Gpu, GpuProcess
from dljob_wire.training import Split, Training
from tests.sidecar.clients import live_through
from tests.sidecar.targets import live_run, run


@pytest.fixture
def board(tmp_path):
    made = Boards("incarnation.job", places=(str(tmp_path),)).make()
    assert made is not None
    yield made
    made.close()
    assert not made.folder.exists()


def test_board_is_made_whole_and_only_for_its_owner(board):
    file = board.folder / "board"
    assert file.stat().st_size == 64 + 64 * 256
    assert (board.folder.stat().st_mode & 0o777, file.stat().st_mode & 0o777) == (0o700, 0o600)
    assert board.read() == Header(0, NOT_AGREED, 0, 0)
    magic, slots = struct.unpack_from("=4sI", file.read_bytes())
    assert (magic, slots) == (b"DLJ1", 256)


def test_slots_are_those_of_the_training(board):
    with (board.folder / "board").open("r+b") as file:
        file.seek(64 + 64 * 3)
        file.write(struct.pack("=8q", 11, 1, 7, 40, 7, 39, 5000, 0))
    assert board.entry(3) == Entry(11, 1, 7, 40, 7, 39, 5000, 0)
    assert board.entry(3).is_capable
    board.clear(3)
    assert board.entry(3) == Entry()


def test_sidecar_does_not_wait_for_the_lock(board):
    with (board.folder / "board").open("r+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(BlockingIOError), board.locked():
            pass


def test_board_that_the_training_cut_short_agrees_on_nothing(board):
    os.truncate(board.folder / "board", 10)
    assert board.read() == Header(0, NOT_AGREED, 0, 0)
    assert board.entry(3) == Entry()


def test_boards_of_killed_sidecars_are_removed(tmp_path):
    places = (str(tmp_path / "none"), str(tmp_path))
    if (killed := os.fork()) == 0:
        for mark in ("first.job", "first.other"):
            Boards(mark, places=places).make()
        os._exit(0)
    os.waitpid(killed, 0)
    [left] = tmp_path.glob(f"{Boards('second.job', places=places)._prefix}*")
    [other] = {*tmp_path.iterdir()} - {left}
    # Another container of the job sees the same place.
    lives = Boards("second.job", places=places).make()
    made = Boards("third.job", places=places).make()
    assert lives is not None
    assert made is not None
    assert not left.exists()
    assert other.exists()
    assert lives.folder.exists()
    assert Boards("third.job", places=places[:1]).make() is None


def test_reason_is_short_and_never_waits(board):
    assert board.read_reason(1) == ""
    (board.folder / "failed-1").write_text("RuntimeError: " + "x" * 5000)
    assert board.read_reason(1).startswith("RuntimeError: xxx")
    assert len(board.read_reason(1)) == 1000
    os.mkfifo(board.folder / "failed-2")
    assert board.read_reason(2) == ""


def test_process_does_not_inherit_the_reason_of_the_one_before_it(board):
    (board.folder / "failed-1").write_text("RuntimeError: of an ended process")
    board.clear(1)
    assert board.read_reason(1) == ""


def test_processes_that_join_together_never_share_a_slot(tmp_path):
    async def story():
        first = run(1, gpus=2, processes=2)
        past = [rank_process(rank, has_ended=True) for rank in range(SLOTS - 2)]
        starter: Any = SimpleNamespace(attempt=1, rank_processes=past, living=list, members=[])
        starter.start_more = starter.rank_processes.extend
        changes = LiveChanges(
            Training(processes=Split.PER_GPU),
            starter,
            boards=Boards("incarnation.job", places=(str(tmp_path),)),
            admission=cast(Any, SimpleNamespace(ask=lambda _, hear, **__: hear(Admitted()))),
            memory=cast(Any, SimpleNamespace(release=Release({}))),
            make_departure=Departure,
            tell=lambda _: None,
            on_changed=lambda _: None,
        )
        changes.begin_start(first, joins=False)
        members = [rank_process(rank, has_ended=False) for rank in (0, 1)]
        for one in (*past, *members):
            changes.enter(one)
        starter.rank_processes += members
        starter.members = members
        changes.change(first, live_run(first, 3, keep=(0, 1), joins=3))
        slots = {one.slot for one in (*members, *starter.rank_processes[-3:])}
        changes.end_start()
        assert len(slots) == 5

    live_through(story())


def test_joining_process_sees_its_gpu_at_a_free_place():
    """The ordinal of a GPU in a living process cannot change."""
    first = run(1, gpus=4, processes=4)
    target = live_run(first, 3, keep=(2, 3), joins=2)
    [one, two] = lay_out_joining(target, (2, 3), taken=(2, 3), framework="pytorch", names={})
    assert [(each.rank, each.local_rank) for each in (one, two)] == [(2, 0), (3, 1)]
    for each in (one, two):
        assert each.environment["LOCAL_RANK"] == str(each.local_rank)
        visible = each.environment["CUDA_VISIBLE_DEVICES"].split(",")
        assert visible[each.local_rank] == target.gpus[each.rank] == each.own_gpus[0]
        assert sorted(visible) == sorted(target.gpus)


# --- the proof that processes left --------------------------------------------------------

GPUS = [Gpu(0, "GPU-a", memory_used=0, memory_total=9 << 30), Gpu(1, "GPU-b", memory_total=9 << 30)]


def test_release_of_a_part_knows_only_its_gpus():
    whole = measure(GPUS[:1], ("0",)).with_more(measure(GPUS[1:], ("GPU-b",)))
    assert [*whole.bases] == ["GPU-a", "GPU-b"]
    assert [*whole.only(["0"]).bases] == ["GPU-a"]
    # A GPU that is gone proves nothing.
    assert whole.only(["0"]).find_unreleased(GPUS[1:]).keys() == {"GPU-a"}


class World:
    """A process tree, a reaper and GPUs that the test sets."""

    def __init__(self) -> None:
        self.collected = 0
        self.left: list[Any] = []
        self.reading: list[Gpu] | None = GPUS
        self.entries: list[bytes] = []

    def reap(self) -> None:
        pass

    def members_beside(self, roots, entries):
        self.roots, self.entries = roots, entries
        return self.left

    def ask(self, hear):
        hear(self.reading)


def rank_process(rank: int, *, has_ended: bool) -> RankProcess:
    process = RankProcess(Rank(rank, rank, ("0",), ("0",), {}))
    process.pid, process.slot = 4000 + rank, rank
    process.ended = Ended(0, None) if has_ended else None
    return process


def depart(world: Any, release: Release) -> Departure:
    return Departure(
        [rank_process(0, has_ended=True)],
        staying=[rank_process(1, has_ended=False)],
        release=release,
        patience_seconds=0.0,
        grace_seconds=1e6,
        reaper=world,
        process_tree=world,
        gpu_thread=world,
    )


def test_departure_needs_two_scans_without_an_end_between_them():
    async def story():
        world = World()
        departure = depart(world, Release({}))
        assert not departure.look()
        world.collected += 1
        assert not departure.look()
        assert departure.look()
        assert (world.roots, world.entries) == ([4001], [b"DLJOB_LIVE_SLOT=1"])

    live_through(story())


def test_memory_of_a_process_that_stays_blocks_the_departure():
    async def story():
        world = World()
        departure = depart(world, Release({"GPU-a": Base(0, {})}, names={"0": "GPU-a"}))
        mapped = GpuProcess(4001, 300 << 20)
        for reading in (
            None,
            [Gpu(0, "GPU-a", memory_used=300 << 20, memory_total=9 << 30, processes=(mapped,))],
        ):
            world.reading = reading
            for _ in range(6):
                assert not departure.look()
        assert "holds 300 MiB more than before the start" in departure.awaited
        world.reading = GPUS
        assert any(departure.look() for _ in range(6))

    live_through(story())
