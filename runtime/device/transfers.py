"""Copies between the host and a device.

On GPUs with streams, copies run on a stream of their own while another one computes. Weights go through two pinned
buffers in turn: one is filled while the other is copied. Elsewhere the same copies run in their order.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from threading import Lock
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from quants import Tensor

from ..kernels.threads import parallel, spans

HOST = torch.device("cpu")
WITH_STREAMS = ("cuda", "xpu")  # modules of torch with streams, events and pinned memory
BUFFER = 1 << 26  # bytes of each of the two buffers
PIECE = 1 << 16  # weights that a thread decodes at a time
STORED_TYPES = {"F16": torch.float16, "BF16": torch.bfloat16}


class SideStream:
    """A device's stream for copies; nothing on devices without streams."""

    def __init__(self, device: torch.device) -> None:
        self._torch: Any = getattr(torch, device.type) if device.type in WITH_STREAMS else None
        self._device = device
        self._stream: Any = None if self._torch is None else self._torch.Stream(device)

    @property
    def is_there(self) -> bool:
        return self._stream is not None

    def active(self) -> AbstractContextManager[Any]:
        """Let copies in the block run on this stream."""
        return nullcontext() if self._stream is None else self._torch.stream(self._stream)

    def mark(self) -> Any:
        """Return an event after everything on this stream so far; None without streams."""
        return None if self._stream is None else self._stream.record_event()

    def mark_computing(self) -> Any:
        """Return an event after everything that computes so far; None without streams."""
        return None if self._stream is None else self._torch.current_stream(self._device).record_event()

    def wait_for_computing(self) -> None:
        """Let the following copies wait for everything that computes so far."""
        if self._stream is not None:
            self._stream.wait_stream(self._torch.current_stream(self._device))

    def hand_over(self, *copied: torch.Tensor, after: Any = None) -> None:
        """Let what computes from now on wait for the copies up to an event (None: all so far), and use these tensors
        of them.
        """
        if self._stream is None:
            return
        computing = self._torch.current_stream(self._device)
        computing.wait_event(self._stream.record_event() if after is None else after)
        for each in copied:
            each.record_stream(computing)

    def read(self, computed: torch.Tensor) -> None:
        """Keep the memory of a computed tensor until this stream has read it."""
        if self._stream is not None:
            computed.record_stream(self._stream)

    def finish(self) -> None:
        """Wait until all copies are done."""
        if self._stream is not None:
            self._stream.synchronize()


def wait(event: Any) -> None:
    """Wait on the host for an event, if there is one."""
    if event is not None:
        event.synchronize()


