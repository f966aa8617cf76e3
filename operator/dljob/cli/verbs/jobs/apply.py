"""
``dljob apply``: make jobs agree with their files, whether they exist already or not.

A job that does not exist is submitted. An existing job gets the spec of its file, as far as that
may change while the job runs; a field that the file leaves out gets its default. Two things stay as they are
unless the file says them: whether the job is suspended, and its labels. All of it is tried before anything is
done, so that a file that is wrong changes nothing.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import click

from dljob.cli.inputs.completing import complete_files
from dljob.cli.inputs.options import output_option, with_backend
from dljob.cli.output.messages import say
from dljob.client.backend import (
    Backend,
    BackendError,
    Complaint,
    Json,
    NotThere,
)
from dljob.client.changing import change_job, describe_changes
from dljob.client.sources import (
    Source,
    WrongJobs,
    check,
    iter_sources,
    refuse,
)
from dljob.core.documents.jobnames import full_name


class Wish(NamedTuple):
    """The job of a file, and the existing one of its name."""

    source: Source
    name: str
    document: Json
    there: Json | None

    @property
    def differences(self) -> list[str]:
        return [] if self.there is None else describe_changes(self.there, self.merged(self.there))

    def merged(self, there: Json) -> Json:
        return merge(there, self.document)


def merge(there: Json, wanted: Mapping[str, Any]) -> Json:
    """Return the document of a job with the spec, labels and annotations of another document."""
    given, spec = wanted["metadata"], dict(wanted["spec"])
    metadata = dict(there["metadata"])
    if "labels" in given:
        metadata["labels"] = given["labels"]
    if given.get("annotations"):
        metadata["annotations"] = {**(metadata.get("annotations") or {}), **given["annotations"]}
    if "suspend" in there["spec"]:
        spec.setdefault("suspend", there["spec"]["suspend"])
    return {**there, "metadata": metadata, "spec": spec}


@click.command("apply")
@click.argument("files", nargs=-1, required=True, metavar="FILE…", shell_complete=complete_files)
@click.option(
    "--dry-run", is_flag=True, help="Change nothing: print which jobs are new or different."
)
@output_option("name")
@with_backend
def command(backend: Backend, *, files: tuple[str, ...], dry_run: bool, output: str | None) -> None:
    """
    Submit the jobs of files that are not there yet, and change those that are to what the files say.

    The numbers of GPUs, the priority, being suspended, the limits and the labels may change at any
    time. A change of anything else is refused by field, and then nothing is done.
    """
    sources = [source for name in files for source in iter_sources(name)]
    wishes = [
        Wish(source, full_name(document), document, _find(backend, full_name(document)))
        for source, document in zip(sources, check(sources), strict=True)
    ]
    _try_all(backend, wishes)
    new = [wish for wish in wishes if wish.there is None]
    if new and not dry_run:
        try:
            created = backend.create_jobs([wish.document for wish in new])
        except BackendError as error:
            refuse(error, [wish.source for wish in new])
        for notice in created.notices:
            say(f"note: {notice}")
    for wish in wishes:
        told = _apply(backend, wish, dry_run=dry_run)
        click.echo(f"dljob.dljob.io/{wish.name}" if output == "name" else f"{wish.name} {told}")


def _find(backend: Backend, name: str) -> Json | None:
    with suppress(NotThere):
        return backend.get_job(name)
    return None


def _try_all(backend: Backend, wishes: Sequence[Wish]) -> None:
    """Try all changes; raise :class:`WrongJobs` with everything that would be refused."""
    lines: list[str] = []
    for wish in wishes:
        try:
            if wish.there is None:
                backend.create_jobs([wish.document], dry_run=True)
            elif wish.differences:
                change_job(backend, wish.name, alter=wish.merged, dry_run=True)
        except BackendError as error:
            found = error.complaints or (Complaint(0, f"{wish.name}: {error}"),)
            lines += [f"{wish.source.at(each.path)}: {each.line}" for each in found]
    if lines:
        raise WrongJobs(lines)


def _apply(backend: Backend, wish: Wish, *, dry_run: bool) -> str:
    """Change a job if it differs, and return the result as words."""
    would = "would be " if dry_run else ""
    if wish.there is None:
        return f"{would}submitted"
    differences = wish.differences
    if not differences:
        return "is unchanged"
    if not dry_run:
        change_job(backend, wish.name, alter=wish.merged)
    return f"{would}changed: {', '.join(differences)}"
