"""
Jobs handed to an API server: all or none, as far as that can be where nothing is done all at once.

Each is tried first without being kept. What goes wrong after that is told with what was kept.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from dlctl.backends.backend import BackendError, Complaint
from dlctl.backends.cluster.connecting import Connection
from dlctl.backends.cluster.refusals import FORBIDDEN, complaints
from dlkube.client import ApiServer, Rejected
from dlkube.resources import DLJOBS

Json = dict[str, Any]

KEPT: Final = ("name", "namespace", "labels", "annotations")
"""What of a job's metadata is its user's to write."""


def prepare(documents: Sequence[Json], connection: Connection) -> list[Json]:
    """Say of each job where it is to be, and leave out what is not its user's."""
    prepared = [_prepared(document, connection.namespace) for document in documents]
    wrong = [*_iter_elsewhere(prepared, connection), *_iter_twice(prepared)]
    if wrong:
        raise refused(wrong)
    return prepared


def _prepared(document: Mapping[str, Any], namespace: str) -> Json:
    given = document["metadata"]
    metadata = {name: given[name] for name in KEPT if given.get(name)}
    return {
        "apiVersion": DLJOBS.api_version,
        "kind": DLJOBS.kind,
        "metadata": {"namespace": namespace, **metadata},
        "spec": document["spec"],
    }


def _iter_elsewhere(prepared: Sequence[Json], connection: Connection) -> Iterable[Complaint]:
    for number, document in enumerate(prepared):
        namespace = document["metadata"]["namespace"]
        if connection.is_named and namespace != connection.namespace:
            yield Complaint(
                number,
                f'metadata.namespace: "{namespace}" is not the selected namespace'
                f" {connection.namespace}; name {namespace} with -n, or remove the field",
            )


def _iter_twice(prepared: Sequence[Json]) -> Iterable[Complaint]:
    seen = set()
    for number, document in enumerate(prepared):
        key = (document["metadata"]["namespace"], document["metadata"]["name"])
        if key in seen:
            yield Complaint(
                number,
                f'metadata.name: "{key[1]}" is submitted twice; give every job a name of its own',
            )
        seen.add(key)


def refused(found: Sequence[Complaint]) -> BackendError:
    """Refuse documents for all that is wrong with them."""
    more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
    return BackendError(found[0].line + more, found)


async def create(api: ApiServer, prepared: Sequence[Json], *, dry_run: bool) -> list[Json]:
    """Create all of them, or none if any of them is refused."""
    if dry_run or len(prepared) > 1:
        tried, wrong = await _create_all(api, prepared, dry_run=True)
        if wrong:
            raise refused(wrong)
        if dry_run:
            return tried
    made, wrong = await _create_all(api, prepared, dry_run=False)
    if wrong and made:
        names = ", ".join(item["metadata"]["name"] for item in made)
        raise BackendError(f"{refused(wrong)}; {names} were submitted before it and exist now")
    if wrong:
        raise refused(wrong)
    return made


async def _create_all(
    api: ApiServer, prepared: Sequence[Json], *, dry_run: bool
) -> tuple[list[Json], list[Complaint]]:
    """Create them, and say what was wrong; where it is for good, it ends with the first that is."""
    made: list[Json] = []
    wrong: list[Complaint] = []
    for number, document in enumerate(prepared):
        namespace = document["metadata"]["namespace"]
        try:
            made.append(await api.create(DLJOBS, document, namespace, dry_run=dry_run, strict=True))
        except Rejected as error:
            found = complaints(error, number) if error.status != FORBIDDEN else []
            if not found and not made:
                raise
            wrong += found or [Complaint(number, str(error))]
            if not dry_run:
                break
    return made, wrong
