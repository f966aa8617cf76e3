"""
Every GPU of a cluster and its job, from the nodes and the statuses of jobs.

The operator publishes the facts that only it knows: UUIDs, and why GPUs are out of service. Only a SideCar itself
knows its GPUs at this instant. A user that may not see all nodes or all jobs sees less, and no
guesses.

Pure.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from dljob.client.backend import Json, NotThere
from dljob.core.documents.jobnames import full_name
from dljob.core.documents.launchers import PER_GPU, processes_of
from dljob.operator.nodes.nodes import NOT_READY, Pool, describe_node, is_in_pool, is_ready
from dljob.operator.proofs import is_gone

Ref = tuple[str, int]

UNKNOWN: Final = "unknown"
HIDDEN: Final = "free, or held by a job that you may not see"
TRAINING: Final = frozenset({"Running", "Adjusting"})


@dataclass(frozen=True, slots=True)
class Holding:
    """A GPU that is decided for a job, or that it has yet to release."""

    job: str
    state: str
    since: str | None = None
    worker: int | None = None
    kind: str = ""

    def document(self) -> Json:
        fields = {"job": self.job, "worker": self.worker, "since": self.since}
        return {name: value for name, value in fields.items() if value is not None}


def find_holdings(jobs: Iterable[Json], home: str) -> dict[Ref, Holding]:
    """Find the job on each GPU: a job that has yet to release the GPU comes before the next one."""
    found: dict[Ref, Holding] = {}
    leftovers: dict[Ref, Holding] = {}
    for job in jobs:
        name, status = full_name(job, home), job.get("status") or {}
        found.update(_iter_allocated(name, job, status=status))
        for ref in _iter_refs(status.get("leftover", ())):
            leftovers[ref] = Holding(name, "in use")
    return found | leftovers


def _iter_allocated(name: str, job: Json, *, status: Json) -> Iterator[tuple[Ref, Holding]]:
    allocation = status.get("allocation", {})
    is_training = status.get("phase") in TRAINING
    has_ranks = is_training and processes_of(job["spec"]) == PER_GPU
    for rank, ref in enumerate(_iter_refs(allocation.get("nodes", ()))):
        yield (
            ref,
            Holding(
                name,
                "in use" if is_training else "reserved",
                allocation.get("decidedAt"),
                rank if has_ranks else None,
                allocation.get("gpuType", ""),
            ),
        )


def _iter_refs(nodes: Iterable[Mapping[str, Any]]) -> Iterator[Ref]:
    for node in nodes:
        for number in node["gpuIds"]:
            yield node["name"], number


def list_gpus(
    nodes: Sequence[Json],
    holdings: Mapping[Ref, Holding],
    *,
    pool: Pool,
    known: Mapping[str, Any] = MappingProxyType({}),
    sees_all_jobs: bool,
) -> list[Json]:
    """List the GPUs of the pool by node; ``known`` has the facts that the operator publishes."""
    free = ("free", "") if sees_all_jobs else (UNKNOWN, HIDDEN)
    return [
        _show_node(
            node, holdings, pool=pool, free=free, known=known.get(node["metadata"]["name"], {})
        )
        for node in sorted(nodes, key=lambda node: str(node["metadata"]["name"]))
        if is_in_pool(node, pool)
    ]


def _show_node(
    document: Json,
    holdings: Mapping[Ref, Holding],
    *,
    pool: Pool,
    free: tuple[str, str],
    known: Mapping[str, Any],
) -> Json:
    node = describe_node(document, pool)
    away = "" if is_ready(document) else NOT_READY
    if is_gone(document):
        away = "its node is out of service"
    gpus = []
    for gpu in node.gpus:
        holding = holdings.get((node.name, gpu.index))
        cordoned = "" if node.schedulable else "its node is cordoned"
        number = str(gpu.index)
        because = away or gpu.unavailable_because or known.get("out", {}).get(number) or cordoned
        state, reason = ("unavailable", because) if because else free
        if holding is not None:
            state, reason = holding.state, because
        shown = _show_gpu(gpu.index, state, holding=holding, reason=reason)
        uuid = known.get("uuids", {}).get(number)
        gpus.append({**shown, "uuid": uuid} if uuid else shown)
    return {"name": node.name, "gpuType": node.gpu_type, "gpus": gpus}


def _show_gpu(index: int, state: str, *, holding: Holding | None, reason: str) -> Json:
    told = holding.document() if holding is not None else {}
    return {"index": index, "state": state, **told, **({"reason": reason} if reason else {})}


def list_held(holdings: Mapping[Ref, Holding]) -> list[Json]:
    """List the GPUs that jobs have, where nothing else can be seen."""
    nodes: dict[str, Json] = {}
    for (name, number), holding in sorted(holdings.items(), key=lambda each: each[0]):
        node = nodes.setdefault(name, {"name": name, "gpuType": holding.kind, "gpus": []})
        node["gpus"].append(_show_gpu(number, holding.state, holding=holding, reason=""))
    return list(nodes.values())


# --- cordons ------------------------------------------------------------------------------


def insist_on_gpu(node: Json, gpu: int, *, pool: Pool) -> None:
    """Raise unless the GPU exists and the operator allocates it."""
    name = node["metadata"]["name"]
    if not is_in_pool(node, pool):
        raise NotThere(
            f"{name}: is not a node of the pool; label it {pool.label}, or see dljob gpu list"
        )
    numbers = [each.index for each in describe_node(node, pool).gpus]
    if gpu not in numbers:
        has = ", ".join(map(str, numbers)) or "none"
        raise NotThere(f"{name}/{gpu}: there is no such GPU; {name} has {has}")


def read_numbered(node: Json, annotation: str) -> dict[str, str]:
    """Read the entries about GPUs; an unreadable annotation counts as empty, and the next change replaces it."""
    text = (node["metadata"].get("annotations") or {}).get(annotation, "")
    try:
        found = json.loads(text or "{}")
    except ValueError:
        return {}
    return {str(key): str(why) for key, why in found.items()} if isinstance(found, dict) else {}


def write_numbered(node: Json, said: Mapping[str, Mapping[str, str]]) -> Json:
    """Make the change of a node with these annotations, unless another program has written since."""
    annotations = {name: _write(by_number) for name, by_number in said.items()}
    version = node["metadata"]["resourceVersion"]
    return {"metadata": {"resourceVersion": version, "annotations": annotations}}


def _write(by_number: Mapping[str, str]) -> str | None:
    ordered = dict(sorted(by_number.items(), key=lambda each: (len(each[0]), each[0])))
    return json.dumps(ordered, ensure_ascii=False) if ordered else None
