"""``dljob demo``: the SideCar paper's case study on this machine, live."""

import logging
import os
import shutil
import sys
import tempfile
import textwrap
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from rich.console import Console, RenderableType

from dljob.cli.inputs.ending import run_to_the_end
from dljob.cli.output.forms import to_json
from dljob.cli.output.messages import say
from dljob.cli.output.streams import raw
from dljob.core.model import Mechanism
from dljob.installed import check_can_draw
from dljob.local.measuring import StuckError
from dljob.sim.results import writing
from dljob_lab.demonstrating import (
    closing,
    performing,
    reshaping,
    viewing,
)
from dljob_lab.demonstrating.closing import Result
from dljob_lab.demonstrating.filming import Film
from dljob_lab.demonstrating.journal import Journal
from dljob_lab.demonstrating.performing import Hall
from dljob_lab.demonstrating.reshaping import Reshapes
from dljob_lab.demonstrating.script import (
    Document,
    Script,
    choose_training,
    list_modelled,
    write_case,
    write_real,
)
from dljob_lab.demonstrating.stage import Failed, Stage
from dljob_lab.reproducing.sidecar.case import GPUS

FASTER = 12.0
LEAST_FASTER, MOST_FASTER = 1.0, 60.0
CHANGES = {Mechanism.IN_PLACE: 20, Mechanism.RECREATE: 8}
JOURNAL = "demo-events.jsonl"
LOG = "demo.log"
FILMED_AT_S = 470.0
"""When it is best seen in what the approaches differ."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """The command line."""

    real: bool
    faster: float
    changes: int | None
    out: Path
    output: str
    record: Path | None


@dataclass(frozen=True, slots=True)
class Outcome:
    """The results."""

    script: Script
    results: list[Result]
    reshapes: list[Reshapes]
    film: Film


@click.command("demo")
@click.option(
    "--real",
    is_flag=True,
    help="Train for real, PyTorch where this Python has it and else numpy, one approach after the"
    " other, without a model of time. It takes about seven minutes.",
)
@click.option(
    "--faster",
    type=click.FloatRange(LEAST_FASTER, MOST_FASTER),
    default=FASTER,
    show_default=True,
    metavar="TIMES",
    help="The factor by which times are shorter than in the paper.",
)
@click.option(
    "--changes",
    type=click.IntRange(2, 1000),
    metavar="N",
    help="The numbers of measured changes in place and recreations.  [default:"
    f" {CHANGES[Mechanism.IN_PLACE]} and {CHANGES[Mechanism.RECREATE]}]",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("plots"),
    show_default=True,
    metavar="DIR",
    help="The folder of the pictures and the event log.",
)
@click.option(
    "-o",
    "--output",
    type=click.Choice(("table", "json")),
    default="table",
    show_default=True,
    help="The format of the figures.",
)
@click.option(
    "--record",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Also draw what was seen on the terminal, as SVG.",
)
def command(**given: Any) -> None:
    """
    Show the case study of the SideCar paper on this machine, live.

    Two jobs share four GPUs (virtual ones, where the machine has fewer) in three approaches side by
    side: a scheduler that changes nothing, one that ends jobs and starts them again, and DLJob, which
    changes their GPUs in place. Controllers, SideCars and processes are real. The times of the cluster
    and the model of the paper are waited out, shorter by a factor, and are called modelled; times of
    this machine are measured and shown apart.
    """
    options = Options(**given)
    check_can_draw()
    writing.check_writable(options.out / JOURNAL)
    if options.record is not None:
        writing.check_writable(options.record)
    options.out.mkdir(parents=True, exist_ok=True)
    # Left in reverse order: the controllers end, then
    # their folder goes, and the log is closed last.
    with _logging(options.out / LOG), tempfile.TemporaryDirectory(prefix="dljob-demo-") as folder:
        outcome = run_to_the_end(_perform(options, Path(folder)))
    _close(options, outcome)


@contextmanager
def _logging(path: Path) -> Iterator[None]:
    """Keep what controllers log in a file; on the terminal it would tear the picture apart."""
    kept = logging.FileHandler(path, mode="w", encoding="utf-8")
    kept.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    root = logging.getLogger()
    before = root.level
    root.setLevel(logging.INFO)
    root.addHandler(kept)
    try:
        yield
    finally:
        root.setLevel(before)
        root.removeHandler(kept)
        kept.close()


def _print(line: str) -> None:
    """Print a line, broken between words where a terminal is narrow."""
    width = shutil.get_terminal_size().columns if sys.stderr.isatty() else 0
    for part in textwrap.wrap(line, width, subsequent_indent="  ") if width else [line]:
        say(part)


async def _perform(options: Options, folder: Path) -> Outcome:
    path = options.out / JOURNAL
    path.unlink(missing_ok=True)
    cores = len(os.sched_getaffinity(0))
    machine = performing.find_real_machine(cores) if options.real else performing.find_machine()
    hall = Hall(folder, machine, Journal(path))
    try:
        return await _play(options, hall)
    except (Failed, StuckError) as error:
        logs = f"the event log is {path}, that of the controllers {options.out / LOG}"
        raise click.ClickException(f"{error}; {logs}") from error
    finally:
        hall.journal.close()


@dataclass(frozen=True, slots=True)
class Programme:
    """The contents of the demonstration, and its form."""

    write: Callable[[Path], Script]
    play: Callable[[Sequence[Stage], Callable[[], None]], Awaitable[None]]
    write_probe: Callable[[Path], Document]


async def _play(options: Options, hall: Hall) -> Outcome:
    _announce(options, hall)
    programme = await _plan(options, hall)
    async with performing.build_stages(hall, programme.write) as stages:
        picture = viewing.Picture(stages)
        film = Film(picture, FILMED_AT_S)
        with _view(hall, stages, picture=picture) as tell:

            def watch() -> None:
                tell()
                film.update()

            await programme.play(stages, watch)
        results = performing.read_results(hall, stages)
    changes = CHANGES if options.changes is None else dict.fromkeys(CHANGES, options.changes)
    numbers = " and ".join(f"{number} {mechanism.value}" for mechanism, number in changes.items())
    _print(f"measures what a change of GPUs takes here, nothing modelled: {numbers} …")
    reshapes = await performing.measure_all(hall, changes, write=programme.write_probe)
    return Outcome(stages[0].script, results, reshapes, film)


async def _plan(options: Options, hall: Hall) -> Programme:
    if not options.real:
        return Programme(
            lambda folder: write_case(folder, options.faster),
            performing.play_together,
            reshaping.write_probe,
        )
    training = choose_training()
    gpus = len(hall.machine.node.gpus)
    profile = await performing.profile_training(hall, training, watch=say)
    for shape, speed in sorted(profile.speeds.items()):
        say(
            f"measured offline: {speed.iterations_per_s:,.3g} it/s on {viewing.counted(shape.gpus)}"
        )
    _report_gain(performing.gain_of(profile, gpus), gpus)
    iterations = performing.choose_iterations(profile, gpus)
    return Programme(
        lambda folder: write_real(
            training, folder, iterations=iterations, profile=profile, gpus=gpus
        ),
        performing.play_in_turn,
        lambda folder: reshaping.write_real_probe(training, folder, gpus=gpus),
    )


def _report_gain(gain: float, gpus: int) -> None:
    """Report whether there is anything to gain here, before it takes minutes to see it."""
    told = f"{gpus} GPUs train {gain:.2f} times as fast as {gpus // 2}"
    if gain >= performing.LEAST_GAIN:
        _print(f"{told}, so giving them to the right job at the right time is worth something")
        return
    cores, load = len(os.sched_getaffinity(0)), os.getloadavg()[0]
    _print(
        f"this machine cannot show an advantage now: {told}, because a process stands for each GPU and"
        f" {gpus} processes share {cores} cores with a load of {load:.1f}. No scheduler gains by giving"
        " GPUs that make nothing faster. Real GPUs, or as many idle cores as GPUs, would show it"
    )


def _announce(options: Options, hall: Hall) -> None:
    kind = "virtual" if hall.machine.virtual_gpus else "of this machine"
    if options.real:
        gpus, what = len(hall.machine.node.gpus), choose_training().example
        _print(
            f"two real trainings (examples/{what}) on {gpus} GPUs ({kind}), three approaches one after"
            " the other, about two minutes each"
        )
        if gpus < GPUS:
            _print(f"a virtual GPU is a core here, and there are only {os.cpu_count()} of them")
        return
    _print(
        f"two jobs on four GPUs ({kind}), three approaches side by side, {options.faster:g} times"
        f" as fast as in the paper: about {closing.SLOWEST_S / options.faster:.0f} s"
    )
    _print(f"modelled, that is waited out: {'; '.join(list_modelled())}")
    _print("real: the controllers and their decisions, SideCars, processes; stop, re-pin and start")


@contextmanager
def _view(
    hall: Hall, stages: Sequence[Stage], *, picture: viewing.Picture
) -> Iterator[Callable[[], None]]:
    """Show what happens; hands out what is to be called whenever something has."""
    console = Console(file=raw(sys.stderr))
    if viewing.is_worth_drawing(console, picture.height, environment=os.environ):
        with viewing.live(picture, console):
            yield lambda: None
        return
    yield viewing.Lines(hall.journal, stages, say=_print).print


def _close(options: Options, outcome: Outcome) -> None:
    pictures = _draw(options, outcome.results)
    if options.output == "json":
        values = closing.to_values(
            outcome.results,
            outcome.reshapes,
            factor=outcome.script.factor,
            modelled=[] if options.real else list(list_modelled()),
            pictures=[str(path) for path in pictures],
            events=str(options.out / JOURNAL),
        )
        click.echo(to_json(values), nl=False)
        return
    console = Console(width=None if sys.stdout.isatty() else viewing.WIDTH)
    tables = _tables(options, outcome)
    for table in tables:
        console.print(table)
    for path in (*pictures, options.out / JOURNAL, options.out / LOG):
        console.print(f"written: {path}", soft_wrap=True)
    console.print(closing.suggest_next(real=options.real), highlight=False)
    if options.record is not None:
        outcome.film.finish(options.record, tables[-3:])


def _tables(options: Options, outcome: Outcome) -> list[RenderableType]:
    results, compared = outcome.results, not options.real
    return [
        closing.show_jobs(outcome.script, results),
        closing.show_times(results, compared=compared),
        closing.show_sums(results, compared=compared),
        closing.describe_order(results) if compared else closing.describe_gain(results),
        closing.show_reshapes(outcome.reshapes),
    ]


def _draw(options: Options, results: Sequence[Result]) -> list[Path]:
    # Not at the top, because it takes longer to load than the demonstration to begin.
    from dljob_lab.demonstrating import pictures  # noqa: PLC0415
    from dljob_lab.plots import write_pictures  # noqa: PLC0415

    figures = pictures.draw(results, compared=not options.real)
    write_pictures(options.out, figures)
    return [options.out / f"{name}.png" for name in figures]
