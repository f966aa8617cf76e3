"""Answers and refusals of a backend, as the server of the page shows them."""

from collections.abc import Iterator
from contextlib import contextmanager

from dlclient.backend import Away, BackendError, Json, NotThere
from dlctl.output.streams import harmless_document
from dlweb.serving import SourceError


def make_harmless(items: list[Json]) -> list[Json]:
    """Escape control characters, as everywhere on the page."""
    return [harmless_document(each) for each in items]


@contextmanager
def telling() -> Iterator[None]:
    """Turn errors of a backend into errors of the page's server."""
    try:
        yield
    except BackendError as error:
        status = 503 if isinstance(error, Away) else 404 if isinstance(error, NotThere) else 502
        raise SourceError(str(error), status=status) from error
