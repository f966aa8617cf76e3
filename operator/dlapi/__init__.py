"""
THE PYTHON INTERFACE: what ``import dljob`` gives to programs and notebooks. See docs/python.md.

It asks the places where jobs run through the backends of the command, so that a program and the
command get the same answers and the same refusals.
"""

from dlapi.async_connection import AsyncConnection, connect_async
from dlapi.connection import Connection, Logs, connect
from dlapi.jobs import Job, JobOptions
from dlapi.refusals import (
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
from dlapi.studies import Comparison, Policy, bound, compare, simulate
from dlapi.timelines import Timeline
from dlapi.values import Event, Explanation, Notice, Plan
from dlclient.jobviews import JobView
from dlcore.contract import Decision, Share, View
from dlsim.bounding.bounds import Bound
from dlsim.scenarios import Scenario
from dlsim.simulating import Outcome

__all__ = [
    "AsyncConnection",
    "Bound",
    "BrokenLaw",
    "Comparison",
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
    "bound",
    "compare",
    "connect",
    "connect_async",
    "simulate",
]
