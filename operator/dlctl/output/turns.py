"""
When a job that waits is expected to start, and how many start before it, as the verbs tell it.

The server of ``dljob up`` plays its scheduler on for it (:mod:`dlcore.foreseeing`), and so does the operator of
a cluster, which writes it into the status of the job.
"""

import time

from dlctl.backends.backend import Json
from dlctl.output import texts
from dlctl.output.jobviews import JobView, read_time

RESTS_ON = "if running jobs end as predicted and no other job comes"


def show_turn(job: JobView, now: float | None = None) -> str:
    """Write it for a column: ``4m, 2 ahead``, or ``?, 2 ahead`` where the start is not known."""
    if job.ahead is None:
        return texts.NOTHING
    when = "?" if job.expected_start is None else _until(job.expected_start, now)
    return f"{when}, {job.ahead} ahead" if job.ahead else f"{when}, next"


def describe_turn(job: JobView, now: float | None = None) -> str:
    """Say it in a sentence, with what it rests on; empty where there is nothing to say."""
    if job.ahead is None:
        return ""
    if job.expected_start is None:
        because = job.start_unknown_because
        return f"{_ahead(job.ahead)}; its start is not known, because {because}"
    when = _until(job.expected_start, now)
    return f"{_ahead(job.ahead)}; it is expected to start in about {when}, {RESTS_ON}"


def describe_queue(queue: Json) -> str:
    """Say the same of a job that is not submitted yet."""
    return describe_turn(
        JobView(
            name="",
            phase="",
            ahead=queue["ahead"],
            expected_start=read_time(queue.get("expectedStart")),
            start_unknown_because=queue.get("unknownBecause", ""),
        )
    )


def _ahead(count: int) -> str:
    if count == 0:
        return "it is the next of the jobs that wait"
    return f"{count} of the jobs that wait {'start' if count > 1 else 'starts'} before it"


def _until(at: float, now: float | None) -> str:
    return texts.duration(at - (time.time() if now is None else now))
