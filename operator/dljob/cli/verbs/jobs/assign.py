"""
``dljob set``: change the GPUs and the priority of existing jobs.
"""

from collections.abc import Mapping
from typing import Any

import click

from dljob.cli.inputs.options import gpu_options, with_backend
from dljob.cli.inputs.selecting import Selection, with_selection
from dljob.cli.verbs.jobs.steer import for_each
from dljob.client.backend import Backend, Json
from dljob.client.changing import change_job, describe_changes
from dljob.client.demands import Demand


@click.command("set")
@with_selection()
@gpu_options
@click.option("--priority", type=int, metavar="P", help="Jobs of a higher priority come first.")
@with_backend
def command(backend: Backend, *, selection: Selection, priority: int | None, **said: Any) -> int:
    """
    Change on how many GPUs jobs can run, and their priority. They go on training meanwhile.

    \b
    dljob set bert --gpus 1,2,4
    dljob set bert --max-gpus 2 --priority 10
    dljob set -l team=vision --priority -5
    """
    demand = Demand(**said)
    if not demand.is_given and priority is None:
        raise click.UsageError("nothing is set; give --gpus, --min-gpus, --max-gpus or --priority")
    names = selection.find(backend, "change", applies=lambda job: not job.is_final)
    return for_each(names, lambda name: _set(backend, name, demand=demand, priority=priority))


def _set(backend: Backend, name: str, *, demand: Demand, priority: int | None) -> str:
    def alter(document: Json) -> Json:
        spec: Mapping[str, Any] = document["spec"]
        said: Json = {} if priority is None else {"priority": priority}
        if demand.is_given:
            said["gpus"] = demand.changed(spec["gpus"])
        altered = {**document, "spec": {**spec, **said}}
        return altered if spec != altered["spec"] else document

    change = change_job(backend, name, alter=alter)
    if not change.is_change:
        return "is unchanged"
    return f"changed: {', '.join(describe_changes(change.before, change.after)) or 'nothing'}"
