"""
Meeting the others as a process of Horovod does, by its words at the server of its launcher.

The requests are those of ``third_party/HTTPRequest/include/HTTPRequest.hpp`` to the byte, one on a
connection, and their order is that of ``horovod/common/gloo/http_store.cc`` and of
``gloo/rendezvous/context.cc`` (connectFullMesh), all in Horovod 0.28.1.

``python gloo.py TOKEN`` meets the others of the environment as ``gloo_context.cc`` does, in three
scopes one after the other, says so, and waits for its end.
"""

# ruff: noqa: T201 - its output is what it is for
from __future__ import annotations

import os
import re
import socket
import time

LIMIT_SECONDS = 240.0
ADDRESS_BYTES = 136
"""The size of the address of one connection in the transport over TCP."""


class Store:
    """One scope, as one process sees it."""

    def __init__(self, host: str, port: int, scope: str, rank: int) -> None:
        self.where = host, port
        self.scope = scope
        self.rank = rank

    def ask(self, method: str, key: str, body: bytes = b"") -> tuple[int, bytes]:
        """Ask, and read the answer as the original does: the first line, and the length."""
        head = f"{method} /{self.scope}/{key} HTTP/1.1\r\nHost: {self.where[0]}\r\n"
        head += f"Content-Length: {len(body)}\r\n\r\n"
        with socket.create_connection(self.where, LIMIT_SECONDS) as connection:
            connection.sendall(head.encode() + body)
            answer = b"".join(iter(lambda: connection.recv(4096), b""))
        fields, _, value = answer.partition(b"\r\n\r\n")
        length = re.search(rb"\r\nContent-Length: (\d+)", fields)
        assert length is None or int(length[1]) == len(value), answer
        return int(fields.split()[1]), value

    def set(self, key: str, value: bytes) -> None:
        assert self.ask("PUT", key, value)[0] == 200

    def get(self, key: str) -> bytes:
        status, value = self.ask("GET", key)
        assert status in {200, 404}
        return value if status == 200 else b""

    def wait(self, key: str) -> None:
        end = time.monotonic() + LIMIT_SECONDS
        while self.ask("GET", key)[0] != 200:
            assert time.monotonic() < end, f"{key} has not come"
            time.sleep(0.01)

    def finish(self) -> None:
        assert self.ask("DELETE", str(self.rank))[0] == 200

    def connect_full_mesh(self, size: int) -> list[str]:
        """Tell all others the ways to us, and hear theirs; returns who they are."""
        name = f"{self.scope}:{self.rank}"
        self.set(f"rank_{self.rank}", name.encode())
        self.set(str(self.rank), name.encode().ljust(ADDRESS_BYTES * (size - 1)))
        others = [other for other in range(size) if other != self.rank]
        for other in others:
            self.wait(str(other))
        return [self.get(str(other)).split()[0].decode() for other in others]


def main() -> None:
    """Connect to all other processes, in the order in which ``GlooContext::Initialize`` does."""
    number = {name: int(os.environ[f"HOROVOD_{name}"]) for name in NUMBERS}
    where = os.environ["HOROVOD_GLOO_RENDEZVOUS_ADDR"]
    port = int(os.environ["HOROVOD_GLOO_RENDEZVOUS_PORT"])
    local = f"local_{os.environ['HOROVOD_HOSTNAME']}"
    for scope, rank, size in (
        ("global", number["RANK"], number["SIZE"]),
        (local, number["LOCAL_RANK"], number["LOCAL_SIZE"]),
        (f"cross_{number['LOCAL_RANK']}", number["CROSS_RANK"], number["CROSS_SIZE"]),
    ):
        store = Store(where, port, scope, rank)
        met = store.connect_full_mesh(size)
        print(
            f"rank {number['RANK']} met {met} over {os.environ['HOROVOD_GLOO_IFACE']}", flush=True
        )
        store.finish()
    time.sleep(1000)


NUMBERS = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE")

if __name__ == "__main__":
    main()
