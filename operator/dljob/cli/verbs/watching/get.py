"""
``dljob get``: the jobs in a list, once or as they change.
"""

import sys
from collections.abc import Sequence
from contextlib import suppress

import click

from dljob.cli.inputs.options import name_argument, output_option, with_wide_backend
from dljob.cli.output import texts
from dljob.cli.output.forms import to_json, to_json_line, to_yaml
from dljob.cli.output.messages import complain, say
from dljob.client.backend import (
    Backend,
    JobList,
    Json,
    NotThere,
)
from dljob.client.jobviews import CANCELLING, PHASES, JobView, eta_of, progress_of
from dljob.client.turns import show_turn
from dljob.core.documents.jobnames import full_name
from dljob_wire.problems import listed

HEADER = (
    "NAME",
    "PHASE",
    "GPUS",
    "PROGRESS",
    "SPEED",
    "ETA",
    "STARTS",
    "RESHAPES",
    "DURATION",
    "AGE",
)
WIDE = ("FINISHED", "PRIORITY", "ALLOCATION", "REASON")
GROWING = frozenset({"STARTS", "DURATION", "AGE"})
"""Columns that change all the time, and do not count as a change."""
HIDDEN_FIRST = ("AGE", "DURATION", "RESHAPES", "SPEED", "STARTS", "ETA", "PROGRESS")
"""The columns that a narrow terminal hides, first to last; as in ``dljob top``."""

ROOM = 4
"""The extra width of columns when watching, because later values may be longer."""


@click.command("get")
@name_argument(several=True, required=False)
@output_option("wide", "json", "yaml", "name")
@click.option(
    "-w", "--watch", is_flag=True, help="Continue, and print a row at each change of a job."
)
@click.option(
    "-l",
    "--selector",
    default="",
    metavar="LABELS",
    help="Only jobs with these labels: team=vision,tier!=batch,gpu in (a100,h100),!draft.",
)
@click.option(
    "--phase",
    "phases",
    multiple=True,
    type=click.Choice((*PHASES, CANCELLING), case_sensitive=False),
    help="Only jobs in this phase; may be given several times.",
)
@with_wide_backend
def command(
    backend: Backend,
    *,
    names: tuple[str, ...],
    output: str | None,
    watch: bool,
    selector: str,
    phases: tuple[str, ...],
) -> int:
    """
    List jobs: all of them, or those that are named.

    STARTS is the expected start of a waiting job and the number of jobs before it (12m, 2 ahead).
    RESHAPES counts the changes of its GPUs, and DURATION runs from its first GPUs to its end. The
    wide list gives bounds for the end: nine of ten ends lie between them, as long as the GPUs of
    the job do not change.
    """
    if names and selector:
        raise click.UsageError("names and --selector exclude each other; give one of them")
    listed = backend.list_jobs(selector)
    found, missing = _choose(backend, listed.items, names=names)
    found = [item for item in found if not phases or JobView.of(item).phase in phases]
    for name in missing:
        complain(f"{name}: there is no such job; dljob get lists the jobs")
    if watch:
        _Watch(output, found, home=backend.home, phases=phases).go_on(
            backend, selector, names, listed.version
        )
    elif output in (None, "wide") and not found:
        if not missing:
            say(_nothing(selector, phases))
    else:
        click.echo(_show(found, output, backend.home, single=len(names) == 1), nl=False)
    return 1 if missing else 0


def _nothing(selector: str, phases: Sequence[str]) -> str:
    if phases:
        labelled = " with these labels" if selector else ""
        return f"No job{labelled} is {listed(phases, 'or')}."
    return "No job has these labels." if selector else "There are no jobs."


def _choose(
    backend: Backend, items: list[Json], *, names: Sequence[str]
) -> tuple[list[Json], list[str]]:
    if not names:
        return items, []
    there = {full_name(item, backend.home): item for item in items}
    for name in names:
        if name not in there and "/" in name:
            with suppress(NotThere):
                # The job may be in a namespace that is not listed.
                there[name] = backend.get_job(name)
    return (
        [there[name] for name in names if name in there],
        [name for name in names if name not in there],
    )


