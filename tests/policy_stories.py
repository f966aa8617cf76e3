"""
Stories of real trainings under the policies of papers, each with the move that makes its policy known.

:mod:`tests.local.test_paper_policies` tells them on one machine with four GPUs, and
:mod:`tests.operator.test_paper_policies` on a control plane with one node of four. The trainings replay these speeds, as
all of :mod:`tests.operator.stages` do.
"""

import csv
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

from dljob.client.jobviews import read_time

Json = dict[str, Any]

KIND: Final = ("net", "data", 64)
"""Model, dataset and batch size of the trainings."""
SPEEDS: Final = {1: 40.0, 2: 76.0, 4: 140.0}
LONG: Final = 10**6
_MOVES: Final = ("start", "reshape", "move", "stop")


class Move(NamedTuple):
    """A decision about the GPUs of a job."""

    kind: str
    before: int
    after: int
    cause: str
    at: float
    message: str


class Place(Protocol):
    """A place with four GPUs where one policy decides."""

    def submit(self, name: str, *, iterations: int, **spec: Any) -> None: ...
    def cancel(self, name: str) -> None: ...
    def status(self, name: str) -> Json: ...
    def history(self, name: str) -> Sequence[Json]: ...
    def find_told(self, name: str, variable: str) -> set[str]:
        """Return the values of a variable in the environments of a job's processes."""
        ...

    def wait(self, what: Callable[[], object]) -> Any: ...


class Story(NamedTuple):
    policy: str
    tell: Callable[[Place], None]


def write_speeds(path: Path) -> Path:
    """Write the table of speeds, unless it is there: a training may be reading it."""
    if path.exists():
        return path
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(("gpu_type", "model", "global_batch_size", "num_gpus", "iterations_per_s"))
        rows.writerows(("A100", KIND[0], KIND[2], *each) for each in SPEEDS.items())
    return path


def list_moves(place: Place, name: str) -> list[Move]:
    return [
        Move(
            each["kind"],
            (each.get("old") or {}).get("gpus", 0),
            (each.get("new") or {}).get("gpus", 0),
            each.get("cause", ""),
            read_time(each["at"]) or 0.0,
            each["message"],
        )
        for each in place.history(name)
        if each["kind"] in _MOVES
    ]


def list_changes(place: Place, name: str) -> list[tuple[str, int, int]]:
    return [move[:3] for move in list_moves(place, name)]


def wait_for_change(place: Place, name: str, change: tuple[str, int, int]) -> Move:
    """Wait for the first move of this kind from and to these numbers of GPUs."""

    def find() -> Move | None:
        return next((move for move in list_moves(place, name) if move[:3] == change), None)

    move: Move = place.wait(find)
    return move


def wait_for_phase(place: Place, name: str, phase: str) -> Json:
    place.wait(lambda: place.status(name).get("phase") == phase)
    return place.status(name)


def wait_until_on(place: Place, name: str, gpus: int) -> None:
    """Wait until a job trains on this number of GPUs and may be changed."""

    def is_so() -> bool:
        status = place.status(name)
        has = status.get("allocation", {}).get("gpus", 0)
        is_sure = status.get("checkpoint", {}).get("trust") == "Confirmed"
        return is_sure and status.get("phase") == "Running" and has == gpus

    place.wait(is_so)


# --- the stories --------------------------------------------------------------------------


def reshape_down_for_a_newcomer_and_up_when_idle(place: Place) -> None:
    """SideCar: one job gives up GPUs for a newcomer at once (Algorithm 1), and gets idle ones back (Algorithm 2)."""
    place.submit("first", iterations=LONG)
    wait_until_on(place, "first", 4)
    place.submit("second", iterations=200)
    wait_for_phase(place, "second", "Completed")
    there_and_back = [("reshape", 4, 2), ("reshape", 2, 4)]
    place.wait(lambda: list_changes(place, "first")[-2:] == there_and_back)
    causes = [move.cause for move in list_moves(place, "first")]
    assert causes[-2:] == ["MakesRoom", "FasterWithMore"]


def shrink_a_long_job_for_a_shorter_one(place: Place) -> None:
    """AFS-L: all shares are found again at an arrival and at an end, and no longer job has more than a shorter one."""
    place.submit("long", iterations=LONG)
    wait_until_on(place, "long", 4)
    place.submit("short", iterations=200)
    wait_for_phase(place, "short", "Completed")
    wait_for_change(place, "long", ("reshape", 2, 4))
    assert list_changes(place, "long") == [("start", 0, 4), ("reshape", 4, 2), ("reshape", 2, 4)]
    assert list_changes(place, "short") == [("start", 0, 2)]


