"""
``dljob profiles``: what is known of types of jobs, in the store itself.

The store may be used while a ``dljob up`` uses it too.
"""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any

import click

from dljob.cli.inputs import arguments
from dljob.cli.inputs.options import STATE_HELP, output_option
from dljob.cli.output import texts
from dljob.cli.output.forms import to_json, to_yaml
from dljob.cli.output.messages import say
from dljob.client.backend import BackendError, NotThere
from dljob.client.local.local_backend import LocalBackend
from dljob.core.documents import profilefile
from dljob.core.model import Mechanism
from dljob.core.profiles import CostTerm, Profile
from dljob.local.folders import Folders, default_root
from dljob.sim.inputs import shipped, yamlfiles
from dljob.store import importing
from dljob.store.opening import open_store
from dljob.store.store import Store, StoreError

HEADER = ("TYPE", "SHAPES", "GPUS", "FASTEST", "CURVE", "COSTS", "SEEN")


def _with_store(function: Any) -> Any:
    """Give a verb the options that choose a store, and that store as its first argument."""

    @click.option("--store", "address", metavar="URL", help="A file, or a mongodb:// address.")
    @click.option(
        "--state", type=click.Path(path_type=Path, file_okay=False), metavar="DIR", help=STATE_HELP
    )
    @wraps(function)
    def opened(*, address: str | None, state: Path | None, **given: Any) -> Any:
        with open_profiles(address, state) as store:
            return function(store, **given)

    return opened


@contextmanager
def open_profiles(address: str | None, state: Path | None) -> Iterator[Store]:
    """Open the store at this address, or else the one of this state folder."""
    try:
        store = open_store(address or _find_address(state), environment=os.environ)
        try:
            yield store
        finally:
            store.close()
    except StoreError as error:
        raise BackendError(str(error)) from error


def _find_address(state: Path | None) -> str:
    """Return the address of the store that the dljob up of this state folder uses, or would use."""
    named = os.environ.get("DLJOB_STORE")
    if named:
        return named
    folders = Folders(state or default_root(os.environ))
    try:
        return find_store(LocalBackend(folders.socket), folders)
    except BackendError:
        return str(folders.store)


def find_store(backend: LocalBackend, folders: Folders) -> str:
    """Return the store that a running dljob up uses; raises :class:`BackendError` where it does not answer."""
    settings = backend.list_settings()
    used = next((each["value"] for each in settings if each["name"] == "store"), "")
    return used or str(folders.store)


@click.group("profiles")
def command() -> None:
    """
    Show and change the profiles of types of jobs: speeds, learning curves and costs.

    A type is named as `dljob profiles list` prints it: MODEL/DATASET/BATCHSIZE.
    """


# --- looking ------------------------------------------------------------------------------


@command.command("list")
@output_option("json")
@_with_store
def list_profiles(store: Store, *, output: str | None) -> None:
    """
    List all types: how many shapes were seen, and the fastest of them.
    """
    known = list_known(store)
    if output == "json":
        click.echo(to_json([_summary(profile) for profile in known.values()]), nl=False)
    elif not known:
        say(
            "There are no profiles yet. dljob profiles import --shipped imports the measured ones"
            " that come with DLJob."
        )
    else:
        rows = [_row(profile) for profile in known.values()]
        click.echo(texts.tabulate(HEADER, rows), nl=False)


def _summary(profile: Profile) -> dict[str, Any]:
    best = max(profile.speeds.values(), key=lambda speed: speed.iterations_per_s, default=None)
    seen = max((speed.seen_at for speed in profile.speeds.values()), default=0.0)
    return {
        "type": str(profile.type),
        "shapes": len(profile.speeds),
        "gpus": sorted({shape.gpus for shape in profile.speeds}),
        "fastestIterationsPerSecond": best.iterations_per_s if best is not None else None,
        "curvePoints": len(profile.accuracy),
        "costsMeasured": sorted(profile.cost_samples),
        "seenAt": seen or None,
    }


