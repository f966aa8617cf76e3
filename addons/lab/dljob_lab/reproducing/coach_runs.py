"""
Coach's choices, run times and epoch times in the files that its author published, and our choices from the same epochs.

``dljob reproduce gang --traces JobHandler`` reads them (github.com/Frans-Lukas/DLScheduler, commit 166719b); the author
gives them without a licence, so they are not shipped. A file is JSON but for the bars in its lists, which divide the
tuning runs and mini-epochs from the epochs of the training.
"""

import json
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any, NamedTuple

from dljob.sim.errors import BadInput
from dljob.sim.simulating import Watch
from dljob_lab import marginal_utility
from dljob_lab.marginal_utility import Sample
from dljob_lab.reproducing.findings import Row, Wanted
from dljob_lab.roles import Split

SPLITS = [Split(*each) for each in product(range(1, 11), repeat=2)]
"""The author's program knows no limit, and no job of these runs chose more than two of either."""
SPLITS_OF_ONE_SERVER = [each for each in SPLITS if each.servers == 1]
REPEATED = tuple(str(number) for number in range(1, 6))
"""The runs of configuration 11 that Table 3 counts."""
TABLE_3 = {"default": 1273.95, "gang": 1130.03}
P_VALUE = 0.4
STRAGGLES = 1.5
"""An epoch that takes longer than the median of its job by this factor counts as a straggler; the thesis has no number."""


class Run(NamedTuple):
    """A job that chose its workers and servers."""

    file: str
    seconds: float
    tuning: tuple[Sample, ...]
    training: tuple[Sample, ...]

    @property
    def scheduler(self) -> str:
        """Return which of Kubernetes' and the gang scheduler placed its pods."""
        return "gang" if "gang" in self.file else "default"

    @property
    def is_repeated(self) -> bool:
        """Return whether Table 3 counts it."""
        return "repeated" in self.file and self.file.rpartition("_")[2] in REPEATED


def read_runs(folder: Path) -> list[Run]:
    """Read the jobs in these files that chose by themselves, each once."""
    runs: dict[str, Run] = {}
    for path in sorted(folder.rglob("*.txt")):
        if "static" in path.name or "baseLine" in path.name:
            continue
        for told in _read(path):
            # Runs of earlier versions of the program have no total time.
            if None in told.get("time", ()) and "totalTime" in told:
                runs.setdefault(told["id"], _make_run(path.stem, told))
    if not runs:
        remedy = "name the folder JobHandler of its author's repository"
        raise BadInput(folder, "no run of Coach is in it", remedy=remedy)
    return list(runs.values())


def _read(path: Path) -> Sequence[dict[str, Any]]:
    try:
        told: Any = json.loads(path.read_text(encoding="utf-8").replace(" | ", ", null, "))
    except ValueError:
        return ()  # Other programs' files, and runs that were stopped.
    return told if isinstance(told, list) else ()


def _make_run(file: str, told: dict[str, Any]) -> Run:
    columns = told["workers"], told["servers"], told["time"]
    events = [
        None if w is None else Sample(w, s, 1.0 / t) for w, s, t in zip(*columns, strict=True)
    ]
    bar = events.index(None)
    tuning, training = events[:bar], events[bar + 1 :]
    return Run(file, told["totalTime"], tuple(filter(None, tuning)), tuple(filter(None, training)))


def compare(folder: Path, watch: Watch | None) -> Iterator[Row]:
    """Compare the author's figures with ours."""
    runs = read_runs(folder)
    yield from _compare_choices(runs, watch)
    yield from _compare_times([run for run in runs if run.is_repeated])


def _compare_choices(runs: Sequence[Run], watch: Watch | None) -> Iterator[Row]:
    """In how many epochs our fit of Coach's function to its epochs so far leads to its choice."""
    same: list[list[bool]] = []
    blind: list[bool] = []
    tuned: list[bool] = []
    for done, run in enumerate(runs, start=1):
        history, found = list(run.tuning), []
        for epoch in run.training:
            had = Split(epoch.workers, epoch.servers)
            found.append(_choose(history) == had)
            workers_alone = [each._replace(servers=1) for each in history]
            blind.append(_choose(workers_alone, SPLITS_OF_ONE_SERVER) == had)
            # Each of its workers answers, and each answer counts.
            history += [epoch] * epoch.workers
        same.append(found)
        tuned.append(_choose(_list_mini_epochs(run.tuning)) == run.training[0][:2])
        if watch is not None:
            watch("gang", done, len(runs))
    shares = {
        "first-epoch": [each[0] for each in same],
        "every-epoch": [is_same for each in same for is_same in each],
        "every-epoch-without-servers": blind,
        "first-epoch-without-tuning-runs": tuned,
    }
    for name, each in shares.items():
        # The others show what makes the difference, and are no claim.
        wanted = None if "without" in name else Wanted.SAME
        ours = 100.0 * fmean(each)
        yield Row(f"coach/{name}", "choices the same", "%", 100.0, ours, wanted=wanted)


def _choose(history: Sequence[Sample], splits: Sequence[Split] = SPLITS) -> Split:
    return marginal_utility.choose(marginal_utility.fit(history), splits)


def _list_mini_epochs(tuning: Sequence[Sample]) -> list[Sample]:
    """The last event of each choice; those before tune how much data a mini-epoch has."""
    return list({each[:2]: each for each in tuning}.values())


def _compare_times(runs: Sequence[Run]) -> Iterator[Row]:
    from scipy.stats import ttest_ind  # noqa: PLC0415 - it takes as long to import as all the rest

    by = {name: [run for run in runs if run.scheduler == name] for name in TABLE_3}
    seconds = {name: [run.seconds for run in each] for name, each in by.items()}
    # These are computed from the thesis's own run times.
    own: dict[str, Any] = {"wanted": Wanted.SAME, "in_sample": True}
    for name, paper in TABLE_3.items():
        times = seconds[name]
        yield Row(f"table-3/{name}", "job mean", "s", paper, fmean(times), stdev(times), **own)
    p_value = float(ttest_ind(*seconds.values()).pvalue)
    yield Row("table-3/t-test", "p", "", P_VALUE, p_value, **own)
    for name, each in by.items():
        slower = [
            median(e.per_s for e in run.training) / e.per_s for run in each for e in run.training
        ]
        straggling = 100.0 * fmean(ratio > STRAGGLES for ratio in slower)
        yield Row(f"epochs/{name}", "straggling epochs", "%", 0.0, straggling)
        yield Row(f"epochs/{name}", "slowest by median", "", 0.0, max(slower))
