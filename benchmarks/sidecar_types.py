"""
The fourteen job types of the SideCar paper as the reproduction plays them: which measurements speak for each, and how
long a job of it trains on each number of GPUs of each type. ``docs/reproduction/sidecar.md`` shows them.
"""

from collections.abc import Iterator
from typing import Any

import click
from _measuring import print_result
from _progress import run

from dljob_lab.reproducing.sidecar.job_types import COUNTS, Kind, find_sources, make_profile
from dljob_lab.reproducing.sidecar.workloads import PLANS
from dljob_wire.messages import Shape


def list_kinds() -> Iterator[tuple[Kind, tuple[str, str]]]:
    """Each type once, with the GPUs of the workload that has it first."""
    seen: dict[tuple[Kind, tuple[str, str]], None] = {}
    for plan in PLANS:
        for kind in plan.kinds:
            seen.setdefault((kind, plan.gpu_types), None)
    yield from seen


def measure(kind: Kind, gpu_types: tuple[str, str]) -> dict[str, Any]:
    """Return the row of a type."""
    speeds = make_profile(kind, gpu_types).speeds
    row: dict[str, Any] = {
        "type": f"{kind.model} {kind.batch_size}",
        "gpus": " and ".join(gpu_types),
    }
    row |= find_sources(kind)._asdict()
    for place, gpu_type in enumerate(gpu_types, start=1):
        times = (kind.iterations / speeds[Shape(n, 1, gpu_type)].iterations_per_s for n in COUNTS)
        row[f"seconds_{place}"] = " / ".join(f"{time:,.0f}" for time in times)
    return row


@click.command(help=__doc__)
@click.option("-o", "form", type=click.Choice(["table", "json"]), default="table")
def main(*, form: str) -> None:
    print_result([measure(kind, gpu_types) for kind, gpu_types in list_kinds()], form)


if __name__ == "__main__":
    run(main)
