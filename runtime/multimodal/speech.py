"""Predict a frame's other audio codes with Qwen3-TTS's code predictor, from the talker's state and its first code.

The projected state, and then each code's embedding are read like a text by a few layers (Qwen3's); each code has a head
of its own. Source: the model's published code; llama.cpp b11434, `tools/mtmd/models/qwen3tts-gen.cpp`.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from quants import Tensor
from quants.errors import ModelError, OptionError

from .. import ops
from ..arrays import Floats, Ids
from ..mixers.attention import attend
from ..products.matmul import gather, matmul_experts
from ..rope import apply_rope, rope_table
from .layers import Weights, encoder_key

PROJECTOR, ROPE_BASE = "qwen3tts_gen", 1_000_000.0  # missing in files
AT, EMBEDDING, HEAD, FIRST = "a.gen.code.", "a.gen.code.embd.weight", "a.gen.code.head.weight", "out_embd.weight"
Choose = Callable[[Floats], int]  # a code by its logits, float32 (codes,)
Seen = list[tuple[Floats, Floats]]  # each layer's keys and values so far


def likeliest(logits: Floats) -> int:
    return int(logits.argmax())


class CodePredictor:
    """The predictor of a frame's codes after the first one.

    books: number of codebooks; size: codes of each; width: of the talker's states.
    """

    def __init__(self, metadata: Mapping[str, Any], tensors: Mapping[str, Tensor], threads: int = 1) -> None:
        """Load the predictor. Raises ModelError for a file without it, or one whose tensors do not fit each other."""
        if metadata.get("clip.gen.audio.projector_type") != PROJECTOR:
            raise ModelError("the file has nothing that gives codes of speech", "Qwen3-TTS's mmproj file has it")
        key, self.weights = partial(encoder_key, metadata), Weights(tensors, threads)
        self.heads, self.kv_heads = (int(key(f"gen.audio.attention.head_count{each}")) for each in ("", "_kv"))
        self.layers, self.eps = int(key("gen.audio.block_count")), key("gen.audio.attention.layer_norm_epsilon")
        shapes = [self.weights.need(name).shape for name in (EMBEDDING, HEAD, f"{AT}{FIRST}")]
        fits = [len(shape) for shape in shapes] == [3, 3, 2] and shapes[0][:2] == shapes[1][:2]
        if not fits or shapes[0][2] != shapes[2][1]:
            raise ModelError(f"the codebooks have shapes {', '.join(str(list(shape)) for shape in shapes)}")
        (self.books, self.size, self.width), self.firsts = shapes[0], shapes[2][0]

    def logits(self, state: ArrayLike, codes: Sequence[int]) -> Floats:
        """Return logits of the code after each of these, which are consecutive in a frame: float32 (codes, size).

        state: the talker's, float32 (width,), which gave the first code. Raises OptionError for other codes.
        """
        rows = self._read(state, codes, range(len(codes)))
        outputs = self._run(np.concatenate([self._state(state), rows]), [])[1:]
        return np.concatenate([self._head(outputs[i : i + 1], i) for i in range(len(codes))])

    def frame(self, state: ArrayLike, first: int, choose: Choose = likeliest) -> Ids:
        """Return all codes of a frame, int64 (1 + books,), generated one by one. choose: selects a code by its
        logits.
        """
        seen: Seen = []
        self._run(self._state(state), seen)
        codes = [int(first)]
        for book in range(self.books):
            x = self._run(self._read(state, codes[-1:], [book]), seen)
            codes.append(choose(self._head(x, book)[0]))
        return np.array(codes, np.int64)

    def embedding(self, codes: Sequence[int]) -> Floats:
        """Return the talker's next input for a frame, to be added to the text's: float32 (width,)."""
        rows = [self._embedded(code, book) for book, code in enumerate(self._checked(codes, range(len(codes))))]
        total: Floats = np.sum(rows, axis=0, dtype=np.float32)
        return total

    def _checked(self, codes: Sequence[int], books: Sequence[int]) -> Sequence[int]:
        if not 0 < len(codes) <= 1 + self.books:
            raise OptionError(f"{len(codes)} codes; a frame has {1 + self.books}")
        for code, book in zip(codes, books, strict=True):
            if not 0 <= code < (entries := self.size if book else self.firsts):
                raise OptionError(f"code {code} of codebook {book}, which has {entries}")
        return codes

    def _embedded(self, code: int, book: int) -> Floats:
        table = self.weights.need(EMBEDDING if book else f"{AT}{FIRST}")
        row: Floats = gather(table, np.array([(book - 1) * self.size + code if book else code]))[0]
        return row

    def _read(self, state: ArrayLike, codes: Sequence[int], books: Sequence[int]) -> Floats:
        """Return the layers' input from codes, each of a codebook."""
        rows = [self._embedded(*each) for each in zip(self._checked(codes, books), books, strict=True)]
        return self._projected(np.stack(rows))

    def _state(self, state: ArrayLike) -> Floats:
        row = np.asarray(state, np.float32).reshape(1, -1)
        if row.shape[1] != self.width:
            raise OptionError(f"a state of {row.shape[1]} values; the talker's have {self.width}")
        return self._projected(row)

    def _projected(self, x: Floats) -> Floats:
        name = f"{AT}proj_in"
        return self.weights.project(name, x) if f"{name}.weight" in self.weights.tensors else x

    def _head(self, x: Floats, book: int) -> Floats:
        normed = self.weights.norm(f"{AT}output_norm", x, self.eps, "rms")
        return matmul_experts(normed, self.weights.need(HEAD), book, threads=self.weights.threads)

    def _run(self, x: Floats, seen: Seen) -> Floats:
        """Return the layers' output for x (n, width), which follows `seen`; its keys and values are added there."""
        for i in range(self.layers):
            at, before = f"{AT}blk.{i}.", seen[i] if i < len(seen) else None
            normed = self.weights.norm(f"{at}ln1", x, self.eps, "rms")
            q, k, v = self._looks(at, normed, len(before[0]) if before else 0)
            if before:
                k, v = np.concatenate([before[0], k]), np.concatenate([before[1], v])
            seen[i : i + 1] = [(k, v)]
            positions = np.arange(len(k) - len(q), len(k))
            mixed = attend(q, k, v, positions, q.shape[2] ** -0.5, threads=self.weights.threads)
            x = x + self.weights.project(f"{at}attn_out", mixed)
            inner = self.weights.norm(f"{at}ln2", x, self.eps, "rms")
            gate = ops.activated("silu", self.weights.project(f"{at}ffn_gate", inner), self.weights.threads)
            x = x + self.weights.project(f"{at}ffn_down", gate * self.weights.project(f"{at}ffn_up", inner))
        return x

    def _looks(self, at: str, x: Floats, before: int) -> tuple[Floats, Floats, Floats]:
        """Return queries, keys and values by head, rotated by their positions."""
        counts = (self.heads, self.kv_heads, self.kv_heads)
        q, k, v = (
            np.ascontiguousarray(self.weights.project(f"{at}attn_{name}", x).reshape(len(x), count, -1))
            for name, count in zip("qkv", counts, strict=True)
        )
        cos, sin = rope_table(q.shape[2], ROPE_BASE, None, None, np.arange(before, before + len(x)))
        q, k = (
            apply_rope(self.weights.norm(f"{at}attn_{name}_norm", part, self.eps, "rms"), cos, sin, "halves")
            for name, part in (("q", q), ("k", k))
        )
        return q, k, v
