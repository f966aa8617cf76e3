"""
``dljob history``: each change of a job's GPUs with its cause and cost, and what else happened to it.
"""

import click

from dljob.cli.inputs.options import name_argument, output_option, with_backend
from dljob.cli.output import texts
from dljob.cli.output.forms import to_json
from dljob.cli.output.messages import say
from dljob.client.backend import Backend, Json
from dljob.client.jobviews import Slice, read_time
from dljob.core.recording.record import LIVE

HEADER = ("TIME", "WHAT", "GPUS", "COST", "WHY")


@click.command("history")
@name_argument()
@click.option(
    "--limit",
    type=click.IntRange(1, 1000),
    default=100,
    show_default=True,
    metavar="N",
    help="The number of the latest entries.",
)
@output_option("wide", "json")
@with_backend
def command(backend: Backend, *, name: str, limit: int, output: str | None) -> None:
    """
    List the decisions about a job and the events of its life, oldest first.

    The cost of a change is the time in which the job did not train because of it; live means that its processes
    stayed. -o wide adds the names of its GPUs. On one machine the history outlives the job; on a cluster it is the last ten
    decisions and the Events, which Kubernetes keeps for an hour.
    """
    entries = backend.list_history(name, limit)
    if output == "json":
        click.echo(to_json(entries), nl=False)
        return
    if not entries:
        say(f"{name} has no history yet.")
        return
    rows = []
    for entry in entries:
        row = (
            texts.instant(read_time(entry["at"])),
            entry["kind"],
            _where_to(entry, wide=output == "wide"),
            _cost_of(entry),
            entry.get("message", "") or texts.NOTHING,
        )
        rows.append(row)
    click.echo(texts.tabulate(HEADER, rows), nl=False)


def _cost_of(entry: Json) -> str:
    """Write the time without training: ``1.2s``, or ``41ms live``."""
    cost, is_live = entry.get("costSeconds"), entry.get("how") == LIVE
    if cost is None:
        return texts.NOTHING
    return f"{cost * 1000:.{0 if cost >= 0.01 else 1}f}ms live" if is_live else f"{cost:.1f}s"


def _where_to(entry: Json, *, wide: bool) -> str:
    """Write the GPUs before and after, such as ``2 > 4``."""
    old, new = entry.get("old"), entry.get("new")
    if old is None and new is None:
        return texts.NOTHING
    show = _slices if wide else _count
    return f"{show(old)} > {show(new)}" if old is not None else show(new)


def _count(placement: Json | None) -> str:
    return str(placement["gpus"]) if placement is not None else "0"


def _slices(placement: Json | None) -> str:
    if placement is None:
        return "nothing"
    if not placement.get("nodes"):
        return _count(placement)
    return " ".join(str(Slice(n["name"], tuple(n["gpuIds"]))) for n in placement["nodes"])
