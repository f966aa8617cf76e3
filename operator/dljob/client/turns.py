"""
The expected start of a job that waits and the number of jobs before it, as the verbs print them.

The server of ``dljob up`` plays its scheduler on for it (:mod:`dljob.core.foreseeing`), and so does the operator of
a cluster, which writes it into the status of the job.
"""

import time
from collections.abc import Iterator, Sequence

from dljob.client.backend import Json
from dljob.client.jobviews import JobView, read_time
from dljob.control.reporting.formatting import NOTHING, duration
from dljob.control.reporting.formatting import speed as show_speed

RESTS_ON = "if running jobs end as predicted and no other job comes"


def show_turn(job: JobView, now: float | None = None) -> str:
    """Write a turn for a column: ``4m, 2 ahead``, or ``?, 2 ahead`` where the start is unknown."""
    if job.ahead is None:
        return NOTHING
    when = "?" if job.expected_start is None else _until(job.expected_start, now)
    return f"{when}, {job.ahead} ahead" if job.ahead else f"{when}, next"


def describe_turn(job: JobView, now: float | None = None) -> str:
    """Write a turn as a sentence with its assumptions; empty for a job without a turn."""
    if job.ahead is None:
        return ""
    if job.expected_start is None:
        because = job.start_unknown_because
        return f"{_ahead(job.ahead)}; its start is not known, because {because}"
    when = _until(job.expected_start, now)
    return f"{_ahead(job.ahead)}; it is expected to start in about {when}, {RESTS_ON}"


def describe_queue(queue: Json) -> str:
    """Do the same for a job that is not submitted yet."""
    return describe_turn(
        JobView(
            name="",
            phase="",
            ahead=queue["ahead"],
            expected_start=read_time(queue.get("expectedStart")),
            start_unknown_because=queue.get("unknownBecause", ""),
        )
    )


def show_plan(effects: Sequence[Json], *, tells_others: bool = True) -> str:
    """Write the effects on the new jobs and on all others."""
    own = [effect for effect in effects if effect["submitted"]]
    others = [effect for effect in effects if not effect["submitted"]]
    lines = [_sentence(effect) for effect in own]
    if others:
        lines += ["", "Effects on other jobs:", *(f"  {_sentence(effect)}" for effect in others)]
    elif tells_others:
        lines.append("No other job changes.")
    return "".join(f"{line}\n" for line in lines)


def _sentence(effect: Json) -> str:
    told = f"{effect['job']} {effect['message']}"
    return "; ".join((told, *_iter_expectations(effect)))


def _iter_expectations(effect: Json) -> Iterator[str]:
    if effect["submitted"] and "queue" in effect:
        yield describe_queue(effect["queue"])
    speed, before, after = (
        effect.get(name) for name in ("iterationsPerSecond", "secondsBefore", "secondsAfter")
    )
    if speed:
        yield f"about {show_speed(speed)} ({100 * effect['confidence']:.0f} % sure)"
    end = effect.get("end", {})
    if after is None:
        if before is not None:
            yield f"without that it would be done in about {duration(before)}"
        elif "unknownBecause" in end and "unknownBecause" not in effect.get("queue", {}):
            yield f"its end is not known, because {end['unknownBecause']}"
    elif before is None or effect["submitted"]:
        yield f"done in about {duration(after)}{_between(end)}"
    elif duration(before) != duration(after):
        yield f"done in about {duration(after)} instead of {duration(before)}"


def _between(end: Json) -> str:
    """Write the bounds of an end; empty if they are not known."""
    bounds = [read_time(end.get(name)) for name in ("earliest", "latest")]
    if None in bounds:
        return ""
    low, high = (_until(at, None) for at in bounds if at is not None)
    return f" ({low} to {high})"


def _ahead(count: int) -> str:
    if count == 0:
        return "it is the next of the jobs that wait"
    return f"{count} of the jobs that wait {'start' if count > 1 else 'starts'} before it"


def _until(at: float, now: float | None) -> str:
    return duration(at - (time.time() if now is None else now))