def _row(profile: Profile) -> tuple[str, ...]:
    told = _summary(profile)
    fastest, seen = told["fastestIterationsPerSecond"], told["seenAt"]
    return (
        told["type"],
        str(told["shapes"]),
        ",".join(map(str, told["gpus"])) or texts.NOTHING,
        texts.speed(fastest) if fastest is not None else texts.NOTHING,
        f"{told['curvePoints']} points" if told["curvePoints"] else texts.NOTHING,
        f"{len(told['costsMeasured'])} of {len(CostTerm)}"
        if told["costsMeasured"]
        else texts.NOTHING,
        texts.age(seen),
    )


@command.command("show")
@click.argument("types", nargs=-1, required=True, metavar="TYPE…")
@output_option("json", "yaml")
@_with_store
def show(store: Store, *, types: tuple[str, ...], output: str | None) -> None:
    """
    Show the profiles of types: the speed of each shape, and the observations behind it.
    """
    chosen = _choose(list_known(store), types)
    if output is not None:
        click.echo(_write(chosen, output), nl=False)
    else:
        click.echo("\n".join(map(_tell, chosen)), nl=False)


def _tell(profile: Profile) -> str:
    lines = [f"Type: {profile.type}\n"]
    if profile.speeds:
        rows = [
            (
                str(shape.gpus),
                str(shape.nodes),
                shape.gpu_type or texts.NOTHING,
                texts.speed(speed.iterations_per_s),
                f"{speed.weight:g}",
                texts.age(speed.seen_at or None),
            )
            for shape, speed in sorted(profile.speeds.items())
        ]
        header = ("GPUS", "NODES", "TYPE", "SPEED", "OBSERVATIONS", "SEEN")
        lines.append("Speeds:\n" + texts.indent(texts.tabulate(header, rows)))
    if profile.accuracy:
        first, last = profile.accuracy[0], profile.accuracy[-1]
        lines.append(
            f"Learning curve: {len(profile.accuracy)} points, from {first.value:.4g} at iteration"
            f" {first.iteration:,.0f} to {last.value:.4g} at {last.iteration:,.0f}\n"
        )
    if profile.cost_samples and profile.costs is not None:
        costs = [
            (term, f"{getattr(profile.costs, term):.3g}s", str(len(samples)))
            for term, samples in sorted(profile.cost_samples.items())
        ]
        table = texts.tabulate(("TERM", "MEDIAN", "OBSERVATIONS"), costs)
        lines.append("Costs, as measured:\n" + texts.indent(table))
    return "".join(lines)


@command.command("export")
@click.argument("types", nargs=-1, metavar="[TYPE…]")
@output_option("json", "yaml", default="yaml")
@_with_store
def export(store: Store, *, types: tuple[str, ...], output: str) -> None:
    """
    Print profiles, all or those that are named, as `dljob profiles import` reads them.
    """
    known = list_known(store)
    click.echo(_write(_choose(known, types) if types else list(known.values()), output), nl=False)


def _write(profiles: Iterable[Profile], output: str) -> str:
    document = profilefile.render_all(profiles)
    return to_json(document) if output == "json" else to_yaml(document)


# --- changing -----------------------------------------------------------------------------


@command.command("import")
@click.argument("files", nargs=-1, metavar="[FILE…]")
@click.option(
    "--shipped", "with_shipped", is_flag=True, help="Also import the profiles that come with DLJob."
)
@click.option("--replace", is_flag=True, help="Replace the profiles that exist already.")
@_with_store
def import_profiles(
    store: Store, *, files: tuple[str, ...], with_shipped: bool, replace: bool
) -> None:
    """
    Take in profiles that `dljob profiles export` has written, or those that are shipped.

    Where something is known of a type already, they fill the gaps; with --replace they take its
    place.
    """
    if not files and not with_shipped:
        raise click.UsageError("there is nothing to import; name a file, or give --shipped")
    found = [profile for name in files for profile in _read(Path(name))]
    if with_shipped:
        found += shipped.load_shipped().values()
    outcome = importing.import_profiles(store, found, instead=replace)
    for word, kinds in (("imported", outcome.added), ("completed", outcome.changed)):
        for kind in sorted(kinds):
            click.echo(f"{kind} {'replaced' if replace and word == 'completed' else word}")
    if outcome.kept:
        say(f"{len(outcome.kept)} of {len(found)} stay as they were; nothing in them is new")


