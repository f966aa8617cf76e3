"""Ports for servers that are started again on the same one."""

import errno
import fcntl
import os
import random
import socket
import tempfile
from pathlib import Path

LOWEST, HIGHEST = 10_300, 32_768
"""Kubelets and kube-proxies have fixed ports right below."""
RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


def choose_ports(count: int, host: str = "127.0.0.1") -> list[int]:
    """
    Choose ports of an address of this machine on which no server listens.

    They are below those that the kernel gives to clients. From among these a client could take the port of
    a server that is down for a moment; even one that waits for this server can, by connecting to itself.
    """
    kernels = int(RANGE.read_text().split()[0]) if RANGE.exists() else HIGHEST
    highest = kernels if kernels > LOWEST + 1000 else HIGHEST
    chosen: list[int] = []
    # A server takes its port some time after it was chosen, so that all processes of a test run choose one
    # port after the other.
    with (Path(tempfile.gettempdir()) / f"dljob-test-port-{os.getuid()}").open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        last = int(file.read() or random.SystemRandom().randrange(LOWEST, highest))
        while len(chosen) < count:
            last = last + 1 if last + 1 < highest else LOWEST
            if _is_free(host, last):
                chosen.append(last)
        file.truncate(0)
        file.write(str(last))
    return chosen


def _is_free(host: str, port: int) -> bool:
    with socket.socket() as listener:
        try:
            listener.bind((host, port))
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            return False
    return True
