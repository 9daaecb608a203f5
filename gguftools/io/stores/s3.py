"""Read and write S3 through s3fs: ranges of one version of an object, and multipart uploads that can be resumed.

Requests are s3fs's own calls, so credentials, regions and endpoints are configured as for s3fs. Beyond its files, these
requests name the version to read (If-Match), take a name only if it is free (If-None-Match), and list the parts that an
upload has already.

Why not the files of s3fs, or obstore:

- s3fs (2026.9) reads with If-Match, but does not compare an answer with the requested range, and restarts a range when
  its connection breaks. It completes an upload with If-None-Match, never with If-Match, so it would replace what
  another program wrote meanwhile. It cannot resume an upload, and copies whole objects only.
- obstore (0.12) has conditions only for an object that is sent in one request. Part numbers and the upload's ID are
  internal, so nothing can be resumed, and it copies no ranges.
"""

import asyncio
import contextlib
import json
import time
from collections.abc import Awaitable, Callable
from threading import Event
from typing import Any, TypeVar

from quants.errors import FileError

from .path import StorePath, first_line
from .retries import CUT_OFF, MIN_BYTES, SLOW_TRY, TRANSIENT, Bytes, TransientError, lost_race, receive_all, retried

MARK = "gguftools"  # key of an object's metadata that identifies its content
TIMEOUT = 60.0  # seconds for a part of an answer
PIECE = 1 << 20
MAX_PARTS = 10_000
MIN_PART = 16 << 20
MIB = 1 << 20

T = TypeVar("T")


class Replaced(Exception):  # noqa: N818  # no error by itself: the caller decides
    """Report that a condition of a request does not hold: the object is another version."""


class Absent(Exception):  # noqa: N818
    """Report that there is no such object, bucket or upload."""


def split_path(path: StorePath) -> tuple[str, str]:
    """Return bucket and key."""
    return path.parts[1], "/".join(path.parts[2:])


def ask(fs: Any, path: StorePath, request: Callable[[], Awaitable[T]]) -> T:
    """Return the answer to a request. Raises TransientError, Replaced, Absent, or FileError for permanent errors."""
    from fsspec.asyn import sync

    try:
        return sync(fs.loop, request)  # type: ignore[no-any-return]
    except (FileError, TransientError):
        raise
    except Exception as error:  # of four libraries; the server's answer tells what it means
        failure = _meaning(path, error)
    raise failure  # here, to drop the library's traceback, which may show credentials


def _meaning(path: StorePath, error: Exception) -> Exception:
    response = next((r for e in (error, error.__cause__) if isinstance(r := getattr(e, "response", None), dict)), {})
    status = response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    code, text = str(response.get("Error", {}).get("Code", "")), first_line(error)
    names = {type(each).__name__ for each in (error, error.__cause__) if each is not None}
    if names & {"NoCredentialsError", "PartialCredentialsError", "ProfileNotFound", "TokenRetrievalError"}:
        hint = "set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY; FSSPEC_S3_ANON=true for public buckets"
        return FileError(f"{path} cannot be reached: {text}", hint)
    if status == 412 or code in ("PreconditionFailed", "ConditionalRequestConflict"):
        return Replaced(text)
    if status == 404 or code.startswith("NoSuch"):
        return Absent(code if code.startswith("NoSuch") else "")
    if status in (401, 403):
        return FileError(f"{path}: the store refuses with status {status}: {text}", "check the credentials and rights")
    if status in TRANSIENT or (not status and isinstance(error, (OSError, asyncio.TimeoutError))) or not status:
        return TransientError(f"status {status}" if status else text)
    if status == 501 or code == "NotImplemented":
        return NotImplementedError(text)
    return FileError(f"{path}: the store answers with status {status}: {text}")


