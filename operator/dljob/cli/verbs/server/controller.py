"""
Runs the controller of this machine as the options of ``dljob up`` describe it.
"""

import asyncio
import contextlib
import grp
import logging
import logging.handlers
import os
import pwd
import shutil
import socket
import stat
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import click

import dljob.cli
import dljob.local
from dljob.cli.inputs import arguments
from dljob.cli.output.messages import say
from dljob.cli.verbs.server import detaching
from dljob.control import settings as setting
from dljob.control.scheduling import Options
from dljob.control.settings import Loaded
from dljob.control.situation.ports import Behind, Fenced
from dljob.core.model import Node
from dljob.core.placement.limits import ANY, NamespaceLimits
from dljob.installed import PAGES, find_source, load
from dljob.known_policies import read_live_policy
from dljob.local.environments import name_user
from dljob.local.events import Events
from dljob.local.folders import SYSTEM_ROOT, Folders, StateError, default_root, find_closed
from dljob.local.gpus import devices, gpu_choices
from dljob.local.gpus.devices import Supply
from dljob.local.gpus.gpu_choices import GpuChoiceError, is_count
from dljob.local.gpus.nvml import NoGpusError, Nvml
from dljob.local.running import Running
from dljob.local.setup import LocalSettings, Setup, Sharing
from dljob.local.state_folder import make_folders
from dljob.sim.clusters import Machines, build_packed
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
        click.echo(write_unit(_unit_arguments(typed, root, config=config)), nl=False)
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
        return _close(load_settings(config, given).settings.limits)

    options = replace(setup.options, limits=_close(setup.options.limits))
    return replace(setup, sharing=sharing, options=options, reload=reload)


def _close(limits: NamespaceLimits) -> NamespaceLimits:
    return replace(limits.closed(), shares={ANY: 1, **limits.shares})


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
    report_ready()
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


# --- as a service of systemd


# Two lines of the unit matter more than they look. KillMode: what trains is in the control group of the
# service, and goes on when the service ends or is started again. Restart: one that was ended by
# `systemctl stop` or `dljob down` stays ended.
# The further lines are needed because trainings inherit the limits of the service. OOMPolicy: one that is killed for
# memory must not end the service. The limits are those of a server of trainings: many threads, many files, and
# memory that a network card may use directly; by default systemd gives 15 % of the tasks and 1024 files.
SERVICE = """\
[Service]
Type=notify
ExecStart={command}
ExecReload=/bin/kill -HUP $MAINPID
{umask}KillMode=process
OOMPolicy=continue
TasksMax=infinity
LimitNOFILE=1048576
LimitMEMLOCK=infinity
Restart=on-failure
RestartSec=2
TimeoutStartSec=infinity
TimeoutStopSec=60
"""

UNIT = f"""\
# Printed by `dljob up --print-unit`. As your own service:
#   mkdir -p ~/.config/systemd/user
#   dljob up … --print-unit > ~/.config/systemd/user/dljob.service
#   systemctl --user daemon-reload
#   systemctl --user enable --now dljob
#   loginctl enable-linger            # goes on when you log out, and starts with the machine
[Unit]
Description=DLJob: elastic GPU scheduling on this machine
After=network.target

{SERVICE}
[Install]
WantedBy=default.target
"""

SYSTEM_UNIT = f"""\
# Printed by `dljob up --system --print-unit`: a server for all users, each of whose jobs runs as its user.
#   cp dljob.service /etc/systemd/system/
#   systemctl daemon-reload
#   systemctl enable --now dljob
[Unit]
Description=DLJob: elastic GPU scheduling for all users of this machine
After=network.target

{SERVICE}
[Install]
WantedBy=multi-user.target
"""

SPECIAL = {"\\": "\\\\", '"': '\\"', "%": "%%", "$": "$$"}


def write_unit(arguments: Sequence[str], *, program: str = "") -> str:
    """Write a unit that runs ``dljob``, or the program that is named, with these arguments."""
    # systemd needs the whole path of the running command.
    usual = Path(sys.executable).with_name("dljob")
    found = str(usual) if usual.exists() else shutil.which("dljob") or str(usual)
    words = (program or found, *arguments)
    command = " ".join(map(_quote, words))
    if "--system" in arguments:
        return SYSTEM_UNIT.format(command=command, umask="UMask=0077\n")
    return UNIT.format(command=command, umask="")


def _quote(word: str) -> str:
    escaped = "".join(SPECIAL.get(each, each) for each in word)
    is_plain = escaped and not any(each.isspace() or each in "\"'\\;" for each in word)
    return escaped if is_plain else f'"{escaped}"'


def report_ready() -> None:
    """Report to systemd, if it started this process, that the server answers."""
    # Removed, so that jobs cannot report in the name of the service.
    address = os.environ.pop("NOTIFY_SOCKET", "")
    if not address:
        return
    # An address that begins with @ is in the abstract namespace.
    path = f"\0{address[1:]}" if address.startswith("@") else address
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as door:
        try:
            door.sendto(b"READY=1", path)
        except OSError:
            # The program that set the variable no longer listens.
            return


# --- for all users


