"""Read logs of llama.cpp's llama-eval-callback: some values of each intermediate result, and their sum."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from archs.bounded_files import Limit, read_bytes
from quants.errors import FileError

LOG = Limit("a log of llama-eval-callback", 4 << 30)
SHOWN = 3  # of the first and of the last numbers of each axis
RESOLUTION = 1e-4  # of a printed number: half a digit for its rounding, half for ours
HEAD = re.compile(r"^\w+:\s*(.+?) = \((\w+)\)\s*(\w+)\(.*\) = \{(\d+), (\d+), (\d+), (\d+)\}\s*$")
COUNT = re.compile(r"number of input tokens = (\d+)")
TOKEN = re.compile(r"(\d+)\s*$")
SUM = re.compile(r"sum = (\S+)")
# Our names → llama.cpp's names, the first in the log counts; with an operation: the result of that one.
CALLED: dict[str, tuple[tuple[str, str], ...]] = {
    "Qcur_rope": (("Qcur_rope", ""), ("Qcur-post-rope", ""), ("Qcur", "ROPE")),
    "Kcur_rope": (("Kcur_rope", ""), ("Kcur-post-rope", ""), ("Kcur", "ROPE")),
    **{f"{name}_clamped": ((name, "CLAMP"),) for name in ("Qcur", "Kcur", "Vcur")},
    "q_pe_rope": (("q_pe", "ROPE"),),
    "k_pe_rope": (("k_pe", "ROPE"),),
    "attn_kv_a_norm": (("kv_cmpr", "MUL"),),
    "wqkv": (("wqkv_b", ""), ("wqkv", "")),
    "ffn_up": (("ffn_up_b", ""), ("ffn_up", "")),
    "ffn_gate": (("ffn_gate_b", ""), ("ffn_gate", "")),
    "ffn_inp": (("ffn_inp", "ADD"), ("sa_out", "")),
    "q_nope_absorbed": (),  # stored in another order there
    "attn_q_a": (("q", "MUL_MAT"),),
    "attn_q_a_norm": (("q", "MUL"),),
    "ffn_up_shexp": (("ffn_up", ""),),
    "ffn_gate_shexp": (("ffn_gate", ""),),
    "ffn_swiglu_shexp": (("ffn_swiglu", ""),),
    "attn_norm": (("attn_norm", ""), ("model.layers.{}.operator_norm", "")),
    "shortconv_out": (("shortconv_out", ""), ("model.layers.{}.conv.out_proj", "")),
    "inp_norm": (("inp_norm", ""), ("inp_norm-0", "")),
    "attn_post_norm": (("attn_post_norm", ""), ("post_attn_norm", "")),
    "ffn_post_norm": (("ffn_post_norm", ""), ("post_mlp_norm", "")),
    "embd": (("embd", ""), ("model.embed_tokens", ""), ("inp_embd", "")),
    "result_norm": (("result_norm", ""), ("result_embd", "")),
}
FIRST = {"kv_cmpr", "q_pe", "k_pe"}  # names that later results reuse: take the first
BEFORE_ROTATION = {"Qcur", "Kcur", "Vcur"}  # and before they are clamped


@dataclass(frozen=True)
class Printed:
    """A printed result.

    sizes: in ggml's order (fastest first). places: positions of the printed values. sum: of all values.
    """

    operation: str
    sizes: tuple[int, ...]
    places: NDArray[np.int64]
    values: NDArray[np.float64]
    sum: float

    @property
    def count(self) -> int:
        return int(np.prod(self.sizes))


@dataclass
class EvalLog:
    """A log. tokens: ids of the text, if the log has them. results: by name, in order of the run."""

    tokens: tuple[int, ...] = ()
    results: dict[str, list[Printed]] = field(default_factory=dict)

    def find(self, name: str, layer: int | None) -> Printed | None:
        """Return llama.cpp's result for a node; None if the log has none of that name."""
        suffix = "" if layer is None else f"-{layer}"
        base = name.removesuffix(suffix) if suffix else name
        for there, operation in CALLED.get(base, ((base, ""),)):
            printed = self.results.get(f"{there}{suffix}", [])
            if operation:
                printed = [each for each in printed if each.operation == operation][:1]
            elif base in BEFORE_ROTATION:
                stop = next((i for i, each in enumerate(printed) if each.operation in ("ROPE", "CLAMP")), len(printed))
                printed = printed[:stop]
            if printed:
                return printed[0 if base in FIRST else -1]
        return None


def is_eval_log(path: Path) -> bool:
    """Return whether a file begins like such a log."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        start = file.read(1 << 16)
    return b"\0" not in start and any(HEAD.match(line) for line in start.decode("utf-8", "replace").splitlines())


def read_eval_log(path: Path) -> EvalLog:
    """Read a log, which may be cut off: incomplete results are left out. Raises FileError for another file."""
    try:
        lines = read_bytes(path, LOG).decode("utf-8", "replace").splitlines()
    except OSError as error:
        raise FileError(f"{path} cannot be read: {error.strerror or error}") from error
    log = EvalLog(_tokens(lines))
    for name, printed in _results(lines):
        log.results.setdefault(name, []).append(printed)
    if not log.results:
        hint = "`llama-eval-callback -m MODEL -p TEXT > FILE 2>&1` writes them"
        raise FileError(f"{path} has no values of nodes", hint)
    return log


def _tokens(lines: Sequence[str]) -> tuple[int, ...]:
    for i, line in enumerate(lines):
        if count := COUNT.search(line):
            ids = [TOKEN.search(each) for each in lines[i + 1 : i + 1 + int(count[1])]]
            return tuple(int(each[1]) for each in ids if each)
        if HEAD.match(line):
            break
    return ()


def _results(lines: Sequence[str]) -> Iterator[tuple[str, Printed]]:
    """Yield results by name; unnamed ones and views are left out."""
    name, operation, sizes = "", "", (0, 0, 0, 0)
    at, places, values = [-1, -1, -1], list[int](), list[float]()
    for line in lines:
        if match := HEAD.match(line):
            name, operation = match[1], match[3]
            sizes = (int(match[4]), int(match[5]), int(match[6]), int(match[7]))
            at, places, values = [-1, -1, -1], [], []
        elif name and (match := SUM.search(line)):
            if " (" not in name and _is_number(match[1]):
                yield name, Printed(operation, sizes, np.array(places, np.int64), np.array(values), float(match[1]))
            name = ""
        elif name:
            _read_line(line, sizes, at, places, values)


def _read_line(line: str, sizes: Sequence[int], at: list[int], places: list[int], values: list[float]) -> None:
    """Read a line of values or brackets. at: indices in the fourth, third and second axis."""
    text, depth = line.strip(), (len(line) - len(line.lstrip())) // 4
    if text == "[":
        if depth in (1, 2):
            at[depth - 1] += 1
            at[depth:] = [-1] * (3 - depth)
    elif text.startswith("..."):
        if depth in (2, 3):
            at[depth - 1] = sizes[4 - depth] - SHOWN - 1
    elif text.startswith("["):
        at[2] += 1
        before, _, after = text.strip("[], ").partition("...")
        start = ((at[0] * sizes[2] + at[1]) * sizes[1] + at[2]) * sizes[0]
        for first, part in ((0, before), (sizes[0] - SHOWN, after)):
            for i, word in enumerate(part.replace(",", " ").split() if part else ()):
                if _is_number(word):
                    places.append(start + first + i)
                    values.append(float(word))


def _is_number(word: str) -> bool:
    try:
        return bool(np.isfinite(float(word)))
    except ValueError:
        return False
