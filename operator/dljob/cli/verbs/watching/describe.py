"""
``dljob describe``: everything about a job, to be read from top to bottom.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import click

from dljob.cli.inputs.options import name_argument, output_option, with_backend
from dljob.cli.output import texts
from dljob.cli.output.forms import to_json
from dljob.cli.output.messages import say
from dljob.cli.output.texts import NOTHING
from dljob.client.backend import (
    Away,
    Backend,
    BackendError,
    Json,
    LogQuery,
)
from dljob.client.jobviews import JobView, eta_of, in_ranges, progress_of, read_time
from dljob.core.documents.launchers import processes_of
from dljob_wire.problems import listed

MOST_EVENTS = 30
LAST_LINES = 10
WIDTH = 14
"""The column at which values begin."""

Fields = Mapping[str, Any]
T = TypeVar("T")


@click.command("describe")
@name_argument(several=True)
@output_option("json")
@with_backend
def command(backend: Backend, *, names: tuple[str, ...], output: str | None) -> None:
    """
    Show everything about a job: its spec, GPUs, progress, costs, conditions and latest events, and
    the end of its log if it failed.
    """
    told = [_collect(backend, name) for name in names]
    if output == "json":
        click.echo(to_json(told[0] if len(told) == 1 else told), nl=False)
    else:
        click.echo("\n".join(show(each, backend.home) for each in told), nl=False)


def _collect(backend: Backend, name: str) -> Json:
    answer = backend.explain(name)
    job = JobView.of(answer["job"], backend.home)
    return {
        "job": answer["job"],
        "why": answer["message"],
        "assumptions": answer["assumptions"],
        "log": _try(lambda: _end_of_log(backend, job)) if job.status.get("failures") else [],
        "events": _try(lambda: backend.list_events(name)),
    }


def _try(look: Callable[[], list[T]]) -> list[T]:
    """Return an optional part, or print why it is missing."""
    try:
        return look()
    except Away:
        raise
    except BackendError as error:
        say(f"note: {error}")
        return []


def _end_of_log(backend: Backend, job: JobView) -> list[str]:
    lines = list(backend.read_logs(job.name, LogQuery(lines=LAST_LINES)))
    several = len({line.node for line in lines}) > 1
    texts_by_line = [
        (line.node, line.text.decode(errors="replace").rstrip("\r\n")) for line in lines
    ]
    return [f"[{node}] {text}" if several else text for node, text in texts_by_line]


def show(told: Json, home: str = "") -> str:
    """Write the result of :func:`_collect`."""
    job = JobView.of(told["job"], home)
    parts = [
        *_iter_head(job, told["why"], assumptions=told["assumptions"]),
        *_iter_wishes(job),
        *_iter_allocation(job),
        *_iter_progress(job),
        *_iter_costs(job),
        *_iter_tables(job, told["log"], events=told["events"]),
    ]
    return "".join(parts)


def _line(name: str, value: object) -> str:
    return f"{name + ':':<{WIDTH}} {value}\n"


def _sentence(title: str, text: str) -> str:
    return texts.flow(text, first=f"{title:<{WIDTH}} ", rest=" " * (WIDTH + 1))


def _part(name: str, value: object) -> str:
    return f"  {name + ':':<{WIDTH - 2}} {value}\n"


def _iter_head(job: JobView, why: str, *, assumptions: Sequence[str]) -> Iterator[str]:
    yield _line("Name", job.name)
    labels = [f"{key}={value}" for key, value in sorted(job.labels.items())] or ["<none>"]
    yield _line("Labels", labels[0])
    for label in labels[1:]:
        yield f"{'':<{WIDTH}} {label}\n"
    yield _line("Submitted", texts.moment(job.submitted_at))
    if job.started_at is not None:
        yield _line("Started", texts.moment(job.started_at))
    if job.finished_at is not None:
        yield _line("Finished", texts.moment(job.finished_at))
    yield _line("Phase", texts.paint(job.phase))
    yield _sentence("Why:", why)
    for place, assumption in enumerate(assumptions):
        yield _sentence("" if place else "Assumed:", assumption)


# --- the spec


def _iter_wishes(job: JobView) -> Iterator[str]:
    spec = job.spec
    if job.status.get("unreadable"):
        yield _line("Spec", "cannot be read")
        return
    yield "Spec:\n"
    yield _part("GPUs", _wanted_gpus(spec["gpus"]))
    yield _part("Training", _wanted_training(spec["training"], spec.get("batch", {})))
    profile = spec.get("profile")
    if profile:
        yield _part(
            "Profile", "/".join(profile[each] for each in ("model", "dataset") if each in profile)
        )
    each = {"perGpu": "a process for each GPU", "perNode": "a process for each node"}
    processes = each[processes_of(spec)]
    yield _part("Framework", f"{spec.get('framework', 'none')}, {processes}")
    yield _part("Command", _command(spec))
    yield from _iter_environment(spec.get("environment", {}), job.status.get("environment"))
    if spec.get("checkpoint"):
        yield _part("Checkpoint", _checkpoint(spec["checkpoint"]))
    limits = _limits(spec)
    if limits:
        yield _part("Limits", limits)
    if spec.get("suspend"):
        yield _part("Suspended", "yes")
    yield _part("Priority", spec.get("priority", 0))


ACTIVE = ("VIRTUAL_ENV", "CONDA_PREFIX")
"""Variables that name the environment of programs, the most specific first."""


def _iter_environment(wanted: Fields, variables: Mapping[str, str] | None) -> Iterator[str]:
    if not variables:
        return
    python = wanted.get("python")
    where = f"that of {python}" if python else _origin_of_programs(variables)
    count = f"{len(variables)} variables, listed by -o json"
    yield _sentence("  Environment:", f"{where}; {count}" if where else count)


def _origin_of_programs(variables: Mapping[str, str]) -> str:
    for name in ACTIVE:
        if name in variables:
            return f"{name}={variables[name]}"
    # PATH is wider than a terminal, and its first folder decides most.
    first, _, _ = variables.get("PATH", "").partition(":")
    return f"PATH begins with {first}" if first else ""


def _wanted_gpus(gpus: Fields) -> str:
    parts = [
        listed(gpus["options"], "or")
        if "options" in gpus
        else f"{gpus.get('min')} to {gpus.get('max')}"
    ]
    if "requested" in gpus:
        parts.append(f"{gpus['requested']} requested")
    if gpus.get("types"):
        parts.append(f"of type {' or '.join(gpus['types'])}")
    if "maxNodes" in gpus:
        parts.append(f"on at most {gpus['maxNodes']} nodes")
    return ", ".join(parts)


def _wanted_training(training: Fields, batch: Fields) -> str:
    parts = []
    if "epochs" in training:
        parts.append(f"{training['epochs']} epochs of {training['iterationsPerEpoch']:,}")
    elif "iterations" in training:
        parts.append(f"{training['iterations']:,} iterations")
    if training.get("untilExit"):
        parts.append("until its program ends")
    target = training.get("target")
    if target:
        parts.append(f"until {target['metric']} is {target['value']}")
    if training.get("batchSize"):
        limit = f" to {batch['max']}" if batch.get("elastic") else ""
        parts.append(f"batch size {training['batchSize']}{limit}")
    return ", ".join(parts)


def _command(spec: Fields) -> str:
    import shlex  # noqa: PLC0415 - only here

    containers = spec.get("template", {}).get("spec", {}).get("containers", ())
    trainer: Fields = next((each for each in containers if each.get("name") == "trainer"), {})
    return shlex.join([*trainer.get("command", ()), *trainer.get("args", ())]) or NOTHING


def _checkpoint(checkpoint: Fields) -> str:
    ways = ("signal", "command", "http")
    how = next((f"by {way} {checkpoint[way]}" for way in ways if checkpoint.get(way)), "none")
    files = f"{checkpoint['path']}/{checkpoint.get('files', '')}" if checkpoint.get("path") else ""
    where = f", in {files.rstrip('/')}" if files else ""
    shared = " (shared)" if checkpoint.get("shared") else ""
    return f"{how}{where}{shared}{_completeness(checkpoint)}"


def _completeness(checkpoint: Fields) -> str:
    """Describe how a complete checkpoint is recognised, if files confirm it."""
    if checkpoint.get("confirm") != "file":
        return ""
    complete = checkpoint.get("complete", "auto")
    named = {
        "auto": "by the marks that are recognised",
        "settled": "when its files have settled",
        "rename": "by its name",
        "marker": f"by {checkpoint.get('marker', 'its marker')}",
    }
    return f", complete {named.get(complete, f'by the marks of {complete}')}"


def _limits(spec: Fields) -> str:
    named = {
        "backoffLimit": "{} new attempt{s}",
        "activeDeadlineSeconds": "{} s at most",
        "ttlSecondsAfterFinished": "forgotten {} s after its end",
    }
    return ", ".join(
        text.format(spec[name], s="" if spec[name] == 1 else "s")
        for name, text in named.items()
        if name in spec
    )


# --- the status


def _iter_allocation(job: JobView) -> Iterator[str]:
    allocation = job.status.get("allocation", {})
    decided = texts.age(read_time(allocation.get("decidedAt")))
    if not job.slices:
        yield _line("Allocation", "none")
        return
    kind = f" {job.gpu_type}" if job.gpu_type else ""
    generation = allocation.get("generation", 0)
    yield _line(
        "Allocation",
        f"{job.gpus}{kind} GPU{'s' if job.gpus != 1 else ''}, decision {generation} about it,"
        f" {decided} ago",
    )
    own = job.spec.get("training", {}).get("batchSize")  # A spec that cannot be read is empty.
    if allocation.get("batchSize", own) != own:
        yield _part("batch size", f"{allocation['batchSize']} instead of {own}")
    for part in job.slices:
        yield _part(part.node, f"GPU {in_ranges(part.gpus)}")
    if job.status.get("leftover"):
        leftover = [f"{p['name']}[{in_ranges(tuple(p['gpuIds']))}]" for p in job.status["leftover"]]
        yield _part("to release", " ".join(leftover))


def _iter_progress(job: JobView) -> Iterator[str]:
    total = job.iterations_total
    done = f"{job.iteration:,}" + (f" of {total:,.0f} iterations" if total else " iterations")
    yield _line("Progress", f"{done} ({progress_of(job)})" if total else done)
    progress = job.status.get("progress", {})
    if job.speed > 0:
        yield _part("Speed", texts.speed(job.speed))
    eta = eta_of(job, " to ")
    if eta != NOTHING:
        yield _part("ETA", f"in {eta}")
    target = job.spec.get("training", {}).get("target")
    if target and "metric" in progress:
        yield _part(target["metric"], f"{progress['metric']:.6g} (target {target['value']})")


def _iter_costs(job: JobView) -> Iterator[str]:
    status, progress = job.status, job.status.get("progress", {})
    yield "Costs:\n"
    yield _part("GPU time", f"{texts.duration(progress.get('gpuSeconds', 0.0))} of one GPU")
    lost = status.get("reshapeSeconds", 0.0)
    yield _part("Reshapes", f"{job.reshapes}, {lost:.1f} s without training")
    if live := status.get("live", {}).get("changes", 0):
        pauses = 1000 * status["live"].get("seconds", 0.0)
        yield _part("Live", f"{live} of them, with pauses of {pauses:.0f} ms in total")
    again = status.get("checkpoint", {})
    if again.get("lostIterations"):
        took = texts.duration(again.get("lostSeconds", 0.0))
        yield _part("Work lost", f"{again['lostIterations']:,} iterations ({took}), done again")
    limit = job.spec.get("backoffLimit", 3)
    yield _part("Failures", f"{status.get('failures', 0)} (limit {limit})")
    if status.get("restarts"):
        yield _part("Restarts", status["restarts"])
    if "exitCode" in status:
        yield _part("Exit status", status["exitCode"])


# --- tables -------------------------------------------------------------------------------


def _iter_tables(job: JobView, log: Sequence[str], *, events: Sequence[Json]) -> Iterator[str]:
    conditions = job.status.get("conditions", ())
    if conditions:
        rows = [
            (c["type"], c["status"], c["reason"], _age(c.get("lastTransitionTime")), c["message"])
            for c in conditions
        ]
        header = ("Type", "Status", "Reason", "Age", "Message")
        yield "Conditions:\n" + texts.indent(texts.tabulate(header, rows, inset=2))
    if log:
        yield "Log, its last lines:\n" + texts.indent("\n".join(log))
    if not events:
        yield _line("Events", "<none>")
        return
    left_out = len(events) - MOST_EVENTS
    latest = events[-MOST_EVENTS:]
    table = texts.tabulate(
        ("Type", "Reason", "Age", "Message"),
        [(e["type"], e["reason"], _age(e["at"]), e["message"]) for e in latest],
        inset=2,
    )
    more = f" (the latest {MOST_EVENTS} of {len(events)})" if left_out > 0 else ""
    yield f"Events{more}:\n" + texts.indent(table)


def _age(text: str | None) -> str:
    return texts.age(read_time(text))
