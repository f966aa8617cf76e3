"""
Submits jobs to an API server: all or none, as far as that is possible without transactions.

Each is tried first by a dry run. The report of a later error names the jobs that were kept.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from dljob.client.backend import Away, BackendError, Complaint, Json
from dljob.client.cluster.connecting import Connection
from dljob.client.cluster.refusals import FORBIDDEN, complaints, one_line
from dljob.core.documents.launchers import notice_of
from dljob.kube.client import ApiServer, Rejected, Unreachable
from dljob.kube.resources import DLJOBS

KEPT: Final = ("name", "namespace", "labels", "annotations")
FIRST_SERVER_ERROR: Final = 500


def prepare(documents: Sequence[Json], connection: Connection) -> list[Json]:
    """Set the namespace of each job, and drop metadata that users may not write."""
    shapeless = [
        Complaint(number, line, line.partition(":")[0])
        for number, document in enumerate(documents)
        for line in _iter_shapeless(document)
    ]
    if shapeless:
        raise refused(shapeless)
    prepared = [_prepared(document, connection.namespace) for document in documents]
    wrong = [*_iter_elsewhere(prepared, connection), *_iter_twice(prepared)]
    if wrong:
        raise refused(wrong)
    return prepared


def _iter_shapeless(document: Mapping[str, Any]) -> Iterator[str]:
    """Check the fields that a request needs; the API server checks all others."""
    metadata = document.get("metadata")
    if not isinstance(metadata, Mapping):
        yield "metadata: is missing, or is no mapping; give the job a name: metadata: {name: resnet18-imagenet}"
    else:
        if not isinstance(metadata.get("name"), str) or not metadata["name"]:
            yield "metadata.name: is missing, or is no text; give the job a name, such as resnet18-imagenet"
        namespace = metadata.get("namespace")
        if namespace is not None and not is_path_part(namespace):
            yield "metadata.namespace: is no name of a namespace; name one that exists, or remove the field"
    if not isinstance(document.get("spec"), Mapping):
        yield "spec: is missing, or is no mapping; say what to run, beginning with gpus and training"


def is_path_part(name: object) -> bool:
    """Return true if a name is safe in the path of a request."""
    return isinstance(name, str) and name not in ("", ".", "..") and "/" not in name


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
    more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
    return BackendError(found[0].line + more, found)


def find_notices(documents: Sequence[Json]) -> list[str]:
    """List fields that have no effect or an unexpected one, each once."""
    from dljob.control.acting.sidecar_options import on_cluster  # noqa: PLC0415 - no other verb needs it
    from dljob.control.judging import checkpoints as saving  # noqa: PLC0415 - likewise
    from dljob.core.documents import jobfile  # noqa: PLC0415

    specs = [each.get("spec") or {} for each in documents]
    notices = [notice_of(spec) for spec in specs]
    for document in documents:
        # The API server has already refused documents that are unreadable here, with the reason.
        with suppress(jobfile.JobFileError):
            job = on_cluster(jobfile.parse(document, require_template=True))
            notices.append(saving.notice_for(job))
    if any("environment" in spec for spec in specs):
        notices.append("spec.environment has no effect on a cluster: the image is the environment")
    return [each for each in dict.fromkeys(notices) if each]


async def create(api: ApiServer, prepared: Sequence[Json], *, dry_run: bool) -> list[Json]:
    """Create all jobs, or none if any is refused."""
    if dry_run or len(prepared) > 1:
        tried, wrong = await _create_all(api, prepared, dry_run=True)
        if wrong:
            raise refused(wrong)
        if dry_run:
            return tried
    # Other clients may take a name or a quota since the
    # dry run, so that this can still fail half-way.
    made, wrong = await _create_all(api, prepared, dry_run=False)
    if wrong and made:
        raise BackendError("; ".join([str(refused(wrong)), *_kept(made)]))
    if wrong:
        raise refused(wrong)
    return made


async def _create_all(
    api: ApiServer, prepared: Sequence[Json], *, dry_run: bool
) -> tuple[list[Json], list[Complaint]]:
    """Create jobs one by one; the first refusal that no retry can cure ends it."""
    made: list[Json] = []
    wrong: list[Complaint] = []
    for number, document in enumerate(prepared):
        namespace = document["metadata"]["namespace"]
        try:
            # One by one, so that after a refusal no later job was sent.
            made.append(await api.create(DLJOBS, document, namespace, dry_run=dry_run, strict=True))
        except Rejected as error:
            is_own_error = error.status >= FIRST_SERVER_ERROR
            if is_own_error and dry_run:
                raise  # No document is to blame.
            if is_own_error:
                # A proxy also answers so after its time-out, and the API server may still carry the request out.
                what = f"the API server, or a proxy before it, answers {error.status} ({one_line(str(error))})"
                raise _in_doubt(what, document, made) from error
            found = complaints(error, number) if error.status != FORBIDDEN else []
            if not found and not made:
                raise
            wrong += found or [Complaint(number, str(error))]
            if not dry_run:
                break
        except Unreachable as error:
            if dry_run or len(prepared) == 1:
                raise
            # The API server may have carried out the request without an answer.
            raise _in_doubt(str(error), document, made) from error
    return made, wrong


def _in_doubt(what: str, document: Json, made: Sequence[Json]) -> Away:
    """Report that this job may exist, and which others do."""
    doubt = f"{document['metadata']['name']} may exist{' too' if made else ''}"
    return Away("; ".join((what, *_kept(made), f"{doubt}: dljob get lists the jobs")))


def _kept(made: Sequence[Json]) -> list[str]:
    names = ", ".join(item["metadata"]["name"] for item in made)
    return [f"{names} were submitted before it and exist now"] if made else []
