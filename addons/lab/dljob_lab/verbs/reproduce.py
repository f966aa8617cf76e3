"""``dljob reproduce``: the evaluation of a paper, its own figures next to ours."""

import math
from collections.abc import Sequence
from pathlib import Path

import click

from dljob.cli.output import printing
from dljob.cli.output.bars import progress_bar
from dljob.cli.output.forms import to_json
from dljob.cli.output.messages import say
from dljob.cli.output.streams import divert_libraries
from dljob_lab.reproducing import FROM_TRACES, REPRODUCTIONS, WHOLE
from dljob_lab.reproducing.findings import Row


@click.command("reproduce")
@click.argument("name", type=click.Choice(list(REPRODUCTIONS)), metavar="NAME")
@click.option(
    "--full",
    "is_whole",
    is_flag=True,
    help="Play the workloads and policies too that the usual form leaves out because they take "
    "long, where it does: " + ", ".join(WHOLE) + ".",
)
@click.option(
    "-o",
    "--output",
    type=click.Choice(printing.FORMATS),
    default="table",
    show_default=True,
    help="How the figures are printed.",
)
@click.option(
    "--traces",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    metavar="DIR",
    help="Play the traces in DIR instead of the shipped ones; for afs: philly_CLUSTER.csv; for gang: the "
    "folder JobHandler of the author's repository.",
)
@click.option(
    "--plot",
    "pictures",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Draw figures of the paper of our own runs into DIR, and print nothing; for sidecar and afs.",
)
def command(
    name: str,
    *,
    is_whole: bool,
    output: str,
    traces: Path | None,
    pictures: Path | None,
) -> None:
    """
    Play the evaluation of a paper again and print its own figures next to ours.

    NAME is one of sidecar, gang, dragon, afs, ones, sia, shockwave, rubick and pollux, which are
    papers, or peers: the figures of other simulators.
    docs/reproduction.md links the assumptions of each.
    """
    if is_whole and name not in WHOLE:
        raise click.UsageError(f"{name} has one form only; leave --full out")
    reproduce = (WHOLE if is_whole else REPRODUCTIONS)[name]
    if traces is not None and name not in FROM_TRACES:
        raise click.UsageError(f"--traces is for {', '.join(FROM_TRACES)}; {name} has its own")
    if pictures is not None:
        draw(name, pictures)
        return
    with progress_bar() as bar, divert_libraries():
        watch = bar.watch if bar is not None else None
        reproduction = FROM_TRACES[name](watch, [traces]) if traces else reproduce(watch)
    for note in reproduction.notes:
        say(note)
    click.echo(show_rows(reproduction.rows, output), nl=False)


def draw(name: str, folder: Path) -> None:
    """Draw the figures of a paper into a folder."""
    # Not at the top, because only pictures need the packages that draw them.
    from dljob_lab.plots import write_pictures  # noqa: PLC0415
    from dljob_lab.reproducing.pictures import PICTURES  # noqa: PLC0415

    if name not in PICTURES:
        raise click.UsageError(f"--plot is for {', '.join(PICTURES)}; {name} has no pictures")
    write_pictures(folder, PICTURES[name](), forms=("svg",))


def show_rows(rows: Sequence[Row], form: str) -> str:
    """Show figures next to each other in one of the formats of :mod:`dljob.cli.output.printing`."""
    if form == "json":
        return to_json([row.to_record() for row in rows])
    if form == "csv":
        return printing.to_csv([row.to_record() for row in rows])
    titles = ("item", "quantity", "unit", "paper", "ours", "±", "ours/paper", "verdict")
    return printing.tabulate(titles, [_list_cells(row) for row in rows], words=3)


def _list_cells(row: Row) -> tuple[str, ...]:
    spread = _round(row.spread) if row.spread else ""
    has_ours = not math.isnan(row.ours)
    ratio = f"{row.ours / row.paper:.3f}" if row.paper and has_ours else ""
    paper = _round(row.paper) if row.paper else ""
    ours = _round(row.ours) if has_ours else ""
    verdict = f"{row.verdict or ''}{' (fitted)' if row.in_sample else ''}"
    return (row.item, row.quantity, row.unit, paper, ours, spread, ratio, verdict)


def _round(value: float) -> str:
    """As many digits as people print: one behind the point, more where little is before it."""
    if abs(value) >= 10 or value == round(value):
        return f"{value:,.1f}".removesuffix(".0")
    return f"{value:.3g}"