def insist_on_root() -> None:
    """Raise if jobs could not run as their users."""
    if os.getuid() != 0:
        raise click.ClickException("--system: only root can run jobs as other users; use sudo")
    for path in (Path(sys.executable), Path(dljob.local.__file__)):
        closed = find_closed(path)
        if closed is not None:
            raise click.ClickException(
                f"--system: {path} cannot be used by all users, because {closed} is closed to them;"
                " install dljob where they can read it, such as in /opt/dljob"
            )
    for path in _loaded_from():
        found = find_writer(path)
        if found is not None:
            place, writer = found
            raise click.ClickException(
                f"--system: root would run code of other users, because {writer} may change"
                f" {place}; install dljob where only root may write: sudo python3 -m venv"
                f" /opt/dljob, and sudo /opt/dljob/bin/pip install '{find_source()}'"
            )


def _loaded_from() -> Iterator[Path]:
    yield Path(sys.executable)
    for package in (dljob.cli, dljob.local):
        yield Path(str(package.__file__))
    for place in sys.path:
        if os.path.exists(place or "."):  # noqa: PTH110 - some are archives, or no paths at all
            yield Path(place)


def find_writer(path: Path) -> tuple[Path, str] | None:
    """
    Return what on the way to a file another user than root may change, and that user or group.

    In a folder such as /tmp every user may make files, but none may replace those of root.
    """
    for each in (path.absolute(), path.resolve()):
        for part in (each, *each.parents):
            if writer := _writer_of(part.lstat(), is_last=part == each):
                return part, writer
    return None


def _writer_of(status: os.stat_result, *, is_last: bool) -> str:
    """Return a user or group other than root that may write to a path; empty if there is none."""
    if status.st_uid != 0:
        return f"the user {name_user(status.st_uid)}"
    if stat.S_ISLNK(status.st_mode):
        return ""
    is_sticky = bool(status.st_mode & stat.S_ISVTX) and not is_last
    if status.st_mode & stat.S_IWOTH and not is_sticky:
        return "every user"
    if status.st_mode & stat.S_IWGRP and not is_sticky and _has_members(status.st_gid):
        return f"the group {_name_group(status.st_gid)}"
    return ""


def _has_members(gid: int) -> bool:
    with contextlib.suppress(KeyError):
        if set(grp.getgrgid(gid).gr_mem) - {"root"}:
            return True
    return any(user.pw_gid == gid and user.pw_uid != 0 for user in pwd.getpwall())


def _name_group(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)


# --- the GPUs


def find_supply(
    root: Path,
    gpus: str | None,
    *,
    virtual: tuple[Machines, ...] | None,
    cluster: tuple[Machines, ...] | None,
) -> Supply:
    """Return the GPUs of this machine, or virtual ones."""
    given = [gpus is not None, virtual is not None, cluster is not None]
    if sum(given) > 1:
        raise click.UsageError(
            "--gpus, --virtual-gpus and --cluster exclude each other; give one of them"
        )
    if cluster is not None:
        nodes = build_packed(cluster)
        return Supply(lambda: nodes)
    if gpus is not None and is_count(gpus):
        virtual = _read_old_count(gpus)
    name = machine_name(root)
    if virtual is not None:
        node = Node.of(name, sum(each.nodes * each.gpus for each in virtual))
        return Supply(lambda: (node,))
    return _find_real(name, gpus)


def _read_old_count(text: str) -> tuple[Machines, ...]:
    """
    Read a plain number as a count of virtual GPUs, as earlier versions did.

    Where the machine has GPUs it could also mean one GPU by its number, or that many of them: there
    it is refused, because trainings would run on GPUs that were not asked for.
    """
    virtual: tuple[Machines, ...] = arguments.read_gpus(text)
    try:
        there = len(Nvml().devices())
    except NoGpusError:
        say(
            f"note: --gpus {text} starts {text} virtual GPUs; write --virtual-gpus {text} for"
            " that. --gpus names GPUs of this machine, such as 0,2-3"
        )
        return virtual
    raise click.UsageError(
        f"--gpus {text}: the {there} GPUs here are named, not counted; write --gpus {text}-{text}"
        f" for GPU {text} alone, --gpus 0,1 for some of them, or --virtual-gpus {text} for virtual"
        " ones"
    )


def _find_real(name: str, gpus: str | None) -> Supply:
    try:
        chosen = None if gpus is None else gpu_choices.parse(gpus)
        real = devices.find_gpus(name, chosen=chosen, environment=os.environ)
    except NoGpusError as error:
        raise click.ClickException(str(error)) from error
    except GpuChoiceError as error:
        option = "" if gpus is None else "--gpus: "
        raise click.UsageError(f"{option}{error}") from error
    return Supply(real.nodes, real)


def machine_name(root: Path) -> str:
    """Return the name of this machine."""
    folders = folders_at(root)
    try:
        return folders.machine_name()
    except StateError as error:
        raise click.ClickException(str(error)) from error


def folders_at(root: Path) -> Folders:
    folders = Folders(root)
    try:
        make_folders(folders)
    except StateError as error:
        raise click.ClickException(str(error)) from error
    return folders
