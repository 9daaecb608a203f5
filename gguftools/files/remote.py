"""Checkpoints on the Hugging Face hub, read where they are: `hf://ORG/MODEL[@REVISION]`.

Small files (configuration, tokenizer, model card, index) are fetched into a temporary folder. Weights are read by HTTP
range requests, in blocks that are shared by threads, kept for the rows that follow and fetched ahead. The revision is
pinned to a commit first, so that all that is read belongs together. Token, endpoint and proxies are those that
huggingface_hub finds: HF_TOKEN or the saved login, HF_ENDPOINT, HTTPS_PROXY.
"""

from __future__ import annotations

import os
import re
import tempfile
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from huggingface_hub import HfApi, HfFileSystem, constants
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils import build_hf_headers, get_session

from quants import Tensor
from quants.errors import FileError, GgufToolsError

from .block_cache import BlockCache, Bytes
from .checkpoint import PLAIN_NAME, SCHEME, Checkpoint, open_checkpoint
from .safetensors import data_edges, header_size, tensors_of

NAME = re.compile(r"hf://(\w[\w.-]*)/(\w[\w.-]*?)/?(?:@(.+))?")
SMALL_SUFFIXES = (".json", ".jinja", ".md", ".model", ".tiktoken", ".txt")
SMALL_FILE = 256 << 20  # more than any tokenizer has
TEMPLATES = "additional_chat_templates"

FIRST_READ = 256 << 10  # of a file: its header, unless that is a long one

TRIES = 8  # in a row without a byte
FIRST_WAIT, LONGEST_WAIT = 0.5, 30.0  # seconds between them
PASSING = (408, 425, 429, 500, 502, 503, 504)  # statuses that may be others a little later
# What a request raises where the connection fails: the base class of the HTTP client in use (httpx, requests before).
NETWORK_ERRORS = (OSError, *HfHubHTTPError.__bases__)


@dataclass(frozen=True)
class Repository:
    """One commit of a model's repository. name: as the user wrote it."""

    name: str
    org: str
    model: str
    commit: str
    endpoint: str
    files: HfFileSystem

    @property
    def repo(self) -> str:
        return f"{self.org}/{self.model}"

    @property
    def root(self) -> str:
        return f"{self.repo}@{self.commit}"

    def url(self, file: str) -> str:
        return str(self.files.url(f"{self.root}/{file}"))

    def listing(self, folder: str = "") -> dict[str, dict[str, Any]]:
        """What is in a folder of it, by name. Raises FileError for names that no file beside others can have."""
        try:
            entries = self.files.ls(f"{self.root}/{folder}".rstrip("/"), detail=True)
        except NETWORK_ERRORS as error:
            raise _explained(self.name, self.endpoint, error) from error
        found = {entry["name"].rpartition("/")[2]: entry for entry in entries}
        for name in found:
            if not PLAIN_NAME.fullmatch(name) or name in (".", ".."):
                raise FileError(f"{self.name} has a file of the name {name!r:.100}")
        return found

    def fetch(self, file: str, begin: int, end: int) -> Bytes:
        """Bytes of a file. A broken connection is made anew, and goes on where it broke. Raises FileError."""
        got = bytearray()
        failures = 0
        while len(got) < end - begin:
            before = len(got)
            reason, wait = "the connection ends early", None
            try:
                self._receive(file, begin + before, end, got)
            except _BusyError as busy:
                reason, wait = str(busy), busy.wait
            except NETWORK_ERRORS as error:
                reason = _first_line(error)
            failures = 0 if len(got) > before else failures + 1
            if failures == TRIES:
                raise FileError(
                    f"{self.name}: {file} cannot be read on from byte {begin + before}: {reason}",
                    hint="check the connection; the same command with --resume goes on from what was written",
                ) from ConnectionError(reason)  # an OSError: not the source's fault, so what was written is kept
            if len(got) < end - begin:
                time.sleep(min(LONGEST_WAIT, FIRST_WAIT * 2**failures if wait is None else wait))
        return np.frombuffer(bytes(got), np.uint8)

    def _receive(self, file: str, begin: int, end: int, got: bytearray) -> None:
        """Append bytes begin … end of a file to `got`, as many as come."""
        with _request(self.url(file), f"bytes={begin}-{end - 1}") as response:
            status = response.status_code
            if status in PASSING:
                raise _BusyError(f"status {status}", response.headers.get("retry-after"))
            if status in (401, 403):
                raise _restricted(self.name, self.endpoint, self.repo, status)
            if status not in (200, 206):
                raise FileError(f"{self.name}: {file} cannot be read: the server answers with status {status}")
            if status == 200 and begin:
                raise FileError(
                    f"{self.name}: the server sends the whole of {file} where a part of it is asked for",
                    hint="download the model, and convert the folder",
                )
            wanted = len(got) + end - begin
            for chunk in response.iter_bytes() if hasattr(response, "iter_bytes") else response.iter_content(1 << 14):
                got += chunk[: wanted - len(got)]
                if len(got) == wanted:
                    return


class _BusyError(Exception):
    """The server asks for patience."""

    def __init__(self, reason: str, retry_after: str | None) -> None:
        super().__init__(reason)
        self.wait = float(retry_after) if retry_after and retry_after.isdecimal() else None


def _request(url: str, byte_range: str) -> AbstractContextManager[Any]:
    """A response whose body is still to be read, from the client that huggingface_hub uses."""
    headers = build_hf_headers(library_name="gguftools")
    headers |= {"Range": byte_range, "Accept-Encoding": "identity"}
    session: Any = get_session()
    send = session.stream if callable(session.stream) else partial(session.request, stream=True)  # httpx, requests
    request: AbstractContextManager[Any] = send("GET", url, headers=headers, timeout=constants.HF_HUB_DOWNLOAD_TIMEOUT)
    return request


