"""
``dljob what-if``: two futures of all jobs by the very scheduler, as it is and with one difference.
"""

from collections.abc import Mapping
from typing import Any

import click

from dljob.cli.inputs.completing import complete_policies
from dljob.cli.inputs.options import output_option, with_backend
from dljob.cli.output import texts
from dljob.cli.output.forms import to_json
from dljob.cli.output.messages import say
from dljob.client.backend import Backend, Json
from dljob.control.reporting.formatting import NOTHING, duration

HEADER = ("JOB", "GPUS", "ENDS", "GPUS IF SO", "ENDS IF SO", "GAIN")


@click.command("what-if")
@click.option(
    "--policy",
    shell_complete=complete_policies,
    metavar="NAME",
    help="Another policy decides. Options follow the name: tiresias:thresholds=3250,7200.",
)
@click.option("--job", metavar="JOB", help="The job that the next three options change.")
@click.option("--priority", type=int, help="The priority of that job.")
@click.option("--least", type=click.IntRange(1), help="The least number of GPUs of that job.")
@click.option("--most", type=click.IntRange(1), help="The greatest number of GPUs of that job.")
@click.option("--another", metavar="JOB", help="A copy of this job is submitted now.")
@click.option("--cordon", metavar="NODE", help="No job gets GPUs of this node any more.")
@output_option("json")
@with_backend
def command(backend: Backend, *, output: str | None, **differences: Any) -> int:
    """
    Show when each job would end, as it is and if something were different. Nothing is changed.

    The controller plays its own scheduler ahead, from the present state of all jobs, with its policy, placement and
    predictions. It assumes that no further job comes and none fails. GPUS are those after the next decision.
    """
    answer = backend.what_if({name: each for name, each in differences.items() if each is not None})
    for note in answer["notes"]:
        say(f"note: {note}")
    if output == "json":
        click.echo(to_json(answer), nl=False)
        return 0
    now, then = answer["futures"]
    if not then["jobs"]:
        say("There are no jobs that train or wait.")
        return 0
    before = {job["job"]: job for job in now["jobs"]}
    rows = [_make_row(before.get(job["job"]), job) for job in then["jobs"]]
    click.echo(texts.tabulate(HEADER, rows), nl=False)
    reasons = {
        job["unknownBecause"] for job in (*now["jobs"], *then["jobs"]) if "unknownBecause" in job
    }
    for reason in sorted(reasons):
        say(f"note: some ends are not known, because {reason}")
    return 0


def _make_row(old: Json | None, new: Json) -> tuple[str, ...]:
    gain = NOTHING
    if old is None:
        gain = "new"
    elif None not in (was := old["endsInSeconds"], will := new["endsInSeconds"]):
        gain = "the same"
        if abs(was - will) >= 1:
            gain = f"{duration(abs(was - will))} {'earlier' if was > will else 'later'}"
    before = (NOTHING, NOTHING) if old is None else _show(old)
    return (new["job"], *before, *_show(new), gain)


def _show(job: Mapping[str, Any]) -> tuple[str, str]:
    end = job["endsInSeconds"]
    return str(job["gpus"]), "?" if end is None else f"in {duration(end)}"
