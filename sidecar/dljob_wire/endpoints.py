"""
The address of a server: ``[ADDRESS]:PORT`` in options and settings, parsed by one rule.

Brackets enclose an IPv6 address, because its colons look like the one before the port.
"""

from __future__ import annotations

import ipaddress
import re
from typing import NamedTuple

LARGEST_PORT = 65535

_FORM = re.compile(r"(?:\[([0-9A-Za-z.:%_-]+)\]|([^\[\]:/@\s]*)):([0-9]{1,5})", re.ASCII)


class Endpoint(NamedTuple):
    """A local address and a port."""

    host: str
    """The host without brackets; empty if none was named."""
    port: int
    """0 selects a free port."""

    @property
    def is_loopback(self) -> bool:
        """True if only this machine reaches the address."""
        address = self._read_address()
        return self.host == "localhost" if address is None else address.is_loopback

    @property
    def is_unspecified(self) -> bool:
        """True if the address stands for all addresses of this machine."""
        address = self._read_address()
        return address is not None and address.is_unspecified

    def _read_address(self) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
        """Return the host as an address; ``None`` for a name."""
        try:
            return ipaddress.ip_address(self.host)
        except ValueError:
            return None

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def read_endpoint(text: str, *, least_port: int = 0) -> Endpoint:
    """Parse ``[ADDRESS]:PORT``; the ValueError has the fault and the remedy."""
    found = _FORM.fullmatch(text)
    if found is None or not least_port <= int(found[3]) <= LARGEST_PORT:
        raise ValueError(
            f"{text} is not an address with a port; write [ADDRESS]:PORT with a port from {least_port} to"
            f" {LARGEST_PORT}, such as 127.0.0.1:8080 or [::1]:8080"
        )
    return Endpoint(found[1] or found[2] or "", int(found[3]))
