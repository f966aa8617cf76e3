"""
Refusals of an API server, each in one line that says what to do.

Pure. A refusal that is not known here is passed on in the words of the API server.
"""

import re
from collections.abc import Iterator
from typing import Final

from dljob.client.backend import Away, BackendError, Complaint, Conflict, NotAllowed, NotThere
from dljob.kube.client import CONFLICT, NOT_FOUND, UNAUTHORIZED, Rejected, Unreachable

INSTALL: Final = "kubectl apply -k manifests/install"
FORBIDDEN: Final = 403
INVALID: Final = 422

_FORBIDDEN = re.compile(
    r'User "(?P<user>.*?)" cannot (?P<verb>\w+) resource "(?P<resource>[^"]+)"'
    r'(?: in API group "[^"]*")?(?: in the namespace "(?P<namespace>[^"]+)")?'
)
_UNKNOWN_FIELD = re.compile(r'unknown field "([^"]+)"')
_VALUE = re.compile(r'^Invalid value: (?:(?:"(?:[^"\\]|\\.)*"|[-\w.+]+): )?')
"""The wrong value, which is left out because it may be a whole mapping."""
_NOT_ALL = "some validation rules were not checked because the object was invalid"
"""The server adds this after its messages where the shape of a document is wrong."""

_ROLES: Final = {
    ("dljobs", False): "dljob-view",
    ("dljobs", True): "dljob-edit",
    ("nodes", False): "dljob-gpus-view",
    ("nodes", True): "dljob-gpus-edit",
}
"""The role that grants a request, by resource and whether it writes."""
_READS: Final = frozenset({"get", "list", "watch"})


def explain(error: Exception, address: str) -> BackendError:
    """Explain the failure of a request to the API server at this address."""
    if isinstance(error, Unreachable):
        return Away(
            f"{error}; check that it can be reached from here, or name another cluster with"
            " --kubeconfig or --context"
        )
    assert isinstance(error, Rejected)
    lines = [complaint.line for complaint in complaints(error)]
    if lines:
        return BackendError("; ".join(lines))
    if error.status == NOT_FOUND:
        return _missing(error, address)
    if error.status in (UNAUTHORIZED, FORBIDDEN):
        return _not_allowed(error, address)
    if error.status == CONFLICT:
        return Conflict(f"another client has changed it meanwhile; try again ({error})")
    return BackendError(f"the API server at {address} refuses it: {one_line(str(error))}")


def _not_allowed(error: Rejected, address: str) -> BackendError:
    """Name the user, the verb and the resource that are forbidden, and the role that allows them."""
    if error.status == UNAUTHORIZED:
        return BackendError(
            f"the API server at {address} does not accept your credentials; log in again, or name"
            " another --context"
        )
    found = _FORBIDDEN.search(str(error))
    if found is None:
        # A quota or an admission policy, which have messages of their own.
        return NotAllowed(one_line(str(error)))
    verb, resource, namespace = found["verb"], found["resource"], found["namespace"]
    role = _ROLES.get((resource, verb not in _READS)) or ("view" if verb in _READS else "edit")
    where = f"in namespace {namespace}" if namespace else "in all namespaces"
    binding = "a RoleBinding there" if namespace else "a ClusterRoleBinding"
    if resource == "nodes":
        where, binding = "of this cluster", "a ClusterRoleBinding"
    return NotAllowed(
        f"{found['user']} may not {verb} {resource} {where};"
        f" ask for {binding} to the ClusterRole {role}"
    )


def _missing(error: Rejected, address: str) -> BackendError:
    kind, name = error.details.get("kind", ""), error.details.get("name", "")
    if not error.reason:
        # The resource itself is missing, not one object.
        return BackendError(
            f"the API server at {address} does not know the kind DLJob; install DLJob there:"
            f" {INSTALL}"
        )
    if kind == "namespaces":
        return NotThere(f"there is no namespace {name}; create it, or name another one with -n")
    if kind == "dljobs":
        return NotThere(f"{name}: there is no such job; dljob get lists the jobs")
    return NotThere(one_line(str(error)))


def complaints(error: Rejected, number: int = 0) -> list[Complaint]:
    """List the problems of the document with this number."""
    return [Complaint(number, line, path) for path, line in _iter_lines(error)]


def _iter_lines(error: Rejected) -> Iterator[tuple[str, str]]:
    """Yield the field and what is wrong with it."""
    name = error.details.get("name", "")
    if error.status == INVALID and error.causes:
        for cause in error.causes:
            if _NOT_ALL in cause.get("message", ""):
                continue
            said = one_line(_VALUE.sub("", cause.get("message", "")))
            # A rule about several fields has the path of their parent.
            field = str(cause.get("field") or "")
            yield field, f"{field}: {said}" if field else said
    elif error.reason == "AlreadyExists":
        yield (
            "metadata.name",
            (
                f'metadata.name: "{name}" is a job already; choose another name, or remove that one'
                f" first: dljob cancel {name}"
            ),
        )
    else:
        for field in dict.fromkeys(_UNKNOWN_FIELD.findall(str(error))):
            yield (
                field,
                (
                    f"{field}: the installed version of DLJob does not know this field; install a"
                    f" newer one ({INSTALL}), or leave the field out"
                ),
            )


def one_line(text: str) -> str:
    return " ".join(text.split())
