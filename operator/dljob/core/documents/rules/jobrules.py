"""
The rules between the fields of a DLJob.

Each rule has a message with its remedy, a predicate in Python and the same condition in the Common Expression
Language (CEL), which the API server evaluates. :mod:`dljob.core.documents.jobfields` attaches the rules to records. CEL
cannot look into a regular expression, so the operator checks these again when it reads the job.

A predicate may rely on the types of the fields that its rule reads, not on their presence.
"""

from collections.abc import Mapping
from typing import Any, Final

from dljob.core.forms import find_groups
from dljob.core.model import BatchRange, Training
from dljob_wire.kinds import Rule
from dljob_wire.problems import listed

Fields = Mapping[str, Any]

MAX_RANGE: Final = 1024
"""The most numbers of GPUs from min to max; policies consider each of them."""

PROGRESS_SOURCES: Final = ("log", "file", "http")


# --- reading an incomplete record ---------------------------------------------------------


def options_of(gpus: Fields) -> tuple[int, ...]:
    """Return the allowed numbers of GPUs, rising; empty if the record does not say."""
    if "options" in gpus:
        most = gpus.get("max", max(gpus["options"], default=0))
        return tuple(sorted(count for count in gpus["options"] if count <= most))
    if "max" in gpus:
        return tuple(range(gpus.get("min", 1), gpus["max"] + 1))
    return ()


def _only_known_metrics(spec: Fields) -> bool:
    log = spec["progress"].log if "progress" in spec else ""
    target = spec["training"].target
    return not log or not target or target.metric in find_groups(log)


def _epochs_can_be_counted(spec: Fields) -> bool:
    groups = find_groups(spec["progress"].log) if "progress" in spec else ()
    return (
        "epoch" not in groups
        or "iteration" in groups
        or spec["training"].iterations_per_epoch is not None
    )


def _fits_batch(spec: Fields) -> bool:
    batch: BatchRange = spec.get("batch", BatchRange())
    return not batch.elastic or not batch.maximum or batch.maximum >= spec["training"].batch_size


# --- numbers of GPUs ----------------------------------------------------------------------

GPU_RULES: Final = (
    Rule(
        name="gpu-counts-are-given",
        reads=("options", "min", "max"),
        message="does not say on how many GPUs the job can run",
        remedy="give options: [1, 2, 4], or max (and min)",
        holds=lambda gpus: not gpus.keys().isdisjoint(("options", "min", "max")),
        cel="has(self.options) || has(self.min) || has(self.max)",
    ),
    Rule(
        name="gpu-counts-are-given-once",
        reads=("options", "min"),
        message="says twice on how many GPUs the job can run",
        remedy="keep either options, or min and max",
        holds=lambda gpus: "options" not in gpus or "min" not in gpus,
        cel="!has(self.options) || !has(self.min)",
    ),
    Rule(
        name="max-is-at-least-one",
        reads=("max",),
        at="max",
        message="is 0, and no job can run on that",
        remedy="give at least 1; to take all GPUs from the job, set suspend: true",
        holds=lambda gpus: gpus.get("max", 1) >= 1,
        cel="!has(self.max) || self.max >= 1",
    ),
    Rule(
        name="max-allows-an-option",
        reads=("options", "max"),
        at="max",
        message="is less than each number in options",
        remedy="give at least the smallest of them; to take all GPUs from the job, set suspend: true",
        holds=lambda gpus: (
            "options" not in gpus or gpus.get("max", 1) < 1 or bool(options_of(gpus))
        ),
        cel=(
            "!has(self.options) || !has(self.max) || self.max < 1"
            " || self.options.exists(count, count <= self.max)"
        ),
    ),
    Rule(
        name="min-needs-max",
        reads=("min", "max"),
        at="min",
        message="is a smallest number of GPUs without a largest one",
        remedy="give max too",
        holds=lambda gpus: "min" not in gpus or "max" in gpus,
        cel="!has(self.min) || has(self.max)",
    ),
    Rule(
        name="min-is-at-most-max",
        reads=("min", "max"),
        at="min",
        message="is more than max",
        remedy="give a min that is at most max",
        holds=lambda gpus: "min" not in gpus or "max" not in gpus or gpus["min"] <= gpus["max"],
        cel="!has(self.min) || !has(self.max) || self.min <= self.max",
    ),
    Rule(
        name="range-of-gpus-is-bounded",
        reads=("min", "max"),
        at="max",
        message=f"is {MAX_RANGE} or more above min, too many counts to choose from",
        remedy="name the useful ones in options",
        holds=lambda gpus: "options" in gpus or gpus.get("max", 1) - gpus.get("min", 1) < MAX_RANGE,
        cel=(
            "has(self.options) || !has(self.max)"
            f" || self.max - (has(self.min) ? self.min : 1) < {MAX_RANGE}"
        ),
    ),
    Rule(
        name="requested-is-an-option",
        reads=("options", "min", "max", "requested"),
        at="requested",
        message="is none of the numbers of GPUs that the job can run on",
        remedy="give one of them, or leave requested out for the largest",
        holds=lambda gpus: (
            "requested" not in gpus
            or not options_of(gpus)
            or gpus["requested"] in gpus.get("options", options_of(gpus))
        ),
        cel=(
            "!has(self.requested) || (has(self.options) ? self.requested in self.options : "
            "!has(self.max) || (self.requested <= self.max"
            " && self.requested >= (has(self.min) ? self.min : 1)))"
        ),
    ),
)

