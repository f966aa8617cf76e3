"""Ports for servers that are started again on the same one."""

import random
import socket
from contextlib import ExitStack
from pathlib import Path

LOWEST, HIGHEST = 10_000, 32_768
RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


def choose_ports(count: int) -> list[int]:
    """
    Choose ports of 127.0.0.1 on which nobody listens.

    They are below those that the kernel gives to whoever connects. From among these somebody could take
    the port of a server that is down for a moment; even a client that waits for it can, by connecting to
    itself.
    """
    kernels = int(RANGE.read_text().split()[0]) if RANGE.exists() else HIGHEST
    highest = kernels if kernels > LOWEST + 1000 else HIGHEST
    # The processes of one test run must not draw the same ports.
    draw = random.SystemRandom()
    chosen: list[int] = []
    with ExitStack() as held:
        while len(chosen) < count:
            port = draw.randrange(LOWEST, highest)
            listener = held.enter_context(socket.socket())
            try:
                listener.bind(("127.0.0.1", port))
            except OSError:
                continue
            chosen.append(port)
    return chosen
