"""
``dljob up``: the controller of this machine, in the foreground or, with ``--detach``, behind it.

Everything that can be set is in :mod:`dljob.control.settings`; the options here are the few that are
needed often.
"""

import asyncio
import grp
import logging
import logging.handlers
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from dljob.cli.inputs import arguments, units
from dljob.cli.inputs.completing import complete_policies
from dljob.cli.inputs.options import STATE_HELP
from dljob.cli.output.messages import say
from dljob.cli.verbs.server import detaching, web
from dljob.cli.verbs.server.installation import insist_on_root
from dljob.cli.verbs.server.supplying import find_supply, folders_at
from dljob.control import settings as setting
from dljob.control.scheduling import Options
from dljob.control.settings import Loaded
from dljob.control.situation.ports import Behind, Fenced
from dljob.core import policies
from dljob.core.contract import Policy
from dljob.core.model import Mechanism
from dljob.core.placement.limits import NamespaceLimits
from dljob.local.events import Events
from dljob.local.folders import SYSTEM_ROOT, StateError, default_root
from dljob.local.gpus.devices import Supply
from dljob.local.running import Running
from dljob.local.setup import LocalSettings, Setup, Sharing
from dljob.sim.clusters import Machines
from dljob.sim.errors import BadInput
from dljob.sim.inputs import yamlfiles
from dljob.store.notebook import Notebook
from dljob.store.store import StoreError

log = logging.getLogger(__name__)

LOOK_S = 0.05
"""The interval of checks for the controller's first cycle."""

LARGEST_LOG = 10 << 20
KEPT_LOGS = 3


