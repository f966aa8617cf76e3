"""
THE PYTHON INTERFACE: what ``import dljob`` gives to programs and notebooks. See docs/python.md.

It asks the places where jobs run through the backends of the command, so that a program and the
command get the same answers and the same refusals.
"""

from dljob.api.async_connection import AsyncConnection, connect_async
from dljob.api.connection import Connection, Logs, connect
from dljob.api.jobs import Job, JobOptions
from dljob.api.refusals import (
    BrokenLaw,
    Conflict,
    MissingExtra,
    NeverHolds,
    NotFound,
    Problem,
    Refused,
    TimedOut,
    Unreachable,
    WrongInput,
    WrongJob,
    WrongUse,
)
from dljob.api.studies import Policy, simulate
from dljob.api.timelines import Timeline
from dljob.api.values import Event, Explanation, Notice, Plan
from dljob.client.jobviews import JobView
from dljob.core.contract import Decision, Share, View
from dljob.sim.scenarios import Scenario
from dljob.sim.simulating import Outcome

__all__ = [
    "AsyncConnection",
    "BrokenLaw",
    "Conflict",
    "Connection",
    "Decision",
    "Event",
    "Explanation",
    "Job",
    "JobOptions",
    "JobView",
    "Logs",
    "MissingExtra",
    "NeverHolds",
    "NotFound",
    "Notice",
    "Outcome",
    "Plan",
    "Policy",
    "Problem",
    "Refused",
    "Scenario",
    "Share",
    "TimedOut",
    "Timeline",
    "Unreachable",
    "View",
    "WrongInput",
    "WrongJob",
    "WrongUse",
    "connect",
    "connect_async",
    "simulate",
]
