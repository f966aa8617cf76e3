"""Properties of a store in a file: the file, its versions and its faults."""

import os
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from dljob.core.model import JobId, NodeName, Phase, Placement
from dljob.core.profiles import AccuracyPoint, JobType
from dljob.core.recording.record import Decided
from dljob.store.rows import read_history
from dljob.store.sqlite import file as sqlite_file
from dljob.store.sqlite.file import APPLICATION_ID, STEPS
from dljob.store.sqlite.store import SqliteStore
from dljob.store.store import StoreError, StoreUnavailableError, StoreUnusableError, fold_into
from dljob.store.tables import GpuRow, JobRow
from tests.control.store.places import KIND, OTHER, SHAPE, locked, make_entry, speed_seen
from tests.control.store.writers import ROOT

VERSION_1 = ROOT / "tests" / "data" / "stores" / "version-1.sql"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


@contextmanager
def opened(path: Path, *, busy_seconds: float = 5.0) -> Iterator[SqliteStore]:
    with closing(SqliteStore(path, busy_seconds=busy_seconds)) as store:
        yield store


def query(path: Path, statement: str) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(path)) as db, db:
        return db.execute(statement).fetchall()


# --- the file


def test_only_the_owner_may_read_under_any_umask(tmp_path: Path):
    path = tmp_path / "a" / "b" / "store.db"
    before = os.umask(0)
    try:
        with opened(path) as store:
            fold_into(store, KIND, observations=[speed_seen()])
            modes = {each.name: stat.S_IMODE(each.stat().st_mode) for each in path.parent.iterdir()}
    finally:
        os.umask(before)
    assert modes == {"store.db": 0o600, "store.db-shm": 0o600, "store.db-wal": 0o600}
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    # One file remains; later changes of its mode stay.
    assert [each.name for each in path.parent.iterdir()] == ["store.db"]
    path.chmod(0o640)
    with opened(path) as store:
        fold_into(store, OTHER, observations=[speed_seen()])
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_path_may_contain_any_character(tmp_path: Path):
    path = tmp_path / "a %20?b=c#d" / "käse.db"
    with opened(path) as store:
        fold_into(store, KIND, observations=[speed_seen()])
    assert path.exists()
    with opened(path) as store:
        assert store.profiles().keys() == {KIND}


def test_readers_do_not_wait_for_a_writer(path: Path):
    with opened(path, busy_seconds=0.05) as store:
        fold_into(store, KIND, observations=[speed_seen()])
        with locked(path):
            assert store.profiles().keys() == {KIND}
            assert store.history() == ()


def test_file_put_in_its_place_is_used(path: Path):
    copy = path.with_name("copy.db")
    with opened(copy) as store:
        fold_into(store, OTHER, observations=[speed_seen()])
    with opened(path) as store:
        fold_into(store, KIND, observations=[speed_seen()])
        for each in path.parent.glob("store.db*"):
            each.unlink()
        copy.rename(path)
        assert store.profiles().keys() == {OTHER}
        fold_into(store, KIND, observations=[speed_seen()])
    with opened(path) as store:
        assert store.profiles().keys() == {KIND, OTHER}


# --- versions


def test_first_version_is_migrated(path: Path):
    with closing(sqlite3.connect(path)) as db:
        db.executescript(VERSION_1.read_text(encoding="utf-8"))
    with opened(path) as store:
        [(kind, stored)] = store.profiles().items()
        assert kind == KIND
        assert stored.profile is not None
        assert stored.profile.speeds[SHAPE].iterations_per_s == 8.0
        assert stored.profile.accuracy == (AccuracyPoint(10.0, 0.25),)
        assert [ticket.number for ticket in stored.tickets] == [7]
        [entry] = store.history()
        placement = Placement.of({NodeName("n1"): [0, 1]}, "V100")
        [(_, line)] = read_history([entry])
        assert isinstance(line, Decided)
        assert (entry.id, line.new) == ("one", placement)
        assert [row.job for row in store.gpus()] == ["a", None]
        [job] = store.jobs()
        assert (job.phase, job.placement, job.options) == (Phase.RUNNING, placement, (1, 2, 4))
        # The store remembers that this profile was forgotten.
        assert fold_into(store, JobType("bert"), observations=[speed_seen()]).revision == 3
    assert query(path, "PRAGMA user_version") == [(len(STEPS),)]
    assert query(path, "SELECT count(*) FROM speed_profile") == [(3,)]


