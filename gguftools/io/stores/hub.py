"""Read repositories of the Hugging Face hub at one commit: list files, and read ranges of them.

Token, endpoint and proxies are those of huggingface_hub: HF_TOKEN or the saved login, HF_ENDPOINT, HTTPS_PROXY.
"""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from huggingface_hub import constants
from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import validate_repo_id

from archs.small_files import parse_json
from quants.errors import FileError

from .http import NETWORK_ERRORS, WebFile, request, steadily
from .path import SCHEME, first_line
from .retries import Bytes

COMMIT = re.compile(r"\w[\w.-]{0,63}")
NAME = re.compile(r"hf://(\w[\w.-]*)/(\w[\w.-]*?)/?(?:@(.+))?")
SHA256, GIT_ID = re.compile(r"[0-9a-f]{64}"), re.compile(r"[0-9a-f]{40}")
PLAIN_NAME = re.compile(r"[^/\\\x00-\x1f\x7f]{1,255}")
MAX_PAGES = 50  # of a listing; the hub's have a thousand files each
MAX_SIZE = 1 << 50  # bytes of a file: a petabyte
MAX_ANSWER = 64 << 20  # bytes of the hub's answer about a model


@dataclass(frozen=True)
class RemoteFile:
    """Describe a file of a repository. path: from its root. oid: the git id of a small file's content. sha256: of a
    large file's, which the hub keeps outside git.
    """

    path: str
    size: int
    oid: str
    sha256: str | None = None

    @property
    def digest(self) -> str:
        """Return what tells two contents apart: sha256:HEX, or git:HEX."""
        return f"sha256:{self.sha256}" if self.sha256 else f"git:{self.oid}"


@dataclass(frozen=True)
class Repository:
    """Describe one commit of a model's repository.

    name: as the user wrote it. sizes: bytes of the files listed so far. digests: SHA-256 of those that the hub gives it
    for, which are the large files.
    """

    name: str
    org: str
    model: str
    commit: str
    endpoint: str
    sizes: dict[str, int] = field(default_factory=dict)
    digests: dict[str, str] = field(default_factory=dict)

    @property
    def repo(self) -> str:
        return f"{self.org}/{self.model}"

    @property
    def folders(self) -> tuple[str, str]:
        """Return the names that a local copy's parent folder and folder get."""
        return self.org, self.model

    @property
    def identity(self) -> tuple[str, str]:
        """Return name and commit, which decide the values of all files."""
        return self.name, self.commit

    def url(self, file: str) -> str:
        return f"{self.endpoint}/{self.repo}/resolve/{quote(self.commit)}/{quote(file)}"

    def tree(self) -> list[RemoteFile]:
        """List all files, also those of folders, by path. Raises FileError for entries that no repository can have."""
        files = {}
        for entry in self._entries("", "?recursive=true"):
            if entry["type"] == "file":
                large = entry.get("lfs")
                sha256 = str(large.get("oid")) if isinstance(large, dict) else ""
                oid = str(entry.get("oid"))
                path, known = entry["path"], sha256 if SHA256.fullmatch(sha256) else None
                if known is None and not GIT_ID.fullmatch(oid):
                    raise FileError(f"{self.name}: the hub gives no digest of {path}")
                files[path] = RemoteFile(path, entry["size"], oid, known)
                self.sizes[path] = entry["size"]
        return [files[path] for path in sorted(files)]

    def listing(self, folder: str = "") -> dict[str, int | None]:
        """List a folder: file name → bytes, folder name → None.

        Raises FileError for entries that no repository can have.
        """
        sizes: dict[str, int | None] = {}
        for entry in self._entries(folder):
            name = entry["path"].rpartition("/")[2]
            size = sizes[name] = entry["size"] if entry["type"] == "file" else None
            if size is not None:
                path = f"{folder}/{name}" if folder else name
                self.sizes[path] = size
                large = entry.get("lfs")
                if isinstance(large, dict) and SHA256.fullmatch(str(large.get("oid"))):
                    self.digests[path] = str(large["oid"])
        return sizes

    def _entries(self, folder: str, query: str = "") -> Iterator[dict[str, Any]]:
        """Yield the checked entries of a folder: path, type, and a file's size."""
        url = f"{self.endpoint}/api/models/{self.repo}/tree/{quote(self.commit)}/{quote(folder)}".rstrip("/") + query
        for _ in range(MAX_PAGES):
            entries, url = _ask(self.name, self.endpoint, url)
            for entry in entries if isinstance(entries, list) else [entries]:
                known = entry if isinstance(entry, dict) else {}
                path, entry_type, size = known.get("path"), known.get("type"), known.get("size")
                is_file = entry_type == "file" and type(size) is int and 0 <= size <= MAX_SIZE
                if not isinstance(path, str) or not (is_file or entry_type == "directory"):
                    what = f"{entry!r:.200}; a path, its type and a size were expected"
                    raise FileError(f"{self.name}: the hub lists {what}")
                for name in path.split("/"):
                    if not PLAIN_NAME.fullmatch(name) or name in (".", ".."):
                        raise FileError(f"{self.name} has a file of the name {name!r:.100}")
                yield known
            if not url:
                return
        raise FileError(f"{self.name}: {self.endpoint} lists files without end")

    def file(self, name: str) -> WebFile:
        """Return a file of the repository by name, without a check that it exists."""
        return WebFile(
            self.name,
            name,
            self.url(name),
            self.sizes.get(name, -1),
            token=True,
            refused=lambda status: restricted(self.name, self.endpoint, self.repo, status),
        )

    def fetch(self, file: str, begin: int, end: int) -> Bytes:
        """Return bytes begin … end of a file, uint8.

        After a broken connection, continue where it broke. Raises FileError.
        """
        return self.file(file).fetch(begin, end)

    def hint_for_pickle(self) -> str:
        return f"run `gguftools fetch {self.repo}`, and convert that folder"


