"""The settings of a server of one machine, as `dljob up` has read them."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from dlcontrol.scheduling import Options
from dlcontrol.settings import Setting
from dlcontrol.sidecars.dialing import DialSettings
from dlcontrol.situation.ports import PodKey
from dlcore.model import Node
from dlcore.profiles import Profile
from dllocal.gpus.devices import RealGpus
from dllocal.jobs.user_limits import UserLimits
from dllocal.pods.launching import POLL_SECONDS, RELEASE_SECONDS
from dllocal.pods.pod_states import AT_ONCE, PodTimes
from dllocal.pods.rotating import LogLimits
from dlwire.messages import State


@dataclass(frozen=True, slots=True)
class Sharing:
    """Each job runs as its submitter, and all users may submit, or those of a group."""

    group: int | None = None


@dataclass(frozen=True, kw_only=True)
class Setup:
    """The options of ``dljob up``."""

    state: Path
    nodes: Callable[[], tuple[Node, ...]]
    virtual_gpus: bool
    options: Options
    sharing: Sharing | None = None
    """With whom the server is shared; by default it is its user's alone."""
    real_gpus: RealGpus | None = None
    """The GPUs of this machine behind ``nodes``, which are locked and watched; none if virtual."""
    store: str = ""
    """Where profiles and the history are kept; empty: in the state folder."""
    sample_seconds: float = 10.0
    pod_times: PodTimes = AT_ONCE
    """How long pods take at least, where a cluster is to be shown."""
    poll_seconds: float = POLL_SECONDS
    """How often SideCars look at how far the training is."""
    release_seconds: float = RELEASE_SECONDS
    """How long SideCars keep GPUs for memory alone."""
    dialing: DialSettings = DialSettings()
    logs: LogLimits = LogLimits()
    """How much is kept of what trainings write."""
    user_limits: UserLimits = UserLimits()
    """How much of a shared server each user may take."""
    settings: tuple[Setting, ...] = ()
    """Where all that came from, for those who ask."""
    metrics: str = ""
    """Where metrics are served for Prometheus, as [ADDRESS]:PORT; nowhere if empty."""
    profiles: tuple[Profile, ...] = ()
    """Profiles that were measured offline; they fill the gaps of the learnt ones."""
    least_epoch: int = 0
    """The epoch to go on in, at least: above what SideCars have heard."""
    listener: Callable[[PodKey, State, float], None] | None = None
    """Told every state of every SideCar, and when it was heard."""
