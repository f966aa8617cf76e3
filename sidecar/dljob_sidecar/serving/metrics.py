"""Writes the state for Prometheus: text, one value per line."""

from __future__ import annotations

from collections.abc import Iterator

from dljob_wire.messages import Phase, State

PREFIX = "dljob_sidecar_"

Sample = tuple[str, float]


def write(state: State) -> str:
    """Return all numeric facts."""
    lines = []
    for name, text, samples in _families(state):
        lines.append(f"# HELP {PREFIX}{name} {text}")
        lines.append(f"# TYPE {PREFIX}{name} gauge")
        lines += [f"{PREFIX}{name}{labels} {value:.15g}" for labels, value in samples]
    return "\n".join(lines) + "\n"


def _families(state: State) -> Iterator[tuple[str, str, list[Sample]]]:
    phases = [(_label("phase", each.value), float(each is state.phase)) for each in Phase]
    problems = [(_label("name", name), 1.0) for name in sorted({p.name for p in state.problems})]
    yield "phase", "1 for the phase of the SideCar.", phases
    yield "released", "1 if no process of the job is left.", [("", float(state.released))]
    yield "term_epoch", "The leader whose declaration is the newest.", [("", state.epoch)]
    yield "generation", "The newest declaration.", [("", state.generation)]
    running = sum(process.is_running for process in state.processes)
    yield "processes", "Ranks that run.", [("", running)]
    yield "gpus_held", "GPUs that the job may use.", [("", len(state.held))]
    yield "problem", "1 for each problem that the SideCar reports.", problems
    yield from _progress(state)
    yield from _gpus(state)


def _progress(state: State) -> Iterator[tuple[str, str, list[Sample]]]:
    progress, warmth = state.progress, state.warmth
    speed = progress.iterations_per_second
    yield "iteration", "The iteration reported last.", [("", progress.iteration)]
    yield "iterations_per_second", "The speed of the latest iterations.", [("", speed)]
    yield "idle_seconds", "The time since the latest iteration.", [("", progress.idle_seconds)]
    yield "spares_ready", "Spare interpreters that are ready.", [("", warmth.ready)]
    yield (
        "spares_memory_bytes",
        "The memory of the spare interpreters.",
        [("", warmth.memory_bytes)],
    )
    yield (
        "spares_memory_limit_bytes",
        "The most memory that spare interpreters may use.",
        [("", warmth.limit_bytes)],
    )


def _gpus(state: State) -> Iterator[tuple[str, str, list[Sample]]]:
    labels = [_label("gpu", str(gpu.index)) for gpu in state.gpus]
    used = [gpu.memory_used for gpu in state.gpus]
    share = [gpu.utilization for gpu in state.gpus]
    yield "gpu_utilization", "The utilization of the GPU, from 0 to 1.", list(zip(labels, share))
    yield (
        "gpu_memory_used_bytes",
        "The memory of the GPU that any process uses.",
        [*zip(labels, map(float, used))],
    )


def _label(name: str, value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'{{{name}="{escaped}"}}'
