"""Messages survive JSON, wrong ones are refused, and no other error is raised."""

import dataclasses
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dljob_wire import codec
from dljob_wire.harmless import harmless
from dljob_wire.kinds import (
    LARGEST_WHOLE,
    Either,
    Flag,
    Kind,
    Many,
    Named,
    Number,
    OneOf,
    Record,
    Said,
    Whole,
    Wrong,
    nested,
)
from dljob_wire.messages import (
    LONGEST_LEFT,
    MESSAGES,
    MOST_GPUS,
    Change,
    Gpu,
    Live,
    LiveChange,
    LiveState,
    LiveTrial,
    Peer,
    Phase,
    Post,
    Problem,
    Process,
    Progress,
    Run,
    Saving,
    State,
    Warmth,
)
from tests.sidecar.targets import run, stop

ASCII = st.characters(codec="ascii")


def texts_of(kind: Said) -> st.SearchStrategy[str]:
    if kind.form is None:
        return st.text(max_size=20).map(harmless)
    fitting = st.from_regex(kind.form.pattern, fullmatch=True, alphabet=ASCII)
    return fitting.filter(lambda text: len(text) <= kind.max_length)


MAKERS: dict[type, Callable[[Any], st.SearchStrategy[Any]]] = {
    Whole: lambda kind: st.integers(kind.minimum, kind.maximum),
    Number: lambda kind: st.floats(kind.minimum, kind.maximum, exclude_min=kind.above),
    Flag: lambda kind: st.booleans(),
    Said: texts_of,
    OneOf: lambda kind: st.sampled_from([*kind.words.values()]),
    Many: lambda kind: st.lists(
        values_of(kind.items), min_size=kind.min_items, max_size=max(kind.min_items, 2)
    ).map(tuple),
    Named: lambda kind: st.dictionaries(
        texts_of(Said(64, kind.keys)), values_of(kind.values), max_size=2
    ),
    Either: lambda kind: st.sampled_from([run(1), stop(2), run(7, gpus=3, processes=1)]),
    Record: lambda kind: messages_of(kind.into),
}


def values_of(kind: Kind) -> st.SearchStrategy[Any]:
    """Draw values of a field from its description."""
    return MAKERS[type(kind)](kind)


def messages_of(message: type) -> st.SearchStrategy[Any]:
    if message is Run:
        # Its fields have to agree, which no field can know of itself.
        return st.builds(run, st.integers(0, 99), processes=st.integers(1, 9))
    if message is Live:
        members = st.permutations([0, -1, 7, -1]).map(tuple)
        return st.builds(Live, st.integers(0, 99), members, port=st.integers(0, 65535))
    optional = {each.name for each in dataclasses.fields(message) if each.default is None}
    fields = {
        kind.attribute: values_of(kind)
        | (st.none() if kind.attribute in optional else st.nothing())
        for kind in nested(message).fields.values()
    }
    return st.builds(message, **fields)


def test_live_run_is_read_and_its_contradictions_are_refused():
    live = dataclasses.replace(run(3), live=Live(2, (1, -1)), live_trial=4)
    assert codec.decode_target(codec.encode_target(live)) == live
    leaving = dataclasses.replace(stop(3), live=Live(2, (0,), host="10.0.3.7", port=24108))
    assert codec.decode_target(codec.encode_target(leaving)) == leaving
    for members, message in (
        ((0,), "live.members: is not the number of processes"),
        ((0, 0), "live.members: names a process twice"),
        ((-1, -1), "live.members: has no process that stays"),
        ((0, -2), "live.members"),
    ):
        document = json.loads(codec.encode_target(live))
        document["live"]["members"] = members
        with pytest.raises(Wrong, match=message):
            codec.decode_target(json.dumps(document).encode())


def test_older_controller_and_sidecar_omit_live_fields():
    state = dataclasses.replace(BUSY, live=LiveState(2, LiveTrial(1), LiveChange(3, 41.5)))
    assert codec.decode(State, codec.encode(state)) == state
    document = json.loads(codec.encode(state))
    del document["live"]
    assert codec.decode(State, json.dumps(document).encode()).live is None
    document = json.loads(codec.encode_target(run(3)))
    del document["live"], document["liveTrial"]
    assert codec.decode_target(json.dumps(document).encode()) == run(3)


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: message.__name__)
def test_every_message_survives_a_round_trip(message):
    @settings(max_examples=25)
    @given(messages_of(message))
    def law(original):
        assert codec.decode(message, codec.encode(original)) == original

    law()
    found = {kind.attribute for kind in nested(message).fields.values()}
    assert found == {each.name for each in dataclasses.fields(message)}


