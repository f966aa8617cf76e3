"""
The page that ``dljob compare --suite --write FILE`` writes: the figures, the traces and the version.

The page holds nothing that differs from one machine to another, so a user that plays the suite with
the same version writes the same bytes.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.metadata import version
from typing import Any

from dlctl.verbs.studies.comparing.comparisons import list_cells, list_titles
from dlsim.comparing.suite import PARTS, Suite
from dlsim.comparing.summing import Line, sum_up
from dlsim.comparing.tasks import digest_program
from dlsim.jobs.workloads import name_of
from dlsim.policies import NAMES

Rows = Sequence[Mapping[str, Any]]

COMMAND = "dljob compare --suite --all-policies --write docs/leaderboard.md"

INTRODUCTION = """\
How near each policy comes to the lower bound that no policy can go below, on traces of real
clusters. The simulations, the traces and the bound are shipped with DLJob, so that any author of a
scheduler can play the very same benchmark. `{command}` writes this page; do not edit it.
"""

RULES = """\
## How to read it

- `JCT / bound` is the average completion time over the lower bound on it, `worst` the largest such ratio
  of any scenario. At 1.05 no policy takes less than 1 / 1.05 of that time. The bound itself is out
  of reach: where the optimum is known, it is some 3 % above.
- The other columns are ratios to `{reference}` in the same scenario; below 1 is less. `unfair` is the share
  of jobs with a finish-time fairness above 1.05 ([figures](simulator-model.md#figures)).
- Every figure is the geometric mean over scenarios ± the standard deviation of the logarithms. A
  scenario is a trace, a load, a restart cost and a seed. Lines are in order of `JCT / bound`.
- Parameters of policies may be chosen on the traces for tuning alone. The traces for judging come
  from other clusters; a policy is judged by them.
- Policies know true speeds and lengths here. `dljob compare --speed-error` and `--size-error` tell
  how they do without ([wrong knowledge](simulator-inputs.md#windows-loads-and-wrong-knowledge)).

## Your own scheduler

A policy is one file with one method ([CONTRIBUTING.md](../CONTRIBUTING.md)). `dljob compare --suite
--policy NAME --policy {reference}` plays it here; with `--resume FILE` an interrupted run goes on, and
`--part tuning` plays the half that is for choosing parameters.
"""


def write_page(suite: Suite, rows: Rows, *, window: int | None) -> str:
    """Write the page of these results; ``window`` is the number of jobs, where it is not the suite's."""
    return "\n".join(_iter_blocks(suite, rows, window=window))


def _iter_blocks(suite: Suite, rows: Rows, *, window: int | None) -> Iterator[str]:
    yield "# Leaderboard\n"
    yield INTRODUCTION.format(command=COMMAND)
    yield from _warn(window)
    for part in PARTS:
        for placement in suite.placements:
            found = [r for r in rows if r["part"] == part and r["placement"] == placement]
            if found:
                yield f"## For {part}, {placement}\n"
                lines = sorted(sum_up(found, references=[suite.reference]), key=_rank)
                yield _make_table(list_titles(lines, ()), list_cells(lines), words=1)
    yield RULES.format(reference=suite.reference)
    yield "## What was played\n"
    yield _describe_scenarios(suite, rows)
    yield _list_traces(suite)
    yield _describe_version(suite)


def _warn(window: int | None) -> Iterator[str]:
    if window is not None:
        yield (
            f"**Made with windows of {window} jobs, to try it: these figures count for nothing.**\n"
        )


def _rank(line: Line) -> tuple[float, str]:
    return (math.inf if line.bound is None else line.bound.mean, line.policy)


def _make_table(titles: Sequence[str], rows: Iterable[Sequence[str]], *, words: int) -> str:
    rule = ["---"] * words + ["---:"] * (len(titles) - words)
    table = [titles, rule, *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in table)


def _describe_scenarios(suite: Suite, rows: Rows) -> str:
    windows = sorted({row["window"] for row in rows})
    played = list(dict.fromkeys(row["policy"] for row in rows))
    known = {each.partition(":")[0] for each in played}
    missing = [name for name in NAMES if name not in known]
    return (
        f"{len({row['trace'] for row in rows})} traces at loads "
        f"{_join(suite.loads)}, with restart costs of {_join(suite.restart_costs)} s and seed "
        f"{_join(suite.seeds)}, in windows of {_join(windows)} jobs; policies: "
        f"{', '.join(played)}. {_describe_missing(missing)}"
        "[profiles/README.md](../profiles/README.md) says where the traces are from.\n"
    )


def _describe_missing(names: Sequence[str]) -> str:
    return f"Not played: {', '.join(names)}. " if names else ""


def _join(values: Iterable[float]) -> str:
    *most, last = [f"{value:g}" for value in values] or ["–"]
    return f"{', '.join(most)} and {last}" if most else last


def _list_traces(suite: Suite) -> str:
    rows = [(name_of(each.path), each.part, f"`{each.cluster}`") for each in suite.entries]
    return _make_table(["trace", "for", "cluster"], sorted(rows, key=lambda r: r[1]), words=3)


def _describe_version(suite: Suite) -> str:
    return (
        f"By DLJob {version('dljob')} (source `{digest_program()[:12]}`), suite {suite.version} "
        f"(`{suite.digest[:12]}`).\n"
    )