class Reader:
    """Read one version of an object: the current one; see `store.StoredObject`."""

    def __init__(self, fs: Any, path: StorePath) -> None:
        self._fs, self._path = fs, path
        self._bucket, self._key = split_path(path)
        head = stat(fs, path)
        if head is None:
            raise FileError(f"there is no object {path}")
        self.size, self.version = int(head["ContentLength"]), str(head.get("ETag", ""))
        version = head.get("VersionId")
        self._which = {"IfMatch": self.version} if self.version else {}
        self._which |= {"VersionId": version} if version and version != "null" else {}

    def fetch(self, begin: int, end: int) -> Bytes:
        """Return bytes begin … end, uint8. Raises FileError, also if the object was replaced."""

        def receive(position: int, got: bytearray) -> None:
            async def request() -> None:
                await self._receive(position, end, got)

            try:
                ask(self._fs, self._path, request)
            except (Replaced, Absent):
                problem = "was replaced by another while it was read"
            else:
                return
            raise FileError(f"{self._path} {problem}", hint="try again")

        return receive_all(str(self._path), begin, end, receive)

    async def _receive(self, begin: int, end: int, got: bytearray) -> None:
        wanted = len(got) + end - begin
        call = self._fs._call_s3(
            "get_object", Bucket=self._bucket, Key=self._key, Range=f"bytes={begin}-{end - 1}", **self._which
        )
        response = await asyncio.wait_for(call, TIMEOUT)
        body = response["Body"]
        try:
            part, version = response.get("ContentRange", ""), response.get("ETag", "")
            if part != f"bytes {begin}-{end - 1}/{self.size}":
                where = f"bytes {begin} to {end - 1} of {self.size}"
                raise FileError(f"{self._path}: the store answers otherwise than asked for {where}: with {part!r:.80}")
            if self.version and version != self.version:
                raise FileError(f"{self._path} was replaced by another while it was read", hint="try again")
            begun, before = time.monotonic(), len(got)
            while len(got) < wanted:
                chunk = await asyncio.wait_for(body.read(min(PIECE, wanted - len(got))), TIMEOUT)
                if not chunk:
                    return
                got += chunk
                if time.monotonic() - begun > TIMEOUT:
                    if len(got) - before < MIN_BYTES:
                        raise TransientError(f"less than {MIN_BYTES} bytes in {TIMEOUT:g} s", 0.0, SLOW_TRY)
                    begun, before = time.monotonic(), len(got)
        finally:
            body.close()


def stat(fs: Any, path: StorePath) -> dict[str, Any] | None:
    """Return S3's HEAD of an object, or None if there is none. Raises FileError."""
    bucket, key = split_path(path)

    async def request() -> dict[str, Any]:
        return await asyncio.wait_for(fs._call_s3("head_object", Bucket=bucket, Key=key), TIMEOUT)

    def once() -> dict[str, Any] | None:
        try:
            return ask(fs, path, request)
        except Absent:
            return None

    return retried(f"{path} cannot be reached", once, is_first=True)


def version_now(fs: Any, path: StorePath) -> tuple[int, str] | None:
    """Return size and entity tag of an object, or None if there is none. Raises FileError."""
    head = stat(fs, path)
    return None if head is None else (int(head["ContentLength"]), str(head.get("ETag", "")))


