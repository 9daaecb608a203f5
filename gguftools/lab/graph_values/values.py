"""Compute the values of each node of a model's graph for a text; summarize, save and load them."""

import json
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from quants.arguments import PathLike, as_count, wrong
from quants.errors import FileError, OptionError

from ...io.atomic import NOTHING, InputFiles, atomic_output, check_target, output_path
from ...models.contents import readable_tensors
from ...models.generation import prompt_tokens
from ...models.model import Model, opened

if TYPE_CHECKING:
    from runtime.graph.builder import Node

Array = NDArray[Any]
Prompt = str | Sequence[int]
Progress = Callable[[int, int, str], None]

ABOUT = "about.json"  # of a file of values: its model, tokens and precision
SUFFIX = ".npz"
SHOWN = 3  # first and last values of a row
MAX_ABOUT = 64 << 20


@dataclass(frozen=True)
class NodeValues:
    """Values by node, in the order of computation: (tokens, …) each.

    file: of the model; tokens: the text's ids; precision: of products, see `runtime.products.precision`.
    """

    file: str
    architecture: str
    tokens: tuple[int, ...]
    precision: str
    values: Mapping[str, Array]

    def as_dict(self) -> dict[str, Any]:
        """Return summaries as plain data; the values themselves are in `values`."""
        nodes = [{"name": name} | summary(array) for name, array in self.values.items()]
        about = {"file": self.file, "architecture": self.architecture, "tokens": list(self.tokens)}
        return about | {"precision": self.precision, "nodes": nodes}

    def save(self, path: PathLike, *, overwrite: bool = False, reads: InputFiles = NOTHING) -> Path:
        """Write all values to a .npz file. Raises FileError, and OptionError for another suffix."""
        target = check_output(path, overwrite, reads)
        about = {"file": self.file, "architecture": self.architecture, "tokens": self.tokens}
        with atomic_output(target, overwrite=overwrite, reads=reads) as file, zipfile.ZipFile(file, "w") as archive:
            archive.writestr(ABOUT, json.dumps(about | {"precision": self.precision, "nodes": list(self.values)}))
            for name, array in self.values.items():
                part = BytesIO()
                npy.write_array(part, np.ascontiguousarray(array), allow_pickle=False)
                archive.writestr(f"{name}.npy", part.getbuffer())
        return target


def check_output(path: PathLike, overwrite: bool = False, reads: InputFiles = NOTHING) -> Path:
    """Return the path to write values to. Raises OptionError for another suffix, and as `check_target` does."""
    target = output_path(path)
    if target.suffix != SUFFIX:
        raise OptionError(f"{target} is no {SUFFIX} file", "name the output so")
    check_target(target, reads, overwrite)
    return target


def node_values(
    source: PathLike | Model,
    prompt: Prompt,
    *,
    precision: str = "float32",
    threads: int | None = None,
    progress: Progress | None = None,
) -> NodeValues:
    """Run a text through a model, and return the value of each node of its graph.

    source: a GGUF file, a Hugging Face folder, or a Model. prompt: a text, or ids of tokens. precision: of products, as
    in `perplexity`. threads: None for all processors. progress(nodes done, of how many, node).
    Raises as `gguftools.graph` does, OptionError for no tokens or an unknown precision,
    and ModelError for ids outside the vocabulary or values that are not finite.
    """
    from runtime.model import RunningModel
    from runtime.node_values import observe_values, whole_graph
    from runtime.products.precision import precision_named

    model, named = opened(source), precision_named(precision)
    tokens = tokens_of(model, prompt)
    values: dict[str, Array] = {}
    running = RunningModel(model.metadata, readable_tensors(model), threads=threads, precision=named)
    total = len(whole_graph(running).nodes)

    def keep(node: "Node", array: Array) -> None:
        values[node.name] = array
        if progress is not None:
            progress(min(len(values), total), total, node.name)

    if progress is not None:
        progress(0, total, "")
    observe_values(running, tokens, keep)
    return NodeValues(str(model.path), model.architecture, tokens, named, values)


def tokens_of(model: Model, prompt: Prompt) -> tuple[int, ...]:
    """Return the ids of a text, or the given ids. Raises OptionError for none."""
    if isinstance(prompt, str):
        tokens = tuple(prompt_tokens(model.tokenizer, model.metadata, prompt))
    elif isinstance(prompt, Iterable):
        tokens = tuple(as_count(token, "a token of prompt", 0) for token in prompt)
    else:
        raise wrong("prompt", prompt, "a text, or a list of token ids,")
    if not tokens:
        raise OptionError("there are no tokens to run", "give a `prompt`: a text, or ids of tokens")
    return tokens


def is_dump(path: Path) -> bool:
    return path.suffix == SUFFIX and path.is_file()


def read_dump(path: Path) -> NodeValues:
    """Load values that `NodeValues.save` wrote. Raises FileError for another file."""
    try:
        with zipfile.ZipFile(path) as archive:
            if archive.getinfo(ABOUT).file_size > MAX_ABOUT:
                raise ValueError("its description is too long")
            about = json.loads(archive.read(ABOUT))
            values: dict[str, Array] = {}
            for name in about["nodes"]:
                with archive.open(f"{name}.npy") as part:
                    values[name] = npy.read_array(part, allow_pickle=False)
            tokens = tuple(int(token) for token in about["tokens"])
            return NodeValues(str(about["file"]), str(about["architecture"]), tokens, str(about["precision"]), values)
    except (OSError, EOFError, zipfile.BadZipFile, ValueError, KeyError, TypeError, NotImplementedError) as error:
        raise FileError(f"{path} holds no values of nodes: {error}", "`gguftools graph --save` writes them") from error


def summary(array: Array) -> dict[str, Any]:
    """Return shape, first and last values of the first and the last row, and the sum of all."""
    rows = array.reshape(len(array), -1)
    total = float(rows.sum(dtype=np.float64))
    return {"shape": list(array.shape), "first": ends(rows[0]), "last": ends(rows[-1]), "sum": total}


def ends(row: Array) -> list[float]:
    """Return the first and last values of a row; all if they are few."""
    few = row if len(row) <= 2 * SHOWN else np.concatenate((row[:SHOWN], row[-SHOWN:]))
    return [float(value) for value in few]
