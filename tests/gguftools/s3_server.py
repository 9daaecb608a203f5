"""moto's S3 in a process of its own, behind a part that misbehaves when asked to, and serves a file that nobody stores.

PUT /_faults                  JSON: {"GET": [fault, ...], "PUT": [...], "POST": [...], "COPY": [...] (PUTs that copy
                              from another object, which {"change": 1} then is about)} for the next such requests
                              that are about objects: {"status": 503}, {"cut": bytes}, {"hang_up": 1},
                              {"change": 1} (another object is put there first), {"range": "bytes 0-1/2"},
                              {"delay": seconds}, {"none": 1}
GET /_log                     JSON: [method, path, bytes sent, headers, bytes received] of all requests
/synthetic/N-of-M.gguf        N matrices of M MB each of F16 values, a tile of random ones again and again
/sink/NAME                    takes parts, and keeps nothing but how many bytes they have
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote
from urllib.request import Request, urlopen

ROOT = Path(__file__).resolve().parents[2]
TILE = 1 << 20
WIDTH = 4096
TROUBLE = b"<Error><Code>Trouble</Code><Message>secret sauce</Message></Error>"
CONDITION = b"<Error><Code>PreconditionFailed</Code><Message>At least one did not hold</Message></Error>"
BEGUN = b"<InitiateMultipartUploadResult><UploadId>u1</UploadId></InitiateMultipartUploadResult>"
DATE = "Mon, 01 Jan 2024 00:00:00 GMT"


@dataclass
class Server:
    """A server that runs. address: its endpoint."""

    address: str

    def faults(self, **faults: list[dict[str, Any]]) -> None:
        urlopen(Request(f"{self.address}/_faults", json.dumps(faults).encode(), method="PUT")).close()

    @property
    def log(self) -> list[list[Any]]:
        with urlopen(f"{self.address}/_log") as answer:
            return json.load(answer)  # type: ignore[no-any-return]


@contextmanager
def serving() -> Iterator[Server]:
    """The server, until the block ends."""
    environment = {**os.environ, "PYTHONWARNINGS": "ignore", "MOTO_S3_DEFAULT_KEY_BUFFER_SIZE": str(1 << 30)}
    command = [sys.executable, "-m", __name__]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, env=environment)
    try:
        assert process.stdout is not None
        yield Server(process.stdout.readline().strip())
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


class _Misbehaving:
    """A WSGI application around moto's."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.pending: dict[str, list[dict[str, Any]]] = {}
        self.log: list[list[Any]] = []
        self.lock = threading.Lock()
        self.sizes: dict[str, dict[str, int]] = {}
        self.done: dict[str, tuple[int, dict[str, str]]] = {}
        self.marks: dict[str, str] = {}
        self.header: dict[str, bytes] = {}
        self.tile = b""

    def __call__(self, environ: dict[str, Any], start: Any) -> Any:
        method, path, query = environ["REQUEST_METHOD"], environ["PATH_INFO"], environ.get("QUERY_STRING", "")
        if path == "/_faults":
            self.pending = json.loads(environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"])))
            return _answer(start, 200)
        if path == "/_log":
            return _answer(start, 200, json.dumps(self.log).encode())
        is_object = path.count("/") > 1 and (method != "GET" or "HTTP_RANGE" in environ)
        fault: dict[str, Any] = {}
        with self.lock:
            kind = "COPY" if "HTTP_X_AMZ_COPY_SOURCE" in environ else method
            if is_object and self.pending.get(kind) and ".journal" not in path:
                fault = self.pending[kind].pop(0)
        time.sleep(fault.get("delay", 0))
        entry = [method, f"{path}?{query}", 0, {k: v for k, v in environ.items() if k.startswith("HTTP_")}]
        self.log.append(entry)
        if "status" in fault:
            _drain(environ)
            return _answer(start, fault["status"], b"" if method == "HEAD" else TROUBLE)
        if "hang_up" in fault:
            environ["werkzeug.socket"].shutdown(2)
            return []
        if "change" in fault:
            self.replace(environ, f"/{environ['HTTP_X_AMZ_COPY_SOURCE']}" if kind == "COPY" else path)
        if not self.is_as_wanted(environ, path):
            return _answer(start, 412, CONDITION)
        if path.startswith("/synthetic/"):
            body = self.synthetic(environ, start, path, method)
        elif path.startswith("/sink/"):
            body = self.sink(environ, start, path, method, parse_qs(query, keep_blank_values=True))
        else:
            body = self.passed_on(environ, start, fault)
        entry[2] = sum(map(len, body))
        entry.append(int(environ.get("HTTP_X_AMZ_DECODED_CONTENT_LENGTH") or environ.get("CONTENT_LENGTH") or 0))
        return body

    def passed_on(self, environ: dict[str, Any], start: Any, fault: dict[str, Any]) -> list[bytes]:
        said: list[Any] = []
        body = b"".join(self.inner(environ, lambda status, headers, *rest: said.extend((status, headers))))
        status, headers = said
        if "range" in fault:
            headers = [(k, fault["range"] if k.lower() == "content-range" else v) for k, v in headers]
        if "cut" in fault:
            headers = [(k, v) for k, v in headers if k.lower() != "content-length"]
            headers.append(("Content-Length", str(len(body))))
            body = body[: fault["cut"]]
        start(status, headers)
        return [body]

    def replace(self, environ: dict[str, Any], path: str) -> None:
        """Put another object of the same size there."""
        self.asked(environ, "PUT", path, b"x" * len(self.asked(environ, "GET", path)[0]))

    def is_as_wanted(self, environ: dict[str, Any], path: str) -> bool:
        """Whether what is copied, or replaced by an upload, has the tag that was asked for: moto does not look."""
        wanted = environ.get("HTTP_X_AMZ_COPY_SOURCE_IF_MATCH")
        if wanted is not None:
            path = f"/{unquote(environ['HTTP_X_AMZ_COPY_SOURCE'])}"
        elif environ["REQUEST_METHOD"] == "POST":
            wanted = environ.get("HTTP_IF_MATCH")
        return wanted is None or wanted == self.asked(environ, "HEAD", path)[1].get("etag")

    def asked(self, environ: dict[str, Any], method: str, path: str, body: bytes = b"") -> tuple[bytes, dict[str, str]]:
        """What moto answers to a request of our own."""
        dropped = ("HTTP_X_AMZ", "HTTP_RANGE", "HTTP_IF_", "HTTP_CONTENT_ENCODING", "HTTP_EXPECT")
        made = {name: value for name, value in environ.items() if not name.startswith(dropped)}
        made |= {"REQUEST_METHOD": method, "PATH_INFO": path, "QUERY_STRING": "", "CONTENT_LENGTH": str(len(body))}
        made |= {"wsgi.input": io.BytesIO(body), "RAW_URI": path, "REQUEST_URI": path}
        said: dict[str, str] = {}
        answer = self.inner(made, lambda _, headers, *rest: said.update((k.lower(), v) for k, v in headers))
        return b"".join(answer), said

    def synthetic(self, environ: dict[str, Any], start: Any, path: str, method: str) -> list[bytes]:
        count, size = map(int, re.findall(r"\d+", path))
        if path not in self.header:
            self.header[path] = _header(count, size << 20)
        if not self.tile:
            import numpy as np

            values = np.random.default_rng(0).standard_normal(TILE // 2).astype(np.float16)
            self.tile = values.tobytes()
        header = self.header[path]
        total = len(header) + count * (size << 20)
        common = [("ETag", '"synthetic"'), ("Accept-Ranges", "bytes"), ("Last-Modified", DATE)]
        if method == "HEAD":
            start("200 OK", [*common, ("Content-Length", str(total))])
            return []
        found = re.fullmatch(r"bytes=(\d+)-(\d+)", environ["HTTP_RANGE"])
        begin, end = int(found[1]), min(int(found[2]) + 1, total)  # type: ignore[index]
        pieces, position = [], begin
        while position < end:
            if position < len(header):
                piece = header[position:end]
            else:
                at = (position - len(header)) % TILE
                piece = self.tile[at : at + min(TILE - at, end - position)]
            pieces.append(piece)
            position += len(piece)
        length = ("Content-Length", str(end - begin))
        start("206 Partial Content", [*common, length, ("Content-Range", f"bytes {begin}-{end - 1}/{total}")])
        return pieces

    def sink(self, environ: dict[str, Any], start: Any, path: str, method: str, query: dict[str, Any]) -> list[bytes]:
        if method == "POST" and "uploads" in query:
            self.sizes[path], self.marks[path] = {}, environ.get("HTTP_X_AMZ_META_GGUFTOOLS", "")
            return _answer(start, 200, BEGUN)
        if method == "PUT":
            data = _drain(environ)
            self.sizes[path][query["partNumber"][0]] = len(data)
            return _answer(start, 200, b"", [("ETag", f'"{hashlib.md5(data).hexdigest()}"')])
        if method == "POST":
            _drain(environ)
            self.done[path] = sum(self.sizes[path].values()), {}
            return _answer(
                start, 200, b'<CompleteMultipartUploadResult><ETag>"x-1"</ETag></CompleteMultipartUploadResult>'
            )
        if method == "HEAD" and path in self.done:
            size = str(self.done[path][0])
            start("200 OK", [("Content-Length", size), ("ETag", '"x-1"'), ("x-amz-meta-gguftools", self.marks[path])])
            return []
        return _answer(start, 404)


def _header(count: int, size: int) -> bytes:
    from archs.metadata import Metadata
    from gguftools.io.gguf.writer import TensorInfo, plan_file
    from quants import format_named

    metadata = Metadata()
    metadata["general.architecture"] = "llama"
    metadata["llama.block_count"] = count
    shape = size // 2 // WIDTH, WIDTH
    infos = [TensorInfo(f"blk.{i}.ffn_down.weight", shape, format_named("F16")) for i in range(count)]
    return plan_file(metadata, infos).header


def _drain(environ: dict[str, Any]) -> bytes:
    data = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
    if "aws-chunked" in environ.get("HTTP_CONTENT_ENCODING", ""):
        out, rest = [], data
        while rest:
            size, _, rest = rest.partition(b"\r\n")
            length = int(size.partition(b";")[0], 16)
            if not length:
                break
            out.append(rest[:length])
            rest = rest[length + 2 :]
        return b"".join(out)
    return data  # type: ignore[no-any-return]


def _answer(start: Any, status: int, body: bytes = b"", headers: list[tuple[str, str]] | None = None) -> list[bytes]:
    start(f"{status} Said", [("Content-Length", str(len(body))), *(headers or ())])
    return [body]


def main() -> None:
    from moto.server import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import WSGIRequestHandler, make_server

    class Quiet(WSGIRequestHandler):
        protocol_version = "HTTP/1.1"

        def log(self, *_: Any) -> None:
            pass

    inner = DomainDispatcherApplication(create_backend_app)
    server = make_server("127.0.0.1", 0, _Misbehaving(inner), threaded=True, request_handler=Quiet)
    sys.stdout.write(f"http://127.0.0.1:{server.server_port}\n")
    sys.stdout.flush()
    server.serve_forever()


if __name__ == "__main__":
    main()
