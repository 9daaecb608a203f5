"""Treat URLs as paths.

s3://BUCKET/FOLDER/NAME.gguf      any scheme that fsspec has a file system for: s3, gs, az, memory, ...
https://HOST/PATH/NAME.gguf       a server that sends ranges
hf://ORG/MODEL[@REVISION]         a checkpoint on the hub; hf://ORG/MODEL/FILE.gguf: a GGUF file there
hf://buckets/ORG/BUCKET/...       a storage bucket of the hub
file:///FOLDER/NAME.gguf          a local file

Paths are passed on, cut and printed. So credentials (a user and a password, a signature in a query) are kept apart from
the path, which is safe to print.
"""

import os
import re
from pathlib import Path, PosixPath
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit

from quants.arguments import PathLike
from quants.errors import FileError

SCHEME = "hf://"
# Also recognized after a Path dropped one slash.
KNOWN = "s3 s3a gs gcs az abfs abfss adl memory http https hf file oci oss r2 hdfs webhdfs sftp ssh ftp smb"
SAME = {"s3a": "s3", "gcs": "gs"}
WEB = ("http", "https")
BEGINNING = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]+):/(/?)")
CONTROL = re.compile(r"[\x00-\x1f\x7f\u0085\u2028\u2029]")

# Credentials in error texts of libraries.
USER = re.compile(r"(\b[a-zA-Z][\w+.-]*:/{1,2})[^/\s@'\"<>]+@")
QUERY = re.compile(r"(\b[a-zA-Z][\w+.-]*:/{1,2}[^\s?'\"<>]*)\?[^\s'\"<>]*")
NAMED = re.compile(
    r"(?i)(?<![a-z])((?:x-(?:amz|goog|ms)-[\w-]+|signature|sig|awsaccesskeyid|key-pair-id|policy|(?:access[_-]?|refresh[_-]?|id[_-]?)?"
    r"token|secret[\w-]*|password|api[_-]?key|credential)[\"']?\s*[=:]\s*[\"']?)[^\s&'\",;)]+"
)
SCHEMED = re.compile(r"\b(Bearer|Basic|AWS4-HMAC-SHA256|Credential=)\s*[^\s'\"]+(?:,\s*\w+=\S+)*")
TOKENS = re.compile(r"\bhf_[A-Za-z0-9]{6,}|\b(?:AKIA|ASIA)[A-Z0-9]{12,}|\bya29\.[\w-]+")
SECRET_VARIABLES = re.compile(
    r"(AWS|HF|HUGGING_FACE|GOOGLE|AZURE|FSSPEC)_\w*(KEY|SECRET|TOKEN|PASSWORD|SAS|CONNECTION)\w*"
)

_private: dict[str, str] = {}  # URLs with credentials, by those without


class StorePath(PosixPath):
    """Represent the URL of an object, or of a folder of objects. Its text is the URL without credentials."""

    def __str__(self) -> str:
        scheme, slash, rest = super().__str__().partition(":/")
        return f"{scheme}://{rest}" if slash else f"{scheme}//"

    def __reduce__(self) -> Any:
        return located, (self.url,)

    @property
    def scheme(self) -> str:
        return self.parts[0][:-1]

    @property
    def url(self) -> str:
        """Return the URL with credentials: for clients, never for messages."""
        return _private.get(str(self), str(self))

    @property
    def is_writable(self) -> bool:
        """Return True if objects can be written there: not to web servers, nor to the hub, which wants a local copy
        first.
        """
        return self.scheme not in (*WEB, "hf")

    def resolve(self, strict: bool = False) -> "StorePath":
        """Return the path itself: stores have no links."""
        return self

    def absolute(self) -> "StorePath":
        """Return the path itself."""
        return self

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        """Raise FileNotFoundError: there is no such local file."""
        raise FileNotFoundError(2, "is in a store", str(self))

    def is_below(self, folder: Path) -> bool:
        """Return True if the path is inside that folder of the same store."""
        return self != folder and self.parts[: len(folder.parts)] == folder.parts


