"""
Runs the controller of this machine as the options of ``dljob up`` describe it.
"""

import asyncio
import grp
import logging
import logging.handlers
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import click

from dljob.cli.inputs import units
from dljob.cli.output.messages import say
from dljob.cli.verbs.server import detaching
from dljob.cli.verbs.server.installation import insist_on_root
from dljob.cli.verbs.server.supplying import find_supply, folders_at
from dljob.control import settings as setting
from dljob.control.scheduling import Options
from dljob.control.settings import Loaded
from dljob.control.situation.ports import Behind, Fenced
from dljob.core.placement.limits import NamespaceLimits
from dljob.installed import PAGES, load
from dljob.known_policies import read_live_policy
from dljob.local.events import Events
from dljob.local.folders import SYSTEM_ROOT, StateError, default_root
from dljob.local.gpus.devices import Supply
from dljob.local.running import Running
from dljob.local.setup import LocalSettings, Setup, Sharing
from dljob.sim.errors import BadInput
from dljob.sim.inputs import yamlfiles
from dljob.store.notebook import Notebook
from dljob.store.store import StoreError

log = logging.getLogger(__name__)

LOOK_S = 0.05
"""The interval of checks for the controller's first cycle."""

LARGEST_LOG = 10 << 20
KEPT_LOGS = 3


def serve(
    typed: Sequence[str],
    *,
    state: Path | None,
    config: Path | None,
    detach: bool,
    print_unit: bool,
    given: dict[str, Any],
) -> int:
    """Run the controller until it ends; ``given`` has the settings, and the options of its GPUs, users and page."""
    gpus, virtual_gpus, cluster = (given.pop(each) for each in ("gpus", "virtual_gpus", "cluster"))
    sharing = _read_sharing(system=bool(given.pop("system")), group=given.pop("group"))
    root = state or (SYSTEM_ROOT if sharing is not None else default_root(os.environ))
    page = _take_page(given, system=sharing is not None)
    loaded = load_settings(config, given)
    if print_unit:
        click.echo(units.unit(_unit_arguments(typed, root, config=config)), nl=False)
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
        with (
            _logging(root / "dljob.log") as shown,
            page.serving(root) if page is not None else nullcontext(),
        ):
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


class Page(Protocol):
    """The page of a controller, which an add-on serves."""

    def serving(self, root: Path) -> AbstractContextManager[None]: ...


def _take_page(given: dict[str, Any], *, system: bool) -> Page | None:
    """Pop the options of the page; returns ``None`` without a page."""
    address, names = given.pop("page"), given.pop("web_names")
    unencrypted = given.pop("web_unencrypted")
    if address is None and not names and not unencrypted:
        return None
    take = load(PAGES, "up", add_on="dljob-web")
    page: Page | None = take(address, names, unencrypted=unencrypted, system=system)
    return page


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
    try:
        policy = read_live_policy(chosen.policy)
    except ValueError as error:
        raise click.ClickException(f"policy: {error}") from error
    return Setup(
        state=root,
        nodes=supply.nodes,
        virtual_gpus=supply.real is None,
        real_gpus=supply.real,
        options=Options.of(chosen, policy),
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
