"""Checkpoints on the Hugging Face hub, read where they are: `hf://ORG/MODEL[@REVISION]`.

Small files (configuration, tokenizer, model card, index) are fetched into a temporary folder. Weights are read by HTTP
range requests, in blocks that are shared by threads, kept for the rows that follow and fetched ahead. The revision is
pinned to a commit first, so that all that is read belongs together. Token, endpoint and proxies are those that
huggingface_hub finds: HF_TOKEN or the saved login, HF_ENDPOINT, HTTPS_PROXY.

What a server answers is checked against what was asked: it may be broken, or not the hub at all.
"""

import os
import re
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
from huggingface_hub import constants
from huggingface_hub.errors import HfHubHTTPError, HFValidationError
from huggingface_hub.utils import build_hf_headers, get_session, validate_repo_id

from archs.small_files import parse_json
from quants import Tensor
from quants.errors import FileError, GgufToolsError

from ..naming import SCHEME
from .block_cache import BlockCache, Bytes
from .folder import PLAIN_NAME, Checkpoint, open_checkpoint
from .safetensors import data_edges, header_size, tensors_of

COMMIT = re.compile(r"\w[\w.-]{0,63}")
CONTENT_RANGE = re.compile(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18}|\*)")
NAME = re.compile(r"hf://(\w[\w.-]*)/(\w[\w.-]*?)/?(?:@(.+))?")
SHA256 = re.compile(r"[0-9a-f]{64}")
SMALL_SUFFIXES = (".json", ".jinja", ".md", ".model", ".tiktoken", ".txt")
SMALL_FILE = 256 << 20  # more than any tokenizer has
MAX_PAGES = 50  # of a listing; the hub's have a thousand files each
MAX_SMALL_FILES = 1 << 30  # bytes of all together
MAX_SIZE = 1 << 50  # bytes of a file: a petabyte
MAX_ANSWER = 64 << 20  # bytes of what the hub says about a model
TEMPLATES = "additional_chat_templates"

FIRST_READ = 256 << 10  # of a file: its header, unless that is a long one

TRIES = 8  # in a row that bring next to nothing
SLOW_TRY = 3  # a connection that trickles takes long, and so counts as many
LEAST_BYTES = 4096  # within huggingface_hub's timeout for a download; what brings less is as good as broken
FIRST_WAIT, LONGEST_WAIT = 0.5, 30.0  # seconds between them
PASSING = (408, 425, 429, 500, 502, 503, 504)  # statuses that may be others a little later
# What a request raises where the connection fails: the base class of the HTTP client in use (httpx, requests before).
NETWORK_ERRORS = (OSError, *HfHubHTTPError.__bases__)


