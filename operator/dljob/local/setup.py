"""The settings of ``dljob up``, and the setup of its controller that follows from them."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from dljob.control.scheduling import Options
from dljob.control.settings import Setting, Settings
from dljob.control.sidecars.dialing import DialSettings
from dljob.control.situation.ports import PodKey
from dljob.core.model import Node
from dljob.core.placement.limits import NamespaceLimits
from dljob.core.profiles import Profile
from dljob.local.cloud.endings import CloudSettings
from dljob.local.gpus.devices import RealGpus
from dljob.local.jobs.user_limits import UserLimits
from dljob.local.pods.launching import POLL_SECONDS, RELEASE_SECONDS
from dljob.local.pods.pod_states import AT_ONCE, PodTimes
from dljob.local.pods.rotating import LogLimits
from dljob_wire.messages import State


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalSettings(Settings):
    """The settings of any controller, and those of one machine."""

    logs: LogLimits = field(default_factory=LogLimits)
    """How much of the output of trainings is kept."""
    users: UserLimits = field(default_factory=UserLimits)
    """The limits of each user but root at a server of all users."""
    cloud: CloudSettings = field(default_factory=CloudSettings)
    """The notices of the cloud that runs this machine."""
    release_seconds: float = RELEASE_SECONDS
    """How long memory on a GPU that may still be a job's keeps the GPU from being released, once no
    process of the job is left; 0 for as long as it is in use."""

    def __post_init__(self) -> None:
        if self.release_seconds < 0:
            raise ValueError(f"release_seconds is {self.release_seconds:g}; give at least 0")


@dataclass(frozen=True, slots=True)
class Sharing:
    """Each job runs as its submitter. All users may submit, or those of a group."""

    group: int | None = None


@dataclass(frozen=True, kw_only=True)
class Setup:
    state: Path
    nodes: Callable[[], tuple[Node, ...]]
    virtual_gpus: bool
    options: Options
    sharing: Sharing | None = None
    """The users of the server; by default only its own."""
    reload: Callable[[], NamespaceLimits] | None = None
    """Reads the limits of namespaces again, at SIGHUP; ``None``: there is no SIGHUP to hear."""
    real_gpus: RealGpus | None = None
    """The real GPUs behind ``nodes``, which are locked and watched."""
    store: str = ""
    """The address of the store; empty: a file in the state folder."""
    sample_seconds: float = 10.0
    pod_times: PodTimes = AT_ONCE
    """The least time that pods take to start and end, to imitate a cluster."""
    poll_seconds: float = POLL_SECONDS
    """How often SideCars read the progress of the training."""
    release_seconds: float = RELEASE_SECONDS
    """How long SideCars keep a GPU only because its memory is in use."""
    dialing: DialSettings = DialSettings()
    cloud: CloudSettings = CloudSettings()
    logs: LogLimits = LogLimits()
    user_limits: UserLimits = UserLimits()
    settings: tuple[Setting, ...] = ()
    """All settings with their origins, for clients."""
    metrics: str = ""
    """The address at which metrics are served for Prometheus, as [ADDRESS]:PORT."""
    profiles: tuple[Profile, ...] = ()
    """Profiles that were measured offline, which fill gaps in the learnt ones."""
    least_epoch: int = 0
    """The least epoch of this controller: above that of any command that SideCars have received."""
    listener: Callable[[PodKey, State, float], None] | None = None
    """Called with every report of a SideCar and its time."""