def _read(file: Path) -> Iterator[Profile]:
    for line, document in yamlfiles.load(file):
        if document is not None:
            yield from profilefile.parse_all(document, source=f"{file}:{line}")


@command.command("measure")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@click.option(
    "--gpus",
    "counts",
    type=arguments.read_counts,
    metavar="N[,N…]",
    help="The numbers of GPUs to measure, in this order.  [default: all options of the job]",
)
@click.option(
    "--cluster",
    type=arguments.read_cluster,
    metavar="NODESxGPUS[:TYPE][,…]",
    help="Virtual GPUs, such as 1x4, instead of those that NVML finds, which have to be idle.",
)
@click.option(
    "--seconds",
    type=click.FloatRange(min=0.5),
    default=10.0,
    show_default=True,
    help="The least time to measure a speed, after the same time to warm up.",
)
@click.option(
    "--rounds", type=click.IntRange(1, 9), default=1, show_default=True, help="How often."
)
@click.option(
    "--mini-epochs",
    "in_mini_epochs",
    is_flag=True,
    help="Run Coach's four mini-epochs instead, two with the fewest GPUs of the job and two with the "
    "next number, each of 3 x --seconds with the fewest.",
)
@click.option(
    "--mechanism",
    type=click.Choice([each.value for each in Mechanism]),
    default=Mechanism.RECREATE.value,
    show_default=True,
    help="How it comes from one number to the next: with recreate, pods are timed each time as well.",
)
@output_option("json", "yaml")
@_with_store
def measure(
    store: Store, *, file: Path, seconds: float, output: str | None, mechanism: str, **given: Any
) -> None:
    """
    Run the job of FILE for a while on each number of GPUs, and keep what is learnt.

    That is how fast it is, how it learns, and what starting, saving and stopping cost. The job runs
    as its file says, and saves where its file says: give it a folder of its own.
    """
    # Imported here, because no other verb of this module runs jobs.
    from dljob.cli.verbs.server import measure as measuring  # noqa: PLC0415

    if given["in_mini_epochs"] and (given["counts"] or given["rounds"] > 1):
        raise click.UsageError("--mini-epochs decides what to measure; leave out --gpus, --rounds")
    found = measuring.measure(file, seconds=seconds, mechanism=Mechanism(mechanism), **given)
    known = measuring.keep(store, found, seconds)
    click.echo(_tell(known) if output is None else _write([known], output), nl=False)


@command.command("forget")
@click.argument("types", nargs=-1, required=True, metavar="TYPE…")
@_with_store
def forget(store: Store, *, types: tuple[str, ...]) -> None:
    """
    Forget the profiles of types. DLJob then measures their jobs again.
    """
    for profile in _choose(list_known(store), types):
        importing.forget_profile(store, profile.type)
        click.echo(f"{profile.type} forgotten")


# --- choosing -----------------------------------------------------------------------------


def list_known(store: Store) -> dict[str, Profile]:
    """All profiles by the names of their types, in order."""
    found = {
        str(kind): stored.profile
        for kind, stored in store.profiles().items()
        if stored.profile is not None
    }
    return dict(sorted(found.items()))


def _choose(known: Mapping[str, Profile], types: Sequence[str]) -> list[Profile]:
    missing = [name for name in types if name not in known]
    if missing:
        from difflib import get_close_matches  # noqa: PLC0415 - hardly ever needed

        near = get_close_matches(missing[0], known, n=1)
        remedy = f"did you mean {near[0]}?" if near else "dljob profiles list shows all profiles"
        raise NotThere(f"{missing[0]}: there is no profile of this type; {remedy}")
    return [known[name] for name in types]
