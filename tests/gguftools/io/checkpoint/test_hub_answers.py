"""Ranges, sizes and listings that a hub answers are checked against what was asked; a trickling one times out."""

from __future__ import annotations

import gzip
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from ... import hub_server
from ...command_line import EXAMPLE, refused, typed

NAME = "hf://jane/austen-4m"
COMMIT = hub_server.COMMIT


class Evil(hub_server._Handler):
    """A server that behaves, but for `lie`: how it answers requests for weights, and `say`: what it says of models."""

    lie: Callable[[Evil, bytes, int, int], None] | None = None
    say: Callable[[Evil, str, str], str] | None = None  # (path, right answer) → answer
    asked = 0

    def send(self, content: bytes, broken: int | None = None) -> None:
        if self.lie is None or not self.path.startswith("/cdn/"):
            return super().send(content, broken)
        first, _, last = self.headers["range"].removeprefix("bytes=").partition("-")
        type(self).asked += 1
        return self.lie(content, int(first), min(int(last) + 1, len(content)))

    def answer(self, text: str) -> None:
        super().answer(text if self.say is None else self.say(self.path, text))

    def part(self, body: bytes, part: str | None, status: int = 206, **headers: str) -> None:
        self.send_response(status)
        if part is not None:
            self.send_header("Content-Range", part)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def trickle(self, piece: bytes) -> None:
        for _ in range(6000):
            self.wfile.write(piece)
            self.wfile.flush()
            time.sleep(0.05)


def other_range(self: Evil, content: bytes, begin: int, end: int) -> None:
    if begin < 1 << 18:
        return self.part(content[begin:end], f"bytes {begin}-{end - 1}/{len(content)}")
    return self.part(content[begin - 64 : end - 64], f"bytes {begin - 64}-{end - 65}/{len(content)}")


def shorter_range(self: Evil, content: bytes, begin: int, end: int) -> None:
    self.part(content[begin : end - 8] + bytes(8), f"bytes {begin}-{end - 9}/{len(content)}")


def other_file(self: Evil, content: bytes, begin: int, end: int) -> None:
    self.part(content[begin:end], f"bytes {begin}-{end - 1}/{len(content) + 1}")


def no_range(self: Evil, content: bytes, begin: int, end: int) -> None:
    self.part(content[begin:end], None)


def odd_range(self: Evil, content: bytes, begin: int, end: int) -> None:
    self.part(content[begin:end], f"bytes {begin}-{end - 1}/\x1b[31m")


def packed(self: Evil, content: bytes, begin: int, end: int) -> None:
    part = f"bytes {begin}-{end - 1}/{len(content)}"
    self.part(gzip.compress(content[begin:end]), part, Content_Encoding="gzip")


def replaced(self: Evil, content: bytes, begin: int, end: int) -> None:
    half = begin + (end - begin) // 2 if end - begin > 1 << 16 else end
    self.send_response(206)
    self.send_header("Content-Range", f"bytes {begin}-{end - 1}/{len(content)}")
    self.send_header("Content-Length", str(end - begin))
    self.send_header("ETag", f'"{self.asked}"')
    self.end_headers()
    self.wfile.write(content[begin:half])
    self.hang_up()


def other_length(self: Evil, content: bytes, begin: int, end: int) -> None:
    self.part(content + bytes(8), None, 200)


@contextmanager
def serving(monkeypatch: pytest.MonkeyPatch, **behaviour: Any) -> Iterator[str]:
    hub = hub_server.Hub({"jane/austen-4m": EXAMPLE})
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (Evil,), {"hub": hub, **behaviour}))
    server.daemon_threads = True
    server.handle_error = lambda *_: None  # type: ignore[method-assign]  # clients that hang up
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    hub.address = f"http://127.0.0.1:{server.server_address[1]}"
    monkeypatch.setenv("HF_ENDPOINT", hub.address)
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setattr("gguftools.io.stores.retries.FIRST_WAIT", 0.01)
    try:
        yield hub.address
    finally:
        server.shutdown()
        server.server_close()


