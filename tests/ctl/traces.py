"""
Traces for Perfetto, read without Perfetto: what the slices on tracks of GPUs add up to.

A decoder of its own, from the encoding of Protocol Buffers, so that a fault of the product's encoder shows.
"""

import struct
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5


def fields(content: bytes) -> Iterator[tuple[int, Any]]:
    """Yield the fields of a message: whole numbers, eight bytes as they are, or what has a length."""
    place = 0
    while place < len(content):
        key, place = _varint(content, place)
        if key & 7 == VARINT:
            value, place = _varint(content, place)
            yield key >> 3, value
        elif key & 7 == FIXED64:
            yield key >> 3, content[place : place + 8]
            place += 8
        elif key & 7 == LENGTH:
            length, place = _varint(content, place)
            assert place + length <= len(content), "a message ends before its end"
            yield key >> 3, content[place : place + length]
            place += length
        else:
            raise AssertionError(f"wire type {key & 7} is not written")


def _varint(content: bytes, place: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        number |= (content[place] & 0x7F) << shift
        shift += 7
        place += 1
        if content[place - 1] < 0x80:
            return number, place


def message(content: bytes) -> dict[int, list[Any]]:
    found: dict[int, list[Any]] = defaultdict(list)
    for number, value in fields(content):
        found[number].append(value)
    return found


def read(
    trace: bytes,
) -> tuple[dict[int, dict[int, list[Any]]], list[tuple[int, dict[int, list[Any]]]]]:
    """Return the tracks by their number, and the events with their times."""
    tracks, events = {}, []
    for number, packet in fields(trace):
        assert number == 1
        told = message(packet)
        if 60 in told:
            track = message(told[60][0])
            tracks[track[1][0]] = track
        elif 11 in told:
            events.append((told[8][0], message(told[11][0])))
    return tracks, events


def slice_seconds(trace: bytes, category: str = "gpu") -> dict[str, float]:
    """Sum up how long slices of a category last, by their name; begins and ends have to match."""
    tracks, events = read(trace)
    open_slices: dict[int, list[tuple[int, str, str]]] = defaultdict(list)
    sums: dict[str, float] = defaultdict(float)
    for at, event in events:
        track = event[11][0]
        assert track in tracks, "an event on a track that is not described"
        if event[9] == [1]:
            open_slices[track].append((at, event[23][0].decode(), event[22][0].decode()))
            assert len(open_slices[track]) == 1, "two slices at once on one track"
        elif event[9] == [2]:
            began, name, of = open_slices[track].pop()
            if of == category:
                sums[name] += (at - began) / 1e9
    assert not any(open_slices.values()), "a slice without an end"
    return dict(sums)


def arrows(trace: bytes) -> dict[int, tuple[int, int]]:
    """Return of each arrow the tracks from which and to which it goes."""
    begins: dict[int, int] = {}
    ends: dict[int, int] = {}
    for _, event in read(trace)[1]:
        for raw in event[47]:
            begins[struct.unpack("<Q", raw)[0]] = event[11][0]
        for raw in event[48]:
            ends[struct.unpack("<Q", raw)[0]] = event[11][0]
    assert begins.keys() == ends.keys()
    return {number: (begins[number], ends[number]) for number in begins}