def test_failed_migration_changes_nothing(path: Path, monkeypatch: pytest.MonkeyPatch):
    with closing(sqlite3.connect(path)) as db:
        db.executescript(VERSION_1.read_text(encoding="utf-8"))
    broken = (*STEPS, ("CREATE TABLE half_way (a)", "CREATE TABLE half_way (a)"))
    with monkeypatch.context() as patch:
        patch.setattr(sqlite_file, "STEPS", broken)
        with pytest.raises(StoreError, match="half_way already exists"), opened(path):
            pass
    assert query(path, "PRAGMA user_version") == [(1,)]
    with opened(path) as store:
        assert store.profiles().keys() == {KIND}


def test_newer_version_is_refused_by_name(path: Path):
    with opened(path):
        pass
    query(path, "PRAGMA user_version = 7")
    wanted = (
        rf"store\.db: has schema version 7, and this dljob knows none above {len(STEPS)};"
        " upgrade dljob, or name another file"
    )
    with pytest.raises(StoreUnusableError, match=wanted), opened(path):
        pass
    assert query(path, "PRAGMA user_version") == [(7,)]


def test_database_of_another_program_is_left_alone(path: Path):
    query(path, "CREATE TABLE bookmarks (url TEXT)")
    before = path.read_bytes()
    with (
        pytest.raises(StoreUnusableError, match="is the database of another program"),
        opened(path),
    ):
        pass
    assert path.read_bytes() == before
    path.unlink()
    with opened(path):
        pass
    assert query(path, "PRAGMA application_id") == [(APPLICATION_ID,)], "ours is marked"


# --- faults


def test_locked_file_is_unavailable_for_a_while(path: Path):
    with opened(path, busy_seconds=0.1) as store:
        with (
            locked(path),
            pytest.raises(
                StoreUnavailableError, match=r"is locked by another process .* \(fuser .*\)"
            ),
        ):
            fold_into(store, KIND, observations=[speed_seen()])
        fold_into(store, KIND, observations=[speed_seen()])
        assert store.revisions() == {KIND: 1}


def test_file_locked_at_the_opening_is_only_unavailable(path: Path):
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("BEGIN EXCLUSIVE")
        with opened(path, busy_seconds=0.1) as store:
            with pytest.raises(StoreUnavailableError, match="is locked"):
                store.revisions()
            db.execute("ROLLBACK")
            assert store.revisions() == {}


@pytest.mark.parametrize(
    "content", [b"no database at all" * 100, b"SQLite format 3\0" + b"\7" * 5000]
)
def test_damaged_file_is_refused_with_a_remedy(path: Path, content: bytes):
    path.write_bytes(content)
    with (
        pytest.raises(StoreUnusableError, match=r"store\.db: is damaged.*; restore a copy"),
        opened(path),
    ):
        pass
    assert path.read_bytes() == content


def test_damage_inside_is_found_at_the_opening(path: Path):
    with opened(path) as store:
        store.record([make_entry("job", float(at)) for at in range(200)])
    content = path.read_bytes()
    path.write_bytes(content[:4096] + b"\x99" * (len(content) - 4096))
    with pytest.raises(StoreUnusableError, match="is damaged"), opened(path):
        pass


def test_damaged_profile_hides_no_other(path: Path, caplog):
    with opened(path) as store:
        for kind in (KIND, OTHER):
            fold_into(store, kind, observations=[speed_seen()])
    query(
        path, "UPDATE profiles SET document = '{\"kind\": 3}', tickets = '{' WHERE model = 'bert'"
    )
    with opened(path) as store:
        assert store.profiles().keys() == {KIND}
        assert "the profile of bert/32 is damaged and will be learnt again" in caplog.text
        assert fold_into(store, OTHER, observations=[speed_seen(9.0)]).revision == 2
        assert store.profiles().keys() == {KIND, OTHER}


def test_damaged_row_hides_no_other(path: Path, caplog):
    with opened(path) as store:
        store.replace_jobs([JobRow(job=JobId(each)) for each in "ab"])
        query(path, "UPDATE jobs SET phase = 'Dreaming', type = '{' WHERE job = 'a'")
        assert [row.job for row in store.jobs()] == ["b"]
        assert "a JobRow cannot be read" in caplog.text
        store.replace_jobs([JobRow(job=JobId(each)) for each in "ab"])
        assert [row.job for row in store.jobs()] == ["a", "b"]


@pytest.mark.parametrize(
    ("name", "told"),
    [
        (".", r"is a folder; name a file in it, such as .*/dljob\.db"),
        ("file/store.db", "cannot be opened"),
        ("pipe", "is no file; name a file"),
        ("dangling", "cannot be opened"),
    ],
)
def test_path_that_is_no_file_is_refused(tmp_path: Path, name: str, told: str):
    (tmp_path / "file").touch()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere" / "store.db")
    with pytest.raises(StoreUnusableError, match=told), opened(tmp_path / name):
        pass


NOBODY = 65534

