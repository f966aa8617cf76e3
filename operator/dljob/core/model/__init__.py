"""
The nouns of scheduling: jobs, nodes, placements, and the snapshot that a decision is made from.

Everything here is frozen. The next snapshot shares all unchanged objects with the one before: a
:class:`JobState` gives its progress as an amount at a time and the speed since then, so a job that
just goes on training needs no new object, however often it is looked at.

The control loop or the simulator builds a :class:`Snapshot`;
:func:`dljob.core.cycle.schedule` turns it into a plan.
"""

from dljob.core.model.causes import DEMANDS, OWN_REASONS, Cause, CauseCode
from dljob.core.model.clusters import Cluster
from dljob.core.model.job_states import Ceiling, JobState
from dljob.core.model.jobs import (
    BatchRange,
    Container,
    Direction,
    GpuDemand,
    Job,
    JobId,
    Limits,
    Phase,
    Role,
    Target,
    Training,
)
from dljob.core.model.nodes import Gpu, GpuRef, Node, NodeName
from dljob.core.model.placements import Placement, Slice
from dljob.core.model.snapshots import Mechanism, Snapshot
from dljob_wire.checkpoints import Checkpoint
from dljob_wire.training import Framework, Progress

__all__ = [
    "DEMANDS",
    "OWN_REASONS",
    "BatchRange",
    "Cause",
    "CauseCode",
    "Ceiling",
    "Checkpoint",
    "Cluster",
    "Container",
    "Direction",
    "Framework",
    "Gpu",
    "GpuDemand",
    "GpuRef",
    "Job",
    "JobId",
    "JobState",
    "Limits",
    "Mechanism",
    "Node",
    "NodeName",
    "Phase",
    "Placement",
    "Progress",
    "Role",
    "Slice",
    "Snapshot",
    "Target",
    "Training",
]
