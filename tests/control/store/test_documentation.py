"""The commands in docs/store.md work as printed."""

import re
import sqlite3
from contextlib import closing
from pathlib import Path

import yaml

from dljob.core.documents import profilefile
from dljob.core.model import JobId, NodeName
from dljob.core.profiles import AccuracySeen, CostSeen, CostTerm, JobType, Observation
from dljob.store.sqlite.store import SqliteStore
from dljob.store.store import fold_into
from dljob.store.tables import GpuRow, JobRow
from tests.control.store.places import make_entry, speed_seen
from tests.control.store.writers import ROOT

PAGE = (ROOT / "docs" / "store.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def test_every_query_finds_rows(tmp_path: Path):
    path = tmp_path / "store.db"
    with closing(SqliteStore(path)) as store:
        seen: list[Observation] = [
            speed_seen(),
            AccuracySeen(1.0, 0.5),
            CostSeen(CostTerm.CHECKPOINT, 3.0),
        ]
        fold_into(store, JobType("resnet18"), observations=seen)
        store.record([make_entry("resnet18-imagenet", 1.0)])
        store.replace_gpus([GpuRow(node=NodeName("n1"), gpu=0)])
        store.replace_jobs([JobRow(job=JobId("resnet18-imagenet"))])
    [block] = blocks("sql")
    queries = [query for query in block.split(";") if query.strip()]
    assert len(queries) == 6
    with closing(sqlite3.connect(path)) as db:
        found = [db.execute(query).fetchall() for query in queries]
    assert all(found)


def test_example_profile_is_valid():
    [block] = blocks("yaml")
    profile = profilefile.parse(yaml.safe_load(block))
    assert str(profile.type) == "resnet18/imagenet/256"
    assert len(profile.speeds) == len(profile.accuracy) == len(profile.cost_samples) == 1