def _read_policy(text: str) -> str:
    """Check that the policy exists and is shipped; settings hold its text."""
    try:
        policies.read(text)
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
    type=click.Choice([each.value for each in Mechanism]),
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
    callback=web.read_address,
    metavar="[[ADDRESS]:PORT]",
    help="Serve the page that shows GPUs over time to a browser on this machine, and print its address.",
)
@click.option(
    "--web-host",
    "web_names",
    multiple=True,
    callback=web.read_names,
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
    gpus: str | None,
    virtual_gpus: tuple[Machines, ...] | None,
    cluster: tuple[Machines, ...] | None,
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
    sharing = _read_sharing(system=bool(given.pop("system")), group=given.pop("group"))
    root = state or (SYSTEM_ROOT if sharing is not None else default_root(os.environ))
    page = web.take_page(given, system=sharing is not None)
    loaded = load_settings(config, given)
    if print_unit:
        click.echo(
            units.unit(_unit_arguments(context.find_root().obj, root, config=config)), nl=False
        )
        return 0
    if sharing is not None:
        insist_on_root()
        # Only root may read logs and lists of jobs; the files that jobs write keep the usual rights.
        os.umask(0o077)
    child = None
    if detach or page is not None:
        folders_at(root)
    if detach:
        process = detaching.fork(root.absolute() / "dljob.log")
        if isinstance(process, detaching.Parent):
            return process.wait()
        child = process
    setup = build_setup(
        root, loaded, supply=find_supply(root, gpus, virtual=virtual_gpus, cluster=cluster)
    )
    if sharing is not None:
        setup = _shared(setup, sharing, config=config and config.absolute(), given=given)
    try:
        with _logging(root / "dljob.log") as shown, web.serving(page, root):
            asyncio.run(_run(setup, child, shown))
    except (StateError, StoreError) as error:
        raise click.ClickException(str(error)) from error
    except OSError as error:
        what = f"{error.filename or root}: {error.strerror or error}"
        remedy = "allow that, or name another folder with --state"
        raise click.ClickException(f"{what}; {remedy}") from error
    except Fenced as error:
        raise click.ClickException(f"{error}; this one has ended") from error
    return 0


def _read_sharing(*, system: bool, group: str | int | None) -> Sharing | None:
    if not system:
        if group is not None:
            raise click.UsageError(
                "--group limits the users of a server for all users; add --system"
            )
        return None
    try:
        return Sharing(None if group is None else grp.getgrnam(str(group)).gr_gid)
    except KeyError as error:
        raise click.UsageError(
            f"--group {group}: there is no such group; create it with groupadd"
        ) from error


def _unit_arguments(typed: Sequence[str], root: Path, *, config: Path | None) -> list[str]:
    """Return the arguments of a service, which has neither this folder nor this environment."""
    if config is not None and not config.is_absolute():
        raise click.UsageError(
            f"--config {config} is relative to this folder; for a service give the absolute path"
        )
    kept = [each for each in typed if each not in ("--print-unit", "--detach")]
    places = [i for i, each in enumerate(kept) if each == "--state" or each.startswith("--state=")]
    for place in reversed(places):
        del kept[place : place + (2 if kept[place] == "--state" else 1)]
    return [*kept, "--state", str(root.absolute())]


def load_settings(config: Path | None, given: dict[str, str | int | None]) -> Loaded[LocalSettings]:
    document: object = None
    if config is not None:
        documents = [content for _, content in yamlfiles.load(config)]
        if len(documents) > 1:
            raise BadInput(config, "holds several documents", remedy="keep one of them")
        document = documents[0] if documents else None
    options = {_PATHS.get(name, name): value for name, value in given.items() if value is not None}
    return setting.load_tree(
        LocalSettings(), document, file=str(config), environment=os.environ, options=options
    )


_PATHS = {"metrics": "serving.metrics"}


def build_setup(root: Path, loaded: Loaded[LocalSettings], *, supply: Supply) -> Setup:
    chosen = loaded.settings
    return Setup(
        state=root,
        nodes=supply.nodes,
        virtual_gpus=supply.real is None,
        real_gpus=supply.real,
        options=Options.of(chosen, _make_policy(chosen.policy)),
        store=chosen.store,
        sample_seconds=chosen.learning.sample_seconds,
        dialing=chosen.dialing,
        cloud=chosen.cloud,
        logs=chosen.logs,
        user_limits=chosen.users,
        release_seconds=chosen.release_seconds,
        settings=tuple(loaded.described()),
        metrics=chosen.serving.metrics,
    )


def _shared(
    setup: Setup, sharing: Sharing, *, config: Path | None, given: dict[str, str | int | None]
) -> Setup:
    """Return the setup of a server for several users, whose limits can be changed while it runs."""

    def reload() -> NamespaceLimits:
        return load_settings(config, given).settings.limits.closed()

    options = replace(setup.options, limits=setup.options.limits.closed())
    return replace(setup, sharing=sharing, options=options, reload=reload)


def _make_policy(text: str) -> Policy:
    try:
        return policies.read(text)
    except ValueError as error:
        raise click.ClickException(f"policy: {error}") from error


async def _run(setup: Setup, child: detaching.Child | None, shown: logging.Handler) -> None:
    try:
        await _control(setup, child, shown)
    except Behind as behind:
        log.warning("goes on in epoch %d: %s", behind.epoch, behind)
        # `_control` has closed the first controller, lock included:
        # flock refuses a second open file also within one process.
        options = replace(setup.options, may_rise=False)
        again = replace(setup, options=options, least_epoch=behind.epoch)
        await _control(again, child, shown)
    say("Stopped. Running jobs continue; the next dljob up takes them over.")


async def _control(setup: Setup, child: detaching.Child | None, shown: logging.Handler) -> None:
    running = Running(setup)
    announcing = None
    try:
        say(_greeting(setup, "dljob down" if child else "Ctrl-C"))
        announcing = asyncio.create_task(_announce(running, child, shown=shown))
        await running.run()
    finally:
        if announcing is not None:
            # If the server ends before its first cycle,
            # a waiting parent reads the end of the pipe.
            announcing.cancel()
        await running.close()


async def _announce(
    running: Running, child: detaching.Child | None, *, shown: logging.Handler
) -> None:
    """Report to systemd and the waiting command that the server answers."""
    while running.controller.scene is None:
        await asyncio.sleep(LOOK_S)
    units.tell_ready()
    if child is not None:
        say(f"It goes on in the background as process {os.getpid()}; its log is {child.log}")
        logging.getLogger().removeHandler(shown)
        child.let_go()


def _greeting(setup: Setup, ending: str) -> str:
    nodes = setup.nodes()
    count = sum(len(node.gpus) for node in nodes)
    kind = "virtual GPU" if setup.virtual_gpus else "GPU"
    where = ", ".join(f"{len(node.gpus)} on {node.name}" for node in nodes)
    policy = setup.options.policy.name
    return f"{count} {kind}{'' if count == 1 else 's'} ({where}), policy {policy}; {ending} ends it"


def _is_for_people(record: logging.LogRecord) -> bool:
    """Pass events of jobs and warnings; the file has the rest."""
    return record.levelno >= logging.WARNING or record.name in (
        Events.__module__,
        Running.__module__,
        Notebook.__module__,
    )


@contextmanager
def _logging(file: Path) -> Iterator[logging.Handler]:
    """Log to a file and to standard error, by the yielded handler."""
    shown = logging.StreamHandler(sys.stderr)
    shown.addFilter(_is_for_people)
    shown.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
    # Opened at the first line, because the folder is checked later.
    kept = logging.handlers.RotatingFileHandler(
        file, maxBytes=LARGEST_LOG, backupCount=KEPT_LOGS, delay=True
    )
    kept.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    root = logging.getLogger()
    root.setLevel(logging.INFO)
    for handler in (shown, kept):
        root.addHandler(handler)
    try:
        yield shown
    finally:
        for handler in (shown, kept):
            root.removeHandler(handler)
            handler.close()
