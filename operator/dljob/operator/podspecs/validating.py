"""
Checks the parts of a template to which DLJob adds something.

The schema of a job covers only those parts of a template that rules need, and Kubernetes checks the finished pod. But
DLJob adds to lists and maps of the template before that, so these must be lists and maps.

Pure.
"""

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from dljob.core.documents.rules.podrules import TRAINER
from dljob.kube.constraints.foreign import CDI_MARKS
from dljob.kube.documents import Json
from dljob_wire.problems import Problem, WrongDocument, kind_of, shown

REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"


class _Shape(NamedTuple):
    kind: type
    name: str
    remedy: str


_MAP: Final = _Shape(dict, "a mapping", "write its fields below it, as in any pod")
_LIST: Final = _Shape(list, "a list", "write its items with a dash before each, as in any pod")
_NUMBER: Final = _Shape(int, "a whole number", "write digits without quotes, such as 30")

_OF_PODS: Final[tuple[tuple[tuple[str, ...], _Shape], ...]] = (
    (("affinity",), _MAP),
    (("affinity", "nodeAffinity"), _MAP),
    (("affinity", "nodeAffinity", REQUIRED), _MAP),
    (("affinity", "nodeAffinity", REQUIRED, "nodeSelectorTerms"), _LIST),
    (("imagePullSecrets",), _LIST),
    (("terminationGracePeriodSeconds",), _NUMBER),
    (("tolerations",), _LIST),
    (("volumes",), _LIST),
)
"""Outer fields come before inner ones."""


def insist_on_shapes(template: Json) -> None:
    """Raise :class:`~dljob_wire.problems.WrongDocument` with all fields of a wrong type."""
    problems = (*_iter_problems(template["spec"]), *_iter_devices(template.get("metadata") or {}))
    if problems:
        raise WrongDocument(problems)


def _iter_problems(spec: Json) -> Iterator[Problem]:
    wrong: list[tuple[str, ...]] = []
    for path, shape in _OF_PODS:
        if any(path[: len(each)] == each for each in wrong):
            continue
        value = _value_at(spec, path)
        if problem := _problem(".".join(path), value, shape=shape):
            wrong.append(path)
            yield problem
    if not wrong:
        yield from _iter_problems_of_terms(spec)
    for place, container in enumerate(spec["containers"]):
        if container["name"] == TRAINER:
            where = f"containers[{place}].volumeMounts"
            if problem := _problem(where, container.get("volumeMounts"), shape=_LIST):
                yield problem


def _iter_devices(metadata: Json) -> Iterator[Problem]:
    """Find annotations that would give a container GPUs which its job does not have."""
    for mark, value in (metadata.get("annotations") or {}).items():
        if mark.startswith(CDI_MARKS):
            message = f"the annotation {mark} gives containers devices, which DLJob does itself"
            yield Problem(
                "spec.template.metadata.annotations", value, message, "remove the annotation"
            )


def _iter_problems_of_terms(spec: Json) -> Iterator[Problem]:
    path = ("affinity", "nodeAffinity", REQUIRED, "nodeSelectorTerms")
    for place, term in enumerate(_value_at(spec, path) or ()):
        where = f"{'.'.join(path)}[{place}]"
        problem = _problem(where, term, shape=_MAP)
        if problem is None and term:
            problem = _problem(f"{where}.matchFields", term.get("matchFields"), shape=_LIST)
        if problem is not None:
            yield problem


def _value_at(spec: Json, path: tuple[str, ...]) -> Any:
    value: Any = spec
    for name in path:
        # An empty value counts as absent, as it does for Kubernetes.
        value = (value or {}).get(name)
    return value


def _problem(path: str, value: object, *, shape: _Shape) -> Problem | None:
    is_right = isinstance(value, shape.kind) and not isinstance(value, bool)
    if value is None or is_right:
        return None
    message = f"{shown(value)} is {kind_of(value)}, not {shape.name}"
    return Problem(f"spec.template.spec.{path}", value, message, shape.remedy)