def test_left_state_is_short_and_has_the_exit_codes():
    @settings(max_examples=50)
    @given(messages_of(State), st.integers(1, MOST_GPUS))
    def law(state, processes):
        ended = tuple(Process(rank, rank, ("GPU-a",), exit_code=0) for rank in range(processes))
        state = dataclasses.replace(state, processes=ended)
        line = codec.encode_left(state)
        assert line.endswith(b"\n")
        assert len(line) <= LONGEST_LEFT
        left = codec.decode_left(line + b"what was there before")
        assert left is not None
        assert [each.exit_code for each in left.processes] == [0]
        kept = ("incarnation", "version", "phase", "epoch", "generation", "held_generation")
        assert [getattr(left, name) for name in kept] == [getattr(state, name) for name in kept]
        assert left.progress.iteration == state.progress.iteration
        # Nothing that is left behind holds a GPU, or wants something.
        assert (left.held, left.gpus, left.target, left.problems) == ((), (), None, ())

    law()


def test_left_state_keeps_every_distinct_end():
    ends = [Process(rank, rank, exit_code=0) for rank in range(60)]
    ends[41] = Process(41, 41, signal=9)
    left = codec.decode_left(codec.encode_left(dataclasses.replace(BUSY, processes=tuple(ends))))
    assert left is not None
    assert [(each.rank, each.exit_code, each.signal) for each in left.processes] == [
        (0, 0, None),
        (41, None, 9),
    ]
    many = tuple(Process(1000 + code, 10**6, exit_code=100 + code) for code in range(99))
    longest = dataclasses.replace(
        BUSY,
        incarnation="i" * 64,
        installation="i" * 64,
        processes=many,
        epoch=LARGEST_WHOLE,
        generation=LARGEST_WHOLE,
        held_generation=LARGEST_WHOLE,
        version=LARGEST_WHOLE,
        progress=Progress(LARGEST_WHOLE, interval=LARGEST_WHOLE, metrics={"m" * 64: -1 / 3}),
        change=Change(
            LARGEST_WHOLE, Saving.TIMED_OUT, 1e300 / 3, 1e300 / 3, 1e300 / 3, pause_seconds=1e300 / 3
        ),
    )
    assert len(codec.encode_left(longest)) < LONGEST_LEFT


@pytest.mark.parametrize(
    "text", [b"", b"Traceback", b"{}", b"[" * 4096, b"\xff\xfe", b'{"phase": "Exited"}', b"\n" * 9]
)
def test_foreign_text_is_no_left_state(text):
    assert codec.decode_left(text) is None


BUSY = State(
    incarnation="first-start",
    version=5,
    phase=Phase.RUNNING,
    released=False,
    progress=Progress(iteration=7, iterations_per_second=2.0),
    gpus=(Gpu(0, utilization=0.5, memory_used=1),),
    warmth=Warmth(wanted=2, ready=1, memory_bytes=9),
    problems=(Problem("DiskFull", "no room for 5 bytes"),),
)


def test_essence_ignores_only_volatile_fields():
    changes: dict[str, Any]
    for changes in (
        {"version": 6},
        {"progress": Progress(iteration=8, metrics={"top5": 0.5}, idle_seconds=3.0)},
        {"gpus": (Gpu(0, utilization=0.9, memory_used=2),)},
        {"warmth": Warmth(wanted=2, ready=1, memory_bytes=10)},
        {"problems": (Problem("DiskFull", "no room for 6 bytes"),)},
    ):
        assert dataclasses.replace(BUSY, **changes).essence() == BUSY.essence(), changes
    for changes in (
        {"incarnation": "second-start"},
        {"phase": Phase.CHECKPOINTING},
        {"released": True},
        {"epoch": 2},
        {"generation": 2},
        {"target": stop(2)},
        {"held": ("0",)},
        {"held_generation": 2},
        {"leaving": True},
        {"processes": (Process(rank=0, pid=1, exit_code=1),)},
        {"progress": Progress(iteration=7, iterations_per_second=2.0, stalled=True)},
        {"gpus": (Gpu(0, utilization=0.5, memory_used=1, ecc_errors=1),)},
        {"gpus": ()},
        {"warmth": Warmth(wanted=2, ready=2, memory_bytes=9)},
        {"change": Change(generation=2)},
        {"problems": ()},
    ):
        assert dataclasses.replace(BUSY, **changes).essence() != BUSY.essence(), changes


