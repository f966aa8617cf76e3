"""
``dljob report``: where the time of all GPUs went, by namespace, user, job, model or type of GPU.

``dljob record``: the events themselves, as JSON lines, a trace for Perfetto or a page for a browser (docs/record.md).
"""

import sys
from pathlib import Path
from statistics import median

import click

from dljob.cli.inputs.options import SINCE, STORE, output_option, with_place
from dljob.cli.output import printing
from dljob.cli.output.forms import to_json
from dljob.cli.output.messages import say
from dljob.cli.verbs.server.profiles import open_profiles
from dljob.client.exporting import Format, render, write_file
from dljob.client.places import Place, opened
from dljob.control.recording.composing import compose
from dljob.core.recording.record import Header, Record, RecordError, Source, decode
from dljob.core.recording.report import By, Report, list_parts, make_document, make_report
from dljob.sim.results import writing
from dljob_wire.problems import printable

UNNAMED = "(none)"
NO_CAUSE = "no decision about the job yet"


@click.command("report")
@click.option(
    "--by",
    type=click.Choice([each.value for each in By]),
    default=By.NAMESPACE.value,
    show_default=True,
    help="The rows. A user is the label dljob.io/user of a job, else its namespace; a type is one of GPUs.",
)
@SINCE
@STORE
@click.option(
    "--record",
    "path",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Report about a file that dljob record or dljob simulate --record has written.",
)
@output_option("wide", "json", "csv")
@with_place
def command(
    *,
    place: Place,
    by: str,
    since: float,
    store: str | None,
    path: Path | None,
    output: str | None,
) -> None:
    """
    Sum up the time of all GPUs: trained, lost to changes and failures, idle, out of service.

    All parts add up to the time of the GPUs that there were. A job that starts, saves itself, moves or repeats
    iterations loses GPU time; GPUs that are idle while jobs wait count for the job that has waited longest.
    """
    if path is None:
        record = read_record(place, since, store=store)
    else:
        try:
            with path.open(encoding="utf-8") as lines:
                record = decode(lines, str(path))
        except (RecordError, UnicodeDecodeError) as error:
            raise click.ClickException(str(error)) from error
    for sentence in record.header.missing:
        say(f"The report is not complete: {sentence}.")
    report = make_report(record, By(by))
    if output == "json":
        click.echo(to_json(make_document(report)), nl=False)
    elif output == "csv":
        sys.stdout.write(printing.to_csv(list_parts(report)))
    else:
        sys.stdout.write(_write_tables(report, wide=output == "wide"))


def _write_tables(report: Report, *, wide: bool) -> str:
    titles = (report.by.value, "jobs", "held", "trained", "changes", "failures", "idle, waits")
    rows = [
        (
            printable(row.name) or UNNAMED,
            str(len(row.jobs)),
            *map(_hours, (row.held.total, row.held.trained, row.held.changing, row.held.failing)),
            _hours(row.idle_while_waiting),
        )
        for row in report.rows
    ]
    table = printing.tabulate(titles, rows, title="GPU-hours of jobs", wide=wide)
    held = report.held
    parts = [
        ("trained", held.trained),
        ("lost to changes", held.changing),
        ("lost to failures", held.failing),
        *(
            (f"idle while a job waits: {cause or NO_CAUSE}", seconds)
            for cause, seconds in report.causes.items()
        ),
        ("idle, no job waits", report.idle),
        ("out of service", report.out_of_service),
        *([("held by other jobs", report.held_by_others)] if report.held_by_others else []),
        ("all GPUs", report.total),
    ]
    total = report.total
    whole = [
        (name, _hours(seconds), f"{seconds / total:.1%}" if total > 0 else "-")
        for name, seconds in parts
    ]
    table += printing.tabulate(
        ("what", "GPU-hours", "share"), whole, title="GPU-hours of all GPUs", wide=wide
    )
    if not report.pauses:
        return table
    made = [
        (how, str(len(pauses)), f"{1000 * median(pauses):,.1f}", f"{1000 * max(pauses):,.1f}")
        for how, pauses in report.pauses.items()
    ]
    columns = ("how", "changes", "median pause, ms", "longest, ms")
    return table + printing.tabulate(columns, made, title="Changes of jobs that trained", wide=wide)


def _hours(seconds: float) -> str:
    return f"{seconds / 3600:,.2f}"


FORMATS = [each.value for each in Format]


@click.command("record")
@SINCE
@click.option(
    "-o",
    "--output",
    default=Format.JSONL.value,
    metavar="FILE|FORMAT",
    help="Write to FILE, which is a trace for Perfetto if its name ends with .pftrace, and a page for a browser"
    " if it ends with .html; jsonl, perfetto and html write to the standard output.  [default: jsonl]",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(FORMATS),
    help="The format, instead of the one that the name of FILE means.",
)
@STORE
@with_place
def record_command(
    *, place: Place, since: float, output: str, form: str | None, store: str | None
) -> None:
    """
    Write the record: decisions and their reasons, changes of GPUs by phase, progress.

    ui.perfetto.dev shows a trace, with a track for each GPU; a browser shows a page, which loads nothing. On a cluster it is made from the jobs and
    Events of its API server; with --store, from all that the operator has kept.
    """
    path = None if output in FORMATS else Path(output)
    # Before the request, which may take long.
    if path is not None:
        writing.check_writable(path)
    record = read_record(place, since, store=store)
    for sentence in record.header.missing:
        say(f"The record is not complete: {sentence}.")
    if path is not None:
        write_file(path, record, form=Format(form) if form else None)
        say(f"Wrote what happened ({len(record.lines):,} lines) to {path}.")
    else:
        sys.stdout.buffer.write(render(record, Format(form or output)))


def read_record(place: Place, since: float, *, store: str | None) -> Record:
    """Read the record of a place, or of a store without its controller."""
    if store is not None:
        return read_store(store, since)
    with opened(place) as backend:
        return backend.read_record(since)


def read_store(address: str, since: float) -> Record:
    """Compose a record from a store without its controller."""
    with open_profiles(address, None) as store:
        kept = store.rows()
        latest = max((row.at for row in kept), default=since)
        header = Header(source=Source.MACHINE, since=since, until=latest, title=store.address)
        return compose(kept, (), header=header)