def located(path: PathLike) -> Path:
    """Return a Path, or a StorePath for a URL.

    Raises FileError for a URL that could name something else than it shows.
    """
    if isinstance(path, StorePath):
        return path
    text = os.fspath(path)
    match = BEGINNING.match(text) if isinstance(text, str) else None
    if match is None:
        return Path(path)
    scheme = SAME.get(match[1].lower(), match[1].lower())
    if scheme not in KNOWN.split() and (not match[2] or isinstance(path, Path)):
        return Path(path)
    rest = text[match.end() :]
    if scheme == "file":
        return Path("/", rest.removeprefix("localhost/"))
    public = private = f"{scheme}://{rest}"
    if scheme in WEB:
        split = urlsplit(private)
        public = urlunsplit((scheme, split.netloc.rpartition("@")[2], split.path, "", ""))
        private = urlunsplit((scheme, split.netloc, split.path, split.query, ""))
    _check(scheme, public)
    made = StorePath(public)
    if private != public:
        _private[str(made)] = private
    return made


def is_url(path: PathLike) -> bool:
    """Return True for the URL of a store. Raises FileError as `located`."""
    return isinstance(path, (str, os.PathLike)) and isinstance(located(path), StorePath)


def _check(scheme: str, url: str) -> None:
    """Raise FileError for a URL that could name something else than it shows. Messages contain no credentials."""
    rest = url.partition("://")[2].removesuffix("/")
    shown = ascii(redacted(url))[1:-1]
    if scheme not in WEB and "@" in rest.partition("/")[0]:
        hint = "credentials are found as the store's own tools do: in the environment, or in their files"
        raise FileError(f"{scheme}://… has a user or a password in it; these are not read from URLs", hint)
    if scheme not in (*WEB, "hf") and "?" in rest:
        raise FileError(f"{shown.partition('?')[0]}?… has a query in it; {scheme}:// URLs have none")
    if CONTROL.search(url):
        raise FileError(f"{shown} has control characters in it")
    if not rest or rest.startswith("/"):
        raise FileError(f"{shown} names no object", hint=f"write {scheme}://BUCKET/NAME.gguf, say")
    parts = rest.split("/")
    decoded = [unquote(part) for part in parts] if scheme in WEB else parts
    if any(part in (".", "..") or (scheme in WEB and "/" in part) for part in decoded):
        raise FileError(f"{shown} contains a step such as ..: write the plain name")
    if "" in parts:
        raise FileError(f"{shown} contains an empty step, //: write the plain name")


def redacted(text: object) -> str:
    """Return a text, such as a library's error, on one line and without users, passwords, signatures and tokens."""
    line = " ".join(str(text).split())
    for public, private in _private.items():
        line = line.replace(private, public)
        if query := urlsplit(private).query:
            line = line.replace(f"?{query}", "").replace(query, "…")
    line = NAMED.sub(r"\1…", line)  # before passwords, which may be a word of a name
    for private in _private.values():
        if password := urlsplit(private).password:
            line = line.replace(password, "…")
    for name, value in os.environ.items():
        if len(value) >= 8 and SECRET_VARIABLES.fullmatch(name):
            line = line.replace(value, "…")
    line = QUERY.sub(r"\1", USER.sub(r"\1", line))
    return TOKENS.sub("…", NAMED.sub(r"\1…", SCHEMED.sub(r"\1 …", line)))


def first_line(error: BaseException) -> str:
    """Return the first line of a library's error, without credentials.

    Of pydantic's errors, whose first line only counts them, return place and message of the first one.
    """
    lines = str(error).strip().splitlines()
    details = getattr(error, "errors", None)
    if callable(details) and lines and "validation error" in lines[0]:
        detail: dict[str, Any] = next(iter(details()), {})
        place = ".".join(map(str, detail.get("loc", ())))
        lines = [": ".join(filter(None, (place, str(detail.get("msg", "")) or lines[0])))]
    return redacted(lines[0])[:300] if lines else type(error).__name__
