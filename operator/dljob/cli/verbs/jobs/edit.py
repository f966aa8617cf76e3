"""
``dljob edit``: a job in the editor of its user.

Mistakes in the text come back into the editor, as comments above it. The user's text is never
lost: when the user gives up, the verb leaves it in a file and names that.
"""

import os
import re
import shlex
import shutil
import subprocess
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
EDITORS = ("sensible-editor", "vi", "nano")
"""The editors that are tried where neither $VISUAL nor $EDITOR is set."""
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
    document = backend.get_job(name)
    insist_on_living(JobView.of(document), name)
    handle, path = tempfile.mkstemp(
        prefix=f"dljob-{re.sub('[^a-z0-9-]', '-', name)}-", suffix=".yaml"
    )
    os.close(handle)
    return _Editing(backend, name, document=document, path=Path(path)).run()


class _Editing:
    """One job in an editor, until it is changed or given up."""

    def __init__(self, backend: Backend, name: str, *, document: Json, path: Path) -> None:
        self._backend = backend
        self._name = name
        self._base = document
        """The job that the text began with."""
        self._path = path

    def run(self) -> int:
        original = text = _to_text(self._base)
        problems: Sequence[str] = ()
        for _ in range(MOST_ROUNDS):
            edited = self._edit(text, problems)
            is_new = edited.strip() not in ("", original.strip())
            if edited == text or not is_new:
                return self._give_up(is_new=is_new)
            text = edited
            problems = self._try(text)
            if not problems:
                self._path.unlink()
                return 0
        return self._give_up(is_new=True)

    def _edit(self, text: str, problems: Sequence[str]) -> str:
        """Open a text in the editor, and return the edited one."""
        told = [f"{OURS}{line}\n" for line in (*HEAD, *(f"Not done: {line}" for line in problems))]
        self._path.write_text("".join(told) + text, encoding="utf-8")
        command = [*_find_editor(), str(self._path)]
        try:
            status = subprocess.run(command, check=False).returncode  # noqa: S603 - the user's own
        except OSError as error:
            raise self._failed(
                f"the editor {command[0]} cannot be run ({error.strerror})"
            ) from error
        if status:
            raise self._failed(f"the editor {command[0]} ended with status {status}")
        lines = self._path.read_text(encoding="utf-8", errors="surrogateescape").splitlines(
            keepends=True
        )
        return "".join(line for line in lines if not line.startswith(OURS.rstrip()))

    def _failed(self, why: str) -> BackendError:
        return BackendError(
            f"{why}; nothing is changed, and the text is in {self._path}: set $EDITOR to another one,"
            f" or use dljob apply {self._path}"
        )

    def _give_up(self, *, is_new: bool) -> int:
        if not is_new:
            self._path.unlink()
            say("Nothing is changed.")
            return 0
        complain(
            f"nothing is changed; what you wrote is in {self._path}, for dljob apply {self._path}"
        )
        return 1

    def _try(self, text: str) -> Sequence[str]:
        """Apply the text; return its problems."""
        try:
            wanted = self._read(text)
            return retry_overtaken(lambda: self._change(wanted))
        except WrongJobs as wrong:
            return wrong.lines
        except BackendError as error:
            return [each.line for each in error.complaints] or [str(error)]

    def _change(self, wanted: Json) -> Sequence[str]:
        """Change the job, unless another user changed it meanwhile: then return that user's changes."""
        current = self._backend.get_job(self._name)
        insist_on_living(JobView.of(current), self._name)
        meanwhile = describe_changes(self._base, current)
        if meanwhile:
            self._base = current
            return (_overtaken(meanwhile),)
        changed = self._with(current, wanted)
        differences = describe_changes(current, changed)
        self._backend.replace_job(changed)
        click.echo(f"{self._name} changed: {', '.join(differences) or 'nothing'}")
        return ()

    def _read(self, text: str) -> Json:
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
        if full_name(wanted) != full_name(self._base):
            raise WrongJobs(["metadata.name: a job cannot be renamed; submit another one"])
        return wanted

    @staticmethod
    def _with(current: Json, wanted: Json) -> Json:
        kept = {name: value for name, value in current["metadata"].items() if name not in SHOWN}
        return {**current, "metadata": {**kept, **wanted["metadata"]}, "spec": wanted["spec"]}


def _overtaken(meanwhile: Sequence[str]) -> str:
    return (
        f"the job was changed meanwhile by another command: {', '.join(meanwhile)}; to keep your"
        " text, change it in any way, such as by an empty line, and save it again"
    )


def _to_text(document: Json) -> str:
    metadata = {
        name: document["metadata"][name] for name in SHOWN if document["metadata"].get(name)
    }
    shown = {"apiVersion": document["apiVersion"], "kind": document["kind"], "metadata": metadata}
    return to_yaml({**shown, "spec": document["spec"]})


def _find_editor() -> list[str]:
    named = os.environ.get("VISUAL") or os.environ.get("EDITOR")
    if named:
        return shlex.split(named)
    found = next((each for each in EDITORS if shutil.which(each)), None)
    if found is None:
        raise BackendError("there is no editor; name one in $EDITOR")
    return [found]