LIES = {
    "another range": (other_range, "answers otherwise than asked"),
    "a shorter range": (shorter_range, "answers otherwise than asked"),
    "a range of a larger file": (other_file, "the listing has"),
    "a part without its range": (no_range, "answers otherwise than asked"),
    "a range that is none": (odd_range, "answers otherwise than asked"),
    "a compressed part": (packed, "in the encoding 'gzip'"),
    "a file that is replaced": (replaced, "was replaced by another"),
    "a whole file of another size": (other_length, "the file has"),
}


@pytest.mark.parametrize("name", LIES)
def test_other_bytes_than_asked_for(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lie, words = LIES[name]
    with serving(monkeypatch, lie=lie):
        refused(typed("convert", NAME, "-o", tmp_path / "out.gguf"), NAME, "model.safetensors", words)
    assert not list(tmp_path.iterdir()) or not (tmp_path / "out.gguf").exists()


def sizes(value: object) -> Callable[[Evil, str, str], str]:
    def say(self: Evil, path: str, text: str) -> str:
        entries = json.loads(text)
        if "/tree/" in path:
            for entry in entries:
                if entry["path"] == "config.json":
                    entry["size"] = value
        return json.dumps(entries)

    return say


@pytest.mark.parametrize("value", ["12", -1, None, 1.5, True, 10**30, [], {}])
def test_sizes_that_are_none(value: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(monkeypatch, say=sizes(value)):
        refused(typed("convert", NAME, "-o", tmp_path / "out.gguf"), NAME, "a path, its type and a size were expected")


ANSWERS: dict[str, tuple[str, str, str]] = {
    "an object as listing": ("/tree/", '{"error": "no"}', "a path, its type and a size were expected"),
    "a list of texts": ("/tree/", '["config.json"]', "a path, its type and a size were expected"),
    "an entry without a path": ("/tree/", '[{"type": "file", "size": 3}]', "a path, its type and a size were expected"),
    "no JSON": ("/tree/", "<html>", "does not answer like the hub"),
    "deep JSON": ("/tree/", "[" * 5000 + "]" * 5000, "does not answer like the hub"),
    "a commit that is a number": ("austen-4m", '{"id": "x", "sha": 7}', "does not give its commit"),
    "a commit that is a path": ("austen-4m", '{"id": "x", "sha": "../../other"}', "does not give its commit"),
    "a list as model": ("austen-4m", "[]", "does not give its commit"),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_answers_of_other_forms(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    where, instead, words = ANSWERS[name]

    def say(self: Evil, path: str, text: str) -> str:
        return instead if path.split("?")[0].endswith(where) or where.strip("/") in path.split("/") else text

    with serving(monkeypatch, say=say):
        refused(typed("convert", NAME, "-o", tmp_path / "out.gguf"), NAME, words)


def test_a_listing_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def tree(self: Evil, root: Path, folder: str) -> None:
        body = json.dumps([{"type": "file", "oid": "0", "size": 1, "path": "a"}]).encode()
        self.part(body, None, 200, Link=f'<{self.hub.address}{self.path}>; rel="next"')

    with serving(monkeypatch, tree=tree):
        refused(typed("convert", NAME, "-o", tmp_path / "out.gguf"), NAME, "lists files without end")


def trickling_weights(self: Evil, content: bytes, begin: int, end: int) -> None:
    self.send_response(206)
    self.send_header("Content-Range", f"bytes {begin}-{end - 1}/{len(content)}")
    self.send_header("Content-Length", str(end - begin))
    self.end_headers()
    self.trickle(b"0123456789")


def trickling_answer(self: Evil, text: str) -> None:
    self.send_response(200)
    self.send_header("Content-Length", "9000000")
    self.end_headers()
    self.trickle(b" ")


def trickling_head(self: Evil, text: str) -> None:
    self.send_response(200)
    self.flush_headers()
    for _ in range(6000):
        self.wfile.write(b"X-More: 1\r\n")
        time.sleep(0.05)


TRICKLES = {
    "weights": {"lie": trickling_weights},
    "an answer": {"answer": trickling_answer},
    "the head of an answer": {"answer": trickling_head},
}


@pytest.mark.parametrize("name", TRICKLES)
def test_a_server_that_trickles(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(monkeypatch, **TRICKLES[name]):
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DOWNLOAD_TIMEOUT", 1)
        refused(typed("convert", NAME, "-o", tmp_path / "out.gguf"), NAME, "less than 4096 bytes in 1 s")