def part_bytes(total: int) -> int:
    """Return the bytes of a part, so that `total` bytes need at most MAX_PARTS parts."""
    needed = -(-total // MAX_PARTS)
    return max(MIN_PART, -(-needed // MIB) * MIB)


class Upload:
    """Upload an object in parts; it gets its name when all parts are there. See `store.Upload`.

    mark: identifies the content, as a text. replaced: entity tag of the object that may be replaced; None if there must
    be none. resume: keep the parts of an interrupted run for the next one, which finds them by a small object
    NAME.partial.journal. have: numbers of the parts that are there. connections: used at a time.
    """

    connections = 4

    def __init__(
        self, fs: Any, path: StorePath, total: int, mark: str, replaced: str | None, resume: bool = False
    ) -> None:
        self._fs, self.path, self._mark, self._replaced, self._resume = fs, path, mark, replaced, resume
        self._bucket, self._key = split_path(path)
        self._journal = f"{self._key}.partial.journal"
        self.part_bytes, self._total, self.stopped = part_bytes(total), total, Event()
        self._tags: dict[int, str] = {}
        self._id = self._earlier() if resume else None
        if self._id is None:
            self._id = self._begun()
            if resume:
                note = {MARK: 1, "mark": mark, "bytes": total, "part": self.part_bytes, "upload": self._id}
                self._call("put_object", Key=self._journal, Body=json.dumps(note).encode())
        self.have = frozenset(self._tags)

    def _begun(self) -> str:
        try:
            begun = self._call(
                "create_multipart_upload", ContentType="application/octet-stream", Metadata={MARK: self._mark}
            )
        except Absent:
            raise FileError(f"there is no bucket {self._bucket}, where {self.path} would be") from None
        except NotImplementedError as error:
            raise FileError(f"{self.path}: the store does not take uploads in parts: {error}") from None
        return str(begun["UploadId"])

    def _call(self, method: str, **arguments: Any) -> Any:
        async def request() -> Any:
            call = self._fs._call_s3(method, **({"Bucket": self._bucket, "Key": self._key} | arguments))
            answer = await asyncio.wait_for(call, 10 * TIMEOUT)
            if method == "get_object":
                answer["Content"] = await answer["Body"].read(1 << 16)
            return answer

        hint = CUT_OFF if self._resume else "check the connection; a run that is begun with `resume` can be taken up"
        what = f"{self.path} cannot be written"
        return retried(what, lambda: ask(self._fs, self.path, request), self.stopped, hint=hint)

    def _earlier(self) -> str | None:
        """Return the ID of the upload that an earlier run of the same work began, and note its parts; else None."""
        try:
            note = json.loads(self._call("get_object", Key=self._journal)["Content"])
        except Absent:
            return None
        except ValueError:
            note = None
        if not isinstance(note, dict) or MARK not in note or not isinstance(note.get("upload"), str):
            where = f"{self.path}.partial.journal is in the way: no run of ours left it"
            raise FileError(where, hint="move it, or name another output")
        if note.get("mark") != self._mark or note.get("bytes") != self._total or note.get("part") != self.part_bytes:
            raise FileError(
                f"{self.path} was begun from other sources, with another recipe, other options or another matrix",
                hint=f"run it as it was begun, or delete {self.path.name}.partial.journal to start anew",
            )
        upload, after = note["upload"], 0
        try:
            while True:
                page = self._call("list_parts", UploadId=upload, PartNumberMarker=after)
                for part in page.get("Parts", ()):
                    if part["Size"] == self._length(part["PartNumber"] - 1):
                        self._tags[part["PartNumber"] - 1] = part["ETag"]
                if not page.get("IsTruncated"):
                    return str(upload)
                after = int(page["NextPartNumberMarker"])
        except Absent:  # a store forgets uploads after a while
            return None

    def _length(self, number: int) -> int:
        return max(0, min(self.part_bytes, self._total - number * self.part_bytes))

    def put(self, number: int, data: memoryview) -> None:
        """Store part `number`, from 0. Raises FileError."""
        arguments = {"UploadId": self._id, "PartNumber": number + 1, "Body": bytes(data)}
        try:
            answer = self._call("upload_part", **arguments)
        except Absent:
            problem = f"{self.path}: the upload is gone: another run ended it"
            raise FileError(problem, hint="run it again") from None
        self._tags[number] = answer["ETag"]

    def forget(self) -> None:
        """Send all parts again."""
        self._tags.clear()

    def copy(self, number: int, source: StorePath, version: str, begin: int, end: int) -> None:
        """Let the store copy bytes begin … end of an object as part `number`.

        version: entity tag that the object must still have. Raises FileError; NotImplementedError if the store cannot
        copy ranges.
        """
        bucket, key = split_path(source)
        arguments = {
            "UploadId": self._id,
            "PartNumber": number + 1,
            "CopySource": {"Bucket": bucket, "Key": key},
            "CopySourceRange": f"bytes={begin}-{end - 1}",
            "CopySourceIfMatch": version,
        }
        try:
            answer = self._call("upload_part_copy", **arguments)
        except Replaced:
            problem = f"{source} was replaced by another while it was copied"
        except Absent as error:
            is_upload = "Upload" in str(error)
            problem = f"{self.path}: the upload is gone: another run ended it" if is_upload else f"{source} is gone"
        else:
            self._tags[number] = answer["CopyPartResult"]["ETag"]
            return
        raise FileError(problem, hint="run it again")

    def commit(self) -> None:
        """Give the object its name. Raises FileError if another program wrote that name."""
        parts = [{"PartNumber": number + 1, "ETag": tag} for number, tag in sorted(self._tags.items())]
        arguments = {"UploadId": self._id, "MultipartUpload": {"Parts": parts}}
        condition = {"IfNoneMatch": "*"} if self._replaced is None else {"IfMatch": self._replaced}
        try:
            self._complete(arguments, condition)
        except Replaced:
            if not self._is_there():
                raise self._lost() from None
        except Absent:  # the answer may have been lost, not the request
            if not self._is_there():
                raise self._lost() from None
        if not self._is_there():
            raise FileError(f"{self.path} is not what was uploaded: another program replaced it", hint="run it again")
        if self._resume:
            self._call("delete_object", Key=self._journal)

    def _complete(self, arguments: dict[str, Any], condition: dict[str, Any]) -> None:
        try:
            self._call("complete_multipart_upload", **arguments, **condition)
        except NotImplementedError:  # a store without conditions: check before
            head = stat(self._fs, self.path)
            if (head.get("ETag") if head else None) != self._replaced:
                raise Replaced from None
            self._call("complete_multipart_upload", **arguments)

    def _is_there(self) -> bool:
        head = stat(self._fs, self.path)
        return bool(head and head["ContentLength"] == self._total and head["Metadata"].get(MARK) == self._mark)

    def _lost(self) -> FileError:
        return lost_race(self.path, self._replaced is not None)

    def abandon(self, keep: bool) -> None:
        """End the upload; keep: leave its parts for a resumed run, if `resume`."""
        if keep and self._resume:
            return
        self.stopped.set()  # one try is enough: the bucket's lifecycle rule removes the rest
        try:
            self._call("abort_multipart_upload", UploadId=self._id)
            if self._resume:
                self._call("delete_object", Key=self._journal)
        except (Absent, Replaced, FileError):
            pass

    def make_way(self) -> None:
        """Remove the object that this one replaces, so that nobody opens the other shards of its set meanwhile.

        Raises FileError if another program replaced it.
        """
        if self._replaced is not None:
            head = stat(self._fs, self.path)
            if head is not None and head.get("ETag") != self._replaced:
                raise self._lost()
            with contextlib.suppress(Absent):
                self._call("delete_object")
            self._replaced = None

    def withdraw(self) -> None:
        """Remove the object again, unless it replaced one: other objects of its set did not get their names."""
        if self._replaced is None and not self._resume:
            with contextlib.suppress(Absent, FileError):
                self._call("delete_object")


def remove(fs: Any, path: StorePath) -> None:
    """Remove an object, if there is one. Raises FileError."""
    bucket, key = split_path(path)

    async def request() -> None:
        await asyncio.wait_for(fs._call_s3("delete_object", Bucket=bucket, Key=key), TIMEOUT)

    with contextlib.suppress(Absent):
        retried(f"{path} cannot be removed", lambda: ask(fs, path, request))


def listed(fs: Any, path: StorePath) -> list[tuple[str, int | None]]:
    """List a folder: (name, bytes), or (name, None) for a folder. Raises FileError."""
    bucket, key = split_path(path)
    prefix = f"{key}/" if key else ""
    entries: list[tuple[str, int | None]] = []
    token: dict[str, str] = {}

    async def request() -> Any:
        call = fs._call_s3("list_objects_v2", Bucket=bucket, Prefix=prefix, Delimiter="/", **token)
        return await asyncio.wait_for(call, TIMEOUT)

    while True:
        try:
            page = retried(f"{path} cannot be listed", lambda: ask(fs, path, request))
        except Absent:
            raise FileError(f"there is no bucket {bucket}, where {path} would be") from None
        entries += [(each["Prefix"][len(prefix) : -1], None) for each in page.get("CommonPrefixes", ())]
        entries += [(each["Key"][len(prefix) :], int(each["Size"])) for each in page.get("Contents", ())]
        if not page.get("IsTruncated"):
            return [each for each in entries if each[0]]
        token = {"ContinuationToken": page["NextContinuationToken"]}
