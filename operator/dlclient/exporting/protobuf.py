"""
The encoding of Protocol Buffers, as far as a trace for Perfetto needs it.

https://protobuf.dev/programming-guides/encoding describes it. A field is a number, a wire type and a
value; of one message there may be several fields of one number.
"""

import struct

VARINT, FIXED64, LENGTH = 0, 1, 2
"""The wire types."""


def varint(number: int) -> bytes:
    """Write a whole number, seven bits a byte, the lowest first; a negative one as 64 bits."""
    left = number & 0xFFFF_FFFF_FFFF_FFFF
    written = bytearray()
    while left > 0x7F:
        written.append(left & 0x7F | 0x80)
        left >>= 7
    written.append(left)
    return bytes(written)


def whole(field: int, number: int) -> bytes:
    return varint(field << 3 | VARINT) + varint(number)


def double(field: int, number: float) -> bytes:
    return varint(field << 3 | FIXED64) + struct.pack("<d", number)


def fixed64(field: int, number: int) -> bytes:
    return varint(field << 3 | FIXED64) + struct.pack("<Q", number)


def message(field: int, content: bytes) -> bytes:
    """Write what has a length: a message within another one, or bytes."""
    return varint(field << 3 | LENGTH) + varint(len(content)) + content


def text(field: int, content: str) -> bytes:
    return message(field, content.encode())
