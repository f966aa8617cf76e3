"""
The packets of a trace for Perfetto: descriptions of tracks, and events on them.

The numbers of fields are those of Perfetto's protos/perfetto/trace: trace_packet.proto, clock_snapshot.proto,
track_event/track_descriptor.proto, counter_descriptor.proto, track_event.proto and debug_annotation.proto.
"""

from collections.abc import Mapping
from enum import IntEnum

from dlclient.exporting import protobuf

_BOOTTIME, _REALTIME = 6, 1
"""Clocks of Perfetto. It takes times that name no clock for those of the first."""
_SEQUENCE = 1
"""All packets have one writer, so their order counts."""
_EXPLICIT = 3
"""Children of a track are ordered by their rank."""

Argument = str | int | float | bool


class Event(IntEnum):
    """The effect of an event on its track."""

    BEGIN = 1
    END = 2
    INSTANT = 3
    COUNTER = 4


def clock(epoch_ns: int) -> bytes:
    """Write the time of day at which the trace begins."""
    clocks = b"".join(
        protobuf.message(1, protobuf.whole(1, which) + protobuf.whole(2, at))
        for which, at in ((_BOOTTIME, 0), (_REALTIME, epoch_ns))
    )
    snapshot = clocks + protobuf.whole(2, _BOOTTIME)
    return _packet(protobuf.whole(8, 0) + protobuf.message(6, snapshot))


def track(uuid: int, name: str, *, parent: int, rank: int, unit: str | None = None) -> bytes:
    """Describe a track; with a unit it is a counter. ``parent`` 0: a top-level track."""
    described = protobuf.whole(1, uuid) + protobuf.text(2, name)
    if parent:
        described += protobuf.whole(5, parent)
    if unit is not None:
        described += protobuf.message(8, protobuf.text(6, unit))
    described += protobuf.whole(11, _EXPLICIT) + protobuf.whole(12, rank)
    return _packet(protobuf.message(60, described))


def event(
    at_ns: int,
    track_uuid: int,
    what: Event,
    *,
    name: str = "",
    category: str = "",
    arguments: Mapping[str, Argument] | None = None,
    starts: tuple[int, ...] = (),
    ends: tuple[int, ...] = (),
) -> bytes:
    """Write an event; an arrow goes from the event that ``starts`` a number to the one that ``ends`` it."""
    body = protobuf.whole(9, what) + protobuf.whole(11, track_uuid)
    if name:
        body += protobuf.text(23, name)
    if category:
        body += protobuf.text(22, category)
    for key, value in (arguments or {}).items():
        body += protobuf.message(4, _annotation(key, value))
    body += b"".join(protobuf.fixed64(47, number) for number in starts)
    body += b"".join(protobuf.fixed64(48, number) for number in ends)
    return _packet(protobuf.whole(8, at_ns) + protobuf.message(11, body))


def count(at_ns: int, track_uuid: int, value: float) -> bytes:
    """Write the value of a counter from now on."""
    body = protobuf.whole(9, Event.COUNTER) + protobuf.whole(11, track_uuid)
    body += protobuf.double(44, value)
    return _packet(protobuf.whole(8, at_ns) + protobuf.message(11, body))


def _packet(content: bytes) -> bytes:
    return protobuf.message(1, content + protobuf.whole(10, _SEQUENCE))


def _annotation(name: str, value: Argument) -> bytes:
    written = protobuf.text(10, name)
    if isinstance(value, bool):
        return written + protobuf.whole(2, int(value))
    if isinstance(value, int):
        return written + protobuf.whole(4, value)
    if isinstance(value, float):
        return written + protobuf.double(5, value)
    return written + protobuf.text(6, value)
