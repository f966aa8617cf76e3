"""The environment in which ranks are started."""

from __future__ import annotations

import contextlib
import fcntl
import ipaddress
import os
import socket
import struct
from collections.abc import Mapping

from dljob_sidecar.checkpoints.storing import CheckpointStore
from dljob_sidecar.processes import ranks
from dljob_sidecar.processes.ranks import RankProcess
from dljob_wire.messages import Run
from dljob_wire.training import Framework, Training

RESUME = "DLJOB_CHECKPOINT_RESUME"
"""The variable with the latest complete checkpoint, if known."""
INTERFACE = "HOROVOD_GLOO_IFACE"
LOOPBACK_INTERFACE = "lo"
SIOCGIFADDR = 0x8915
LONGEST_INTERFACE_NAME = 15


AGREEMENT = "DLJOB_AGREEMENT"


class RankAgreement:
    """
    Shared memory in which the ranks of one start agree on the step to save at.

    The memory has no name in a file system, because an image may have no writable one. The ranks
    open it through ``/proc``; it ends with the SideCar.
    """

    def __init__(self) -> None:
        self._file = -1
        self.variables: dict[str, str] = {}
        """The variables that name the memory for the ranks; empty if there is none."""

    def renew(self) -> None:
        """Clear what the ranks of the previous start wrote."""
        self.close()
        create = getattr(os, "memfd_create", None)
        if create is not None:
            with contextlib.suppress(OSError):
                self._file = create("dljob-agreement")
        if self._file >= 0:
            self.variables = {AGREEMENT: f"/proc/{os.getpid()}/fd/{self._file}"}

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
            self.variables = {}


class RankEnvironment:
    """The variables of all ranks of a start."""

    def __init__(
        self, training: Training, given: Mapping[str, str], *, store: CheckpointStore
    ) -> None:
        self._training = training
        self.given = dict(given)
        self._store = store
        self._defaults: dict[str, str] = {}
        """The variables that the training's environment may override."""
        self._agreement = RankAgreement()

    def begin_start(self, run: Run) -> None:
        self._defaults = {}
        if self._training.framework is Framework.HOROVOD and ranks.needs_meeting(run):
            interface = find_interface(run)
            self._defaults = {INTERFACE: interface} if interface else {}
        self._agreement.renew()

    def close(self) -> None:
        self._agreement.close()

    def of(self, rank_process: RankProcess) -> dict[str, str]:
        """Return the environment of one rank; its own variables override all others."""
        resume = {RESUME: self._store.resume} if self._store.resume else {}
        given = {**self._defaults, **resume, **self.given, **self._store.variables}
        return {**given, **self._agreement.variables, **rank_process.environment}


def find_interface(run: Run) -> str:
    """Return the network interface that reaches the other processes; empty if unknown."""
    if len(run.peers) == 1:
        return LOOPBACK_INTERFACE
    host = run.peers[run.node_rank].host
    try:
        address = str(ipaddress.IPv4Address(ranks.LOOPBACK if host == "localhost" else host))
    except ValueError:
        return ""
    return next((name for _, name in socket.if_nameindex() if address == address_of(name)), "")


def address_of(interface: str) -> str:
    """Return the first address of an interface; empty if it has none."""
    request = struct.pack("256s", interface.encode()[:LONGEST_INTERFACE_NAME])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        try:
            answer = fcntl.ioctl(any_socket.fileno(), SIOCGIFADDR, request)
        except OSError:
            return ""
    return socket.inet_ntoa(answer[20:24])
