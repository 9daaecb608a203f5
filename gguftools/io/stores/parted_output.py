"""Write an object in parts, from bytes that come in almost any order."""

import threading
from bisect import bisect_right
from collections.abc import Sequence
from concurrent.futures import Future

from quants.errors import FileError
from quants.threads import started_pool

from .store import Upload

WAITING = 64 << 20  # bytes of complete parts that wait, besides those that are being sent


class PartedOutput:
    """Collect bytes by position; send each part when it and all parts before it are complete.

    upload: where they go. total: bytes of the object. gaps: ascending (begin, end) of ranges that are zeros and that
    nobody writes. Writers wait when the connections are busy and WAITING bytes are complete, so memory is bounded as
    long as bytes come in about the order of their positions.
    """

    def __init__(self, upload: Upload, total: int, gaps: Sequence[tuple[int, int]]) -> None:
        self.upload, self._total, self._size = upload, total, upload.part_bytes
        self._gaps = [gap for gap in gaps if gap[0] < gap[1]]
        self._ends = [end for _, end in self._gaps]
        self._count = -(-total // self._size)
        self._parts: dict[int, bytearray] = {}
        self._missing: dict[int, int] = {}  # bytes that a part still lacks
        self._next = 0  # part to be sent
        self._lock, self._sending = threading.Lock(), threading.Lock()
        self._slots = threading.Semaphore(upload.connections + max(1, min(4, WAITING // self._size)))
        self._pool = started_pool(upload.connections)
        self._sent: list[Future[None]] = []
        self._error: BaseException | None = None

    def has(self, begin: int, end: int) -> bool:
        """Return True if bytes begin … end are in parts that an earlier run sent."""
        return all(number in self.upload.have for number in range(begin // self._size, -(-end // self._size)))

    def write(self, data: memoryview, offset: int) -> None:
        """Write bytes at `offset`, each byte once. Raises FileError after a failed upload."""
        if self._error is not None:
            raise self._error
        with self._lock:
            while data:
                number, at = divmod(offset, self._size)
                count = min(len(data), self._length(number) - at)
                if number not in self.upload.have:
                    self._part(number)[at : at + count] = data[:count]
                    self._missing[number] -= count
                data, offset = data[count:], offset + count
        self._send()

    def _part(self, number: int) -> bytearray:
        if number not in self._parts:
            length = self._length(number)
            self._parts[number], self._missing[number] = bytearray(length), length - self._zeros(number)
        return self._parts[number]

    def _length(self, number: int) -> int:
        return min(self._size, self._total - number * self._size)

    def _zeros(self, number: int) -> int:
        """Count the bytes of a part that lie in gaps."""
        begin = number * self._size
        end, count = begin + self._length(number), 0
        for gap in self._gaps[bisect_right(self._ends, begin) :]:
            if gap[0] >= end:
                break
            count += min(gap[1], end) - max(gap[0], begin)
        return count

    def _send(self) -> None:
        """Send complete parts, in order."""
        with self._sending:
            while (number := self._next) < self._count:
                data = None
                if number not in self.upload.have:
                    with self._lock:
                        if number not in self._parts and self._zeros(number) < self._length(number):
                            return
                        self._part(number)
                        if self._missing[number]:
                            return
                        data = self._parts.pop(number)
                        del self._missing[number]
                self._next += 1
                if data is not None:
                    self._slots.acquire()
                    self._sent.append(self._pool.submit(self._put, number, data))
                    self._sent = [future for future in self._sent if not future.done() or future.exception()]

    def _put(self, number: int, data: bytearray) -> None:
        try:
            if self._error is None:
                self.upload.put(number, memoryview(data))
        except BaseException as error:
            self._error = self._error or error
            raise
        finally:
            self._slots.release()

    def finish(self) -> None:
        """Wait until all parts are sent. Raises FileError if one could not be sent, or if bytes are missing."""
        self._send()
        for future in list(self._sent):
            future.result()
        if self._error is not None:
            raise self._error
        if self._next < self._count:
            begin = self._next * self._size
            raise FileError(f"{self.upload.path}: of the part from byte {begin} on, bytes were not written")

    def close(self) -> None:
        """Wait for the parts that are being sent, and send no more."""
        self.upload.stopped.set()
        self._error = self._error or FileError(f"writing {self.upload.path} was abandoned")
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._parts.clear()
