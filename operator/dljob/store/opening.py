"""Opens the store at an address, and the notebook in front of it."""

import logging
from collections.abc import Mapping
from pathlib import Path

from dljob.core.profiles import Costs
from dljob.store.addresses import Credentials, read_address
from dljob.store.notebook.availability import AvailabilityChange
from dljob.store.notebook.notebook import Notebook
from dljob.store.sqlite.store import SqliteStore
from dljob.store.store import USUAL_BOUNDS, Bounds, Store

log = logging.getLogger(__name__)

KNOWN_SECONDS = 2.0
"""How long a controller waits for the contents of the store before it begins without them."""


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


def open_notebook(store: Store, defaults: Costs) -> Notebook:
    """Open a notebook; ``defaults`` are the costs until measured ones are known."""
    notebook = Notebook(store, notify=_log_change, defaults=defaults)
    notebook.open(wait_seconds=KNOWN_SECONDS)
    return notebook


def _log_change(change: AvailabilityChange) -> None:
    log.log(logging.INFO if change.is_there else logging.WARNING, "%s", change.message)
