"""A server on 127.0.0.1 with repositories that can be written, as huggingface_hub does it without Xet.

/api/whoami-v2                              whose token it is
/api/repos/create                           a new repository
/api/models/ORG/NAME[/revision/REVISION]    what there is; also /tree, /paths-info, /branch, /preupload, /commit
/ORG/NAME.git/info/lfs/objects/batch        where large files are to be sent, in one piece or in parts
/lfs/SHA256[/PART], /complete, /verify      large files
/ORG/NAME/resolve/REVISION/FILE             files, also by ranges
"""

from __future__ import annotations

import base64
import hashlib
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from .hub_server import git_id

TOKEN = "hf_rightrightrightright"
READER = "hf_readreadreadreadread"
PART = 1 << 18  # bytes of a part of a large file


@dataclass
class Stored:
    """A repository: files by branch, each small content or the digest of a large one."""

    private: bool = False
    branches: dict[str, dict[str, bytes | str]] = field(default_factory=lambda: {"main": {".gitattributes": b"*\n"}})
    commits: list[dict[str, Any]] = field(default_factory=list)


@dataclass
class Repositories:
    """What the server has, how it misbehaves, and what it was asked.

    cuts: after how many bytes of their bodies the connections of the next large uploads end. statuses: what the next
    commits are answered; lost: these commits are made nevertheless. down: hang up on everything. received: bytes of
    large files.
    """

    store: Path
    models: dict[str, Stored] = field(default_factory=dict)
    others: dict[str, str] = field(default_factory=dict)
    organizations: tuple[str, ...] = ("org",)
    large: dict[str, int] = field(default_factory=dict)
    cuts: list[int] = field(default_factory=list)
    statuses: list[int] = field(default_factory=list)
    lost: bool = False
    down: bool = False
    down_after: int | None = None
    during: Any = None
    received: int = 0
    parts: int = 0
    asked: list[str] = field(default_factory=list)
    address: str = ""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def content(self, name: str, path: str, branch: str = "main") -> bytes:
        found = self.models[name].branches[branch][path]
        return found if isinstance(found, bytes) else (self.store / found).read_bytes()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True

    def handle_error(self, *_: Any) -> None:
        pass  # clients that hang up


