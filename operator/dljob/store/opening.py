"""Opens the store at an address."""

from collections.abc import Mapping
from pathlib import Path

from dljob.store.addresses import Credentials, read_address
from dljob.store.sqlite.store import SqliteStore
from dljob.store.store import USUAL_BOUNDS, Bounds, Store


def open_store(
    address: str,
    *,
    environment: Mapping[str, str],
    bounds: Bounds = USUAL_BOUNDS,
    patience_seconds: float = 5.0,
) -> Store:
    """
    Open the store at a path or URL; credentials may come from the environment instead.

    A file is opened at once, and may raise :class:`~dljob.store.store.StoreUnusableError`. The first operation connects to a
    server, which may be unavailable. Every operation gives up after ``patience_seconds``.
    """
    where = read_address(address, Credentials.of(environment))
    if isinstance(where, Path):
        return SqliteStore(where, bounds=bounds, busy_seconds=patience_seconds)
    # Here, because the driver takes long to load, and most users have no server.
    from dljob.store.mongo.store import MongoStore  # noqa: PLC0415

    return MongoStore(where, bounds=bounds, patience_seconds=patience_seconds)
