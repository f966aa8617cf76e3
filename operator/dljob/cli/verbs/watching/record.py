"""
``dljob record``: all that happened, as JSON lines, a trace for Perfetto or a page for a browser. docs/record.md tells more.
"""

import sys
from pathlib import Path

import click

from dljob.cli.inputs.options import SINCE, STORE, with_place
from dljob.cli.output.messages import say
from dljob.cli.verbs.server.profiles import open_profiles
from dljob.client.exporting import Format, render, write_file
from dljob.client.places import Place, opened
from dljob.control.recording.composing import compose
from dljob.core.recording.record import Header, Record, Source
from dljob.sim.results import writing

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
def command(
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