@contextmanager
def serving(hub: Repositories, port: int = 0) -> Iterator[Repositories]:
    server = _Server(("127.0.0.1", port), type("Handler", (_Handler,), {"hub": hub}))
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
    hub: Repositories

    def log_message(self, *_: Any) -> None:
        pass

    def handle_one(self) -> None:
        split = urlsplit(self.path)
        parts = unquote(split.path).strip("/").split("/")
        with self.hub.lock:
            self.hub.asked.append(f"{self.command} {unquote(self.path)}")
        if self.hub.down:
            return self.hang_up()
        if parts[0] == "lfs":
            return self.lfs(parts[1], parts[2:])
        self.body = self.rfile.read(int(self.headers.get("content-length") or 0)) if self.command == "POST" else b""
        if parts == ["api", "whoami-v2"]:
            return self.whoami()
        if parts == ["api", "validate-yaml"]:
            if b"forbidden" in self.body:
                return self.fail(400, errors=[{"message": "bad metadata"}])
            return self.answer({"warnings": [{"message": "odd metadata"}]} if b"odd" in self.body else {})
        if parts == ["api", "repos", "create"]:
            return self.create()
        if parts[0] == "api" and parts[1] == "models":
            return self.model("/".join(parts[2:4]), parts[4:], parse_qs(split.query))
        if parts[0] == "api":
            name = "/".join(parts[2:4])
            is_there = self.hub.others.get(name) == parts[1].removesuffix("s")
            return self.answer({"id": name, "sha": "0" * 40}) if is_there else self.fail(404, "RepoNotFound")
        if parts[-3:] == ["lfs", "objects", "batch"]:
            return self.batch()
        if parts[2:3] == ["resolve"]:
            return self.resolve("/".join(parts[:2]), parts[3], "/".join(parts[4:]))
        return self.fail(404)

    def do_GET(self) -> None:
        self.handle_one()

    def do_POST(self) -> None:
        self.handle_one()

    def do_PUT(self) -> None:
        self.handle_one()

    @property
    def token(self) -> str:
        return self.headers.get("authorization", "").removeprefix("Bearer ")

    def whoami(self) -> None:
        if self.token not in (TOKEN, READER):
            return self.fail(401, said="Invalid username or password.")
        role = "write" if self.token == TOKEN else "read"
        organizations = [{"name": name} for name in self.hub.organizations]
        return self.answer({"name": "jane", "orgs": organizations, "auth": {"accessToken": {"role": role}}})

    def create(self) -> None:
        asked = json.loads(self.body)
        name = f"{asked.get('organization') or 'jane'}/{asked['name']}"
        if self.token != TOKEN:
            return self.fail(401)
        if name.partition("/")[0] not in ("jane", *self.hub.organizations):
            return self.fail(403, said="You don't have the rights to create a model under this namespace")
        if name in self.hub.models:
            return self.fail(409, said="You already created this model repo")
        self.hub.models[name] = Stored(asked.get("private") is True or asked.get("visibility") == "private")
        return self.answer({"url": f"{self.hub.address}/{name}"})

    def model(self, name: str, rest: list[str], query: dict[str, list[str]]) -> None:
        stored = self.hub.models.get(name)
        if stored is None or (stored.private and self.token not in (TOKEN, READER)):
            return self.fail(404 if self.token in (TOKEN, READER) else 401, "RepoNotFound")
        branch = "/".join(rest[1:]) or "main"
        if rest[:1] == ["branch"]:
            stored.branches[branch] = dict(stored.branches["main"])
            return self.answer({})
        if branch == self.sha(stored):
            branch = "main"
        if branch not in stored.branches:
            return self.fail(404, "RevisionNotFound")
        files = stored.branches[branch]
        if rest[:1] in ([], ["revision"]):
            return self.answer({"id": name, "sha": self.sha(stored), "private": stored.private, "siblings": []})
        if rest[0] == "tree":
            return self.answer([self.entry(path, files[path]) for path in sorted(files)])
        if rest[0] == "preupload":
            return self.answer({"files": [self.mode(each, files) for each in json.loads(self.body)["files"]]})
        if rest[0] == "commit":
            return self.commit(name, stored, branch, "create_pr" in query)
        return self.fail(404)

    def sha(self, stored: Stored) -> str:
        return hashlib.sha1(str(len(stored.commits)).encode()).hexdigest()

    def entry(self, path: str, found: bytes | str) -> dict[str, Any]:
        if isinstance(found, bytes):
            return {"type": "file", "path": path, "size": len(found), "oid": git_id(found)}
        size = self.hub.large[found]
        lfs = {"oid": found, "size": size, "pointerSize": 134}
        return {"type": "file", "path": path, "size": size, "oid": "1" * 40, "lfs": lfs}

    def mode(self, asked: dict[str, Any], files: dict[str, bytes | str]) -> dict[str, Any]:
        is_large = asked["path"].endswith((".gguf", ".safetensors", ".bin")) or asked["size"] > 10_000_000
        found = files.get(asked["path"])
        oid = None if found is None else found if isinstance(found, str) else git_id(found)
        return {
            "path": asked["path"],
            "uploadMode": "lfs" if is_large else "regular",
            "shouldIgnore": False,
            "oid": oid,
        }

    def commit(self, name: str, stored: Stored, branch: str, create_pr: bool) -> None:
        if self.token != TOKEN:
            return self.fail(403, said="Authorization error.")
        status = self.hub.statuses.pop(0) if self.hub.statuses else 200
        if status != 200 and not self.hub.lost:
            return self.fail(status)
        pull_request = None
        if create_pr:
            number = sum(each.startswith("refs/pr/") for each in stored.branches) + 1
            stored.branches[f"refs/pr/{number}"] = dict(stored.branches[branch])
            branch, pull_request = f"refs/pr/{number}", f"{self.hub.address}/{name}/discussions/{number}"
        files, made = stored.branches[branch], {"branch": branch, "files": []}
        for line in self.body.decode().splitlines():
            each = json.loads(line)
            value = each["value"]
            if each["key"] == "header":
                made["summary"] = value["summary"]
            elif each["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif each["key"] == "lfsFile":
                assert value["oid"] in self.hub.large, "a file was not sent before its commit"
                files[value["path"]] = value["oid"]
            elif each["key"] == "deletedFile":
                del files[value["path"]]
            if "path" in value:
                made["files"].append(value["path"])
        stored.commits.append(made)
        if status != 200:
            return self.fail(status)
        sha = self.sha(stored)
        url = f"{self.hub.address}/{name}/commit/{sha}"
        return self.answer({"commitUrl": url, "commitOid": sha, "pullRequestUrl": pull_request})

    def batch(self) -> None:
        if self.token != TOKEN:
            return self.fail(403, said="Authorization error.")
        objects = []
        for each in json.loads(self.body)["objects"]:
            oid, size = each["oid"], each["size"]
            objects.append({"oid": oid, "size": size})
            if oid in self.hub.large:
                continue
            here = f"{self.hub.address}/lfs/{oid}"
            upload: dict[str, Any] = {"href": f"{here}?signature=secret"}
            if size > PART:
                count = -(-size // PART)
                urls = {f"{n + 1:05d}": f"{here}/{n}?signature=secret" for n in range(count)}
                upload = {"href": f"{here}/complete", "header": {"chunk_size": str(PART), **urls}}
            objects[-1]["actions"] = {"upload": upload, "verify": {"href": f"{here}/verify"}}
        return self.answer({"transfer": "multipart", "objects": objects})

    def lfs(self, oid: str, rest: list[str]) -> None:
        size, partial = int(self.headers.get("content-length") or 0), self.hub.store / f"{oid}.part"
        if rest == ["verify"]:
            asked = json.loads(self.rfile.read(size))
            return self.answer({}) if self.hub.large.get(oid) == asked["size"] else self.fail(422)
        if rest == ["complete"]:
            self.rfile.read(size)
            return self.complete(oid, partial)
        with self.hub.lock:
            cut = self.hub.cuts.pop(0) if self.hub.cuts else None
            if self.hub.down_after is not None and self.hub.received >= self.hub.down_after:
                cut = 0
        begin = int(rest[0]) * PART if rest else 0
        partial.touch()
        with partial.open("r+b") as file:
            file.seek(begin)
            left = size if cut is None else min(cut, size)
            while left and (data := self.rfile.read(min(left, 1 << 16))):
                file.write(data)
                left -= len(data)
                with self.hub.lock:
                    self.hub.received += len(data)
        if self.hub.during is not None:
            self.hub.during()
        if cut is not None:
            return self.hang_up()
        if not rest:
            return self.complete(oid, partial)
        with self.hub.lock:
            self.hub.parts += 1
        return self.answer({}, ETag=f'"{rest[0]}"')

    def complete(self, oid: str, partial: Path) -> None:
        if oid in self.hub.large:
            return self.answer({})  # of two files with the same content
        content = partial.read_bytes()
        if hashlib.sha256(content).hexdigest() != oid:
            return self.fail(422, said="the content is another one")
        partial.rename(self.hub.store / oid)
        self.hub.large[oid] = len(content)
        return self.answer({})

    def resolve(self, name: str, revision: str, path: str) -> None:
        content = self.hub.content(name, path, revision if revision in self.hub.models[name].branches else "main")
        first, _, last = self.headers["range"].removeprefix("bytes=").partition("-")
        part = content[int(first) : int(last) + 1]
        self.send_response(206)
        self.send_header("Content-Range", f"bytes {first}-{int(first) + len(part) - 1}/{len(content)}")
        self.send_header("Content-Length", str(len(part)))
        self.end_headers()
        self.wfile.write(part)

    def answer(self, value: Any, **headers: str) -> None:
        text = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        for name, each in headers.items():
            self.send_header(name, each)
        self.end_headers()
        self.wfile.write(text)

    def fail(self, status: int, code: str | None = None, said: str | None = None, **more: Any) -> None:
        text = json.dumps({"error": said or "no", **more}).encode()
        self.send_response(status)
        if code is not None:
            self.send_header("X-Error-Code", code)
        if said is not None:
            self.send_header("X-Error-Message", said)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def hang_up(self) -> None:
        self.wfile.flush()
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)