@contextmanager
def open_remote(name: str) -> Iterator[Checkpoint]:
    """Open the checkpoint of a repository; of its weights, nothing but headers is read.

    The small files are in `folder` while the block runs; tensors can be read after it too. Raises FileError for a name,
    repository or revision that is wrong, for one that needs a token, without network, and as `open_checkpoint` does.
    """
    repository = _connect(name)
    with tempfile.TemporaryDirectory(prefix="gguftools-") as temporary:
        folder = Path(temporary, repository.org, repository.model)  # metadata takes names from the folder's
        folder.mkdir(parents=True)
        sizes = _fetch_small_files(repository, folder)
        weights = _Weights(repository, sizes, BlockCache(repository.fetch))
        try:
            checkpoint = open_checkpoint(folder, weights.open)
        except GgufToolsError as error:  # about the folder, which the user does not know
            raise type(error)(str(error).replace(str(folder), name), error.hint) from error
        yield replace(checkpoint, files=[], remote=(name, repository.commit))


def _connect(name: str) -> Repository:
    match = NAME.fullmatch(name)
    if match is None:
        raise FileError(f"{name} does not name a model", hint="write hf://ORG/MODEL, or hf://ORG/MODEL@REVISION")
    org, model, revision = match.groups()
    endpoint = os.environ.get("HF_ENDPOINT", constants.ENDPOINT).rstrip("/")
    try:
        commit = HfApi(endpoint).model_info(f"{org}/{model}", revision=revision).sha
    except HFValidationError as error:
        raise FileError(f"{name} does not name a model: {_first_line(error)}") from error
    except NETWORK_ERRORS as error:
        raise _explained(name, endpoint, error) from error
    if not commit:
        raise FileError(f"{name}: {endpoint} does not say which commit that is")
    return Repository(name, org, model, commit, endpoint, HfFileSystem(endpoint=endpoint, skip_instance_cache=True))


def _explained(name: str, endpoint: str, error: Exception) -> FileError:
    """One line for what went wrong when a repository was looked at."""
    status = getattr(getattr(error, "response", None), "status_code", None)
    repository = name.removeprefix(SCHEME).partition("@")[0]
    if isinstance(error, GatedRepoError) or status == 403:
        return _restricted(name, endpoint, repository, status or 403)
    if isinstance(error, RevisionNotFoundError):
        return FileError(f"{name}: {repository} has no such revision", hint="name a branch, a tag or a commit of it")
    if isinstance(error, RepositoryNotFoundError) or status in (401, 404):
        return FileError(
            f"{name}: there is no such model at {endpoint}, or it is private",
            hint="check the name; a private one needs a token: run `hf auth login`, or set HF_TOKEN",
        )
    if status is not None:
        return FileError(f"{name}: {endpoint} answers with status {status}", hint="try again later")
    return FileError(
        f"{name}: {endpoint} cannot be reached: {_first_line(error)}",
        hint="check the connection and HF_ENDPOINT, or convert a folder that was downloaded before",
    )


def _restricted(name: str, endpoint: str, repository: str, status: int) -> FileError:
    return FileError(
        f"{name} may not be read: {endpoint} answers with status {status}",
        hint=f"accept the terms at {endpoint}/{repository}, then run `hf auth login` or set HF_TOKEN",
    )


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), "") or type(error).__name__


def _fetch_small_files(repository: Repository, folder: Path) -> dict[str, int]:
    """Fill the folder: small files as they are, an empty one in the place of each other. Returns the others' sizes."""
    listing = repository.listing()
    sizes = {}
    for name, entry in listing.items():
        if entry["type"] == "directory":
            continue
        if name.endswith(SMALL_SUFFIXES) and entry["size"] <= SMALL_FILE:
            (folder / name).write_bytes(repository.fetch(name, 0, entry["size"]).tobytes())
        else:
            (folder / name).touch()
            sizes[name] = entry["size"]
    if listing.get(TEMPLATES, {}).get("type") == "directory":
        (folder / TEMPLATES).mkdir()
        for name, entry in repository.listing(TEMPLATES).items():
            if name.endswith(".jinja") and entry["size"] <= SMALL_FILE:
                path = f"{TEMPLATES}/{name}"
                (folder / path).write_bytes(repository.fetch(path, 0, entry["size"]).tobytes())
    return sizes


@dataclass(frozen=True)
class _Weights:
    """The weight files of a repository. sizes: in bytes, by name."""

    repository: Repository
    sizes: dict[str, int]
    blocks: BlockCache

    def open(self, path: Path) -> dict[str, Tensor]:
        """The tensors of the file of this name. Raises FileError, also for a format that can't be read in parts."""
        if path.suffix != ".safetensors":
            raise FileError(
                f"{path} is a pickle, which can't be read in parts",
                hint=f"run `hf download {self.repository.repo}`, and convert the folder that it prints",
            )
        size = self.sizes[path.name]
        if not size:
            raise FileError(f"{path} is empty, not a safetensors file")
        beginning = self.repository.fetch(path.name, 0, min(size, FIRST_READ))
        length = header_size(path, beginning, size)
        if length > len(beginning):
            beginning = np.concatenate([beginning, self.repository.fetch(path.name, len(beginning), length)])
        header = beginning[:length]
        tensors = tensors_of(path, header, size, lambda begin, end: read(begin, end))
        read = self.blocks.reader(path.name, data_edges(header))  # after the header was found to be sound
        return tensors
