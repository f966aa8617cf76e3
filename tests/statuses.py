"""A status that says everything there is to say."""

from typing import Any

from dljob.control.situation.status import (
    Booking,
    Condition,
    ConditionType,
    DecisionNumber,
    Ended,
    StartNumber,
    Status,
    Trust,
)
from dljob.core.model import Cause, CauseCode, GpuRef, JobId, NodeName, Phase
from tests.builders import make_placement

N0, N1 = NodeName("n0"), NodeName("n1")


def make_full_status() -> Status:
    """Make a status of which no field is as it begins, each number another one."""
    condition = Condition(
        ConditionType.FINISHED, status=True, reason="Finished", message="x", since=5003.0
    )
    numbers: dict[str, Any] = {
        name: float(place) + 1000.0 if isinstance(default, float) else place + 10
        for place, (name, default) in enumerate(
            (name, each.default) for name, each in Status.__dataclass_fields__.items()
        )
        if isinstance(default, float | int) and not isinstance(default, bool)
    }
    others: dict[str, Any] = {
        "phase": Phase.ADJUSTING,
        "placement": make_placement("V100", n0=(0, 1)),
        "batch_size": 128,
        "cause": Cause(CauseCode.OUTRANKED, JobId("b"), 2),
        "saves": False,
        "trust": Trust.CONFIRMED,
        "live": Trust.CONFIRMED,
        "triable": True,
        "ends": True,
        "pods": (Booking(N0, 3, DecisionNumber(2)),),
        "used": frozenset({3}),
        "leftover": frozenset({GpuRef(N1, 1)}),
        "started_at": 5000.0,
        "finished_at": 5001.0,
        "paused_at": 5002.0,
        "metric": 0.5,
        "bound_to": (N0,),
        "exit_code": 3,
        "ended": Ended(StartNumber(7), 2, 1),
        "message": "trains",
        "conditions": (condition,),
    }
    full = Status(**numbers | others)
    unset = [
        name
        for name, each in Status.__dataclass_fields__.items()
        if getattr(full, name) == each.default
    ]
    assert unset == [], "a new field needs a value here"
    return full