@dataclass(frozen=True)
class Repository:
    """One commit of a model's repository. name: as the user wrote it. sizes: of the files that were listed.

    digests: SHA-256 of those that the hub says it of, as it keeps large files under that name.
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

    def url(self, file: str) -> str:
        return f"{self.endpoint}/{self.repo}/resolve/{quote(self.commit)}/{quote(file)}"

    def listing(self, folder: str = "") -> dict[str, int | None]:
        """Sizes of what is in a folder of it, by name, None for folders. Raises FileError for what cannot be there."""
        url = f"{self.endpoint}/api/models/{self.repo}/tree/{quote(self.commit)}/{quote(folder)}".rstrip("/")
        found: dict[str, int | None] = {}
        for _ in range(MAX_PAGES):
            entries, url = _ask(self.name, self.endpoint, url)
            for entry in entries if isinstance(entries, list) else [entries]:
                known = entry if isinstance(entry, dict) else {}
                path, kind, size = known.get("path"), known.get("type"), known.get("size")
                is_file = kind == "file" and type(size) is int and 0 <= size <= MAX_SIZE
                if not isinstance(path, str) or not (is_file or kind == "directory"):
                    what = f"{entry!r:.200}; a path, its type and a size were expected"
                    raise FileError(f"{self.name}: the hub lists {what}")
                name, size = path.rpartition("/")[2], size if is_file else None
                if not PLAIN_NAME.fullmatch(name) or name in (".", ".."):
                    raise FileError(f"{self.name} has a file of the name {name!r:.100}")
                found[name] = size
                if size is not None:
                    self.sizes[f"{folder}/{name}" if folder else name] = size
                    large = known.get("lfs")
                    if isinstance(large, dict) and SHA256.fullmatch(str(large.get("oid"))):
                        self.digests[f"{folder}/{name}" if folder else name] = str(large["oid"])
            if not url:
                return found
        raise FileError(f"{self.name}: {self.endpoint} lists files without end")

    def fetch(self, file: str, begin: int, end: int) -> Bytes:
        """Bytes of a file. A broken connection is made anew, and goes on where it broke. Raises FileError."""
        got = bytearray()
        failures, etags = 0, set[str]()
        while len(got) < end - begin:
            before = len(got)
            trouble = _TroubleError("the connection ends early")
            try:
                self._receive(file, begin + before, end, got, etags)
            except _TroubleError as error:
                trouble = error
            except NETWORK_ERRORS as error:
                trouble = _TroubleError(_first_line(error))
            failures = 0 if len(got) - before >= LEAST_BYTES else failures + trouble.counts
            if failures >= TRIES and len(got) < end - begin:
                raise FileError(
                    f"{self.name}: {file} cannot be read on from byte {begin + before}: {trouble}",
                    hint="check the connection; the same command with --resume goes on from what was written",
                ) from trouble  # an OSError: not the source's fault, so what was written is kept
            if len(got) < end - begin:
                time.sleep(min(LONGEST_WAIT, FIRST_WAIT * 2**failures if trouble.wait is None else trouble.wait))
        return np.frombuffer(bytes(got), np.uint8)

    def _receive(self, file: str, begin: int, end: int, got: bytearray, etags: set[str]) -> None:
        """Append bytes begin … end of a file to `got`, as many as come. etags: of this file's answers so far."""
        with _request(self.url(file), f"bytes={begin}-{end - 1}") as response:
            status = response.status_code
            if status in PASSING:
                wait = response.headers.get("retry-after") or ""
                raise _TroubleError(f"status {status}", float(wait) if wait.isdecimal() else None)
            if status in (401, 403):
                raise _restricted(self.name, self.endpoint, self.repo, status)
            if status not in (200, 206):
                raise FileError(f"{self.name}: {file} cannot be read: the server answers with status {status}")
            if status == 200 and begin:
                problem = f"{self.name}: the server sends the whole of {file} where a part of it is asked for"
                raise FileError(problem, hint="download the model, and convert the folder")
            self._check_part(file, begin, end, response.headers, status)
            etags.add(response.headers.get("etag", "W/").removeprefix("W/"))
            if len(etags - {""}) > 1:
                raise FileError(f"{self.name}: {file} was replaced by another while it was read", hint="try again")
            wanted = len(got) + end - begin
            for chunk in _steadily(response):
                got += chunk[: wanted - len(got)]
                if len(got) == wanted:
                    return

    def _check_part(self, file: str, begin: int, end: int, headers: Any, status: int) -> None:
        """Refuse other bytes than bytes begin … end, and those of a file of another size."""
        size = self.sizes.get(file)
        where = f"{self.name}: the server answers otherwise than asked for bytes {begin} to {end - 1} of {file}:"
        hint = "a proxy or a mirror may be at fault: try without, or download the model, and convert the folder"
        if headers.get("content-encoding", "identity").lower() != "identity":
            raise FileError(f"{where} in the encoding {headers['content-encoding']!r:.50}", hint)
        if status == 200:
            length = headers.get("content-length")
            if length is not None and size is not None and length != str(size):
                raise FileError(f"{where} with {length!r:.50} bytes; the file has {size}", hint)
            return
        part = headers.get("content-range", "")
        match = CONTENT_RANGE.fullmatch(part.strip())
        if match is None or (int(match[1]), int(match[2])) != (begin, end - 1):
            raise FileError(f"{where} with {part!r:.80}", hint)
        if match[3] != "*" and size is not None and int(match[3]) != size:
            raise FileError(f"{where} of {match[3]} bytes; the listing says {size}", hint)


