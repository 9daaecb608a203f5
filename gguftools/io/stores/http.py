"""Read ranges of files over HTTP, with the client of huggingface_hub.

Answers are checked against the request: the server may be broken, or be a proxy that answers in its place.
"""

import base64
import re
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit

import numpy as np
from huggingface_hub import constants
from huggingface_hub.errors import HfHubHTTPError
from huggingface_hub.utils import build_hf_headers, get_session

from quants.errors import FileError

from .path import StorePath, first_line
from .retries import MIN_BYTES, SLOW_TRY, TRANSIENT, Bytes, Sink, TransientError, receive_into

CONTENT_RANGE = re.compile(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18}|\*)")
# What a request raises where the connection fails: the base class of the HTTP client in use (httpx, requests before).
NETWORK_ERRORS = (OSError, *HfHubHTTPError.__bases__)


@dataclass
class WebFile:
    """Describe a file at an address.

    name, file: the place and the file in it, for messages. size: -1 until an answer gives it. token: send the hub's
    token. headers: sent with each request. refused(status): the error for 401 and 403. version: the entity tag that all
    answers must have; dated: without a tag, the date of change.
    """

    name: str
    file: str
    url: str
    size: int = -1
    token: bool = False
    headers: dict[str, str] = field(default_factory=dict)
    refused: Callable[[int], FileError] | None = None
    version: str = ""
    dated: bool = False

    def fetch(self, begin: int, end: int, is_first: bool = False) -> Bytes:
        """Return bytes begin … end, uint8.

        After a broken connection, continue at the byte where it broke. Raises FileError.
        """
        got = bytearray()
        self.fetch_into(got, begin, end, is_first)
        return np.frombuffer(bytes(got[: end - begin]), np.uint8)

    def fetch_into(self, got: Sink, begin: int, end: int, is_first: bool = False) -> None:
        """Pass bytes begin … end to `got` as they come. Raises FileError."""
        versions = {self.version}

        def receive(position: int, got: Sink) -> None:
            try:
                self._receive(position, end, got, versions)
            except TransientError:
                raise
            except NETWORK_ERRORS as error:
                trouble = TransientError(first_line(error))
            else:
                return
            raise trouble  # here, to drop the client's traceback

        receive_into(got, f"{self.name}: {self.file}", begin, end, receive, is_first)

    def _receive(self, begin: int, end: int, got: Sink, versions: set[str]) -> None:
        """Append bytes begin … end to `got`, as many as come. versions: those of this file's answers so far."""
        condition = {"If-Match": self.version} if self.version.startswith('"') else {}
        with request(self.url, f"bytes={begin}-{end - 1}", self.token, self.headers | condition) as response:
            status = response.status_code
            if status in TRANSIENT:
                wait = response.headers.get("retry-after") or ""
                raise TransientError(f"status {status}", float(wait) if wait.isdecimal() else None)
            if status in (401, 403) and self.refused is not None:
                raise self.refused(status)
            if status == 412:
                raise self._replaced()
            if status == 404:
                raise FileError(f"{self.name}: there is no {self.file}: the server answers with status {status}")
            if status not in (200, 206):
                raise FileError(f"{self.name}: {self.file} cannot be read: the server answers with status {status}")
            if status == 200 and (begin or self.size < 0):
                problem = f"{self.name}: the server sends the whole of {self.file} where a part of it is asked for"
                raise FileError(problem, hint="download it, and name the file or folder on this disk")
            self._check_part(begin, end, response.headers, status)
            versions.add(version_of(response.headers, self.dated))
            if len(versions - {""}) > 1:
                raise self._replaced()
            wanted = len(got) + end - begin
            for chunk in steadily(response):
                got.extend(chunk[: wanted - len(got)])
                if len(got) == wanted:
                    return

    def _replaced(self) -> FileError:
        return FileError(f"{self.name}: {self.file} was replaced by another while it was read", hint="try again")

    def _check_part(self, begin: int, end: int, headers: Any, status: int) -> None:
        """Raise FileError for other bytes than begin … end, or for a file of another size."""
        where = f"{self.name}: the server answers otherwise than asked for bytes {begin} to {end - 1} of {self.file}:"
        hint = "a proxy or a mirror may be at fault: try without, or download it"
        if headers.get("content-encoding", "identity").lower() != "identity":
            raise FileError(f"{where} in the encoding {headers['content-encoding']!r:.50}", hint)
        if status == 200:
            length = headers.get("content-length")
            if length is not None and length != str(self.size):
                raise FileError(f"{where} with {length!r:.50} bytes; the file has {self.size}", hint)
            return
        part = headers.get("content-range", "")
        match = CONTENT_RANGE.fullmatch(part.strip())
        if match is None or (int(match[1]), int(match[2])) != (begin, end - 1):
            raise FileError(f"{where} with {part!r:.80}", hint)
        if self.size < 0 and match[3] != "*":
            self.size, self.version = int(match[3]), version_of(headers, self.dated)
        if match[3] != "*" and int(match[3]) != self.size:
            raise FileError(f"{where} of {match[3]} bytes; the listing has {self.size}", hint)


