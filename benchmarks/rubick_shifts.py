"""
How much of the reproduction of Rubick hangs on when exactly its jobs were submitted.

With 260 s for each change, a job that comes half a minute later may find its GPUs given away for minutes, and all
that follows is another story. Here each submission of the trace is shifted by up to ``--shift`` seconds, in either direction,
in ``--draws`` traces that are the same for every policy. A row a policy: the mean of its average completion times,
their standard deviation, the least and the greatest, and the same of the wide jobs. Two policies, or two
versions of one, differ where their means do, not where they do on one trace.
"""

import csv
import gzip
import random
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import click
from _measuring import describe_machine, print_result
from _progress import count, run

from dljob.sim.inputs.shipped import find_folder
from dljob_lab.reproducing import rubick
from dljob_lab.reproducing.contests import Entry

TRACE = Path("rubick") / "rubick_base.csv.gz"
AT = "submit_time_s"


def shift(rows: Sequence[dict[str, str]], path: Path, *, seed: int, most: float) -> None:
    """Write the trace with each submission shifted by up to ``most`` seconds."""
    chance = random.Random(f"rubick/{seed}")
    shifted = [
        {**row, AT: str(max(0.0, float(row[AT]) + chance.uniform(-most, most)))} for row in rows
    ]
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(sorted(shifted, key=lambda row: float(row[AT])))


def tell(name: str, times: Sequence[float]) -> dict[str, int]:
    """Sum up the completion times of all draws."""
    spread = stdev(times) if len(times) > 1 else 0.0
    figures = {"mean": fmean(times), "sd": spread, "least": min(times), "greatest": max(times)}
    return {f"{name} {which}, s": round(value) for which, value in figures.items()}


@click.command(help=__doc__)
@click.option("--policy", "names", multiple=True, default=("foresight", "afs-l"), show_default=True)
@click.option("--draws", type=click.IntRange(1), default=5, show_default=True)
@click.option("--shift", "most", type=click.FloatRange(0.0), default=120.0, show_default=True)
@click.option("-o", "form", type=click.Choice(["table", "json"]), default="table")
def main(*, names: tuple[str, ...], draws: int, most: float, form: str) -> None:
    with gzip.open(find_folder() / TRACE, "rt", encoding="utf-8") as file:
        trace = list(csv.DictReader(file))
    entries = {entry.name: entry for entry in rubick.ENTRIES}
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="dljob-rubick-") as folder:
        paths = [Path(folder) / f"rubick-{seed}.csv" for seed in range(draws)]
        for seed, path in enumerate(paths):
            shift(trace, path, seed=seed, most=most)
        for name in count(names):
            entry = entries.get(name) or Entry(name, rubick.AS_ASKED)
            played = [rubick.measure(entry, path) for path in paths]
            row = tell("all", [score.avg_jct_s for score, _ in played])
            row |= tell("wide", [wide for _, wide in played])
            rows.append({"policy": name, "draws": draws, "shift_s": most, **row})
    print_result([*rows, describe_machine()], form)


if __name__ == "__main__":
    run(main)
