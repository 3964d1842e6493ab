"""The width and height that a picture declares, read from its head without decoding it.

Where a file declares several, the largest counts: a decoder may go by the last.
"""

from collections.abc import Iterator
from struct import unpack, unpack_from

Size = tuple[int, int]

MOST_PARTS = 1000
_PNG = b"\x89PNG\r\n\x1a\n"
_NO_FRAME = (0xC4, 0xC8, 0xCC)  # Among the markers of JPEG's frames.
_START_OF_SCAN = 0xDA


def read_size(head: bytes) -> Size | None:
    """Return width and height of a PNG, JPEG, GIF or WebP, None for anything else."""
    try:
        sizes = list(_list_sizes(head))
    except (IndexError, ValueError):
        return None
    if not sizes:
        return None
    return max(width for width, _ in sizes), max(height for _, height in sizes)


def _list_sizes(head: bytes) -> Iterator[Size]:
    if head.startswith(_PNG):
        yield from _read_png(head)
    elif head.startswith(b"\xff\xd8"):
        yield from _read_jpeg(head)
    elif head.startswith((b"GIF87a", b"GIF89a")):
        yield from _read_gif(head)
    elif head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        yield _read_webp(head)


def _read_png(head: bytes) -> Iterator[Size]:
    at = len(_PNG)
    for _ in range(MOST_PARTS):
        length, kind = int.from_bytes(head[at : at + 4]), head[at + 4 : at + 8]
        if kind in (b"IDAT", b""):
            return
        if kind == b"IHDR":
            yield _unpack(">II", head, at + 8)
        at += length + 12


def _read_jpeg(head: bytes) -> Iterator[Size]:
    at = 2
    for _ in range(MOST_PARTS):
        at = head.index(b"\xff", at)
        while head[at] == 0xFF:
            at += 1
        marker = head[at]
        if marker == _START_OF_SCAN:
            return
        if 0xC0 <= marker <= 0xCF and marker not in _NO_FRAME:
            height, width = _unpack(">HH", head, at + 4)
            yield width, height
        stands_alone = marker in (0x00, 0x01) or 0xD0 <= marker <= 0xD9
        at += 1 if stands_alone else 1 + int.from_bytes(head[at + 1 : at + 3])


def _read_gif(head: bytes) -> Iterator[Size]:
    """Yield the size of the screen and of the first frame, which may reach beyond it."""
    yield _unpack("<HH", head, 6)
    flags, at = head[10], 13
    at += 3 * 2 ** ((flags & 7) + 1) if flags & 0x80 else 0
    for _ in range(MOST_PARTS):
        if head[at] == 0x2C:
            left, top, width, height = unpack("<HHHH", head[at + 1 : at + 9].ljust(8, b"\0"))
            yield left + width, top + height
            return
        if head[at] != 0x21:
            return
        at += 2
        while size := head[at]:
            at += size + 1
        at += 1


def _read_webp(head: bytes) -> Size:
    kind = head[12:16]
    if kind == b"VP8X":
        return (
            1 + int.from_bytes(head[24:27], "little"),
            1 + int.from_bytes(head[27:30], "little"),
        )
    if kind == b"VP8L":
        bits = int.from_bytes(head[21:25], "little")
        return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    if kind == b"VP8 " and head[23:26] == b"\x9d\x01\x2a":
        width, height = _unpack("<HH", head, 26)
        return width & 0x3FFF, height & 0x3FFF
    raise ValueError("not a WebP picture")


def _unpack(form: str, head: bytes, at: int) -> Size:
    if len(head) < at + (8 if form == ">II" else 4):
        raise ValueError("the picture ends within its head")
    first, second = unpack_from(form, head, at)
    return first, second