def test_unknown_fields_are_ignored():
    document = json.loads(codec.encode_target(run(1)))
    document["mood"] = {"good": [1, 2]}
    document["peers"][0]["colour"] = "green"
    assert codec.decode_target(json.dumps(document).encode()) == run(1)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@settings(max_examples=40)
@given(st.binary(max_size=200) | JSON.map(lambda value: json.dumps(value).encode()))
def test_nonsense_raises_only_wrong(body):
    with pytest.raises(Wrong):
        codec.decode_target(body)


@settings(max_examples=40)
@given(st.sampled_from([*nested(Run).fields]), JSON)
def test_wrong_value_is_refused_at_its_path(name, value):
    document = json.loads(codec.encode_target(run(1)))
    document[name] = value
    refused = refusal_of(json.dumps(document).encode())
    if refused is not None:
        # NaN is no JSON at all, and a contradiction between two fields is reported at one of both.
        assert refused.path.partition("[")[0] in {name, "rankOffset", "worldSize", "gpus", ""}
        assert len(str(refused)) < 500


def refusal_of(body: bytes) -> Wrong | None:
    try:
        assert isinstance(codec.decode_target(body), Run)
    except Wrong as wrong:
        return wrong
    return None


PEERS = (Peer("first", 2), Peer("second", 3), Peer("third", 1))
SECOND = dataclasses.replace(run(1), rank_offset=2, world_size=6, peers=PEERS)


def test_run_is_consistent_with_its_peers():
    assert (SECOND.node_rank, SECOND.processes) == (1, 3)
    for change, path in (
        ({"gpus": ("0", "0")}, "gpus"),
        ({"world_size": 5}, "worldSize"),
        ({"rank_offset": 1}, "rankOffset"),
        ({"rank_offset": 6}, "rankOffset"),
        # Of the three processes of a container each has a port.
        ({"rendezvous_port": 65534}, "rendezvousPort"),
    ):
        with pytest.raises(Wrong) as refused:
            dataclasses.replace(SECOND, **change)
        assert refused.value.path == path, change


def test_malformed_gpu_id_is_refused():
    document = json.loads(codec.encode_target(run(1)))
    wrong = ("", "-1", "1\n", "0,1", "12345", "GPU-", "gpu-1", "GPU-1;reboot", "٣", "all")
    for gpu in wrong:
        document["gpus"] = [gpu]
        with pytest.raises(Wrong) as refused:
            codec.decode_target(json.dumps(document).encode())
        assert refused.value.path == "gpus[0]", gpu


def test_refusal_has_path_and_remedy():
    body = b'{"iteration": 5, "metrics": {"top5": "high"}}'
    with pytest.raises(Wrong) as refused:
        codec.decode(Post, body)
    assert str(refused.value).startswith(
        'metrics.top5: "high" is a string, not a number; give a number'
    )


def test_deeply_nested_value_is_refused():
    # At every depth at which the interpreter gives up: reading and reporting go equally deep.
    for depth in range(900, 1010):
        with pytest.raises(Wrong):
            codec.decode(Post, b'{"metrics":' + b"[" * depth + b"]" * depth + b"}")
        with pytest.raises(Wrong):
            codec.decode(Post, b"[" * depth + b"]" * depth)


def test_huge_value_is_shortened_in_the_refusal():
    for huge in (b'{"epoch":"' + b"x" * 100_000 + b'"}', b'{"epoch":' + b"9" * 4000 + b"}"):
        with pytest.raises(Wrong) as refused:
            codec.decode(State, huge)
        assert len(str(refused.value)) < 500


def test_older_message_has_no_installation():
    for message in (run(1), stop(2)):
        text = json.loads(codec.encode_target(dataclasses.replace(message, installation="ours")))
        del text["installation"]
        read = codec.decode_target(json.dumps(text).encode())
        assert read.installation == ""
        # Otherwise a SideCar of an older release, whose state cannot repeat the name, would receive
        # the same target for ever.
        assert read == dataclasses.replace(message, installation="ours")


def test_control_characters_are_replaced():
    for said, read in (
        ("plain\ttext, \u00e9 \u4e2d \U0001f680", "plain\ttext, \u00e9 \u4e2d \U0001f680"),
        ("two\nlines", "two lines"),
        ("\x1b]0;owned\x07\x9b31m", "\ufffd]0;owned\ufffd\ufffd31m"),
        ("\u202eevil\u2066\u200f", "\ufffdevil\ufffd\ufffd"),
        ("\ud800", "\ufffd"),
    ):
        problem = {"name": "P", "message": said, "remedy": said}
        found = codec.decode(Problem, json.dumps(problem).encode())
        assert (found.message, found.remedy) == (read, read)
        read.encode()
