"""The settings of ``dljob up``: those of any controller, and those of one machine."""

from dataclasses import dataclass, field

from dljob.control.settings import Settings
from dljob.local.cloud.endings import CloudSettings
from dljob.local.jobs.user_limits import UserLimits
from dljob.local.pods.launching import RELEASE_SECONDS
from dljob.local.pods.rotating import LogLimits


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalSettings(Settings):
    logs: LogLimits = field(default_factory=LogLimits)
    """How much is kept of what trainings write."""
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
