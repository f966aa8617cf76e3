"""
Reads the pods of gangs.

The label ``dljob.io/gang`` makes a pod part of a gang. Its annotations about that gang are read strictly: a
gang that names a role whose pods never come waits for ever.

Pure.
"""

import json
from collections.abc import Mapping
from typing import Final, NamedTuple

from dljob.core.placement.amounts import Amounts, NoAmount, requests_of
from dljob.kube import names
from dljob.kube.constraints.reading import read_wants
from dljob.kube.documents import Json, PodSpec, parse
from dljob.kube.names import Name
from dljob_gangs.members import GangName, Member, Stage, Wrong, tenant_of

GANG_LABEL: Final = "dljob.io/gang"
ROLE_LABEL: Final = "dljob.io/gang-role"
ROLES_ANNOTATION: Final = "dljob.io/gang-roles"
EXAMPLE: Final = f'{ROLES_ANNOTATION}: \'{{"ps": 1, "worker": 4}}\''
MOST_MEMBERS: Final = 10_000


class NotRight(ValueError):
    """The gang annotations of a pod are invalid; the message names the remedy."""


class Occupant(NamedTuple):
    """The usage of a pod on its node."""

    node: str
    amounts: Amounts
    tenant: str
    """The training job of the pod; empty if there is none."""


def is_of_a_gang(document: Json) -> bool:
    """True if a pod has the label of a gang."""
    return GANG_LABEL in (document["metadata"].get("labels") or {})


def gang_of(document: Json) -> GangName:
    metadata = document["metadata"]
    return GangName(metadata["namespace"], metadata["labels"][GANG_LABEL])


def read_occupant(document: Json) -> Occupant | None:
    """Return the usage of a pod; None if the pod is not bound or has ended."""
    spec = document.get("spec") or {}
    if not spec.get("nodeName") or _has_ended(document):
        return None
    labels = document["metadata"].get("labels") or {}
    tenant = ""
    if is_of_a_gang(document):
        tenant = tenant_of(gang_of(document))
    elif names.JOB_LABEL in labels:
        tenant = f"job {document['metadata']['namespace']}/{labels[names.JOB_LABEL]}"
    return Occupant(spec["nodeName"], requests_of(spec), tenant)


def read_member(document: Json, scheduler: str) -> Member | Wrong | None:
    """Return the member that a pod is; None if the pod does not count.

    A pod does not count if it failed, was deleted before it was bound, or has a scheduling gate.
    """
    metadata, name = document["metadata"], Name.of(document)
    spec: PodSpec = document.get("spec") or {}
    is_bound = bool(spec.get("nodeName"))
    phase = _phase(document)
    if phase == "Failed" or (not is_bound and _is_held_back(document)):
        return None
    try:
        if not is_bound:
            _insist_on(scheduler, spec)
        roles = _read_roles(metadata)
        return Member(
            uid=metadata["uid"],
            name=name,
            gang=gang_of(document),
            role=_read_role(metadata, dict(roles)),
            roles=roles,
            wants=read_wants(spec),
            created=metadata.get("creationTimestamp") or "",
            priority=spec.get("priority") or 0,
            stage=_stage(phase, is_bound=is_bound),
            node=spec.get("nodeName") or "",
        )
    except (NotRight, NoAmount) as error:
        return Wrong(metadata["uid"], name, str(error))


def _insist_on(scheduler: str, spec: PodSpec) -> None:
    if spec.get("schedulerName") != scheduler:
        raise NotRight(
            f"the pod has the label {GANG_LABEL}, but its spec.schedulerName is"
            f" {spec.get('schedulerName')!r}, which schedules each pod on its own; set"
            f" spec.schedulerName: {scheduler}"
        )


def _phase(document: Json) -> str:
    return str((document.get("status") or {}).get("phase") or "")


def _has_ended(document: Json) -> bool:
    return _phase(document) in ("Succeeded", "Failed")


def _stage(phase: str, *, is_bound: bool) -> Stage:
    if phase == "Succeeded":
        return Stage.SUCCEEDED
    return Stage.BOUND if is_bound else Stage.PENDING


def _is_held_back(document: Json) -> bool:
    gates = (document.get("spec") or {}).get("schedulingGates")
    return bool(gates) or "deletionTimestamp" in document["metadata"]


def _read_roles(metadata: Json) -> tuple[tuple[str, int], ...]:
    text = (metadata.get("annotations") or {}).get(ROLES_ANNOTATION)
    if text is None:
        raise NotRight(
            f"the pod has the label {GANG_LABEL}, but nothing says what the gang consists of; add"
            f" the annotation {EXAMPLE}"
        )
    try:
        roles = parse(text)
    except ValueError:
        roles = None
    if not isinstance(roles, dict) or not roles:
        raise NotRight(
            f"the annotation {ROLES_ANNOTATION} is {text[:80]!r}, which is no JSON object of roles"
            f" with their least numbers; write it like {EXAMPLE}"
        )
    for role, least in roles.items():
        if type(least) is not int or not 1 <= least <= MOST_MEMBERS:
            raise NotRight(
                f"the annotation {ROLES_ANNOTATION} asks for {json.dumps(least)[:80]} pods of role"
                f" {role!r}; give a whole number of at least 1 and at most {MOST_MEMBERS}, or leave"
                " the role out"
            )
    return tuple(sorted(roles.items()))


def _read_role(metadata: Json, roles: Mapping[str, int]) -> str:
    role = (metadata.get("labels") or {}).get(ROLE_LABEL)
    known = ", ".join(roles)
    if role is None:
        raise NotRight(
            f"the pod does not say which role of its gang it has; add the label {ROLE_LABEL} with one"
            f" of: {known}"
        )
    if role not in roles:
        raise NotRight(
            f"the label {ROLE_LABEL} is {role!r}, which the annotation {ROLES_ANNOTATION} does not"
            f" name; use one of {known}, or add the role there"
        )
    return str(role)
