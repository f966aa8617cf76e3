"""
``dljob compare``: policies in many scenarios at once, as one table.

:mod:`dljob_lab.comparing` defines a simulation and keeps its result; here the command line
becomes tasks, and results become text and a picture.
"""

import os
from collections.abc import Callable, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from dljob.cli.inputs import arguments
from dljob.cli.inputs.completing import complete_policies
from dljob.cli.output import printing
from dljob.cli.output.forms import to_json
from dljob.cli.output.messages import INTERRUPTED, say
from dljob.cli.verbs.studies.scenarios import (
    CLUSTER,
    LIVE,
    OUTPUT,
    PART,
    PICTURES,
    SPEEDS,
    take_scenario,
    takes,
)
from dljob.installed import check_can_draw
from dljob.sim import policies
from dljob.sim.results import writing
from dljob.sim.results.looks import LOOKS, Format, Look
from dljob.sim.scenarios import NONE
from dljob_lab.comparing.journal import Journal
from dljob_lab.comparing.planning import make_rows, plan
from dljob_lab.comparing.suite import PARTS, load_suite, plan_suite
from dljob_lab.comparing.summing import EXACT, FIGURES, GROUPS, ratios_of, sum_up
from dljob_lab.comparing.tasks import Task, Values
from dljob_lab.verbs import comparisons, leaderboard
from dljob_lab.verbs.assuming import show_premises
from dljob_lab.verbs.working import Work

USUAL = "max-min"
"""With what all policies are compared if nothing is said of it: a policy that needs no knowledge."""

JOURNAL = "compare.jsonl"
"""How a journal is called whose user names only a folder."""