def version_of(headers: Any, dated: bool = False) -> str:
    """Return the entity tag of an answer; without one and if `dated`, the date of change; else ""."""
    tag: str = headers.get("etag", "W/").removeprefix("W/")
    return tag or (headers.get("last-modified", "") if dated else "")


def open_web(path: StorePath) -> WebFile:
    """Open a file at an http or https address: check that it exists, get its size and version. Raises FileError."""
    split = urlsplit(path.url)
    headers = {}
    if split.username is not None:
        user = f"{unquote(split.username)}:{unquote(split.password or '')}".encode()
        headers["Authorization"] = f"Basic {base64.b64encode(user).decode()}"
    url = urlunsplit((split.scheme, split.netloc.rpartition("@")[2], split.path, split.query, ""))
    name = str(path)

    def refused(status: int) -> FileError:
        hint = "a user and a password, or a signed address, may be in the URL"
        return FileError(f"{name} may not be read: the server answers with status {status}", hint)

    file = WebFile(str(path.parent), path.name, url, headers=headers, refused=refused, dated=True)
    file.fetch(0, 1, is_first=True)
    if file.size < 0:
        problem = f"{file.name}: the server does not give the size of {file.file}"
        raise FileError(problem, hint="download it, and name the file on this disk")
    return file


def timeout() -> float:
    return float(constants.HF_HUB_DOWNLOAD_TIMEOUT)


def _too_slow() -> TransientError:
    return TransientError(f"less than {MIN_BYTES} bytes in {timeout():g} s", 0.0, SLOW_TRY)


@contextmanager
def request(
    url: str, byte_range: str | None = None, token: bool = False, headers: dict[str, str] | None = None
) -> Iterator[Any]:
    """Send a GET request with the client of huggingface_hub; yield the response before its body is read.

    token: send the hub's token. The client follows redirections, to other hosts without the token.
    """
    sent = build_hf_headers(library_name="gguftools", token=None if token else False) | (headers or {})
    sent |= {"Accept-Encoding": "identity"} | ({"Range": byte_range} if byte_range else {})
    session: Any = get_session()
    send = session.stream if callable(session.stream) else partial(session.request, stream=True)  # httpx, requests
    asked: AbstractContextManager[Any] = send("GET", url, headers=sent, timeout=timeout())
    response = _begun(asked)
    try:
        yield response
    finally:
        asked.__exit__(None, None, None)


def _begun(asked: AbstractContextManager[Any]) -> Any:
    """Return the response once its head has come. The client's own timeout restarts with every byte."""
    future = Future[Any]()

    def begin() -> None:
        try:
            future.set_result(asked.__enter__())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=begin, daemon=True).start()
    try:
        return future.result(3 * timeout())  # for the connection, and for redirections
    except FutureTimeoutError:
        raise _too_slow() from None


def steadily(response: Any) -> Iterator[bytes]:
    """Yield the chunks of a body. Raises TransientError if fewer than MIN_BYTES come within the timeout."""
    begun, got = time.monotonic(), 0
    for chunk in response.iter_bytes() if hasattr(response, "iter_bytes") else response.iter_content(1 << 14):
        yield chunk
        got += len(chunk)
        if time.monotonic() - begun > timeout():
            if got < MIN_BYTES:
                raise _too_slow()
            begun, got = time.monotonic(), 0
