"""Plan the memory of a graph's tensors as ggml's graph allocator does (ggml-alloc.c), and return its size.

Each tensor gets memory when it is computed, in the place of a source that nobody needs any more if its operation can
work there, otherwise in the smallest free block that is large enough, otherwise after the last block. Its memory is
free again when all that read it are computed. The size of a buffer is the end of the last byte that was ever in use.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from .nodes import IN_PLACE, Node

ENDLESS = 1 << 62


@dataclass
class Buffer:
    """A buffer that grows: its free blocks (offset, bytes) in order of offsets, the last one endless."""

    alignment: int
    blocks: list[list[int]] = field(default_factory=lambda: [[0, ENDLESS]])
    size: int = 0

    def padded(self, count: int) -> int:
        """Return a size rounded up to the alignment."""
        return -(-count // self.alignment) * self.alignment

    def take(self, count: int) -> int:
        """Return the offset of a block of so many bytes."""
        count = self.padded(count)
        best, smallest = len(self.blocks) - 1, ENDLESS
        for i, (_, free) in enumerate(self.blocks[:-1]):
            if count <= free <= smallest:
                best, smallest = i, free
        block = self.blocks[best]
        offset = block[0]
        block[0] += count
        block[1] -= count
        if not block[1]:
            del self.blocks[best]
        self.size = max(self.size, offset + count)
        return offset

    def release(self, offset: int, count: int) -> None:
        """Free a block; neighbours that are free become one."""
        count = self.padded(count)
        place = next((i for i, block in enumerate(self.blocks) if block[0] > offset), len(self.blocks))
        before = self.blocks[place - 1] if place else None
        after = self.blocks[place] if place < len(self.blocks) else None
        if before is not None and sum(before) == offset:
            before[1] += count
            if after is not None and sum(before) == after[0]:
                before[1] += after[1]
                del self.blocks[place]
        elif after is not None and offset + count == after[0]:
            after[0] = offset
            after[1] += count
        else:
            self.blocks.insert(place, [offset, count])


@dataclass(slots=True)
class Use:
    """How a tensor is used: how many read it and view it, and where it is."""

    readers: int = 0
    views: int = 0
    place: int = 0
    offset: int = 0
    allocated: bool = False


class Allocator:
    """Plans the buffers of one graph. alignments: of the buffer of each device."""

    def __init__(self, alignments: Sequence[int]) -> None:
        self.buffers = [Buffer(alignment) for alignment in alignments]
        self.uses: dict[int, Use] = {}

    def plan(self, leaves: Sequence[Node], nodes: Sequence[Node]) -> list[int]:
        """Return the bytes of each buffer."""
        for node in leaves:
            self._allocate(node)
        for node in nodes:
            if node.view_of is not None and node.operation != "none":
                self._use(node.view_of).views += 1
            if node.input:
                self._allocate(node)
            for source in node.sources:
                self._use(source).readers += 1
                if source.input:
                    self._allocate(source, node.place)
        for node in nodes:
            for source in node.sources:
                self._allocate(source, node.place)
            self._allocate(node)
            for source in node.sources:
                self._leave(source)
        return [buffer.size for buffer in self.buffers]

    def _use(self, node: Node) -> Use:
        use = self.uses.get(id(node))
        if use is None:
            use = self.uses[id(node)] = Use()
        return use

    def _allocate(self, node: Node, place: int | None = None) -> None:
        use = self._use(node)
        if node.stored or use.allocated or node.view_of is not None:
            return
        use.allocated = True
        use.place = max(0, node.place if place is None or node.place >= 0 else place)
        if node.operation in IN_PLACE and self._in_place(node, use):
            return
        use.offset = self.buffers[use.place].take(node.nbytes + node.scratch)

    def _in_place(self, node: Node, use: Use) -> bool:
        """Give a tensor the memory of a source that only it reads."""
        for source in node.sources:
            other = self._use(source)
            if (
                other.allocated
                and not source.output
                and other.readers == 1
                and not other.views
                and (source.type, source.shape, source.strides) == (node.type, node.shape, node.strides)
            ):
                use.place, use.offset = other.place, other.offset
                other.allocated = False
                return True
        return False

    def _leave(self, source: Node) -> None:
        """Count a reader that is done, and free what nobody reads any more."""
        use = self._use(source)
        use.readers -= 1
        if use.readers or use.views:
            return
        if source.view_of is not None:
            viewed = self._use(source.view_of)
            viewed.views -= 1
            if not viewed.views and not viewed.readers and viewed.allocated:
                self._free(source.view_of, viewed)
        elif use.allocated:
            self._free(source, use)

    def _free(self, node: Node, use: Use) -> None:
        if node.output:
            return
        self.buffers[use.place].release(use.offset, node.nbytes + node.scratch)
        use.allocated = False
