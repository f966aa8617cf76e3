"""The laws of a plan, and the error that names the one that is broken."""

from enum import StrEnum
from functools import partial
from typing import Any, NamedTuple

from dljob.core.model import JobId


class Law(StrEnum):
    """A rule that every plan must keep."""

    ONE_MASTER = "one-master"
    """A GPU belongs to one job."""
    REAL_GPUS = "real-gpus"
    """Only GPUs that exist, are healthy and of the stated type are given."""
    ALLOWED_SHAPE = "allowed-shape"
    """A job gets a number, a type and a spread of GPUs that it said it can run on."""
    ALLOWED_BATCH = "allowed-batch"
    """Only a job with an elastic batch gets another batch, and none above its limit."""
    WHOLE_GANG = "whole-gang"
    """A job gets all the GPUs it needs to make progress, or none."""
    RELEASED_FIRST = "released-first"
    """A GPU that a job holds is given away only after a step that takes it from that job and is named."""
    CHECKPOINT_IN_REACH = "checkpoint-in-reach"
    """A job whose checkpoints only one node can read stays on that node."""
    ROOM_FOR_PODS = "room-for-pods"
    """A new pod comes only to a node that takes it and has room for its requests."""
    NAMESPACE_LIMIT = "namespace-limit"
    """Where a namespace has more GPUs than it may, none of its jobs gets more."""
    WORK_KEPT = "work-kept"
    """
    A job whose work no checkpoint saves keeps its GPUs, but for a law or a higher priority. One whose processes stay
    when its GPUs change keeps some of them.
    """
    PURPOSE = "purpose"
    """Every step changes something and is the only one of its job; GPUs are taken for a job that gets them."""


class Breach(NamedTuple):
    """A broken law. ``message`` follows the name of the job in a sentence."""

    law: Law
    job: JobId
    message: str


class BrokenLaw(Exception):
    """
    A plan that must not be carried out.

    ``str()`` names the policy, the law, the time, the job and what to read. ``message`` is what job
    ``job`` does, or what is done to it: it follows the name of the job in a sentence.
    """

    def __init__(self, law: Law, job: JobId, message: str, *, policy: str, at_s: float) -> None:
        super().__init__(
            f'Policy {policy!r} broke the law "{law}" at t={at_s:.12g} s: job {job} {message}. '
            'See "Laws" in docs/policies.md.'
        )
        self.law = law
        self.job = job
        self.message = message
        self.policy = policy
        self.at_s = at_s

    def __reduce__(self) -> tuple[Any, ...]:
        # Makes the error picklable, so a worker process can pass it to its parent.
        remake = partial(BrokenLaw, policy=self.policy, at_s=self.at_s)
        return remake, (self.law, self.job, self.message)
