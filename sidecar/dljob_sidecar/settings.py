"""
Where the SideCar answers, and the training that it runs; :mod:`dljob_sidecar.options` reads both once.
"""

from __future__ import annotations

from dataclasses import dataclass

from dljob_wire.training import Training


@dataclass(frozen=True)
class Serving:
    """Where the SideCar answers, and to whom; either a socket or TLS."""

    socket: str = ""
    """On one machine: a Unix socket that only its owner may open."""
    left: str = ""
    """The file for the state that outlives the SideCar."""
    address: str = ""
    port: int = 0
    tls_folder: str = ""
    """Holds ``tls.crt``, ``tls.key`` and ``ca.crt``; read again when they are renewed."""
    job_uid: str = ""
    """The job whose controller may connect."""
    controller_name: str = ""
    """The one name that may declare a target; others of the job may read."""
    progress_socket: str = ""
    """A Unix socket at which the training posts its progress; empty for none."""
    health_address: str = ""
    health_port: int | None = None
    """For probes and metrics, in plain HTTP and read-only; None for none, 0 for any."""
    header_seconds: float = 10.0
    """How long a client may take to send its request."""
    largest_body: int = 256 * 1024
    most_waiting: int = 32
    """How many long polls may wait at once."""
    longest_wait_seconds: float = 60.0


@dataclass(frozen=True)
class Settings:
    training: Training
    serving: Serving = Serving()
