"""
Jobs as programs make them: of a command and options, or of a job file.

The options are those of ``dljob run`` and have the same defaults. Each job is a document, which is
checked by the same schema as a file.
"""

import copy
from collections.abc import Iterator, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, TypedDict, Unpack

from dljob.api.refusals import Problem, WrongInput, WrongJob, of_document, refusing
from dljob.client import sources
from dljob.client.demands import Demand, read_counts
from dljob.client.drafting import Draft, build
from dljob.core.documents import jobfile
from dljob.core.documents.jobnames import full_name

Gpus = int | str | Sequence[int]
"""``4``, or one of ``[1, 2, 4]``, or a range: ``"1-4"``."""


class JobOptions(TypedDict, total=False):
    """The options of a job; ``dljob run --help`` explains them."""

    gpus: Gpus
    namespace: str
    image: str
    framework: str
    processes: str
    model: str
    iterations: int
    batch_size: int
    priority: int
    retries: int
    deadline: float
    workdir: str
    environment: Mapping[str, str]
    labels: Mapping[str, str]
    progress_log: str
    progress_file: str
    checkpoint_signal: str
    checkpoint_command: str
    checkpoint_path: str
    checkpoint_files: str
    checkpoint_shared: bool


class Job:
    """A job to be submitted. It never changes; :meth:`with_spec` returns another one."""

    __slots__ = ("_document",)

    def __init__(self, name: str, command: Sequence[str], **options: Unpack[JobOptions]) -> None:
        given: dict[str, Any] = dict(options)
        demand = demand_of(given.pop("gpus", 1))
        namespace = given.pop("namespace", "")
        document = build(Draft(words=tuple(command), demand=demand, **given), name)
        if namespace:
            document["metadata"]["namespace"] = namespace
        self._document = document

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> "Job":
        """Make a job of a document as a job file has it."""
        job = cls.__new__(cls)
        job._document = copy.deepcopy(dict(document))  # noqa: SLF001 - it is of this class
        return job

    @classmethod
    def from_file(cls, path: str | PathLike[str]) -> "Job":
        """Read a job file that holds one job."""
        found = cls.all_from_file(path)
        if len(found) != 1:
            raise WrongInput(
                Problem(
                    f"holds {len(found)} jobs", "read them with Job.all_from_file", source=str(path)
                )
            )
        return found[0]

    @classmethod
    def all_from_file(cls, path: str | PathLike[str]) -> "list[Job]":
        """Read all jobs of a job file, or of the files of a folder; all problems are in one refusal."""
        with refusing():
            read = list(sources.iter_sources(str(Path(path))))
        raise_all(
            Problem(each.message, each.remedy, each.path, number, source.at(each.path))
            for number, source in enumerate(read)
            for each in problems_of(source.document, number)
        )
        return [cls.from_document(source.document) for source in read]

    @property
    def document(self) -> dict[str, Any]:
        """A copy of the document, as a job file has it."""
        return copy.deepcopy(self._document)

    @property
    def name(self) -> str:
        """The name, with ``namespace/`` in front if the job has a namespace."""
        return full_name(self._document)

    def with_spec(self, **fields: Any) -> "Job":
        """Return this job with other values of these fields of its ``spec``."""
        document = self.document
        document["spec"] |= copy.deepcopy(fields)
        return Job.from_document(document)

    def check(self) -> None:
        """Raise :class:`WrongJob` with all problems of the document."""
        raise_all(problems_of(self._document, 0))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Job) and self._document == other._document

    __hash__ = None  # type: ignore[assignment]  # its document is a dict

    def __repr__(self) -> str:
        return f"<Job {self.name}>"


def problems_of(document: Any, number: int) -> list[Problem]:
    """List all problems of a document."""
    try:
        jobfile.parse(document, require_template=True)
    except jobfile.JobFileError as error:
        return of_document(error, number)
    return []


def raise_all(found: Iterator[Problem] | list[Problem]) -> None:
    problems = tuple(found)
    if problems:
        raise WrongJob(*problems)


def demand_of(gpus: Gpus) -> Demand:
    """Parse numbers of GPUs; raises :class:`~dljob.api.refusals.WrongUse`."""
    text = str(gpus) if isinstance(gpus, str | int) else ",".join(map(str, gpus))
    with refusing():
        return Demand(read_counts(text))
