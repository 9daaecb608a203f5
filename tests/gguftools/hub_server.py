"""A server on 127.0.0.1 that speaks as much of the Hugging Face hub's protocol as reading a model needs.

/api/models/ORG/MODEL[/revision/REVISION]     which commit that is
/api/models/ORG/MODEL/tree/COMMIT[/FOLDER]    files and their sizes
/ORG/MODEL/resolve/COMMIT/FILE                small files; weights as a redirection, as the hub does it
/cdn/…                                        byte ranges
"""

from __future__ import annotations

import hashlib
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

LARGE = (".safetensors", ".bin", ".gguf")  # suffixes of files that the hub keeps outside git
COMMIT = "1f0ad2c8f6a1c6f1b8b3a57b3b0cf7a0d4b8e9a2"


@dataclass
class Hub:
    """Folders served as repositories ("org/model"), how the server misbehaves, and what it was asked.

    token: the one that opens gated repositories. breaks: after how many bytes the connections of the next requests for
    weights end. busy: statuses of the next such requests. ignores_ranges: send whole files.
    requests: (method and path, bytes sent) of every request. cdn: another address for weights; tokens: that came there.
    """

    repositories: dict[str, Path]
    commit: str = COMMIT
    gated: bool = False
    token: str = "hf_right"
    breaks: list[int] = field(default_factory=list)
    busy: list[int] = field(default_factory=list)
    ignores_ranges: bool = False
    down_after: int | None = None
    requests: list[tuple[str, int]] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)
    address: str = ""
    cdn: str = ""
    tokens: list[str] = field(default_factory=list)
    slow: float = 0.0  # seconds before each answer with weights
    listed: list[dict[str, Any]] | None = None  # instead of what is there

    @staticmethod
    def tree_of(root: Path) -> list[dict[str, Any]]:
        return [entry_of(path, root) for path in sorted(root.rglob("*"))]

    @property
    def weight_bytes(self) -> int:
        return sum(sent for path, sent in self.requests if path.startswith("/cdn/"))


def entry_of(path: Path, root: Path) -> dict[str, Any]:
    """An entry of a listing, as the hub has it: a git id, and for large files the digest of their content."""
    name = path.relative_to(root).as_posix()
    if path.is_dir():
        return {"type": "directory", "oid": "0" * 40, "size": 0, "path": name}
    content = path.read_bytes()
    entry = {"type": "file", "oid": git_id(content), "size": len(content), "path": name}
    if path.suffix in LARGE:
        sha256 = hashlib.sha256(content).hexdigest()
        pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{sha256}\nsize {len(content)}\n"
        entry |= {"oid": git_id(pointer.encode()), "lfs": {"oid": sha256, "size": len(content), "pointerSize": 134}}
    return entry


def git_id(content: bytes) -> str:
    return hashlib.sha1(f"blob {len(content)}\0".encode() + content).hexdigest()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_) -> None:
        pass  # clients that hang up


@contextmanager
def serving(hub: Hub) -> Iterator[Hub]:
    server = _Server(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": hub}))
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    hub.address = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def log_message(self, *_) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        parts = unquote(urlsplit(self.path).path).strip("/").split("/")
        if parts[:2] == ["api", "models"]:
            self.api("/".join(parts[2:4]), parts[4:])
        elif parts[0] == "cdn":
            self.weights("/".join(parts[1:3]), "/".join(parts[3:]))
        elif parts[2:3] == ["resolve"]:
            self.resolve("/".join(parts[:2]), parts[3], "/".join(parts[4:]))
        else:
            self.fail(404)

    def api(self, repository: str, rest: list[str]) -> None:
        if repository not in self.hub.repositories:
            return self.fail(401 if "authorization" not in self.headers else 404, "RepoNotFound")
        if rest[:1] == ["revision"] and "/".join(rest[1:]) not in ("main", "refs/pr/1", self.hub.commit):
            return self.fail(404, "RevisionNotFound")
        if rest[:1] == ["tree"]:
            return self.tree(self.hub.repositories[repository], "/".join(rest[2:]))
        return self.answer(json.dumps({"id": repository, "sha": self.hub.commit, "siblings": []}))

    def tree(self, root: Path, folder: str) -> None:
        if self.hub.listed is not None:
            return self.answer(json.dumps(self.hub.listed))
        is_recursive = "recursive=true" in urlsplit(self.path).query.lower()
        found = (root / folder).rglob("*") if is_recursive else (root / folder).iterdir()
        return self.answer(json.dumps([entry_of(path, root) for path in sorted(found)]))

    def resolve(self, repository: str, revision: str, name: str) -> None:
        if self.hub.gated and self.headers.get("authorization") != f"Bearer {self.hub.token}":
            return self.fail(403 if "authorization" in self.headers else 401, "GatedRepo")
        path = self.hub.repositories[repository] / name
        if revision != self.hub.commit or not path.is_file():
            return self.fail(404, "EntryNotFound")
        if path.suffix in LARGE:
            self.send_response(302)
            self.send_header("Location", f"{self.hub.cdn or self.hub.address}/cdn/{repository}/{name}")
            self.send_header("Content-Length", "0")
            return self.end_headers()
        return self.send(path.read_bytes())

    def weights(self, repository: str, name: str) -> None:
        with self.hub.lock:
            self.hub.tokens.append(self.headers.get("authorization", ""))
            down = self.hub.down_after is not None and self.hub.weight_bytes >= self.hub.down_after
            busy = self.hub.busy.pop(0) if self.hub.busy else None
            broken = self.hub.breaks.pop(0) if self.hub.breaks else None
        time.sleep(self.hub.slow)
        if down:
            return self.hang_up()
        if busy is not None:
            return self.fail(busy, retry_after="0")
        return self.send((self.hub.repositories[repository] / name).read_bytes(), broken)

    def send(self, content: bytes, broken: int | None = None) -> None:
        """The range that was asked for; `broken`: hang up after so many bytes of it."""
        begin, end = 0, len(content)
        asked = self.headers.get("range")
        if asked is None or self.hub.ignores_ranges:
            self.send_response(200)
        else:
            first, _, last = asked.removeprefix("bytes=").partition("-")
            begin, end = int(first), min(int(last) + 1, len(content))
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {begin}-{end - 1}/{len(content)}")
        self.send_header("Content-Length", str(end - begin))
        self.send_header("ETag", '"0"')
        self.send_header("Accept-Ranges", "bytes")
        self.end_headers()
        part = content[begin:end] if broken is None else content[begin : min(end, begin + broken)]
        with self.hub.lock:
            self.hub.requests.append((self.path, len(part)))
        self.wfile.write(part)
        if broken is not None:
            self.hang_up()

    def hang_up(self) -> None:
        self.wfile.flush()
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)

    def answer(self, text: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text.encode())))
        self.end_headers()
        with self.hub.lock:
            self.hub.requests.append((self.path, len(text)))
        self.wfile.write(text.encode())

    def fail(self, status: int, code: str | None = None, retry_after: str | None = None) -> None:
        self.send_response(status)
        if code is not None:
            self.send_header("X-Error-Code", code)
        if retry_after is not None:
            self.send_header("Retry-After", retry_after)
        self.send_header("Content-Length", "0")
        self.end_headers()
        with self.hub.lock:
            self.hub.requests.append((self.path, 0))