def connect(name: str) -> Repository:
    """Resolve hf://ORG/MODEL[@REVISION] to a repository at its current commit. Raises FileError."""
    match = NAME.fullmatch(name)
    if match is None:
        raise FileError(f"{name} does not name a model", hint="write hf://ORG/MODEL, or hf://ORG/MODEL@REVISION")
    org, model, revision = match.groups()
    endpoint = os.environ.get("HF_ENDPOINT", constants.ENDPOINT).rstrip("/")
    try:
        validate_repo_id(f"{org}/{model}")
    except HFValidationError as error:
        raise FileError(f"{name} does not name a model: {first_line(error)}") from error
    which = f"/revision/{quote(revision, safe='')}" if revision else ""
    info, _ = _ask(name, endpoint, f"{endpoint}/api/models/{org}/{model}{which}")
    commit = info.get("sha") if isinstance(info, dict) else None
    if not isinstance(commit, str) or not COMMIT.fullmatch(commit):
        raise FileError(f"{name}: {endpoint} does not give its commit")
    return Repository(name, org, model, commit, endpoint)


def _ask(name: str, endpoint: str, url: str) -> tuple[Any, str]:
    """Return the JSON of the hub's answer and the URL of the next page, or "". Raises FileError."""
    text = bytearray()
    try:
        with request(url, token=url.startswith(f"{endpoint}/")) as response:
            if response.status_code != 200:
                raise _refused(name, endpoint, response.status_code, response.headers.get("x-error-code"))
            if response.headers.get("content-encoding", "identity").lower() != "identity":
                raise FileError(f"{name}: {endpoint} answers in an encoding that was not asked for")
            for chunk in steadily(response):
                text += chunk
                if len(text) > MAX_ANSWER:
                    raise FileError(f"{name}: {endpoint} answers with more than {MAX_ANSWER >> 20} MB")
            return parse_json(bytes(text)), response.links.get("next", {}).get("url", "")
    except NETWORK_ERRORS as error:
        hint = "check the connection and HF_ENDPOINT, or convert a folder that was downloaded before"
        raise FileError(f"{name}: {endpoint} cannot be reached: {first_line(error)}", hint) from error
    except ValueError as error:
        raise FileError(f"{name}: {endpoint} does not answer like the hub: {first_line(error)}") from error


def _refused(name: str, endpoint: str, status: int, code: str | None) -> FileError:
    """Return the error for a status that is not success. code: the hub's error code."""
    repository = name.removeprefix(SCHEME).partition("@")[0]
    if code == "GatedRepo" or status == 403:
        return restricted(name, endpoint, repository, status)
    if code == "RevisionNotFound":
        return FileError(f"{name}: {repository} has no such revision", hint="name a branch, a tag or a commit of it")
    if status in (401, 404):
        hint = "check the name; a private one needs a token: run `hf auth login`, or set HF_TOKEN"
        return FileError(f"{name}: there is no such model at {endpoint}, or it is private", hint)
    return FileError(f"{name}: {endpoint} answers with status {status}", hint="try again later")


def restricted(name: str, endpoint: str, repository: str, status: int) -> FileError:
    """Return the error for a model whose terms were not accepted, or that is private."""
    hint = f"accept the terms at {endpoint}/{repository}, then run `hf auth login` or set HF_TOKEN"
    return FileError(f"{name} may not be read: {endpoint} answers with status {status}", hint)
