"""S3, by s3fs: ranges of one version of an object, and uploads in parts that can be taken up again.

Requests are s3fs's own calls, so credentials, regions and endpoints are found as it finds them. Beyond its files, these
say which version of an object is read (If-Match), give a name only where it is free (If-None-Match), and know which
parts of an upload are there already.

Why not by the files of s3fs, or by obstore:
- s3fs (2026.9) reads with If-Match, but compares no answer with the range that was asked for, and begins a range anew
  when its connection breaks. It completes an upload with If-None-Match, never with If-Match, so that it would replace
  what another program wrote meanwhile. It cannot take up an earlier upload, and copies whole objects alone.
- obstore (0.12) has conditions only for an object that is sent in one request. Numbers of parts and the upload are
  its own, so that nothing is taken up again, and it copies no ranges.
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
from .trying import CUT_OFF, LEAST_BYTES, PASSING, SLOW_TRY, Bytes, PassingError, gathered, tried

MARK = "gguftools"  # key of an object's metadata: what is to be in it
TIMEOUT = 60.0  # seconds in which a part of an answer comes
PIECE = 1 << 20
MOST_PARTS = 10_000
LEAST_PART = 16 << 20
MIB = 1 << 20

T = TypeVar("T")


class Replaced(Exception):  # noqa: N818  # a condition of a request does not hold; who asked says what that means
    """An object is not what a request said that it should be."""


class Absent(Exception):  # noqa: N818
    """There is no such object, bucket or upload."""


def split_path(path: StorePath) -> tuple[str, str]:
    """Bucket and key."""
    return path.parts[1], "/".join(path.parts[2:])


def ask(fs: Any, path: StorePath, request: Callable[[], Awaitable[T]]) -> T:
    """The answer to a request. Raises PassingError, Replaced, Absent, or FileError for what will not change."""
    from fsspec.asyn import sync

    try:
        return sync(fs.loop, request)  # type: ignore[no-any-return]
    except (FileError, PassingError):
        raise
    except Exception as error:  # of four libraries: what they raise is told apart by what the server answered
        told = _meaning(path, error)
    raise told  # here, so that a traceback does not show what libraries say


def _meaning(path: StorePath, error: Exception) -> Exception:
    response = next((r for e in (error, error.__cause__) if isinstance(r := getattr(e, "response", None), dict)), {})
    status = response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    code, said = str(response.get("Error", {}).get("Code", "")), first_line(error)
    names = {type(each).__name__ for each in (error, error.__cause__) if each is not None}
    if names & {"NoCredentialsError", "PartialCredentialsError", "ProfileNotFound", "TokenRetrievalError"}:
        hint = "set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY; FSSPEC_S3_ANON=true for public buckets"
        return FileError(f"{path} cannot be reached: {said}", hint)
    if status == 412 or code in ("PreconditionFailed", "ConditionalRequestConflict"):
        return Replaced(said)
    if status == 404 or code.startswith("NoSuch"):
        return Absent(code if code.startswith("NoSuch") else "")
    if status in (401, 403):
        return FileError(f"{path}: the store refuses with status {status}: {said}", "check the credentials and rights")
    if status in PASSING or (not status and isinstance(error, (OSError, asyncio.TimeoutError))) or not status:
        return PassingError(f"status {status}" if status else said)
    if status == 501 or code == "NotImplemented":
        return NotImplementedError(said)
    return FileError(f"{path}: the store answers with status {status}: {said}")


class S3Object:
    """An object as it is when this is made; see `store.open_object`."""

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
        """Bytes of it. Raises FileError, also where it was replaced by another."""

        def receive(position: int, got: bytearray) -> None:
            async def request() -> None:
                await self._receive(position, end, got)

            try:
                ask(self._fs, self._path, request)
            except (Replaced, Absent):
                found = "was replaced by another while it was read"
            else:
                return
            raise FileError(f"{self._path} {found}", hint="try again")

        return gathered(str(self._path), begin, end, receive)

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
                    if len(got) - before < LEAST_BYTES:
                        raise PassingError(f"less than {LEAST_BYTES} bytes in {TIMEOUT:g} s", 0.0, SLOW_TRY)
                    begun, before = time.monotonic(), len(got)
        finally:
            body.close()


def stat(fs: Any, path: StorePath) -> dict[str, Any] | None:
    """What S3 says of an object, None where there is none. Raises FileError."""
    bucket, key = split_path(path)

    async def request() -> dict[str, Any]:
        return await asyncio.wait_for(fs._call_s3("head_object", Bucket=bucket, Key=key), TIMEOUT)

    def once() -> dict[str, Any] | None:
        try:
            return ask(fs, path, request)
        except Absent:
            return None

    return tried(f"{path} cannot be reached", once, is_first=True)


def part_bytes(total: int) -> int:
    """Bytes of a part: with as many parts as S3 takes at most, an object has `total`."""
    needed = -(-total // MOST_PARTS)
    return max(LEAST_PART, -(-needed // MIB) * MIB)


class S3Upload:
    """An upload in parts; the object has its name when all are there.

    mark: what will be in it, as a text. replaced: entity tag of the object that it may take the place of, None where
    there must be none. resume: leave the parts of a run that ends early to the next, which finds them by a small object
    NAME.partial.journal; have: numbers of those that are there. connections: that are used at a time.
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
        return tried(what, lambda: ask(self._fs, self.path, request), self.stopped, hint=hint)

    def _earlier(self) -> str | None:
        """The upload that an earlier run of the same began, whose parts are then known."""
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
                found = self._call("list_parts", UploadId=upload, PartNumberMarker=after)
                for part in found.get("Parts", ()):
                    if part["Size"] == self._length(part["PartNumber"] - 1):
                        self._tags[part["PartNumber"] - 1] = part["ETag"]
                if not found.get("IsTruncated"):
                    return str(upload)
                after = int(found["NextPartNumberMarker"])
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
        """Send all parts anew."""
        self._tags.clear()

    def copy(self, number: int, source: StorePath, version: str, begin: int, end: int) -> None:
        """Let the store copy bytes begin … end of an object as part `number`.

        version: entity tag that the object must still have. Raises FileError, NotImplementedError where the store
        copies no ranges.
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
            found = f"{source} was replaced by another while it was copied"
        except Absent as error:
            is_upload = "Upload" in str(error)
            found = f"{self.path}: the upload is gone: another run ended it" if is_upload else f"{source} is gone"
        else:
            self._tags[number] = answer["CopyPartResult"]["ETag"]
            return
        raise FileError(found, hint="run it again")

    def commit(self) -> None:
        """Give the object its name. Raises FileError where another program was faster."""
        parts = [{"PartNumber": number + 1, "ETag": tag} for number, tag in sorted(self._tags.items())]
        arguments = {"UploadId": self._id, "MultipartUpload": {"Parts": parts}}
        condition = {"IfNoneMatch": "*"} if self._replaced is None else {"IfMatch": self._replaced}
        try:
            self._complete(arguments, condition)
        except Replaced:
            if not self._is_there():
                raise self._lost() from None
        except Absent:  # of an answer that got lost, the request was heard
            if not self._is_there():
                raise self._lost() from None
        if not self._is_there():
            raise FileError(f"{self.path} is not what was uploaded: another program replaced it", hint="run it again")
        if self._resume:
            self._call("delete_object", Key=self._journal)

    def _complete(self, arguments: dict[str, Any], condition: dict[str, Any]) -> None:
        try:
            self._call("complete_multipart_upload", **arguments, **condition)
        except NotImplementedError:  # a store without conditions: a look before is the best there is
            found = stat(self._fs, self.path)
            if (found.get("ETag") if found else None) != self._replaced:
                raise Replaced from None
            self._call("complete_multipart_upload", **arguments)

    def _is_there(self) -> bool:
        found = stat(self._fs, self.path)
        return bool(found and found["ContentLength"] == self._total and found["Metadata"].get(MARK) == self._mark)

    def _lost(self) -> FileError:
        if self._replaced is None:
            hint = "another program wrote it meanwhile; pass `overwrite` to replace it"
            return FileError(f"{self.path} already exists", hint)
        return FileError(f"{self.path} was replaced by another program meanwhile", hint="run it again")

    def abandon(self, keep: bool) -> None:
        """Let go of the parts; keep: leave them to another run, if that was wanted."""
        if keep and self._resume:
            return
        self.stopped.set()  # one try is enough: what is left then is ended by the bucket's own rule
        try:
            self._call("abort_multipart_upload", UploadId=self._id)
            if self._resume:
                self._call("delete_object", Key=self._journal)
        except (Absent, Replaced, FileError):
            pass

    def make_way(self) -> None:
        """Remove the object that this one replaces, so that nobody opens others of its set in the meantime.

        Raises FileError where another program replaced it.
        """
        if self._replaced is not None:
            found = stat(self._fs, self.path)
            if found is not None and found.get("ETag") != self._replaced:
                raise self._lost()
            with contextlib.suppress(Absent):
                self._call("delete_object")
            self._replaced = None

    def withdraw(self) -> None:
        """Remove the object again, if it replaced none: others that belong to it did not get their names."""
        if self._replaced is None and not self._resume:
            with contextlib.suppress(Absent, FileError):
                self._call("delete_object")


def remove(fs: Any, path: StorePath) -> None:
    """Remove an object, if it is there. Raises FileError."""
    bucket, key = split_path(path)

    async def request() -> None:
        await asyncio.wait_for(fs._call_s3("delete_object", Bucket=bucket, Key=key), TIMEOUT)

    with contextlib.suppress(Absent):
        tried(f"{path} cannot be removed", lambda: ask(fs, path, request))


def listed(fs: Any, path: StorePath) -> list[tuple[str, int | None]]:
    """Name and bytes (None: a folder) of what is in a folder. Raises FileError."""
    bucket, key = split_path(path)
    prefix = f"{key}/" if key else ""
    found: list[tuple[str, int | None]] = []
    token: dict[str, str] = {}

    async def request() -> Any:
        call = fs._call_s3("list_objects_v2", Bucket=bucket, Prefix=prefix, Delimiter="/", **token)
        return await asyncio.wait_for(call, TIMEOUT)

    while True:
        try:
            page = tried(f"{path} cannot be listed", lambda: ask(fs, path, request))
        except Absent:
            raise FileError(f"there is no bucket {bucket}, where {path} would be") from None
        found += [(each["Prefix"][len(prefix) : -1], None) for each in page.get("CommonPrefixes", ())]
        found += [(each["Key"][len(prefix) :], int(each["Size"])) for each in page.get("Contents", ())]
        if not page.get("IsTruncated"):
            return [each for each in found if each[0]]
        token = {"ContinuationToken": page["NextContinuationToken"]}
