"""A job as a document: the fields that differ from the defaults, in the order of the schema."""

from collections.abc import Mapping
from typing import Any

from dlcore.documents.launchers import default_processes
from dlcore.model import (
    Checkpoint,
    Framework,
    Job,
    Progress,
    Training,
)
from dlcore.problems import (
    plain,
)
from dlcore.profiles import JobType

Fields = Mapping[str, Any]


def default_max_nodes(framework: Framework) -> int | None:
    # Nothing would tell the processes on one node of those on another.
    return 1 if framework is Framework.NONE else None


def without_none(**fields: object) -> dict[str, Any]:
    """Keep the fields that have a value, zero and false included."""
    return {name: value for name, value in fields.items() if value or value == 0}


def plainest(number: float) -> int | float:
    """Write 60 rather than 60.0, as people do."""
    return int(number) if number.is_integer() else number


def _optional_plainest(number: float | None) -> int | float | None:
    return None if number is None else plainest(number)


def rendered_spec(job: Job) -> Fields:
    return without_none(
        gpus=_rendered_gpus(job),
        framework=job.framework.value,
        processes=_rendered_processes(job),
        training=_rendered_training(job.training),
        profile=_rendered_type(job.type),
        progress=_rendered_progress(job.progress),
        checkpoint=_rendered_checkpoint(job.checkpoint),
        environment=_rendered_environment(job),
        warmStart=without_none(preload=list(job.preload)),
        batch=without_none(elastic=job.batch.elastic or None, max=job.batch.maximum or None),
        priority=job.priority,
        suspend=job.suspend,
        ttlSecondsAfterFinished=job.limits.ttl_seconds_after_finished,
        activeDeadlineSeconds=job.limits.active_deadline_seconds,
        backoffLimit=job.limits.backoff_limit,
        auxiliaries=[
            without_none(name=role.name, replicas=role.replicas, template=plain(role.template))
            for role in job.roles
        ],
        template=plain(job.template),
    )


def _rendered_environment(job: Job) -> Fields:
    given = without_none(python=job.python)
    if job.container is not None:
        box = job.container
        written = without_none(image=box.image, engine=box.engine, folders=list(box.folders))
        given["container"] = written
    # An empty list says something: none but the necessary.
    return given if job.variables is None else {**given, "variables": list(job.variables)}


def _rendered_processes(job: Job) -> str | None:
    spec = {"framework": job.framework.value, "template": job.template}
    return None if job.processes == default_processes(spec) else job.processes


def _rendered_type(kind: JobType) -> Fields:
    return {} if kind.is_of_one_job else without_none(model=kind.model, dataset=kind.dataset)


def _rendered_gpus(job: Job) -> Fields:
    gpus = job.gpus
    options = list(gpus.options)
    # Three or more in a row are more readable as a range, and there may be too many for a list.
    is_range = len(options) > 2 and options == list(range(options[0], options[-1] + 1))
    counts = {"min": options[0], "max": options[-1]} if is_range else {"options": options}
    return counts | without_none(
        requested=None if gpus.requested == options[-1] else gpus.requested,
        types=list(gpus.types),
        mixed=gpus.mixed,
        maxNodes=None if gpus.max_nodes == default_max_nodes(job.framework) else gpus.max_nodes,
        ids=gpus.ids,
    )


def _rendered_training(training: Training) -> Fields:
    target = training.target
    return without_none(
        iterations=training.iterations if training.epochs is None else None,
        epochs=training.epochs,
        iterationsPerEpoch=training.iterations_per_epoch,
        untilExit=training.until_exit or None,
        batchSize=training.batch_size or None,
        target=target
        and without_none(
            metric=target.metric,
            value=plainest(target.value),
            patience=target.patience,
            direction=target.direction.value,
        ),
        mayEndEarly=training.may_end_early,
    )


def _rendered_progress(progress: Progress) -> Fields:
    sources = without_none(log=progress.log, file=progress.file, http=progress.http or None)
    return sources and {
        **sources,
        **without_none(samplesPerIteration=progress.samples_per_iteration),
        "stallSeconds": plainest(progress.stall_seconds),
        **without_none(restartSeconds=_optional_plainest(progress.restart_seconds)),
    }


def _rendered_checkpoint(checkpoint: Checkpoint) -> Fields:
    return without_none(
        signal=checkpoint.signal,
        command=list(checkpoint.command),
        http=checkpoint.http,
        to=checkpoint.to,
        confirm=checkpoint.confirm,
        confirmLog=checkpoint.confirm_log,
        path=checkpoint.path,
        files=checkpoint.files,
        complete=checkpoint.complete,
        marker=checkpoint.marker,
        memory=f"{checkpoint.memory_mebibytes}Mi" if checkpoint.memory_mebibytes else "",
        settleSeconds=_optional_plainest(checkpoint.settle_seconds),
        shared=checkpoint.shared,
        trusted=checkpoint.trusted,
        vet=checkpoint.vet,
        timeoutSeconds=plainest(checkpoint.timeout_seconds),
        graceSeconds=plainest(checkpoint.grace_seconds),
    )
