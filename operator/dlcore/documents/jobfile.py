"""
A DLJob document to a :class:`~dlcore.model.Job`, and back.

Every platform comes through here: the operator with what Kubernetes sent, the one-machine platform
and the simulator with what they read from YAML. The one schema, :mod:`dlcore.documents.jobschema`, says what a
document may contain; this module only walks between it and the model. A wrong document is
refused with everything that is wrong with it, not with the first thing.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import islice
from typing import Any, NamedTuple

from dlcore.documents.jobnames import full_name
from dlcore.documents.jobschema import (
    API_VERSION,
    FIXED_FIELDS,
    KIND,
    RUNNABLE,
    SIMULATED,
    SUBMIT_AT,
)
from dlcore.documents.jobwriting import (
    Fields,
    default_max_nodes,
    plainest,
    rendered_spec,
    without_none,
)
from dlcore.documents.launchers import problem_of, processes_of
from dlcore.documents.rules.jobrules import options_of
from dlcore.model import (
    BatchRange,
    Checkpoint,
    Container,
    Direction,
    Framework,
    GpuDemand,
    Job,
    JobId,
    Limits,
    Progress,
    Role,
    Target,
    Training,
)
from dlcore.problems import (
    MAX_PROBLEMS,
    Problem,
    WrongDocument,
    join,
    kind_of,
    plain,
    shown,
    too_large,
)
from dlcore.profiles import JobType


class Difference(NamedTuple):
    """A field that has another value; ``None``: it is not there."""

    path: str
    old: Any
    new: Any


class JobFileError(WrongDocument):
    """A document is not a DLJob that can be run, for all the reasons it holds."""


def parse(document: object, *, source: str = "", require_template: bool = False) -> Job:
    """
    Turn a document into a job, with all defaults filled in.

    ``source`` names the file in the lines of a :class:`JobFileError`. With ``require_template``
    the job must bring its pods, as it must wherever it is run for real; there it is of a type of
    its own if it does not say which, for what it does there can be observed.
    """
    # Refuse a document that is too large or contains itself before reading it.
    problem = too_large(document) or _not_a_document(document)
    if problem is not None:
        raise JobFileError((problem,), source)
    schema = RUNNABLE if require_template else SIMULATED
    # DLJob writes the status, so its content is no mistake of the user.
    given = {key: value for key, value in plain(document).items() if key != "status"}
    completed = schema.completed(given)
    problems = tuple(islice(schema.problems(completed, ""), MAX_PROBLEMS))
    if problems:
        raise JobFileError(problems, source)
    job = _job(completed)
    problem = problem_of(completed["spec"], job.gpus.options[-1])
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
            name=name,
            namespace=namespace,
            labels=dict(job.labels),
            annotations=submit_at,
        ),
        "spec": rendered_spec(job),
    }
    return dict(SIMULATED.without_defaults(document))


def change_problems(old: Job, new: Job) -> list[Problem]:
    """
    Say what of the change from ``old`` to ``new`` is not possible while the job runs, and why.

    The numbers of GPUs, the priority, being suspended and the limits may change at any time.
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
    """Say in which fields of the spec two jobs differ, whether their defaults are written or not."""
    return list(_differences(rendered_spec(old), rendered_spec(new), "spec"))


# --- from a checked document to a job -----------------------------------------------------


def _not_a_document(document: object) -> Problem | None:
    if isinstance(document, Mapping):
        return None
    remedy = f"begin with apiVersion: {API_VERSION} and kind: {KIND}"
    return Problem("", document, f"the document is {kind_of(document)}, not a {KIND}", remedy)


def _job(document: Fields) -> Job:
    metadata, spec = document["metadata"], document["spec"]
    training = _training(spec["training"])
    return Job(
        id=JobId(full_name(document)),
        gpus=_gpus(spec["gpus"], Framework(spec["framework"])),
        training=training,
        type=_type(spec.get("profile"), training.batch_size),
        submitted_at=float(metadata.get("annotations", {}).get(SUBMIT_AT, 0.0)),
        priority=spec["priority"],
        suspend=spec["suspend"],
        framework=Framework(spec["framework"]),
        processes=processes_of(spec),
        progress=_progress(spec.get("progress")),
        checkpoint=_checkpoint(spec["checkpoint"]),
        batch=_batch(spec.get("batch", {})),
        limits=Limits(
            ttl_seconds_after_finished=spec.get("ttlSecondsAfterFinished"),
            active_deadline_seconds=spec.get("activeDeadlineSeconds"),
            backoff_limit=spec["backoffLimit"],
        ),
        python=spec.get("environment", {}).get("python", ""),
        variables=_variables(spec.get("environment", {})),
        container=_container(spec.get("environment", {})),
        preload=tuple(spec.get("warmStart", {}).get("preload", ())),
        roles=tuple(_role(auxiliary) for auxiliary in spec.get("auxiliaries", ())),
        labels=metadata.get("labels", {}),
        template=spec.get("template", {}),
    )


