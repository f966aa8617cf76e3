"""The common part of the benchmarks: the machine that they ran on, the form of latencies, the output."""

import json
import math
import os
import platform
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from dljob.sim.results.looks import FORMATS
from dljob_lab import plots


def describe_machine() -> dict[str, Any]:
    """Return a description of the machine, without which a number means nothing."""
    return {
        "cores": os.cpu_count(),
        "processor": _find_processor(),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
    }


def _find_processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or "unknown"


def summarize(samples: Sequence[float]) -> dict[str, float]:
    """Return latencies as p50, p99 and maximum, by the percentile rules of the product."""
    ordered = sorted(samples)
    count = len(ordered)
    return {
        "p50": round(ordered[count // 2], 3),
        "p99": round(ordered[math.ceil(0.99 * count) - 1], 3),
        "max": round(ordered[-1], 3),
    }


def fit_exponent(sizes: Sequence[float], times: Sequence[float]) -> float:
    """The exponent with which time grows with size: the slope in a log-log plot."""
    slope = statistics.linear_regression(
        [math.log(size) for size in sizes], [math.log(time) for time in times]
    ).slope
    return round(slope, 3)


def print_result(result: Mapping[str, Any] | Sequence[Mapping[str, Any]], form: str) -> None:
    """Print a result for people (``table``) or for programs (``json``)."""
    if form == "json":
        print(json.dumps(result, indent=2))
        return
    rows = [result] if isinstance(result, Mapping) else list(result)
    for row in rows:
        for name, value in row.items():
            print(f"{name:>24}  {_tell(value)}")
        print()


def print_markdown(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table that a page of the documentation can take; the first column holds words."""
    rule = ["---"] + ["---:"] * (len(titles) - 1)
    for cells in (titles, rule, *rows):
        print(f"| {' | '.join(cells)} |")
    print()


def _tell(value: Any) -> str:
    if isinstance(value, Mapping):
        return "  ".join(f"{key} {each}" for key, each in value.items())
    return str(value)


def draw_rows(
    path: Path,
    title: str,
    points: Mapping[str, Sequence[tuple[Any, float]]],
    *,
    across: str,
    up: str,
) -> None:
    """Draw one line for each name through its points, or bars where there is one point a name."""
    figure = Figure(figsize=(6.4, 4.0), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for place, (name, line) in enumerate(points.items()):
        if len(line) == 1:
            bars = axes.bar([str(line[0][0])], [line[0][1]], color="0.75", edgecolor="black")
            axes.bar_label(bars, fmt="{:.4g}", padding=2)
            continue
        dashes, marker = _LOOKS[place % len(_LOOKS)]
        axes.loglog(*zip(*line, strict=True), dashes, marker=marker, color="black", label=name)
    if axes.get_legend_handles_labels()[0]:
        axes.legend()
    axes.set(title=title, xlabel=across, ylabel=up)
    axes.spines[["top", "right"]].set_visible(False)
    save(figure, path)


def save(figure: Figure, path: Path) -> None:
    """Write a figure in the format that the end of the path names; the same one as the same bytes."""
    form = next((each for each in FORMATS if path.suffix == f".{each}"), None)
    if form is None:
        wanted = " or ".join(f".{each}" for each in FORMATS)
        raise click.UsageError(f"--plot wants a file that ends in {wanted}, not {path.name!r}")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(plots.render(figure, form))


_LOOKS = (("-", "o"), ("--", "s"), (":", "^"), ("-.", "D"))
"""Distinguishable in black and white."""
