"""
Workers and parameter servers of a job: which number of GPUs means how many of each.

A decision of DLJob is a number of GPUs, and Coach chooses two numbers (Lövenvald, section 4.2). A job whose processes
are workers and servers declares by a label how many GPUs a worker has, and a server has one: then ``w`` workers and
``s`` servers have ``k * w + s`` GPUs, and with ``1 <= s <= k`` no two choices have the same number. The training
computes its split from its number of processes in the same way, so nothing but that number has to reach it.
:mod:`dljob_lab.policies.elastic.coach` and :mod:`dljob_lab.marginal_utility` read jobs by this module.
"""

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from dljob.core.model import Job

WORKER_LABEL = "coach.dljob.io/gpus-per-worker"
BUDGET_LABEL = "coach.dljob.io/gpu-hours"


class Split(NamedTuple):
    """A number of workers and of parameter servers."""

    workers: int
    servers: int


def split(job: Job, gpus: int) -> Split:
    """
    Return the workers and servers that the job has on these GPUs.

    Without the label each GPU is a worker, and the servers are the pods of its auxiliaries, whose number is fixed.
    """
    each = _read_number(job, WORKER_LABEL)
    if each.is_integer() and 1.0 <= each < job.gpus.options[0]:
        workers, servers = divmod(gpus - 1, int(each))
        return Split(workers, servers + 1)
    return Split(gpus, sum(role.replicas for role in job.roles) or 1)


def list_splits(job: Job) -> Mapping[Split, int]:
    """Return the choices that the job's numbers of GPUs are, with these numbers."""
    return {split(job, gpus): gpus for gpus in job.gpus.options}


def read_budget(job: Job) -> float:
    """Return how many GPU-seconds the job may cost; infinite without the label."""
    hours = _read_number(job, BUDGET_LABEL)
    return hours * 3600.0 if hours > 0.0 else math.inf


def _read_number(job: Job, label: str) -> float:
    """Return the number in a label; 0 where there is none."""
    try:
        number = float(job.labels.get(label, ""))
    except ValueError:
        return 0.0
    return number if math.isfinite(number) else 0.0


def list_mini_epochs(splits: Iterable[Split]) -> tuple[Split, ...]:
    """Return the choices that Coach measures first: the two smallest numbers of workers, each with those of servers."""
    there = sorted(splits)
    workers = sorted({each.workers for each in there})[:2]
    servers = sorted({each.servers for each in there})[:2]
    return tuple(each for each in there if each.workers in workers and each.servers in servers)


def list_next(now: Split, splits: Iterable[Split]) -> tuple[Split, ...]:
    """Return the next larger choices: more workers, then more servers."""
    there = sorted(splits)
    more_workers = (s for s in there if s.servers == now.servers and s.workers > now.workers)
    more_servers = (s for s in there if s.workers == now.workers and s.servers > now.servers)
    found = (next(more_workers, None), next(more_servers, None))
    return tuple(each for each in found if each is not None)
