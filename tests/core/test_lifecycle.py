"""The table of phases: every phase with every event, and the properties of the whole table."""

import itertools

import pytest

from dljob.core.lifecycle import BEGIN, FINAL, TABLE, Event, IllegalEvent, advance, draw
from dljob.core.model import Phase

# The same table in another form, so that a slip in the module shows.
EXPECTED = {
    #                  Submitted    Queued       Initialized  Running      Adjusting    Suspended
    Event.PASSED_OVER: "Queued       Queued       -            -            -            -",
    Event.PLACED: "     Initialized  Initialized  Initialized  -            -            -",
    Event.STARTED: "    -            -            Running      Running      Running      -",
    Event.CHANGED: "    -            -            Initialized  Adjusting    Adjusting    -",
    Event.DISPLACED: "  -            Queued       Queued       Queued       Queued       Suspended",
    Event.CRASHED: "    -            Queued       Initialized  Initialized  Initialized  Suspended",
    Event.SUSPENDED: "  Suspended    Suspended    Suspended    Suspended    Suspended    Suspended",
    Event.RESUMED: "    -            -            -            -            -            Queued",
    Event.FINISHED: "   -            Completed    Completed    Completed    Completed    Completed",
    Event.FAILED: "     Failed       Failed       Failed       Failed       Failed       Failed",
}
OPEN_PHASES = ("Submitted", "Queued", "Initialized", "Running", "Adjusting", "Suspended")


def expected_end(phase: Phase, event: Event) -> str:
    if phase in FINAL:
        repeated = {Phase.COMPLETED: Event.FINISHED, Phase.FAILED: Event.FAILED}[phase]
        return phase.value if event is repeated else "-"
    return EXPECTED[event].split()[OPEN_PHASES.index(phase.value)]


def test_every_event_advances_or_is_illegal():
    for phase, event in itertools.product(Phase, Event):
        end = expected_end(phase, event)
        if end == "-":
            with pytest.raises(IllegalEvent) as caught:
                advance(phase, event)
            assert (caught.value.phase, caught.value.event) == (phase, event)
            assert f"{event.name} cannot happen to a job that is {phase.value}" in str(caught.value)
            continue
        once = advance(phase, event)
        assert once is Phase(end)
        # Events may come twice, except a change of a field of the spec.
        assert event is Event.RESUMED or advance(once, event) is once


def test_final_phases_are_final_and_reachable():
    assert {Phase.COMPLETED, Phase.FAILED} == FINAL
    for phase in set(Phase) - FINAL:
        assert reachable(phase) >= FINAL


def test_every_phase_is_reachable():
    assert reachable(BEGIN) == set(Phase)


def test_diagram_matches_the_table():
    arrows = {
        tuple(line.split(":")[0].split(" --> "))
        for line in draw().splitlines()
        if " --> " in line and "[*]" not in line
    }
    table = {
        (f"    {phase.value}", end.value)
        for phase, exits in TABLE.items()
        for end in exits.values()
        if end is not phase
    }
    assert arrows == table
    assert draw().startswith("stateDiagram-v2\n    [*] --> Submitted\n")
    assert draw().endswith("    Completed --> [*]\n    Failed --> [*]\n")


def reachable(begin: Phase) -> set[Phase]:
    seen = {begin}
    todo = [begin]
    while todo:
        for end in TABLE[todo.pop()].values():
            if end not in seen:
                seen.add(end)
                todo.append(end)
    return seen