# --- length and progress ------------------------------------------------------------------

_LIMITED: Final = "has(self.iterations) || has(self.epochs) || has(self.target)"


def _is_limited(training: Training) -> bool:
    return bool(training.iterations or training.epochs or training.target)


TRAINING_RULES: Final = (
    Rule(
        name="length-is-given",
        reads=("iterations", "epochs", "target", "untilExit"),
        message="does not say how long the job trains",
        remedy="give epochs with iterationsPerEpoch, or iterations, or a target",
        holds=lambda training: _is_limited(training) or training.until_exit,
        cel=f"{_LIMITED} || has(self.untilExit) && self.untilExit",
    ),
    Rule(
        name="length-is-open-or-given",
        reads=("iterations", "epochs", "target", "untilExit"),
        at="untilExit",
        message="says that the length is not known, and something else gives one",
        remedy="leave untilExit out",
        holds=lambda training: not (_is_limited(training) and training.until_exit),
        cel=f"!(has(self.untilExit) && self.untilExit && ({_LIMITED}))",
    ),
    Rule(
        name="length-is-given-once",
        reads=("iterations", "epochs"),
        at="iterations",
        message="says how long the job trains, and so does epochs",
        remedy="keep one of them",
        holds=lambda training: not training.iterations or not training.epochs,
        cel="!has(self.iterations) || !has(self.epochs)",
    ),
    Rule(
        name="epochs-have-a-length",
        reads=("epochs", "iterationsPerEpoch"),
        at="epochs",
        message="is a number of epochs of unknown length",
        remedy="give iterationsPerEpoch too",
        holds=lambda training: not training.epochs or bool(training.iterations_per_epoch),
        cel="!has(self.epochs) || has(self.iterationsPerEpoch)",
    ),
)

AMOUNTS: Final = frozenset({"sample", "token"})
"""Named groups that count the data that was seen, however large the batch is."""

PROGRESS_RULES: Final = (
    Rule(
        name="progress-has-one-source",
        reads=PROGRESS_SOURCES,
        message=f"must name exactly one source of {listed(PROGRESS_SOURCES, 'and')}",
        remedy="give the one that your training writes to",
        holds=lambda progress: sum(map(bool, (progress.log, progress.file, progress.http))) == 1,
        cel=(
            "(has(self.log) ? 1 : 0) + (has(self.file) ? 1 : 0)"
            " + (has(self.http) && self.http ? 1 : 0) == 1"
        ),
    ),
    Rule(
        name="log-has-a-group",
        reads=("log",),
        at="log",
        message="has no named group that shows the progress",
        remedy="name one (?P<iteration>...), (?P<epoch>...), or (?P<sample>...) with samplesPerIteration",
        holds=lambda progress: (
            not progress.log
            or not find_groups(progress.log).isdisjoint({"iteration", "epoch", *AMOUNTS})
        ),
        cel=(
            "!has(self.log) || self.log.contains('(?P<iteration>')"
            " || self.log.contains('(?P<epoch>')"
            " || self.log.contains('(?P<sample>') || self.log.contains('(?P<token>')"
        ),
    ),
    Rule(
        name="amounts-have-a-unit",
        reads=("log", "samplesPerIteration"),
        at="log",
        message="reports samples or tokens alone, and no samplesPerIteration says how many make an iteration",
        remedy="give samplesPerIteration, such as the batch size over all GPUs that iterations counts in",
        holds=lambda progress: (
            not progress.log
            or progress.samples_per_iteration is not None
            or find_groups(progress.log).isdisjoint(AMOUNTS)
            or not find_groups(progress.log).isdisjoint({"iteration", "epoch"})
        ),
        cel=(
            "!has(self.log) || has(self.samplesPerIteration)"
            " || self.log.contains('(?P<iteration>') || self.log.contains('(?P<epoch>')"
            " || !(self.log.contains('(?P<sample>') || self.log.contains('(?P<token>'))"
        ),
    ),
    Rule(
        name="restart-follows-stall",
        reads=("stallSeconds", "restartSeconds"),
        at="restartSeconds",
        message="is less than stallSeconds, after which a job is reported as stalled",
        remedy="give at least stallSeconds (600 if left out), or a smaller stallSeconds",
        holds=lambda progress: (
            progress.restart_seconds is None or progress.restart_seconds >= progress.stall_seconds
        ),
        cel="!has(self.restartSeconds) || self.restartSeconds >= self.stallSeconds",
    ),
)

