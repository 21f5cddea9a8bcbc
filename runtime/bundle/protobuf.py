"""Protocol buffers, read a field at a time."""

import mmap
from collections.abc import Iterator

Content = mmap.mmap | bytes


def list_parts(content: Content, start: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Number, start and end of every field of a message that is a message, text or bytes.

    Raises:
        ValueError: The bytes are no message.
    """
    return ((number, low, high) for number, wire, low, high in _list_fields(content, start, end) if wire == 2)


def list_integers(content: Content, start: int, end: int, number: int) -> list[int]:
    """The values of an integer field of a message, whether it is packed or not.

    Raises:
        ValueError: The bytes are no message.
    """
    values = []
    for found, wire, low, high in _list_fields(content, start, end):
        while found == number and wire in (0, 2) and low < high:
            value, low = _read_varint(content, low, high)
            values.append(value)
    return values


def _list_fields(content: Content, start: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """Number, kind, start and end of every field."""
    place = start
    while place < end:
        tag, place = _read_varint(content, place, end)
        if tag >= 1 << 32:
            raise ValueError("a tag is too long")
        number, wire = tag >> 3, tag & 7
        low = place
        if wire == 0:
            _, place = _read_varint(content, place, end)
        elif wire in (1, 5):
            place += 8 if wire == 1 else 4
        elif wire == 2:
            size, low = _read_varint(content, place, end)
            place = low + size
            if place > end:
                raise ValueError("a field is longer than its message")
        else:
            raise ValueError(f"a field has the unknown kind {wire}")
        yield number, wire, low, place
    if place != end:
        raise ValueError("a field is longer than its message")


def _read_varint(content: Content, place: int, end: int) -> tuple[int, int]:
    number = 0
    for shift in range(0, 70, 7):
        if place >= end:
            raise ValueError("a number is cut off")
        byte = content[place]
        place += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, place
    raise ValueError("a number is too long")
