"""Everything that can be set about ``dljob up``: what any controller has, and what one machine adds."""

from dataclasses import dataclass, field

from dlcontrol.settings import Settings
from dllocal.rotating import LogLimits


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalSettings(Settings):
    """All of it."""

    logs: LogLimits = field(default_factory=LogLimits)
    """How much is kept of what trainings write."""