ENVIRONMENT_RULES: Final = (
    Rule(
        name="a-container-has-its-own-python",
        reads=("python", "container"),
        at="python",
        message="is an interpreter of the machine, and the job runs in a container",
        remedy="keep one of them; command names the interpreter of the image",
        holds=lambda environment: "python" not in environment or "container" not in environment,
        cel="!has(self.python) || !has(self.container)",
    ),
)

BATCH_RULES: Final = (
    Rule(
        name="elastic-batch-has-a-limit",
        reads=("elastic", "max"),
        at="elastic",
        message="lets the batch grow without a limit",
        remedy="give max, the largest global batch that still converges",
        holds=lambda batch: not batch.elastic or bool(batch.maximum),
        cel="!self.elastic || has(self.max)",
    ),
    Rule(
        name="batch-limit-is-used",
        reads=("elastic", "max"),
        at="max",
        message="limits a batch that may not change",
        remedy="write elastic: true, or leave max out",
        holds=lambda batch: not batch.maximum or batch.elastic,
        cel="!has(self.max) || self.elastic",
    ),
)

# --- the spec as a whole ------------------------------------------------------------------

SPEC_RULES: Final = (
    Rule(
        name="running-jobs-show-progress",
        reads=("template", "progress"),
        message="has a template to run and no way to see its progress",
        remedy="give progress, with one of log, file and http",
        holds=lambda spec: "template" not in spec or "progress" in spec,
        cel="!has(self.template) || has(self.progress)",
    ),
    Rule(
        name="target-is-measured",
        reads=("training", "progress"),
        at="training",
        message="aims at a metric that progress.log has no named group for",
        remedy="add (?P<METRIC>...) to progress.log, with the name that target.metric gives",
        holds=_only_known_metrics,
        cel=(
            "!has(self.training.target) || !has(self.progress) || !has(self.progress.log)"
            " || self.progress.log.contains('(?P<' + self.training.target.metric + '>')"
        ),
    ),
    Rule(
        name="epochs-can-be-counted",
        reads=("training", "progress"),
        at="training",
        message="does not say how long an epoch is, and progress.log reports epochs only",
        remedy="give iterationsPerEpoch, or name a group (?P<iteration>...) in progress.log",
        holds=_epochs_can_be_counted,
        cel=(
            "!has(self.progress) || !has(self.progress.log)"
            " || !self.progress.log.contains('(?P<epoch>')"
            " || self.progress.log.contains('(?P<iteration>')"
            " || has(self.training.iterationsPerEpoch)"
        ),
    ),
    Rule(
        name="elastic-batch-has-a-beginning",
        reads=("training", "batch"),
        at="batch",
        message="is elastic, and nothing says which size it begins with",
        remedy="give training.batchSize",
        holds=lambda spec: (
            not spec.get("batch", BatchRange()).elastic or bool(spec["training"].batch_size)
        ),
        cel="!has(self.batch) || !self.batch.elastic || has(self.training.batchSize)",
    ),
    Rule(
        name="batch-begins-within-its-limit",
        reads=("training", "batch"),
        at="batch",
        message="has a max below training.batchSize, with which it begins",
        remedy="give a max of at least training.batchSize",
        holds=_fits_batch,
        cel=(
            "!has(self.batch) || !has(self.batch.max) || !has(self.training.batchSize)"
            " || self.batch.max >= self.training.batchSize"
        ),
    ),
)
