"""
A profile document to a :class:`~dljob.core.profiles.Profile`, and back.

The profile stores keep profiles in this form, and ``dljob profiles export`` writes it for people: one profile, or
several in a ``ProfileList``. A wrong document is refused with all its problems. Reading a written profile gives the
same profile, to the last bit of every number.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from typing import Any, Final

from dljob.core import forms
from dljob.core.documents.jobschema import API_VERSION
from dljob.core.profiles import (
    FASTEST,
    LONGEST_COST_S,
    MOST_ACCURACY_POINTS,
    MOST_SHAPES,
    RECENT,
    SLOWEST,
    AccuracyPoint,
    Costs,
    CostTerm,
    JobType,
    Profile,
    Speed,
)
from dljob_wire.kinds import Many, Number, OneOf, Record, Text, Whole, camel, without_none
from dljob_wire.messages import Shape
from dljob_wire.problems import Problem, WrongDocument, kind_of, too_large

KIND: Final = "Profile"
LIST_KIND: Final = "ProfileList"

MOST_PROFILES: Final = 10_000
"""The most items of one list."""

_MOST_VALUES: Final = 5_000_000

Document = dict[str, Any]


class ProfileFileError(WrongDocument):
    """A document is no profile, for all of ``problems``."""


# --- what a document may hold -------------------------------------------------------------

_SPEED: Final = Number(
    description="The number of iterations per second.",
    required=True,
    minimum=SLOWEST,
    maximum=int(FASTEST),
)
_SECONDS: Final = Number(description="A time in seconds.", minimum=0, maximum=int(LONGEST_COST_S))

_TYPE: Final = Record(
    description="The properties that jobs with this profile share.",
    required=True,
    remedy="say of which jobs it is: type: {model: resnet18, dataset: imagenet, batchSize: 256}",
    into=JobType,
    fields={
        "model": Text(
            description="The model, such as resnet18.", required=True, form=forms.TYPE_PART
        ),
        "dataset": Text(
            description="The dataset, such as imagenet; left out where it is not known.",
            form=forms.TYPE_PART,
        ),
        "batchSize": Whole(
            description="The global batch size; 0 where it is not known.",
            default=0,
            minimum=0,
            maximum=2**53,
        ),
    },
)

_SPEEDS: Final = Many(
    description="How fast it trains (Table IV of the SideCar paper).",
    max_items=MOST_SHAPES,
    items=Record(
        description="The speed of one shape.",
        fields={
            "gpus": Whole(
                description="On how many GPUs.", required=True, minimum=1, maximum=1_000_000
            ),
            "nodes": Whole(
                description="On how many nodes.", default=1, minimum=1, maximum=1_000_000
            ),
            "gpuType": Text(
                description="On which type of GPU; left out where there is but one.",
                form=forms.TYPE_PART,
            ),
            "iterationsPerSecond": _SPEED,
            "weight": Number(
                description="How many observations it is based on.",
                default=1,
                minimum=0,
                maximum=1e9,
            ),
            "recent": Many(
                description="The latest observations, the oldest first; the speed is their median.",
                max_items=RECENT,
                items=_SPEED,
            ),
            "seenAt": Number(
                description="When the latest was made, in seconds since the epoch.",
                default=0,
                minimum=0,
                maximum=1e12,
            ),
        },
    ),
)

_ACCURACY: Final = Many(
    description="How it learns (Table V of the SideCar paper), by rising iterations.",
    max_items=MOST_ACCURACY_POINTS,
    items=Record(
        description="A point of the learning curve.",
        into=AccuracyPoint,
        fields={
            "iteration": Number(
                description="The number of iterations.",
                required=True,
                minimum=0,
                maximum=1e18,
            ),
            "value": Number(
                description="The value of the metric after these iterations.",
                required=True,
                minimum=-1e100,
                maximum=1e100,
            ),
        },
    ),
)

_COSTS: Final = Record(
    description="Its costs of starting, stopping and live changes, in seconds; left out: not measured.",
    into=Costs,
    fields={camel(each.name): _SECONDS for each in fields(Costs)},
)

_COST_SAMPLES: Final = Record(
    description="The latest observations of each cost, the oldest first.",
    into=dict,
    fields={
        camel(term.value): Many(description="Times in seconds.", max_items=RECENT, items=_SECONDS)
        for term in CostTerm
    },
)

_PROFILE: Final = Record(
    description="The measurements of one type of job.",
    fields={
        "apiVersion": OneOf(
            (API_VERSION,),
            description="The version.",
            required=True,
        ),
        "kind": OneOf(
            (KIND,),
            description="The kind of the document.",
            required=True,
        ),
        "type": _TYPE,
        "speeds": _SPEEDS,
        "accuracy": _ACCURACY,
        "costs": _COSTS,
        "costSamples": _COST_SAMPLES,
    },
)

_LIST: Final = Record(
    description="Several profiles.",
    fields={
        "apiVersion": OneOf(
            (API_VERSION,),
            description="The version.",
            required=True,
        ),
        "kind": OneOf(
            (LIST_KIND,),
            description="The kind of the document.",
            required=True,
        ),
        "items": Many(
            description="The profiles.", required=True, max_items=MOST_PROFILES, items=_PROFILE
        ),
    },
)


# --- reading ------------------------------------------------------------------------------


def parse(document: object, *, source: str = "") -> Profile:
    """Turn a document into a profile. ``source`` names it in the lines of the error."""
    return _profile(_checked(document, _PROFILE, source))


def parse_all(document: object, *, source: str = "") -> tuple[Profile, ...]:
    """Turn a ``Profile`` or a ``ProfileList`` into profiles, each type once."""
    is_list = isinstance(document, Mapping) and document.get("kind") != KIND
    if not is_list:
        return (parse(document, source=source),)
    items = _checked(document, _LIST, source)["items"]
    problems = tuple(_repeated_types(items))
    if problems:
        raise ProfileFileError(problems, source)
    return tuple(map(_profile, items))


def _checked(document: object, schema: Record, source: str) -> Document:
    problem = too_large(document, most=_MOST_VALUES) or _not_a_document(document)
    if problem is not None:
        raise ProfileFileError((problem,), source)
    read, problems = schema.collect(document)
    wrong = tuple(problems) or tuple(_repetitions(read, ""))
    if wrong:
        raise ProfileFileError(wrong, source)
    return dict(read)


def _not_a_document(document: object) -> Problem | None:
    if isinstance(document, Mapping):
        return None
    remedy = f"begin with apiVersion: {API_VERSION} and kind: {KIND}"
    return Problem("", document, f"the document is {kind_of(document)}, not a {KIND}", remedy)


def _repetitions(document: Document, path: str) -> Iterator[Problem]:
    """Yield entries that a document has twice, because the second would replace the first."""
    for index, item in enumerate(document.get("items", ())):
        yield from _repetitions(item, f"{path}items[{index}].")
    shapes = [_shape(each) for each in document.get("speeds", ())]
    for index in _indices_of_twins(shapes):
        again = f"the speed of {shapes[index]} is in the list twice"
        yield Problem(f"{path}speeds[{index}]", None, again, "remove one of them")
    iterations = [each.iteration for each in document.get("accuracy", ())]
    for index in _indices_of_twins(iterations):
        again = f"iteration {iterations[index]:g} is in the list twice"
        yield Problem(f"{path}accuracy[{index}]", None, again, "remove one of them")


def _repeated_types(items: Iterable[Document]) -> Iterator[Problem]:
    types = [item["type"] for item in items]
    for index in _indices_of_twins(types):
        again = f"{types[index]} is in the list twice"
        yield Problem(f"items[{index}].type", None, again, "remove one of them")


def _indices_of_twins(values: Iterable[object]) -> Iterator[int]:
    seen = set()
    for index, value in enumerate(values):
        if value in seen:
            yield index
        seen.add(value)


def _profile(document: Document) -> Profile:
    return Profile(
        type=document["type"],
        speeds={_shape(each): _speed(each) for each in document.get("speeds", ())},
        accuracy=tuple(sorted(document.get("accuracy", ()))),
        costs=document.get("costs"),
        cost_samples=document.get("costSamples", {}),
    )


def _shape(document: Document) -> Shape:
    return Shape(document["gpus"], document["nodes"], document.get("gpuType", ""))


def _speed(document: Document) -> Speed:
    return Speed(
        document["iterationsPerSecond"],
        document["weight"],
        document.get("recent", ()),
        document["seenAt"],
    )


# --- writing ------------------------------------------------------------------------------


def render(profile: Profile) -> Document:
    """
    Write a profile as the document that :func:`parse` turns into it again.

    A profile that could not be read again raises a :class:`ProfileFileError`.
    """
    document = without_none(
        apiVersion=API_VERSION,
        kind=KIND,
        type=_TYPE.write(profile.type),
        speeds=[_render_speed(shape, profile.speeds[shape]) for shape in profile.speeds],
        accuracy=_ACCURACY.write(profile.accuracy),
        costs=None if profile.costs is None else _COSTS.write(profile.costs),
        costSamples={
            camel(str(term)): list(samples) for term, samples in profile.cost_samples.items()
        },
    )
    if problems := _PROFILE.collect(document)[1]:
        raise ProfileFileError(tuple(problems), f"the profile of {profile.type}")
    return document


def render_all(profiles: Iterable[Profile]) -> Document:
    """Write several as one ``ProfileList``, in the order of their types."""
    ordered = sorted(profiles, key=lambda profile: profile.type)
    return {
        "apiVersion": API_VERSION,
        "kind": LIST_KIND,
        "items": [render(profile) for profile in ordered],
    }


def _render_speed(shape: Shape, speed: Speed) -> Document:
    return without_none(
        gpus=shape.gpus,
        nodes=shape.nodes,
        gpuType=shape.gpu_type,
        iterationsPerSecond=speed.iterations_per_s,
        weight=speed.weight,
        recent=list(speed.recent),
        seenAt=speed.seen_at,
    )