WITH_SUITE = frozenset(
    {
        *("suite", "policies", "all_policies", "parts", "window", "references", "by"),
        *("processes", "resume", "output", "plot", "formats", "look", "write"),
    }
)
"""The options that leave the suite what it is; a smaller window is for trying it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Display:
    """The display of results."""

    by: tuple[str, ...]
    references: tuple[str, ...]
    output: str
    plot: Path | None
    formats: tuple[Format, ...]
    look: Look
    page: Callable[[Sequence[Values], str], str] | None = None
    """Writes results of the suite into the page as it is."""
    write: Path | None = None


@arguments.option_type
def _read_loads(text: str) -> tuple[float, ...]:
    return _read_several(text, arguments.read_load)


@arguments.option_type
def _read_costs(text: str) -> tuple[float, ...]:
    return _read_several(text, arguments.read_seconds)


@arguments.option_type
def _read_errors(text: str) -> tuple[float, ...]:
    return _read_several(text, arguments.read_error)


@arguments.option_type
def _read_groups(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(filter(None, text.split(","))))
    for name in names:
        if name not in GROUPS:
            raise ValueError(f"{name!r} is not one of {', '.join(GROUPS)}")
    return names


def _read_several(text: str, read: Callable[[str], float]) -> tuple[float, ...]:
    return tuple(dict.fromkeys(read(part) for part in text.split(",")))


@click.command("compare")
@click.argument("traces", nargs=-1, type=click.Path(path_type=Path), metavar="TRACE…")
@click.option(
    "--policy",
    "policies",
    type=arguments.read_contestant,
    shell_complete=complete_policies,
    multiple=True,
    metavar="NAME",
    help="A policy, with options, or FILE.py:Class, as for `dljob simulate`; may be given several times.",
)
@click.option("--all-policies", is_flag=True, help="Every policy of `dljob policies`.")
@takes(CLUSTER, LIVE, SPEEDS, PART)
@click.option(
    "--loads",
    type=_read_loads,
    default=None,
    metavar="X[,…]",
    help="Play each trace at each of these offered loads.  [default: as it comes]",
)
@click.option(
    "--restart-costs",
    type=_read_costs,
    metavar="SECONDS[,…]",
    help="Play with each of these costs of a start or change.  [default: as `dljob simulate`]",
)
@click.option(
    "--seeds",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    metavar="N",
    help="Play with the seeds 0 to N-1.",
)
@click.option(
    "--speed-error",
    "speed_errors",
    type=_read_errors,
    default="0",
    metavar="SIGMA[,…]",
    help="Let policies believe wrong speeds, as for `dljob simulate`.",
)
@click.option(
    "--size-error",
    "size_errors",
    type=_read_errors,
    default="0",
    metavar="SIGMA[,…]",
    help="Let policies believe wrong numbers of iterations.",
)
@click.option(
    "--sizes",
    type=click.Choice(["known", "unknown", "both"]),
    default="known",
    show_default=True,
    help="Whether policies are given numbers of iterations.",
)
@click.option(
    "--known",
    type=click.Choice(["all", NONE, "both"]),
    default="all",
    show_default=True,
    help="Which speeds and costs policies know: all, or only those that they learn, as for `dljob simulate`.",
)
@click.option("--bound", is_flag=True, help="Compare with the lower bound as well.")
@click.option(
    "--reference",
    "references",
    multiple=True,
    metavar="NAME",
    help="Compare with this policy; of several, with the best in each case; exact: each policy with "
    "itself where it knows everything.  [default: the first --policy, else max-min]",
)
@click.option(
    "--by",
    type=_read_groups,
    default="",
    metavar="NAME[,…]",
    help=f"Print separate lines for each value of {', '.join(GROUPS)}.",
)
@click.option(
    "--jobs",
    "processes",
    type=click.IntRange(min=1),
    metavar="N",
    help="How many simulations run at once.  [default: one on each core]",
)
@click.option(
    "--resume",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Keep results in FILE, or in compare.jsonl in a folder, and reuse those in it instead of"
    " playing them again.",
)
@click.option(
    "--suite",
    is_flag=True,
    help="Play the benchmark that is shipped with DLJob instead of a TRACE; it brings its own"
    " traces and options.",
)
@click.option(
    "--part",
    "parts",
    type=click.Choice(PARTS),
    multiple=True,
    help="Of the suite, only the traces for tuning, or those for judging.",
)
@click.option(
    "--write",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write the tables of the suite into FILE, as in docs/leaderboard.md.",
)
@takes(OUTPUT)
@click.option(
    "--plot",
    type=click.Path(path_type=Path, file_okay=False),
    is_flag=False,
    flag_value="plots",
    metavar="[DIR]",
    help="Also draw the comparison, as PNG and SVG, into DIR or plots/. The word behind it is "
    "taken for DIR, so without DIR put it last.",
)
@takes(PICTURES)
def command(**given: Any) -> int:
    """
    Play every TRACE under every policy, and sum up how they compare.

    Each policy is played in each combination of the loads, costs, errors and seeds that are given,
    on all cores. The table holds geometric means of ratios; -o json and csv print every single
    result. Interrupted, it prints what has come so far; with --resume it goes on there later.
    """
    processes, resume = given["processes"] or os.cpu_count() or 1, given["resume"]
    names = list_policies(given)
    tasks, display = (prepare_suite if given["suite"] else prepare)(given, names)
    if display.plot is not None:
        check_can_draw()
    for path in (display.plot and display.plot / "picture.png", display.write):
        if path is not None:
            writing.check_writable(path)
    journal = Journal.open(place_journal(resume)) if resume is not None else None
    with closing(journal) if journal is not None else nullcontext():
        work = Work(tasks, journal)
        complete = work.run(processes)
    return conclude(work, display, complete=complete, resumable=journal is not None)


def list_policies(given: dict[str, Any]) -> list[str]:
    """List the policies of a command line, as they were typed."""
    names = [contestant.label for contestant in given["policies"]]
    if given["all_policies"]:
        names += [name for name in policies.NAMES if name not in names]
    if not names:
        raise click.UsageError("no policy is given; add --policy NAME or --all-policies")
    return list(dict.fromkeys(names))


def prepare(given: dict[str, Any], names: Sequence[str]) -> tuple[list[Task], Display]:
    """Make the tasks of traces that are named, and say what becomes of their results."""
    traces, sizes = given["traces"], given["sizes"]
    if not traces:
        raise click.UsageError("no TRACE is given; name one or more, or add --suite")
    if given["parts"] or given["write"]:
        raise click.UsageError("--part and --write are for --suite alone")
    axes = {
        "load": given["loads"] or (None,),
        "restart_cost_s": given["restart_costs"] or (None,),
        "speed_error": given["speed_errors"],
        "size_error": given["size_errors"],
        "sizes_known": (True, False) if sizes == "both" else (sizes == "known",),
        "known": ("all", NONE) if given["known"] == "both" else (given["known"],),
        "seed": range(given["seeds"]),
    }
    shown = Display(
        by=given["by"],
        references=find_references(given, names, usual=names[0] if given["policies"] else USUAL),
        output=given["output"],
        plot=given["plot"],
        formats=given.pop("formats"),
        look=LOOKS[given.pop("look")],
    )
    # Each axis takes the place of the option of one scenario.
    one = {name: value for name, value in given.items() if name not in {"sizes", "known"}}
    base = take_scenario({**one, "trace": traces[0]})
    return plan(base, traces, axes=axes, policies=names, bound=given["bound"]), shown


def prepare_suite(given: dict[str, Any], names: Sequence[str]) -> tuple[list[Task], Display]:
    """Make the tasks of the suite, which says itself in what policies are compared."""
    context = click.get_current_context()
    for name in given:
        source = context.get_parameter_source(name)
        if name not in WITH_SUITE and source is ParameterSource.COMMANDLINE:
            raise click.UsageError(f"--suite brings its own traces and options; leave {name} out")
    suite = load_suite()
    if suite.reference not in names:
        names = [*names, suite.reference]
    tasks = plan_suite(suite, names, parts=given["parts"] or PARTS, window=given["window"])
    shown = Display(
        by=given["by"] or ("part", "placement"),
        references=find_references(given, names, usual=suite.reference),
        output=given["output"],
        plot=given["plot"],
        formats=given.pop("formats"),
        look=LOOKS[given.pop("look")],
        page=lambda rows, present: leaderboard.write_page(
            suite, rows, window=given["window"], present=present
        ),
        write=given["write"],
    )
    return tasks, shown


def find_references(given: dict[str, Any], names: Sequence[str], *, usual: str) -> tuple[str, ...]:
    """Return the policies that the others are compared with."""
    references: tuple[str, ...] = given["references"] or (usual,)
    if EXACT in references and len(references) > 1:
        raise click.UsageError(f"--reference {EXACT} excludes others; give it alone")
    for name in references:
        if name not in (*names, EXACT):
            raise click.UsageError(f"--reference {name} is not compared; add --policy {name}")
    return references


def place_journal(path: Path) -> Path:
    """Name the journal in a folder, or the file itself."""
    return path / JOURNAL if path.is_dir() else path


def conclude(work: Work, display: Display, *, complete: bool, resumable: bool) -> int:
    """Print and draw what came out, and return the exit status."""
    rows = make_rows(work.results)
    show(rows, display)
    if rows and display.page is None and display.output in ("table", printing.WIDE):
        # The table ends with an empty line.
        click.echo(show_premises(list(work.results)), nl=False)
    if display.page is not None and display.write is not None and complete and rows:
        path = display.write
        present = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
        writing.write_text(display.write, display.page(rows, present))
        say(f"{display.write} is written")
    for task, message in work.failures.items():
        say(f"{task.policy or 'bound'} on {task.trace} (seed {task.scenario.seed}): {message}")
    if not complete:
        missing = len(work.tasks) - len(work.results)
        hint = "the same command continues there" if resumable else "--resume FILE would keep them"
        say(f"interrupted: {missing:,} of {len(work.tasks):,} simulations are missing; {hint}")
        return INTERRUPTED
    return 1 if work.failures else 0


def show(rows: Sequence[Values], display: Display) -> None:
    """Print the rows, or the table that sums them up, and draw them."""
    if not rows:
        return
    if display.plot is not None:
        # Not at the top, because it takes longer to load than a small comparison to play.
        from dljob_lab.comparing import bar_charts  # noqa: PLC0415
        from dljob_lab.plots import write_pictures  # noqa: PLC0415

        panels = {
            comparisons.TITLES[figure]: ratios_of(rows, figure, references=display.references)
            for figure in FIGURES
        }
        reference = " / ".join(display.references)
        figure = bar_charts.draw_ratios(panels, reference=reference, look=display.look)
        write_pictures(display.plot, {"comparison": figure}, forms=display.formats)
    if display.output == "json":
        text = to_json(rows)
    elif display.output == "csv":
        text = printing.to_csv(rows)
    else:
        lines = sum_up(rows, by=display.by, references=display.references)
        wide = display.output == printing.WIDE
        text = comparisons.show(lines, by=display.by, references=display.references, wide=wide)
    click.echo(text, nl=False)
