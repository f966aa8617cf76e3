"""
``dljob edit``: a job in the editor of its user.

Mistakes in the text come back into the editor, as comments above it. The user's text is never
lost: when the user gives up, the verb leaves it in a file and names that.
"""

import os
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path

import click

from dljob.cli.inputs.options import name_argument, with_backend
from dljob.cli.output.forms import to_yaml
from dljob.cli.output.messages import complain, say
from dljob.client.backend import Backend, BackendError, Json
from dljob.client.changing import describe_changes, insist_on_living, retry_overtaken
from dljob.client.jobviews import JobView
from dljob.client.sources import Source, WrongJobs, check
from dljob.core.documents.jobnames import full_name

OURS = "#| "
"""Lines with this prefix are comments of this verb, and are removed when the text is read."""
HEAD = (
    "Change the job, save and leave the editor. The numbers of GPUs, the priority, being suspended,",
    "the limits and the labels may change while the job runs. Nothing happens if nothing is changed.",
)
MOST_ROUNDS = 100
"""Ends the rounds with an editor that is a program and repeats its mistake."""
SHOWN = ("name", "namespace", "labels", "annotations")
"""The fields of the metadata that belong to the user."""


@click.command("edit")
@name_argument()
@with_backend
def command(backend: Backend, *, name: str) -> int:
    """
    Change a job in your editor: $VISUAL, else $EDITOR.

    Mistakes in the text come back as comments. To give up, leave the text as it is; a file then has
    what you wrote.
    """
    base = backend.get_job(name)
    insist_on_living(JobView.of(base), name)
    handle, file = tempfile.mkstemp(
        prefix=f"dljob-{re.sub('[^a-z0-9-]', '-', name)}-", suffix=".yaml"
    )
    os.close(handle)
    path, original = Path(file), _to_text(base)
    text, problems = original, list[str]()
    for _ in range(MOST_ROUNDS):
        edited = _edit(path, text, problems=problems)
        if edited.strip() in ("", original.strip()):
            path.unlink()
            say("Nothing is changed.")
            return 0
        if edited == text:
            break
        text = edited
        base, problems = _try(backend, base, text=text)
        if not problems:
            path.unlink()
            return 0
    complain(f"nothing is changed; what you wrote is in {path}, for dljob apply {path}")
    return 1


def _edit(path: Path, text: str, *, problems: Sequence[str]) -> str:
    told = [f"{OURS}{line}\n" for line in (*HEAD, *(f"Not done: {line}" for line in problems))]
    path.write_text("".join(told) + text, encoding="utf-8")
    try:
        click.edit(filename=str(path))
    except click.ClickException as error:
        raise BackendError(
            f"{error.format_message()}; nothing is changed, and the text is in {path}: set $EDITOR to another one,"
            f" or use dljob apply {path}"
        ) from error
    lines = path.read_text(encoding="utf-8", errors="surrogateescape").splitlines(keepends=True)
    return "".join(line for line in lines if not line.startswith(OURS.rstrip()))


def _try(backend: Backend, base: Json, *, text: str) -> tuple[Json, list[str]]:
    """Apply the text to the job that it began with; return the job, and the problems of the text."""
    try:
        wanted = _read(text, base)
        return retry_overtaken(lambda: _change(backend, base, wanted=wanted))
    except WrongJobs as wrong:
        return base, list(wrong.lines)
    except BackendError as error:
        return base, [each.line for each in error.complaints] or [str(error)]


def _change(backend: Backend, base: Json, *, wanted: Json) -> tuple[Json, list[str]]:
    """Change the job, unless another user changed it meanwhile: then return that user's changes."""
    name = full_name(base, backend.home)
    current = backend.get_job(name)
    insist_on_living(JobView.of(current), name)
    meanwhile = ", ".join(describe_changes(base, current))
    if meanwhile:
        problem = (
            f"the job was changed meanwhile by another command: {meanwhile}; to keep your"
            " text, change it in any way, such as by an empty line, and save it again"
        )
        return current, [problem]
    kept = {name: value for name, value in current["metadata"].items() if name not in SHOWN}
    metadata = {**kept, **wanted["metadata"]}
    changed = {**current, "metadata": metadata, "spec": wanted["spec"]}
    differences = describe_changes(current, changed)
    backend.replace_job(changed)
    click.echo(f"{name} changed: {', '.join(differences) or 'nothing'}")
    return current, []


def _read(text: str, base: Json) -> Json:
    import io  # noqa: PLC0415 - with the rest that takes long to load

    from dljob.sim.errors import BadInput  # noqa: PLC0415
    from dljob.sim.inputs import yamlfiles  # noqa: PLC0415 - takes longer to load than to get a job

    try:
        read = yamlfiles.read_placed(io.StringIO(text), "text")
    except BadInput as error:
        raise WrongJobs([str(error)]) from error
    found = [each for each in read if each.content is not None]
    if len(found) != 1:
        raise WrongJobs([f"the text has {len(found)} documents; leave exactly one"])
    (wanted,) = check([Source("text", found[0].content, found[0].find_line)])
    if full_name(wanted) != full_name(base):
        raise WrongJobs(["metadata.name: a job cannot be renamed; submit another one"])
    return wanted


def _to_text(document: Json) -> str:
    metadata = {
        name: document["metadata"][name] for name in SHOWN if document["metadata"].get(name)
    }
    shown = {"apiVersion": document["apiVersion"], "kind": document["kind"], "metadata": metadata}
    return to_yaml({**shown, "spec": document["spec"]})