class WeightCopies:
    """Copies of weights to a device, decoded by the codecs of `quants` on the way; may be used by several threads.

    threads: that decode. staged: whether weights go through buffers; None for devices that are not the processor.
    """

    def __init__(self, device: torch.device, threads: int = 1, staged: bool | None = None) -> None:
        self.device, self.threads, self.side = device, threads, SideStream(device)
        self._staged = device.type != "cpu" if staged is None else staged
        self._buffers: list[torch.Tensor | None] = [None, None]
        self._copied: list[Any] = [None, None]  # events
        self._turn, self._lock = 0, Lock()
        self.from_any_thread = device.type != "mps"  # whose commands come from one thread

    def load(self, tensor: Tensor, rows: slice | None = None, as_float32: bool = False) -> torch.Tensor:
        """Return rows of a weight on the device, or the whole weight in its shape: float32, or F16 and BF16 as stored.

        What computes with it has to be told: see `SideStream.hand_over`.
        """
        start, stop = (0, tensor.rows) if rows is None else (rows.start, rows.stop)
        with self._lock, self.side.active():
            target = torch.empty((stop - start, tensor.width), dtype=type_of(tensor, as_float32), device=self.device)
            for first, last in spans(stop - start, self._rows_at_once(target)):
                with self._sent_to(target[first:last]) as buffer:
                    decode(tensor, start + first, buffer, self.threads)
        return target.reshape(tensor.shape) if rows is None else target

    def decoded(self, tensor: Tensor, rows: slice | None = None, as_float32: bool = False) -> torch.Tensor:
        """Return a weight in the host's memory, as `load` does on the device."""
        start, stop = (0, tensor.rows) if rows is None else (rows.start, rows.stop)
        target = torch.empty((stop - start, tensor.width), dtype=type_of(tensor, as_float32))
        decode(tensor, start, target, self.threads)
        return target.reshape(tensor.shape) if rows is None else target

    def send(self, values: torch.Tensor) -> torch.Tensor:
        """Return a weight that was decoded before on the device."""
        if not self._staged:
            return values
        with self._lock, self.side.active():
            target = torch.empty(values.shape, dtype=values.dtype, device=self.device)
            each, whole = target.reshape(-1, values.shape[-1]), values.reshape(-1, values.shape[-1])
            for first, last in spans(len(each), self._rows_at_once(each)):
                with self._sent_to(each[first:last]) as buffer:
                    buffer.copy_(whole[first:last])
        return target

    def _rows_at_once(self, target: torch.Tensor) -> int:
        if not self._staged:
            return max(1, len(target))
        row_bytes: int = target.element_size() * target.shape[1]
        return max(1, BUFFER // max(1, row_bytes))

    @contextmanager
    def _sent_to(self, target: torch.Tensor) -> Iterator[torch.Tensor]:
        """Give memory of the host to fill, which is then copied; the target itself where nothing has to be copied."""
        if not self._staged:
            yield target
            return
        turn, self._turn = self._turn, 1 - self._turn
        wait(self._copied[turn])
        raw = self._buffers[turn]
        if raw is None or raw.numel() < target.nbytes:
            size = max(BUFFER, target.nbytes)
            raw = self._buffers[turn] = torch.empty(size, dtype=torch.uint8, pin_memory=self.side.is_there)
        buffer = raw[: target.nbytes].view(target.dtype).reshape(target.shape)
        yield buffer
        target.copy_(buffer, non_blocking=self.side.is_there)
        self._copied[turn] = self.side.mark()


class StateCopies:
    """Copies of values between the host and a device while others are computed."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.side = device, SideStream(device)
        self._up: list[torch.Tensor] = []
        self._sent: Any = None  # the event after what went up

    def up(self, x: torch.Tensor) -> torch.Tensor:
        """Return x on the device; call `arrived` before it is used."""
        if x.device == self.device:
            return x
        with self.side.active():
            copied = x.to(self.device, non_blocking=self.side.is_there)
        self._up.append(copied)
        self._sent = self.side.mark()
        return copied

    def arrived(self) -> None:
        """Let what computes from now on use everything that went up."""
        self.side.hand_over(*self._up, after=self._sent)
        self._up.clear()

    def down(self, x: torch.Tensor) -> torch.Tensor:
        """Return x on the host; call `finish` before the host reads it."""
        if not self.side.is_there:
            return x.to(HOST)
        self.side.wait_for_computing()
        with self.side.active():
            copied = torch.empty(x.shape, dtype=x.dtype, pin_memory=True)
            copied.copy_(x, non_blocking=True)
        self.side.read(x)
        return copied

    def finish(self) -> None:
        """Wait until the host has everything that went down."""
        self.side.finish()


def type_of(tensor: Tensor, as_float32: bool = False) -> torch.dtype:
    """Return the type of a weight on a device."""
    return torch.float32 if as_float32 else STORED_TYPES.get(tensor.format.name, torch.float32)


def decode(tensor: Tensor, start: int, target: torch.Tensor, threads: int) -> None:
    """Write rows of a weight, from `start` on, to memory of the host (rows, width): float32, or F16 and BF16 as
    stored.
    """
    is_stored = target.dtype != torch.float32
    values: NDArray[Any] = (target.view(torch.int16) if is_stored else target).numpy()

    def fill(first: int, last: int) -> None:
        rows = slice(start + first, start + last)
        if is_stored:
            values[first:last] = np.ascontiguousarray(tensor.raw(rows.start, rows.stop)).view(np.int16)
        else:
            values[first:last] = tensor.float32(rows.start, rows.stop)

    parallel(fill, spans(len(values), max(1, PIECE // max(1, values.shape[1]))), threads)
