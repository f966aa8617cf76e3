"""
Where a server listens: ``[ADDRESS]:PORT`` as options and settings have it, read by one rule everywhere.

Brackets enclose an address of IPv6, because its colons look like the one before the port.
"""

from __future__ import annotations

import ipaddress
import re
from typing import NamedTuple

LARGEST_PORT = 65535

_FORM = re.compile(r"(?:\[([0-9A-Za-z.:%_-]+)\]|([^\[\]:/@\s]*)):([0-9]{1,5})", re.ASCII)


class Endpoint(NamedTuple):
    """An address of this machine, and a port there."""

    host: str
    """Without brackets; empty where none was named."""
    port: int
    """0 stands for one that is free."""

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine reaches it."""
        address = self._read_address()
        return self.host == "localhost" if address is None else address.is_loopback

    @property
    def is_unspecified(self) -> bool:
        """Whether it stands for all addresses of this machine."""
        address = self._read_address()
        return address is not None and address.is_unspecified

    def _read_address(self) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
        """Return the host as an address; ``None`` where it is a name."""
        try:
            return ipaddress.ip_address(self.host)
        except ValueError:
            return None

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def read_endpoint(text: str, *, least_port: int = 0) -> Endpoint:
    """Read ``[ADDRESS]:PORT``; ValueError says what is wrong, and what to write."""
    found = _FORM.fullmatch(text)
    if found is None or not least_port <= int(found[3]) <= LARGEST_PORT:
        raise ValueError(
            f"{text} is not an address with a port; write [ADDRESS]:PORT with a port from {least_port} to"
            f" {LARGEST_PORT}, such as 127.0.0.1:8080 or [::1]:8080"
        )
    return Endpoint(found[1] or found[2] or "", int(found[3]))
