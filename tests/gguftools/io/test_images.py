"""Image files are decoded by a few formats' decoders, whatever their names, and within bounded memory."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import pytest

from gguftools.io import images
from gguftools.io.images import open_image
from quants.errors import FileError, GgufToolsError, OptionError

Image = pytest.importorskip("PIL.Image")
EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\n%%EOF\n"


@pytest.mark.parametrize("form", ["PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF"])
def test_formats_that_are_read(tmp_path: Path, form: str) -> None:
    Image.new("RGB", (30, 20), "red").save(tmp_path / "image.dat", form)
    found = open_image(tmp_path / "image.dat")
    assert (found.mode, found.size) == ("RGB", (30, 20))
    assert found.getpixel((15, 10)) == pytest.approx((255, 0, 0), abs=3)


@pytest.mark.parametrize("form", ["DDS", "PPM", "ICO", "TGA", "PCX", "SGI", "PDF", "ICNS", "JPEG2000"])
def test_other_formats_are_not(tmp_path: Path, form: str) -> None:
    try:
        Image.new("RGB", (32, 32), "red").save(tmp_path / "image.png", form)
    except (KeyError, OSError, ValueError):
        pytest.skip(f"this Pillow does not write {form}")
    with pytest.raises(FileError, match="not an image that can be read") as caught:
        open_image(tmp_path / "image.png")
    assert "PNG, JPEG, WebP, GIF, BMP and TIFF" in str(caught.value.hint)


def test_no_program_is_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "gs"
    program.write_text(f"#!/bin/sh\ntouch {tmp_path}/started\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    (tmp_path / "image.png").write_bytes(EPS)
    with pytest.raises(FileError, match="not an image that can be read"):
        open_image(tmp_path / "image.png")
    assert not (tmp_path / "started").exists()


def _chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def test_pixels_are_counted_before_they_are_decoded(tmp_path: Path) -> None:
    header = struct.pack(">IIBBBBB", 11_585, 11_585, 8, 2, 0, 0, 0)
    chunks = _chunk(b"IHDR", header) + _chunk(b"IDAT", zlib.compress(b"")) + _chunk(b"IEND", b"")
    (tmp_path / "bomb.png").write_bytes(b"\x89PNG\r\n\x1a\n" + chunks)
    with pytest.raises(OptionError, match="11,585 × 11,585 pixels; at most 67,108,864"):
        open_image(tmp_path / "bomb.png")


def test_what_a_decoder_raises_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "image.png"
    Image.new("RGB", (8, 8)).save(path)
    for error in (NotImplementedError("no"), struct.error("no"), KeyError(1), ZeroDivisionError(), MemoryError()):

        def fail(image: object, error: Exception = error) -> None:
            raise error

        monkeypatch.setattr(images, "_upright", fail)
        with pytest.raises(FileError, match="is not a whole image: "):
            open_image(path)


@pytest.mark.parametrize("form", ["PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF"])
def test_damaged_files(tmp_path: Path, form: str) -> None:
    path = tmp_path / "image"
    Image.effect_noise((40, 30), 50).convert("RGB").save(path, form)
    whole = path.read_bytes()
    for place in range(0, len(whole), max(1, len(whole) // 60)):
        for content in (whole[:place], whole[:place] + b"\xff\xff\xff\xff" + whole[place + 4 :]):
            path.write_bytes(content)
            try:
                open_image(path)
            except GgufToolsError as error:
                assert str(error).startswith(str(path))  # noqa: PT017