class _TroubleError(ConnectionError):
    """What another try may mend. wait: seconds before it, None for more each time. counts: for how many tries."""

    def __init__(self, reason: str, wait: float | None = None, counts: int = 1) -> None:
        super().__init__(reason)
        self.wait, self.counts = wait, counts


def _too_slow() -> _TroubleError:
    return _TroubleError(f"less than {LEAST_BYTES} bytes in {_timeout():g} s", 0.0, SLOW_TRY)


def _timeout() -> float:
    return float(constants.HF_HUB_DOWNLOAD_TIMEOUT)


@contextmanager
def _request(url: str, byte_range: str | None = None, token: bool = True) -> Iterator[Any]:
    """A response whose body is still to be read, from the client that huggingface_hub uses."""
    headers = build_hf_headers(library_name="gguftools", token=None if token else False)
    headers |= {"Accept-Encoding": "identity"} | ({"Range": byte_range} if byte_range else {})
    session: Any = get_session()
    send = session.stream if callable(session.stream) else partial(session.request, stream=True)  # httpx, requests
    request: AbstractContextManager[Any] = send("GET", url, headers=headers, timeout=_timeout())
    response = _begun(request)
    try:
        yield response
    finally:
        request.__exit__(None, None, None)


def _begun(request: AbstractContextManager[Any]) -> Any:
    """The response, once its head has come. The client's own timeout begins anew with every byte of it."""
    future = Future[Any]()

    def begin() -> None:
        try:
            future.set_result(request.__enter__())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=begin, daemon=True).start()
    try:
        return future.result(3 * _timeout())  # for the connection, and for redirections
    except FutureTimeoutError:
        raise _too_slow() from None


def _steadily(response: Any) -> Iterator[bytes]:
    """The pieces of a body. Raises an error where next to nothing comes."""
    begun, got = time.monotonic(), 0
    for chunk in response.iter_bytes() if hasattr(response, "iter_bytes") else response.iter_content(1 << 14):
        yield chunk
        got += len(chunk)
        if time.monotonic() - begun > _timeout():
            if got < LEAST_BYTES:
                raise _too_slow()
            begun, got = time.monotonic(), 0


def _ask(name: str, endpoint: str, url: str) -> tuple[Any, str]:
    """What the hub says (JSON), and the address at which it goes on, "" if it does not. Raises FileError."""
    text = bytearray()
    try:
        with _request(url, token=url.startswith(f"{endpoint}/")) as response:
            if response.status_code != 200:
                raise _refused(name, endpoint, response.status_code, response.headers.get("x-error-code"))
            if response.headers.get("content-encoding", "identity").lower() != "identity":
                raise FileError(f"{name}: {endpoint} answers in an encoding that was not asked for")
            for chunk in _steadily(response):
                text += chunk
                if len(text) > MAX_ANSWER:
                    raise FileError(f"{name}: {endpoint} answers with more than {MAX_ANSWER >> 20} MB")
            return parse_json(bytes(text)), response.links.get("next", {}).get("url", "")
    except NETWORK_ERRORS as error:
        hint = "check the connection and HF_ENDPOINT, or convert a folder that was downloaded before"
        raise FileError(f"{name}: {endpoint} cannot be reached: {_first_line(error)}", hint) from error
    except ValueError as error:
        raise FileError(f"{name}: {endpoint} does not answer as the hub does: {_first_line(error)}") from error


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
        blocks = BlockCache(repository.fetch)
        try:
            checkpoint = open_checkpoint(folder, partial(_open_weights, repository, sizes, blocks))
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
        validate_repo_id(f"{org}/{model}")
    except HFValidationError as error:
        raise FileError(f"{name} does not name a model: {_first_line(error)}") from error
    which = f"/revision/{quote(revision, safe='')}" if revision else ""
    info, _ = _ask(name, endpoint, f"{endpoint}/api/models/{org}/{model}{which}")
    commit = info.get("sha") if isinstance(info, dict) else None
    if not isinstance(commit, str) or not COMMIT.fullmatch(commit):
        raise FileError(f"{name}: {endpoint} does not say which commit that is")
    return Repository(name, org, model, commit, endpoint)