OPEN = f"""
import os, sys
from pathlib import Path
from dljob.store.store import StoreError
from dljob.store.sqlite.store import SqliteStore
from tests.control.store.writers import write_piece
if os.geteuid() == 0:
    # Root may write anywhere.
    os.setgroups([])
    os.setgid({NOBODY})
    os.setuid({NOBODY})
for path in sys.argv[1:]:
    try:
        store = SqliteStore(Path(path), busy_seconds=0.1)
        write_piece(store, "writer", 1)
        sys.exit("it could be written")
    except StoreError as error:
        print(type(error).__name__, error)
"""


def errors_of_another_user(*paths: Path) -> list[str]:
    ran = subprocess.run(
        [sys.executable, "-c", OPEN, *paths],
        cwd="/",
        env={"PYTHONPATH": f"{ROOT}:{ROOT / 'operator'}:{ROOT / 'sidecar'}"},
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.splitlines()


@pytest.mark.processes
@pytest.mark.story
def test_user_without_write_access_gets_the_reason(passable: Path):
    paths = []
    for file, folder in ((0o444, 0o777), (0o666, 0o555), (0o000, 0o777)):
        paths.append(passable / f"{file:o} in {folder:o}" / "store.db")
        with opened(paths[-1]):
            pass
        paths[-1].chmod(file)
        paths[-1].parent.chmod(folder)
    answers = errors_of_another_user(*paths)
    for path, answer in zip(paths, answers, strict=True):
        path.parent.chmod(0o700)
        assert answer.startswith(f"StoreUnusableError {path}: cannot be used (")
        assert answer.endswith("let the user that runs dljob write it and its folder")


# --- a full disk


def test_full_disk_is_reported_and_survived(path: Path):
    with opened(path) as store:
        store.record([make_entry("job", 0.0)])
        with store._writer.transaction(writes=False) as db:
            [(pages,)] = db.execute("PRAGMA page_count")
            db.execute(f"PRAGMA max_page_count = {pages + 2}")
        with pytest.raises(
            StoreUnavailableError, match=r"because its disk is full; make room there"
        ):
            store.record([make_entry("job", float(at), sentence="x" * 900) for at in range(1, 100)])
        assert len(store.history()) == 1
        with store._writer.transaction(writes=False) as db:
            db.execute("PRAGMA max_page_count = 1000000")
        store.record([make_entry("job", float(at)) for at in range(1, 50)])
        assert len(store.history()) == 50


# --- queries


def test_tables_of_the_paper_can_be_queried(path: Path):
    with opened(path) as store:
        fold_into(
            store,
            KIND,
            observations=[speed_seen(4.0), speed_seen(8.0, shape=SHAPE._replace(gpus=8))],
        )
        store.replace_gpus([GpuRow(node=NodeName("n1"), gpu=0, job=JobId("a"), worker=0)])
        placement = Placement.of({NodeName("n1"): [0, 1], NodeName("n2"): [3]})
        job = JobRow(job=JobId("a"), gpus=3, placement=placement, type=KIND, options=(1, 2, 4))
        store.replace_jobs([job, JobRow(job=JobId("b"))])
    assert query(path, "SELECT * FROM speed_profile ORDER BY gpus") == [
        ("resnet50", "imagenet", 256, "V100", 4, 1, 0.25, 1.0),
        ("resnet50", "imagenet", 256, "V100", 8, 1, 0.125, 1.0),
    ]
    assert query(path, "SELECT * FROM gpu_table") == [("n1/0", "free", "a", 0)]
    assert query(path, "SELECT * FROM job_table ORDER BY job_id") == [
        ("a", "Submitted", 3, "n1[0,1] n2[3]", "resnet50", "imagenet", 256, "1, 2, 4"),
        ("b", "Submitted", 0, None, "", "", 0, ""),
    ]


def test_unchanged_table_is_not_written(path: Path):
    rows = [GpuRow(node=NodeName("n1"), gpu=number) for number in range(8)]
    with opened(path) as store, closing(sqlite3.connect(path)) as other:
        store.replace_gpus(rows)
        before = other.execute("PRAGMA data_version").fetchone()
        store.replace_gpus(list(rows))
        assert other.execute("PRAGMA data_version").fetchone() == before
        store.replace_gpus(rows[:-1])
        assert other.execute("PRAGMA data_version").fetchone() != before


def test_table_is_written_again_into_a_replaced_file(path: Path):
    rows = [GpuRow(node=NodeName("n1"), gpu=number) for number in range(4)]
    with opened(path) as store:
        store.replace_gpus(rows)
        for each in list(path.parent.iterdir()):
            each.unlink()
        store.replace_gpus(rows)
        assert len(store.gpus()) == 4
        for each in list(path.parent.iterdir()):
            each.unlink()
        store.replace_gpus(rows[:3])
        assert len(store.gpus()) == 3
