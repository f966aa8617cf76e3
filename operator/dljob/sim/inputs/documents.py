"""
DLJob files as a workload: the same files that run on a cluster, played in a simulation.

:mod:`dljob.sim.jobs.workloads` calls it. :mod:`dljob.core.documents.jobfile` reads a document; this module adds the facts that
only a simulation needs. The annotation ``dljob.io/submit-at`` says when a job is submitted.
Its ``spec.profile`` leads to its speeds. If it trains for a target, the annotation
``sim.dljob.io/learning`` says how its metric moves, as in
``b0=0.002 b1=1.5 c=0.93 sigma=0.004``: see :class:`~dljob.sim.jobs.learning.Learning`.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dljob.core.documents import jobfile
from dljob.core.documents.jobschema import SUBMIT_AT
from dljob.core.model import Direction, Job
from dljob.core.predicting.relating import Atlas
from dljob.core.predicting.relatives import bare
from dljob.core.profiles import OF_ONE_JOB, JobType, Profile, Speed
from dljob.sim.errors import BadInput
from dljob.sim.inputs import yamlfiles
from dljob.sim.inputs.tables import MOST_SECONDS
from dljob.sim.jobs.checkpointing import KINDS, Kind
from dljob.sim.jobs.curves import Curve, Ground, Pool, lay_out
from dljob.sim.jobs.learning import Learning

LEARNING = "sim.dljob.io/learning"
CHECKPOINT = "sim.dljob.io/checkpoint"


@dataclass(frozen=True, slots=True)
class Document:
    """A job as its file has it."""

    file: Path
    find_line: Callable[[str], int]
    """The line of a field, by its path."""
    job: Job
    annotations: Mapping[str, str]

    def error(self, message: str, *, field: str, remedy: str) -> BadInput:
        """Make the error that says so of this document."""
        return BadInput(self.file, message, line=self.find_line(field), field=field, remedy=remedy)


def is_document(path: Path) -> bool:
    """Return whether this is a DLJob file, or a folder of them, rather than a trace."""
    return path.is_dir() or path.suffix in yamlfiles.SUFFIXES


def read_documents(path: Path) -> tuple[Document, ...]:
    """Read a file or a folder; by submission, and those of one instant in the order they stand."""
    documents: dict[str, Document] = {}
    for document in _iter_documents(path):
        twin = documents.setdefault(document.job.id, document)
        if twin is not document:
            raise document.error(
                f"{document.job.id!r} is the job of {twin.file}:{twin.find_line('')} already",
                field="metadata.name",
                remedy="give every job a name of its own",
            )
    if not documents:
        raise BadInput(path, "holds no DLJob", remedy="put at least one DLJob into it")
    return tuple(sorted(documents.values(), key=lambda document: document.job.submitted_at))


def _iter_documents(path: Path) -> Iterator[Document]:
    for file in yamlfiles.find_files(path):
        for each in yamlfiles.load_placed(file):
            if each.content is not None:
                job, annotations = _parse(file, each), _annotations(each.content)
                document = Document(file, each.find_line, job, annotations)
                _check_submission(document)
                yield document


def _check_submission(document: Document) -> None:
    at_s = document.job.submitted_at
    if at_s > MOST_SECONDS:
        raise document.error(
            f"{at_s:g} is more than {MOST_SECONDS:,.0f} s, which are 126 years",
            field=f"metadata.annotations[{SUBMIT_AT}]",
            remedy="give the seconds from the beginning of the simulation",
        )


def _parse(file: Path, placed: yamlfiles.Placed) -> Job:
    try:
        return jobfile.parse(placed.content)
    except jobfile.JobFileError as error:
        first, *others = error.problems
        more = f" (and {len(others)} more)" if others else ""
        raise BadInput(
            file,
            first.message + more,
            line=placed.find_line(first.path),
            field=first.path,
            remedy=first.remedy,
        ) from error


def _annotations(content: Any) -> Mapping[str, str]:
    # It was found to be a DLJob, so that these are mappings.
    return content["metadata"].get("annotations") or {}


def find_checkpoint(document: Document) -> Kind:
    """Read what the job has of a checkpoint in the simulation: ``good`` where nothing is said."""
    kind = document.annotations.get(CHECKPOINT, Kind.GOOD.value)
    if kind not in KINDS:
        field, remedy = f"metadata.annotations[{CHECKPOINT}]", f"write one of {', '.join(KINDS)}"
        raise document.error(f"{kind!r} is no kind of checkpoint", field=field, remedy=remedy)
    return Kind(kind)


# --- how much they have to do -------------------------------------------------------------


def find_learning(document: Document, seed: int) -> Learning | None:
    """Read how the metric of a job with a target moves; ``None`` where it is not said."""
    text = document.annotations.get(LEARNING)
    target = document.job.training.target
    if text is None or target is None:
        return None
    field = f"metadata.annotations[{LEARNING}]"
    remedy = "write it as b0=0.002 b1=1.5 c=0.93 sigma=0.004, with b0 and b1 above 0"
    terms = _read_terms(text)
    if terms is None or terms["b0"] <= 0.0 or terms["b1"] <= 0.0 or terms.get("sigma", 0.0) < 0.0:
        raise document.error(f"{text!r} is no learning curve", field=field, remedy=remedy)
    falls = target.direction is Direction.FALLS
    return Learning(**terms, seed=seed, falls=falls)


def _read_terms(text: str) -> dict[str, Any] | None:
    pairs = [part.partition("=") for part in text.split()]
    names = {name for name, _, _ in pairs}
    if len(names) != len(pairs) or not {"b0", "b1", "c"} <= names <= {"b0", "b1", "c", "sigma"}:
        return None
    try:
        terms = {name: float(value) for name, _, value in pairs}
    except ValueError:
        return None
    return terms if all(map(math.isfinite, terms.values())) else None


def count_iterations(document: Document, learning: Learning | None) -> float:
    """Return how many iterations the job really needs."""
    training = document.job.training
    most = math.inf if training.iterations is None else float(training.iterations)
    if learning is not None and training.target is not None:
        most = min(most, learning.iterations_to(training.target.value))
    if math.isinf(most):
        raise document.error(
            "nothing says when the training ends",
            field="spec.training",
            remedy=f"give iterations, or a curve that reaches the target as annotation {LEARNING}",
        )
    return most


# --- how fast they are --------------------------------------------------------------------


class Described:
    """The speeds of jobs whose files name a profile, or none."""

    def __init__(
        self, table: Mapping[JobType, Profile], pool: Pool, *, ground: Ground, seed: int
    ) -> None:
        self._table = table
        # Each job of an unknown type asks, and there may be thousands of both.
        self._by_model: dict[str, list[JobType]] = {}
        for kind in table:
            self._by_model.setdefault(bare(kind.model), []).append(kind)
        self._atlas = Atlas(table)
        self._pool = pool
        self._ground = ground
        self._seed = seed
        self._curves: dict[JobType, Curve] = {}
        self._counts: dict[JobType, set[int]] = {}
        self._unknown: dict[JobType, None] = {}

    def add(self, job: Job) -> tuple[Job, str, bool]:
        """
        Note the job; without a profile it becomes a type of its own.

        Returns it with the type whose speeds it follows, and whether lots drew that type.
        """
        if not job.type.model:
            job = replace(job, type=JobType(job.id, "", job.training.batch_size))
        if job.type not in self._curves:
            self._curves[job.type] = self._find(job)
        within = (count for count in job.gpus.options if count <= self._ground.largest)
        self._counts.setdefault(job.type, set()).update(within, [job.gpus.requested])
        return job, str(self._curves[job.type].type), job.type in self._unknown

    def _find(self, job: Job) -> Curve:
        kind = job.type
        profile = self._table.get(kind)
        if profile is not None:
            return Curve(profile)
        relatives = self._by_model.get(bare(kind.model), ())
        if relatives:
            return Curve(self._from_relatives(kind, relatives))
        self._unknown[kind] = None
        return self._pool.draw(job.gpus.requested, f"{self._seed}/{kind}")

    def _from_relatives(self, kind: JobType, relatives: Iterable[JobType]) -> Profile:
        """The profile that prediction would conclude from the same model at other batches."""
        shapes = {shape for other in relatives for shape in self._table[other].speeds}
        speeds = {shape: self._atlas.estimate(kind, shape).value for shape in sorted(shapes)}
        return Profile(kind, {shape: Speed(speed) for shape, speed in speeds.items()})

    def profiles(self) -> Mapping[JobType, Profile]:
        """The true speeds of all jobs noted."""
        return {
            kind: Profile(kind, lay_out(curve, self._counts[kind], ground=self._ground))
            for kind, curve in sorted(self._curves.items())
        }

    def notes(self) -> Iterator[str]:
        """The assumptions."""
        if self._unknown:
            first = (str(kind).removeprefix(OF_ONE_JOB) for kind in list(self._unknown)[:5])
            names = ", ".join(first) + (", …" if len(self._unknown) > 5 else "")
            yield (
                f"no speed is known of {names}: curves of other models were drawn by lot; "
                "give measured ones with --speeds"
            )
