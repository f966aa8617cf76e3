"""
A DLJob document to a :class:`~dljob.core.model.Job`, and back.

The operator reads documents from Kubernetes with this module, the one-machine platform and the simulator read
YAML files. The schema in :mod:`dljob.core.documents.jobschema` checks a document, and reads and writes most of its
fields. A wrong document is refused with all its problems at once.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final, NamedTuple

from dljob.core.documents import podfields
from dljob.core.documents.jobfields import BATCH, CHECKPOINT, PROGRESS, TRAINING
from dljob.core.documents.jobnames import full_name, manager_of
from dljob.core.documents.jobschema import (
    API_VERSION,
    FIXED_FIELDS,
    KIND,
    RUNNABLE,
    SIMULATED,
    SUBMIT_AT,
)
from dljob.core.documents.launchers import default_processes, problem_of, processes_of
from dljob.core.documents.podfields import CONTAINER
from dljob.core.documents.rules.jobrules import options_of
from dljob.core.model import (
    BatchRange,
    Framework,
    GpuDemand,
    Job,
    JobId,
    Limits,
    Progress,
    Training,
)
from dljob.core.profiles import JobType
from dljob_wire.kinds import plainest, without_none
from dljob_wire.problems import (
    Problem,
    WrongDocument,
    join,
    kind_of,
    plain,
    shown,
    too_large,
)

Fields = Mapping[str, Any]

_AUXILIARIES: Final = podfields.auxiliaries(runs=False)


class Difference(NamedTuple):
    """A field whose value differs between two documents; ``None``: it is absent."""

    path: str
    old: Any
    new: Any


class JobFileError(WrongDocument):
    """A document is not a DLJob that can be run, for all of ``problems``."""


def parse(document: object, *, source: str = "", require_template: bool = False) -> Job:
    """
    Turn a document into a job, with all defaults filled in.

    ``source`` names the file in the lines of a :class:`JobFileError`. With ``require_template`` the job
    must have a pod template, as it must wherever it runs for real. A job without a profile then gets a
    type of its own, because its speed can be observed there.
    """
    # Refuse a document that is too large or contains itself before reading it.
    problem = too_large(document) or _not_a_document(document)
    if problem is not None:
        raise JobFileError((problem,), source)
    schema = RUNNABLE if require_template else SIMULATED
    # DLJob writes the status, so a mistake in it is not the user's.
    given = {key: value for key, value in plain(document).items() if key != "status"}
    read, problems = schema.collect(given)
    if problems:
        raise JobFileError(tuple(problems), source)
    job = _job(read)
    problem = problem_of(read["spec"], job.gpus.options[-1])
    if problem is not None:
        raise JobFileError((problem,), source)
    if require_template and not job.type.model:
        job = replace(job, type=JobType.of_one_job(job.id, job.training.batch_size))
    return job


def render(job: Job) -> dict[str, Any]:
    """Write a job as the shortest document that :func:`parse` turns into it again."""
    namespace, _, name = job.id.rpartition("/")
    submit_at = {SUBMIT_AT: str(plainest(job.submitted_at))} if job.submitted_at else None
    document = {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": without_none(
            name=name, namespace=namespace, labels=dict(job.labels), annotations=submit_at
        ),
        "spec": _rendered_spec(job),
    }
    return dict(SIMULATED.without_defaults(document))


def change_problems(old: Job, new: Job) -> list[Problem]:
    """
    List the changes from ``old`` to ``new`` that are not possible while the job runs, and why.

    The numbers of GPUs, ``priority``, ``suspend`` and the limits may change at any time.
    """
    if old.id != new.id:
        renamed = f"{shown(old.id)} cannot become {shown(new.id)}, which is another job"
        return [Problem("metadata.name", new.id, renamed, "submit that one too, and cancel this")]
    before, after = render(old)["spec"], render(new)["spec"]
    return [
        Problem(
            each.path,
            each.new,
            f"it cannot change while the job runs, because {because}",
            "change it back, or cancel the job and submit it again",
        )
        for name, because in FIXED_FIELDS.items()
        for each in _differences(before.get(name), after.get(name), f"spec.{name}")
    ]


def spec_differences(old: Job, new: Job) -> list[Difference]:
    """List the fields of the spec that differ between two jobs, with defaults filled in."""
    return list(_differences(_rendered_spec(old), _rendered_spec(new), "spec"))


# --- from a checked document to a job -----------------------------------------------------


def _not_a_document(document: object) -> Problem | None:
    if isinstance(document, Mapping):
        return None
    remedy = f"begin with apiVersion: {API_VERSION} and kind: {KIND}"
    return Problem("", document, f"the document is {kind_of(document)}, not a {KIND}", remedy)


def _job(document: Fields) -> Job:
    metadata, spec = document["metadata"], document["spec"]
    environment = spec.get("environment", {})
    framework: Framework = spec["framework"]
    training: Training = spec["training"]
    if training.epochs and training.iterations_per_epoch:
        training = replace(training, iterations=training.epochs * training.iterations_per_epoch)
    return Job(
        id=JobId(full_name(document)),
        gpus=_gpus(spec["gpus"], framework),
        training=training,
        type=_type(spec.get("profile"), training.batch_size),
        submitted_at=float(metadata.get("annotations", {}).get(SUBMIT_AT, 0.0)),
        managed_by=manager_of(document),
        priority=spec["priority"],
        suspend=spec["suspend"],
        framework=framework,
        processes=processes_of(spec),
        progress=spec.get("progress", Progress()),
        checkpoint=spec["checkpoint"],
        batch=spec.get("batch", BatchRange()),
        limits=Limits(
            ttl_seconds_after_finished=spec.get("ttlSecondsAfterFinished"),
            active_deadline_seconds=spec.get("activeDeadlineSeconds"),
            backoff_limit=spec["backoffLimit"],
        ),
        python=environment.get("python", ""),
        variables=environment.get("variables"),
        container=environment.get("container"),
        preload=spec.get("warmStart", {}).get("preload", ()),
        live_seconds=spec["liveSeconds"],
        roles=spec.get("auxiliaries", ()),
        labels=metadata.get("labels", {}),
        template=spec.get("template", {}),
    )


def _gpus(gpus: Fields, framework: Framework) -> GpuDemand:
    options = options_of(gpus)
    return GpuDemand(
        options=options,
        requested=min(gpus.get("requested", options[-1]), options[-1]),
        types=gpus.get("types", ()),
        mixed=gpus["mixed"],
        max_nodes=gpus.get("maxNodes", _default_max_nodes(framework)),
        ids=gpus["ids"],
    )


def _default_max_nodes(framework: Framework) -> int | None:
    # Without a framework, the processes on one node do not know those on another.
    return 1 if framework is Framework.NONE else None


def _type(profile: Fields | None, batch_size: int) -> JobType:
    if profile is None:
        return JobType("")
    return JobType(profile["model"], profile.get("dataset", ""), batch_size)


# --- from a job to a document -------------------------------------------------------------


def _rendered_spec(job: Job) -> Fields:
    """Write the spec with its defaults, in the order of the schema."""
    training, progress = job.training, job.progress
    if training.epochs is not None:
        training = replace(training, iterations=None)
    spec = {"framework": job.framework.value, "template": job.template}
    return without_none(
        gpus=_rendered_gpus(job),
        framework=job.framework.value,
        processes=None if job.processes == default_processes(spec) else job.processes,
        training=TRAINING.write(training),
        profile={}
        if job.type.is_of_one_job
        else without_none(model=job.type.model, dataset=job.type.dataset),
        progress=PROGRESS.write(progress)
        if progress.log or progress.file or progress.http
        else None,
        checkpoint=CHECKPOINT.write(job.checkpoint),
        environment=_rendered_environment(job),
        warmStart=without_none(preload=list(job.preload)),
        liveSeconds=job.live_seconds,
        batch=BATCH.write(job.batch) if job.batch.elastic else None,
        managedBy=job.managed_by,
        priority=job.priority,
        suspend=job.suspend,
        ttlSecondsAfterFinished=job.limits.ttl_seconds_after_finished,
        activeDeadlineSeconds=job.limits.active_deadline_seconds,
        backoffLimit=job.limits.backoff_limit,
        auxiliaries=_AUXILIARIES.write(job.roles),
        template=plain(job.template),
    )


def _rendered_environment(job: Job) -> Fields:
    given = without_none(python=job.python)
    if job.container is not None:
        given["container"] = CONTAINER.write(job.container)
    # An empty list means no variables but the necessary ones.
    return given if job.variables is None else {**given, "variables": list(job.variables)}


def _rendered_gpus(job: Job) -> Fields:
    gpus = job.gpus
    options = list(gpus.options)
    # A range is easier to read than three or more numbers in a row, which may also be too many for a list.
    is_range = len(options) > 2 and options == list(range(options[0], options[-1] + 1))
    counts = {"min": options[0], "max": options[-1]} if is_range else {"options": options}
    return counts | without_none(
        requested=None if gpus.requested == options[-1] else gpus.requested,
        types=list(gpus.types),
        mixed=gpus.mixed,
        maxNodes=None if gpus.max_nodes == _default_max_nodes(job.framework) else gpus.max_nodes,
        ids=gpus.ids,
    )


# --- from one job to another --------------------------------------------------------------


def _differences(old: Any, new: Any, path: str) -> Iterator[Difference]:
    """Yield the differences, as deep inside as possible."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for name in {**old, **new}:
            yield from _differences(old.get(name), new.get(name), join(path, name))
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for index, (before, after) in enumerate(zip(old, new, strict=True)):
            yield from _differences(before, after, f"{path}[{index}]")
    elif old != new:
        yield Difference(path, old, new)
