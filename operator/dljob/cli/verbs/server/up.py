"""
``dljob up``: the controller of this machine, in the foreground or, with ``--detach``, behind it.

Everything that can be set is in :mod:`dljob.control.settings`; the options here are the few that are
needed often. :mod:`.controller` runs it.
"""

from pathlib import Path
from typing import Any

import click

from dljob.cli.inputs import arguments
from dljob.cli.inputs.completing import complete_policies
from dljob.cli.inputs.options import STATE_HELP

MECHANISMS = ("in-place", "recreate")
"""The values of :class:`dljob.core.model.Mechanism`, which takes long to load."""


def _read_policy(text: str) -> str:
    """Check that a controller takes the policy; settings hold its text."""
    # Not at the top, because policies take long to load.
    from dljob.known_policies import read_live_policy  # noqa: PLC0415

    try:
        read_live_policy(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error
    return text


@click.command("up")
@click.option(
    "--gpus",
    metavar="LIST",
    help="The GPUs of this machine to use, such as 0,2-3, or UUIDs. One GPU by its number: 2-2. "
    " [default: $CUDA_VISIBLE_DEVICES, or all]",
)
@click.option(
    "--virtual-gpus",
    type=arguments.read_gpus,
    metavar="N",
    help="N virtual GPUs instead of those of this machine: jobs get numbers only.",
)
@click.option(
    "--cluster",
    type=arguments.read_cluster,
    metavar="NODESxGPUS[:TYPE][,…]",
    help="Virtual nodes of virtual GPUs, such as 2x4: a job may run over several of them.",
)
@click.option(
    "--state",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help=STATE_HELP.replace("of that dljob up", "of this server"),
)
@click.option(
    "--policy",
    type=_read_policy,
    shell_complete=complete_policies,
    metavar="NAME",
    help="The scheduling policy; see dljob policies.",
)
@click.option(
    "--mechanism",
    type=click.Choice(MECHANISMS),
    help="How GPUs change hands: the process restarts under its SideCar, or the SideCar is started again too.",
)
@click.option("--store", metavar="URL", help="The store of profiles and the history.")
@click.option("--seed", type=int, help="The seed of policies that draw at random.")
@click.option(
    "--metrics", metavar="[ADDRESS]:PORT", help="The address of the metrics for Prometheus."
)
@click.option(
    "--web",
    "page",
    is_flag=False,
    flag_value="",
    metavar="[[ADDRESS]:PORT]",
    help="Serve the page that shows GPUs over time to a browser on this machine, and print its address.",
)
@click.option(
    "--web-host",
    "web_names",
    multiple=True,
    metavar="NAME",
    help="With --web: a name by which browsers reach it; by an address they do anyway. More than once for more names.",
)
@click.option(
    "--web-unencrypted",
    is_flag=True,
    help="Allow --web at an address that other machines reach, although all between can read along.",
)
@click.option(
    "--config",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="A settings file; dljob config show -o yaml prints one.",
)
@click.option(
    "--system",
    is_flag=True,
    help="For all users of this machine: each job runs as its submitter. Root only.",
)
@click.option("--group", metavar="NAME", help="With --system: only for the users of this group.")
@click.option(
    "--detach",
    is_flag=True,
    help="Return once it answers, and continue in the background until dljob down.",
)
@click.option(
    "--print-unit",
    is_flag=True,
    help="Print a service of systemd that runs it with these options, and do nothing else.",
)
@click.pass_context
def command(
    context: click.Context,
    /,
    *,
    state: Path | None,
    config: Path | None,
    detach: bool,
    print_unit: bool,
    **given: Any,
) -> int:
    """
    Run jobs on this machine until Ctrl-C, or with --detach until dljob down.

    Trainings go on when this ends, and the next dljob up finds them again. Settings
    come from the options, then from the environment (DLJOB_POLICY, DLJOB_PACE_PERIOD_SECONDS, …),
    then from the settings file. The log is dljob.log in the state folder.
    """
    # Here, because the help needs nothing of a controller.
    from dljob.cli.verbs.server.controller import serve  # noqa: PLC0415

    return serve(
        context.find_root().obj,
        state=state,
        config=config,
        detach=detach,
        print_unit=print_unit,
        given=given,
    )
