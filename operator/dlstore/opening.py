"""Which store an address means, opened; and the notebook in front of it."""

import logging
from collections.abc import Mapping
from pathlib import Path

from dlcore.profiles import Costs
from dlstore.addresses import Credentials, read_address
from dlstore.notebook.availability import AvailabilityChange
from dlstore.notebook.notebook import Notebook
from dlstore.sqlite.store import SqliteStore
from dlstore.store import USUAL_BOUNDS, Bounds, Store

log = logging.getLogger(__name__)

KNOWN_SECONDS = 2.0
"""How long the controller waits for the contents of the store before it begins without them."""


def open_store(
    address: str,
    *,
    environment: Mapping[str, str],
    bounds: Bounds = USUAL_BOUNDS,
    patience_seconds: float = 5.0,
) -> Store:
    """
    Open the store at a path or URL; credentials may come from the environment instead.

    A file is opened at once, and a :class:`~dlstore.store.StoreUnusableError` says what is wrong with
    it. A server may be unavailable, so the first operation connects to it. Every operation on
    either gives up after ``patience_seconds``.
    """
    where = read_address(address, Credentials.of(environment))
    if isinstance(where, Path):
        return SqliteStore(where, bounds=bounds, busy_seconds=patience_seconds)
    # Only here, because most do without a server, and the driver takes its time to load.
    from dlstore.mongo.store import MongoStore  # noqa: PLC0415

    return MongoStore(where, bounds=bounds, patience_seconds=patience_seconds)


def open_notebook(store: Store, defaults: Costs) -> Notebook:
    """Begin to keep what a controller learns; ``defaults`` are the costs of what is not known yet."""
    notebook = Notebook(store, tell=_tell, defaults=defaults)
    notebook.open(wait_seconds=KNOWN_SECONDS)
    return notebook


def _tell(notice: AvailabilityChange) -> None:
    """Told once when the store goes away, and once when it is back."""
    log.log(logging.INFO if notice.is_there else logging.WARNING, "%s", notice.message)