def _variables(environment: Fields) -> tuple[str, ...] | None:
    names = environment.get("variables")
    return None if names is None else tuple(names)


def _container(environment: Fields) -> Container | None:
    if "container" not in environment:
        return None
    given = environment["container"]
    return Container(
        image=given.get("image", ""),
        engine=given.get("engine", ""),
        folders=tuple(given.get("folders", ())),
    )


def _gpus(gpus: Fields, framework: Framework) -> GpuDemand:
    options = options_of(gpus)
    return GpuDemand(
        options=options,
        requested=gpus.get("requested", options[-1]),
        types=tuple(gpus.get("types", ())),
        mixed=gpus["mixed"],
        max_nodes=gpus.get("maxNodes", default_max_nodes(framework)),
        ids=gpus["ids"],
    )


def _training(training: Fields) -> Training:
    iterations, epochs = training.get("iterations"), training.get("epochs")
    if epochs is not None:
        iterations = epochs * training["iterationsPerEpoch"]
    return Training(
        iterations=iterations,
        epochs=epochs,
        iterations_per_epoch=training.get("iterationsPerEpoch"),
        batch_size=training.get("batchSize", 0),
        target=_target(training.get("target")),
        until_exit=training["untilExit"],
        may_end_early=training["mayEndEarly"],
    )


def _target(target: Fields | None) -> Target | None:
    if target is None:
        return None
    return Target(
        metric=target["metric"],
        value=float(target["value"]),
        patience=target["patience"],
        direction=Direction(target["direction"]),
    )


def _type(profile: Fields | None, batch_size: int) -> JobType:
    if profile is None:
        return JobType("")
    return JobType(profile["model"], profile.get("dataset", ""), batch_size)


def _progress(progress: Fields | None) -> Progress:
    if progress is None:
        return Progress()
    return Progress(
        log=progress.get("log", ""),
        file=progress.get("file", ""),
        http=progress["http"],
        samples_per_iteration=progress.get("samplesPerIteration"),
        stall_seconds=float(progress["stallSeconds"]),
        restart_seconds=_optional_number(progress.get("restartSeconds")),
    )


def _optional_number(value: float | None) -> float | None:
    return None if value is None else float(value)


def _mebibytes(amount: str | None) -> int:
    if amount is None:
        return 0
    return int(amount[:-2]) << (10 if amount.endswith("Gi") else 0)


def _checkpoint(checkpoint: Fields) -> Checkpoint:
    return Checkpoint(
        signal=checkpoint.get("signal", ""),
        command=tuple(checkpoint.get("command", ())),
        http=checkpoint.get("http", ""),
        to=checkpoint["to"],
        confirm=checkpoint["confirm"],
        confirm_log=checkpoint.get("confirmLog", ""),
        path=checkpoint.get("path", ""),
        files=checkpoint.get("files", ""),
        complete=checkpoint["complete"],
        marker=checkpoint.get("marker", ""),
        memory_mebibytes=_mebibytes(checkpoint.get("memory")),
        settle_seconds=_optional_number(checkpoint.get("settleSeconds")),
        shared=checkpoint["shared"],
        trusted=checkpoint["trusted"],
        vet=checkpoint["vet"],
        timeout_seconds=float(checkpoint["timeoutSeconds"]),
        grace_seconds=float(checkpoint["graceSeconds"]),
    )


def _batch(batch: Fields) -> BatchRange:
    return BatchRange(elastic=batch.get("elastic", False), maximum=batch.get("max", 0))


def _role(auxiliary: Fields) -> Role:
    return Role(
        name=auxiliary["name"],
        replicas=auxiliary["replicas"],
        template=auxiliary.get("template", {}),
    )


# --- from a job to a document -------------------------------------------------------------


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