def listed_files(name: str, commit: str) -> list[tuple[str, int, str | None]]:
    """Name, bytes and (where the hub says it) SHA-256 of each file that a model of a repository is read from.

    name: as the user wrote it. Raises FileError.
    """
    repository = replace(_connect(f"{name.partition('@')[0].rstrip('/')}@{commit}"), name=name)
    names = repository.listing()
    if TEMPLATES in names and names[TEMPLATES] is None:
        repository.listing(TEMPLATES)
    read = (*SMALL_SUFFIXES, ".safetensors")
    return [
        (file, size, repository.digests.get(file))
        for file, size in sorted(repository.sizes.items()) if file.endswith(read)
    ]  # fmt: skip


def _refused(name: str, endpoint: str, status: int, code: str | None) -> FileError:
    """One line for a status that is no success. code: the hub's own word for it."""
    repository = name.removeprefix(SCHEME).partition("@")[0]
    if code == "GatedRepo" or status == 403:
        return _restricted(name, endpoint, repository, status)
    if code == "RevisionNotFound":
        return FileError(f"{name}: {repository} has no such revision", hint="name a branch, a tag or a commit of it")
    if status in (401, 404):
        hint = "check the name; a private one needs a token: run `hf auth login`, or set HF_TOKEN"
        return FileError(f"{name}: there is no such model at {endpoint}, or it is private", hint)
    return FileError(f"{name}: {endpoint} answers with status {status}", hint="try again later")


def _restricted(name: str, endpoint: str, repository: str, status: int) -> FileError:
    hint = f"accept the terms at {endpoint}/{repository}, then run `hf auth login` or set HF_TOKEN"
    return FileError(f"{name} may not be read: {endpoint} answers with status {status}", hint)


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), "") or type(error).__name__


def _fetch_small_files(repository: Repository, folder: Path) -> dict[str, int]:
    """Fill the folder: small files as they are, an empty one in the place of each other. Returns the others' sizes."""
    listing = repository.listing()
    sizes, small = {}, []
    for name, size in listing.items():
        if size is not None and name.endswith(SMALL_SUFFIXES) and size <= SMALL_FILE:
            small.append(name)
        elif size is not None:
            (folder / name).touch()
            sizes[name] = size
    if TEMPLATES in listing and listing[TEMPLATES] is None:
        (folder / TEMPLATES).mkdir()
        more = repository.listing(TEMPLATES).items()
        small += [f"{TEMPLATES}/{name}" for name, size in more if name.endswith(".jinja") and size is not None]
    if (total := sum(repository.sizes[name] for name in small)) > MAX_SMALL_FILES:
        raise FileError(f"{repository.name} has {total:,} bytes of configuration; no model needs as many")
    for name in small:
        (folder / name).write_bytes(repository.fetch(name, 0, repository.sizes[name]).tobytes())
    return sizes


def _open_weights(repository: Repository, sizes: dict[str, int], blocks: BlockCache, path: Path) -> dict[str, Tensor]:
    """The tensors of the weight file of this name; sizes: in bytes, by name. Raises FileError, also for pickles."""
    if path.suffix != ".safetensors":
        hint = f"run `hf download {repository.repo}`, and convert the folder that it prints"
        raise FileError(f"{path} is a pickle, which can't be read in parts", hint)
    size = sizes[path.name]
    if not size:
        raise FileError(f"{path} is empty, not a safetensors file")
    beginning = repository.fetch(path.name, 0, min(size, FIRST_READ))
    length = header_size(path, beginning, size)
    if length > len(beginning):
        beginning = np.concatenate([beginning, repository.fetch(path.name, len(beginning), length)])
    header = beginning[:length]
    tensors = tensors_of(path, header, size, lambda begin, end: read(begin, end))
    read = blocks.reader(path.name, data_edges(header))  # after the header was found to be sound
    return tensors
