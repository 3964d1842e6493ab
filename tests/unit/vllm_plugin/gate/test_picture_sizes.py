"""A picture's size is what its head declares, the largest if there are several."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.vllm_plugin.gate.picture_sizes import read_size


def png(*sizes: tuple[int, int]) -> bytes:
    heads = [struct.pack(">I4sII5x4x", 13, b"IHDR", *size) for size in sizes]
    return b"\x89PNG\r\n\x1a\n" + b"".join(heads) + struct.pack(">I4s", 0, b"IDAT")


def jpeg(*sizes: tuple[int, int], before: bytes = b"") -> bytes:
    frames = [struct.pack(">BBHBHH", 0xFF, 0xC2, 11, 8, h, w) + b"\x01\x01\x11\0" for w, h in sizes]
    return b"\xff\xd8" + before + b"".join(frames) + b"\xff\xda\0\x08"


def gif(screen: tuple[int, int], corner: tuple[int, int], frame: tuple[int, int]) -> bytes:
    comment = b"\x21\xfe\x02hi\0"
    table = b"\0" * 6
    shown = b"\x2c" + struct.pack("<HHHH", *corner, *frame)
    return b"GIF89a" + struct.pack("<HH", *screen) + b"\x80\0\0" + table + comment + shown


def webp(chunk: bytes) -> bytes:
    return b"RIFF\0\0\0\0WEBP" + chunk


EXIF = b"\xff\xe1" + struct.pack(">H", 6) + b"\xff\xc0ab"
THUMBNAIL = b"\xff\xff\xe2" + struct.pack(">H", 20) + jpeg((9, 9))[:18]


@pytest.mark.parametrize(
    ("head", "size"),
    [
        (png((640, 480)), (640, 480)),
        (png((1, 1), (9000, 70)), (9000, 70)),
        (jpeg((640, 480)), (640, 480)),
        (jpeg((640, 480), before=EXIF + THUMBNAIL), (640, 480)),
        (jpeg((1, 1), (9000, 70), before=b"junk\xff\x01"), (9000, 70)),
        (gif((640, 480), (0, 0), (640, 480)), (640, 480)),
        (gif((1, 1), (10, 20), (30, 40)), (40, 60)),
        (webp(b"VP8X" + b"\0" * 8 + b"\x7f\x02\0\xdf\x01\0"), (640, 480)),
        (webp(b"VP8L" + b"\0" * 4 + b"\x2f" + (639 | 479 << 14).to_bytes(4, "little")), (640, 480)),
        (webp(b"VP8 " + b"\0" * 7 + b"\x9d\x01\x2a\x80\x02\xe0\x01"), (640, 480)),
    ],
)
def test_the_declared_size_is_found(head: bytes, size: tuple[int, int]) -> None:
    assert read_size(head) == size
    assert read_size(head + b"\0" * 999) == size


@pytest.mark.parametrize(
    "head",
    [
        b"",
        b"BM" + b"\0" * 60,
        b"II*\0" + b"\0" * 60,
        b"%!PS-Adobe-3.0 EPSF-3.0",
        b"<svg width='9' height='9'/>",
        b"\x89PNG\r\n\x1a\n",
        png((640, 480))[:20],
        jpeg(),
        jpeg((640, 480))[:6],
        b"GIF89a\0",
        webp(b"ANIM"),
        webp(b"VP8 " + b"\0" * 20),
    ],
)
def test_what_is_no_picture_has_no_size(head: bytes) -> None:
    assert read_size(head) is None


@given(
    st.sampled_from([b"\x89PNG\r\n\x1a\n", b"\xff\xd8", b"GIF89a", b"RIFFxxxxWEBP"]), st.binary()
)
def test_no_bytes_are_too_odd(start: bytes, rest: bytes) -> None:
    size = read_size(start + rest)
    assert size is None or all(0 <= length < 2**32 for length in size)
