"""Quantize a model: several recipes from one pass over a GGUF file, a split set or a Hugging Face folder."""

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from typing import Any

from quants.arguments import PathLike, as_count, as_mapping, as_texts
from quants.errors import OptionError

from ..calibration.outputs import with_feedback
from ..calibration.texts import Calibration, as_calibration
from ..model import Model, opened, write_quantized
from ..quantization.imatrix import ImportanceMatrix
from ..quantization.outputs import Run, output_paths
from ..quantization.planning import Splitting, pairs
from ..quantization.recipes import Options, recipe_named
from ..writing.pipeline import DEFAULT_MEMORY
from ..writing.report import QuantizeReport
from ..writing.row_blocks import Progress


def quantize(
    source: PathLike | Model, recipes: str | Sequence[str], output: PathLike | None = None, *,
    imatrix: PathLike | ImportanceMatrix | None = None, include_weights: Sequence[str] = (),
    exclude_weights: Sequence[str] = (), allow_missing_experts: bool = False,
    gptq: PathLike | Sequence[PathLike] | Calibration | None = None,
    rules: Mapping[str, str] | Iterable[tuple[str, str]] = (), options: Options | None = None,
    prune_layers: Sequence[int] = (), override: Mapping[str, Any] | None = None, new: bool = False,
    keep_split: bool = False, max_size: int | None = None, max_tensors: int | None = None, reserve: int = 0,
    allow_requantize: bool = False, no_fallback: bool = False, check_tensors: bool = False,
    dry_run: bool = False, resume: bool = False, statistics: bool = False,
    threads: int | None = None, memory: int = DEFAULT_MEMORY, progress: Progress | None = None,
    executor: Executor | None = None, overwrite: bool = False, reads: Iterable[PathLike] = (),
) -> QuantizeReport:  # fmt: skip
    """Write `source` once for each recipe, reading it once.

    source: a GGUF file, a shard of a split set, a Hugging Face folder, hf://ORG/MODEL, or a Model.
    recipes: names, such as "Q4_K_M". output: a file (for one recipe) or a folder; default MODEL-RECIPE.gguf beside the
    source. imatrix: an importance matrix or its file. include_weights, exclude_weights: parts of names, whose entries
    of the matrix alone, or not, are used. allow_missing_experts: go on where the matrix never saw many experts.
    gptq: texts by which weights are encoded with error feedback (`calibration.feedback`): files, beside which the
    package's own are read, or a Calibration.
    rules: regular expression → format, such as {"attn_v": "Q8_0"}; the first that is found in a tensor's name decides.
    options: what else may be added to a recipe. prune_layers: layers to leave out; the rest is renumbered.
    override: metadata to set, plain data or Values; new: also keys that no program is known to read.
    keep_split: a shard for each of the source's. max_size, max_tensors: bytes of tensor data, tensors of a shard.
    reserve: bytes of slack in the header. allow_requantize: also encode again what is quantized. no_fallback: raise
    FormatError where a tensor cannot have its recipe's format. check_tensors: first look for NaN everywhere. dry_run:
    say what would be written. resume: go on from what an interrupted run left. statistics: measure errors. threads:
    default all processors. memory: bytes tasks may hold. progress(bytes read, of how many, tensor): called now and
    then. executor: runs the tasks instead of own threads. overwrite: replace outputs that exist. reads: files that
    options come from, which must not be an output.
    Raises OptionError, FormatError, FileError, before any work where they can be known then.
    """
    names = as_texts(recipes, "recipes")
    counts = (memory, "memory", 1), (reserve, "reserve", 0), (max_size, "max_size", 1), (max_tensors, "max_tensors", 1)
    for given, what, least in counts:
        as_count(least if given is None else given, what, least)
    chosen = [recipe_named(name) for name in names]
    if len(set(chosen)) < len(chosen):
        raise OptionError(f"{' '.join(names)} is one recipe twice", f"they are {', '.join(r.name for r in chosen)}")
    if not chosen:
        raise OptionError("no recipe is named", "`gguftools quantize --list-recipes` shows them")
    model = opened(source)
    options = replace(options or Options(), rules=(*pairs(rules), *(options.rules if options else ())))
    if resume and not model.is_as_opened:
        problem = f"what {model.path} was made of is not recorded, so that nothing tells whether a run can be taken up"
        raise OptionError(problem, "leave out resume, or save the model and quantize that file")
    if options != Options() and all(recipe.default is None for recipe in chosen):
        kept = " and ".join(recipe.name for recipe in chosen)
        raise OptionError(f"{kept} keeps every value as it is; options that choose formats have nothing to do")
    paths = output_paths(model.path, chosen, output)
    run = Run(threads, memory, progress, executor, statistics, resume, overwrite, model.origin.reads.also(reads))
    return write_quantized(
        model, chosen, paths, run, imatrix, include_weights, exclude_weights, prune_layers, new, check_tensors,
        options=options, overrides=as_mapping(override, "override"),
        splitting=Splitting(keep_split, max_size, max_tensors), reserve=reserve, allow_requantize=allow_requantize,
        allow_missing_experts=allow_missing_experts, no_fallback=no_fallback, dry_run=dry_run,
        encode=None if gptq is None else with_feedback(model, as_calibration(gptq), progress),
    )  # fmt: skip