def _show(items: list[Json], output: str | None, home: str, *, single: bool) -> str:
    if output == "name":
        return "".join(f"{_resource(item, home)}\n" for item in items)
    if output in ("json", "yaml"):
        listing = {"apiVersion": "dljob.io/v1alpha1", "kind": "DLJobList", "items": items}
        document = items[0] if single and items else listing
        return to_json(document) if output == "json" else to_yaml(document)
    wide = output == "wide"
    rows = [row_of(JobView.of(item, home), wide=wide) for item in items]
    return texts.tabulate(_header(wide=wide), rows, hide=() if wide else HIDDEN_FIRST)


def _resource(item: Json, home: str) -> str:
    return f"dljob.dljob.io/{full_name(item, home)}"


def _header(*, wide: bool) -> tuple[str, ...]:
    return (*HEADER, *WIDE) if wide else HEADER


def row_of(job: JobView, *, wide: bool = False) -> tuple[str, ...]:
    row = (
        job.name,
        job.phase,
        str(job.gpus),
        progress_of(job),
        texts.speed(job.speed),
        eta_of(job, "-" if wide else ""),
        show_turn(job),
        str(job.reshapes),
        # Since the job's first GPUs, up to its end.
        texts.age(job.started_at, job.finished_at),
        texts.age(job.submitted_at),
    )
    if not wide:
        return row
    kind = f" ({job.gpu_type})" if job.gpu_type else ""
    where = " ".join(map(str, job.slices)) + kind if job.slices else texts.NOTHING
    return (
        *row,
        texts.instant(job.finished_at),
        str(job.priority),
        where,
        job.message or texts.NOTHING,
    )


class _Watch:
    """Prints a row whenever a printed value of a job changes."""

    def __init__(
        self, output: str | None, items: list[Json], *, home: str, phases: Sequence[str]
    ) -> None:
        self._output = output
        self._phases = phases
        self._home = home
        self._wide = output == "wide"
        self._header = header = _header(wide=self._wide)
        rows = [row_of(JobView.of(item, home), wide=self._wide) for item in items]
        self._widths = [width + ROOM for width in texts.measure([header, *rows])]
        self._printed: dict[str, tuple[str, ...]] = {}
        if output in (None, "wide"):
            self._print(texts.align(header, self._widths).rstrip() + "\n")
        for item in items:
            self._tell(item)

    def go_on(self, backend: Backend, selector: str, names: Sequence[str], version: str) -> None:
        for news in backend.watch_jobs(selector, version):
            self._hear(news, names)

    def _hear(self, news: JobList, names: Sequence[str]) -> None:
        for item in news.items:
            if not names or full_name(item, self._home) in names:
                self._tell(item)
        there = {full_name(item, self._home) for item in news.items}
        unheard_of = [name for name in self._printed if news.complete and name not in there]
        for name in (*news.removed, *unheard_of):
            if self._printed.pop(name, None) is not None and self._output in (None, "wide"):
                nothing = [texts.NOTHING] * (len(self._widths) - 2)
                self._print(texts.align((name, "Removed", *nothing), self._widths).rstrip() + "\n")

    def _tell(self, item: Json) -> None:
        name = full_name(item, self._home)
        job = JobView.of(item, self._home)
        row = row_of(job, wide=self._wide)
        if job.phase not in (self._phases or (job.phase,)) and name not in self._printed:
            return
        cells = zip(self._header, row, strict=True)
        news = tuple(cell for column, cell in cells if column not in GROWING)
        if self._printed.get(name) == news and self._output in (None, "wide"):
            return
        self._printed[name] = news
        if self._phases and job.phase not in self._phases:
            # Its last row has the new phase; a later row follows if it comes back.
            del self._printed[name]
        self._print(self._write(item, row))

    def _write(self, item: Json, row: tuple[str, ...]) -> str:
        match self._output:
            case "json":
                return to_json_line(item)
            case "yaml":
                return f"---\n{to_yaml(item)}"
            case "name":
                return f"{_resource(item, self._home)}\n"
        return texts.align(row, self._widths).rstrip() + "\n"

    def _print(self, text: str) -> None:
        click.echo(text, nl=False)
        # The reader of a pipe needs each change at once.
        sys.stdout.flush()