def take_turns_and_then_grow(place: Place) -> None:
    """AFS-P: jobs without room for all take turns of three seconds; a job that is alone has all."""
    names = ("one", "two", "three")
    for name in names:
        place.submit(name, iterations=LONG, gpus={"options": [2, 4]})

    def has_returned(name: str) -> bool:
        return [move.kind for move in list_moves(place, name)[:3]] == ["start", "stop", "start"]

    place.wait(lambda: all(list_moves(place, name) for name in names))
    place.wait(lambda: any(map(has_returned, names)))
    for start, stop in (list_moves(place, name)[:2] for name in filter(has_returned, names)):
        # Nothing was taken from it before its turn ended, although another job waited.
        assert stop.at - start.at >= 3.0
    place.cancel("one")
    place.cancel("three")
    place.wait(lambda: list_moves(place, "two")[-1].after == 4)


def wait_shrink_wait_and_grow(place: Place) -> None:
    """DRAGON: a job shrinks only for one that has waited for τ, and gets GPUs back that were idle for λ."""
    place.submit("wide", iterations=LONG, gpus={"options": [1, 2, 4], "requested": 4})
    wait_until_on(place, "wide", 4)
    place.submit("urgent", iterations=80, gpus={"options": [1]})
    ended = wait_for_phase(place, "urgent", "Completed")
    shrunk = wait_for_change(place, "wide", ("reshape", 4, 2))
    grown = wait_for_change(place, "wide", ("reshape", 2, 4))
    assert (shrunk.cause, grown.cause) == ("MakesRoom", "IdleGpus")
    assert shrunk.at - (read_time(ended["submittedAt"]) or 0.0) >= 2.0
    assert grown.at - (read_time(ended["finishedAt"]) or 0.0) >= 3.0


def demote_by_attained_service(place: Place) -> None:
    """Tiresias: a job keeps its GPUs until it has had eight GPU-seconds, and then a newer one comes before it."""
    place.submit("old", iterations=LONG, gpus={"options": [4]})
    begun = wait_for_change(place, "old", ("start", 0, 4))
    place.submit("new", iterations=LONG, gpus={"options": [4]})
    started = wait_for_change(place, "new", ("start", 0, 4))
    stopped = wait_for_change(place, "old", ("stop", 4, 0))
    assert stopped.cause == "Outranked"
    assert 4 * (stopped.at - begun.at) >= 8.0
    # The other one is demoted as well, behind it.
    place.wait(lambda: len(list_changes(place, "old")) >= 3)
    again = list_moves(place, "old")[2]
    assert again.kind == "start"
    assert 4 * (again.at - started.at) >= 8.0


def double_the_batch(place: Place) -> None:
    """ONES: a job starts on one GPU, and its limit doubles after an epoch, with its batch and its learning rate."""
    place.submit(
        "elastic",
        iterations=LONG,
        gpus={"options": [1, 2], "requested": 1},
        training={"epochs": 20_000, "iterationsPerEpoch": 50, "batchSize": KIND[2]},
        batch={"elastic": True, "max": 2 * KIND[2]},
    )
    place.wait(lambda: place.find_told("elastic", "DLJOB_BATCH_SIZE") == {"64"})
    doubled = wait_for_change(place, "elastic", ("reshape", 1, 2))
    assert " with batches of 128 instead of 64: " in doubled.message
    place.wait(lambda: place.find_told("elastic", "DLJOB_BATCH_SIZE") == {"128"})
    assert place.find_told("elastic", "DLJOB_LEARNING_RATE_FACTOR") == {"2.0"}
    assert place.status("elastic")["allocation"]["batchSize"] == 128


STORIES: Final = {
    "adaptive": Story("adaptive", reshape_down_for_a_newcomer_and_up_when_idle),
    "afs-l": Story("afs-l", shrink_a_long_job_for_a_shorter_one),
    "afs-p": Story("afs-p:unit_s=3", take_turns_and_then_grow),
    "dragon": Story("dragon:urgent_seconds=2:idle_seconds=3", wait_shrink_wait_and_grow),
    "ones": Story("ones", double_the_batch),
    "tiresias": Story("tiresias:thresholds=8,24:exact=true", demote_by_attained_service),
}
