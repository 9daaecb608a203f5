"""Quantize a model: several recipes from one pass over a GGUF file, a split set or a Hugging Face folder."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from quants.arguments import PathLike, as_count, as_mapping, as_texts, thread_count
from quants.errors import OptionError

from ..calibration.outputs import with_feedback
from ..calibration.target import Found, Target, measured, recipe_for, sizing
from ..calibration.texts import Calibration, as_calibration
from ..files.atomic import atomic_output, check_space, check_target, published_together
from ..files.naming import refuse_store
from ..model import Model, opened, write_quantized
from ..provenance.parameters import Parameters, Texts, overridden_values
from ..provenance.recording import Described, Recording, described_as
from ..quantization.imatrix import ImportanceMatrix
from ..quantization.outputs import Run, output_paths
from ..quantization.planning import Splitting, pairs
from ..quantization.recipe_texts import recipe_or_file
from ..quantization.recipes import Options, Recipe
from ..writing.pipeline import DEFAULT_MEMORY
from ..writing.report import OutputReport, QuantizeReport, TensorReport
from ..writing.resume import ENCODED, PARTIAL, SEARCHED, left_behind, stored_bytes
from ..writing.row_blocks import Progress
from ..writing.work_plan import Terms

REMOTE_THREADS = 8  # most of the time they wait for the network


def quantize(
    source: PathLike | Model,
    recipes: str | Sequence[str] = (),
    output: PathLike | None = None,
    *,
    imatrix: PathLike | ImportanceMatrix | None = None,
    include_weights: Sequence[str] = (),
    exclude_weights: Sequence[str] = (),
    allow_missing_experts: bool = False,
    gptq: PathLike | Sequence[PathLike] | Calibration | None = None,
    target_size: int | None = None,
    target_bpw: float | None = None,
    calibrate: PathLike | Sequence[PathLike] | Calibration | None = None,
    rules: Mapping[str, str] | Iterable[tuple[str, str]] = (),
    options: Options | None = None,
    prune_layers: Sequence[int] = (),
    override: Mapping[str, Any] | None = None,
    new: bool = False,
    keep_split: bool = False,
    max_size: int | None = None,
    max_tensors: int | None = None,
    reserve: int = 0,
    allow_requantize: bool = False,
    no_fallback: bool = False,
    check_tensors: bool = False,
    dry_run: bool = False,
    resume: bool = False,
    statistics: bool = False,
    threads: int | None = None,
    memory: int = DEFAULT_MEMORY,
    progress: Progress | None = None,
    executor: Executor | None = None,
    terms: Terms | None = None,
    overwrite: bool = False,
    reads: Iterable[PathLike] = (),
    manifest: bool | Described = False,
) -> QuantizeReport:
    """Write `source` once for each recipe, reading it once.

    source: a GGUF file, a shard of a split set, a Hugging Face folder, hf://ORG/MODEL, or a Model.
    recipes: names, such as "Q4_K_M", or files with a recipe's text. output: a file (for one recipe) or a folder;
    default MODEL-RECIPE.gguf beside the source. imatrix: an importance matrix or its file.
    include_weights, exclude_weights: parts of names, whose entries of the matrix alone, or not, are used.
    allow_missing_experts: go on where the matrix never saw many experts.
    gptq: texts by which weights are encoded with error feedback (`calibration.feedback`): files, beside which the
    package's own are read, or a Calibration.
    target_size, target_bpw: bytes of the file, or bits per weight, instead of a recipe: one is searched for that moves
    the predictions least (`calibration.search`), and written as text beside the file, OUTPUT-recipe.txt. calibrate:
    texts to measure that on, as for gptq, whose texts are taken otherwise, or the package's own.
    rules: regular expression → format, such as {"attn_v": "Q8_0"}; the first that is found in a tensor's name decides.
    options: what else may be added to a recipe. prune_layers: layers to leave out; the rest is renumbered.
    override: metadata to set, plain data or Values; new: also keys that no program is known to read.
    keep_split: a shard for each of the source's. max_size, max_tensors: bytes of tensor data, tensors of a shard.
    reserve: bytes of slack in the header. allow_requantize: also encode again what is quantized. no_fallback: raise
    FormatError where a tensor cannot have its recipe's format. check_tensors: first look for NaN everywhere. dry_run:
    say what would be written. resume: go on from what an interrupted run left. statistics: measure errors. threads:
    default all processors. memory: bytes tasks may hold. progress(bytes read, of how many, tensor): called now and
    then. executor: runs the tasks instead of own threads, such as processes or a Dask cluster, with gptq those that
    encode rows. terms: say what the work would take on these (`writing.work_plan`), and write nothing. overwrite:
    replace outputs that exist. reads: files that options come from, which must not be an output. manifest: write
    OUTPUT.manifest.json, too: what decided its bytes, and their digests (`provenance.manifest`).
    Raises OptionError, FormatError, FileError, before any work where they can be known then.
    """
    names = as_texts(recipes, "recipes")
    dry_run = dry_run or terms is not None
    counts = (memory, "memory", 1), (reserve, "reserve", 0), (max_size, "max_size", 1), (max_tensors, "max_tensors", 1)
    for given, what, least in counts:
        as_count(least if given is None else given, what, least)
    target = _target(target_size, target_bpw, calibrate, bool(names), imatrix is not None, bool(prune_layers))
    from_files = [recipe_or_file(name) for name in names]
    chosen = [recipe for recipe, _ in from_files]
    reads = (*reads, *(path for _, path in from_files if path))
    if len(set(chosen)) < len(chosen):
        raise OptionError(f"{' '.join(names)} is one recipe twice", f"they are {', '.join(r.name for r in chosen)}")
    if not chosen and target is None:
        raise OptionError("no recipe is named", "`gguftools quantize --list-recipes` shows them")
    model = opened(source)
    described = described_as(source, manifest, dry_run)
    options = replace(options or Options(), rules=(*pairs(rules), *(options.rules if options else ())))
    if resume and not model.is_as_opened:
        problem = f"what {model.path} was made of is not recorded, so that nothing tells whether a run can be taken up"
        raise OptionError(problem, "leave out resume, or save the model and quantize that file")
    if target is None and options != Options() and all(recipe.default is None for recipe in chosen):
        kept = " and ".join(recipe.name for recipe in chosen)
        raise OptionError(f"{kept} keeps every value as it is; options that choose formats have nothing to do")
    if model.origin.remote and threads is None:
        threads = max(thread_count(None), REMOTE_THREADS)
    named = chosen if target is None else [Recipe(target.name, None, None, 0.0, "")]
    paths = output_paths(model.path, named, output)
    feedback = None if gptq is None else as_calibration(gptq)
    searched_on = None if calibrate is None else as_calibration(calibrate)
    reads = (*reads, *(text.path for each in (feedback, searched_on) if each for text in each.texts))
    reading = model.origin.reads.also(reads)
    run = Run(threads, memory, progress, executor, statistics, resume, overwrite, reading, terms=terms)
    write = partial(
        write_quantized,
        model,
        new=new,
        options=options,
        overrides=as_mapping(override, "override"),
        splitting=Splitting(keep_split, max_size, max_tensors),
        reserve=reserve,
        allow_requantize=allow_requantize,
        allow_missing_experts=allow_missing_experts,
        no_fallback=no_fallback,
    )
    recording = None
    if described is not None:
        values = as_mapping(override, "override")
        same = Parameters(
            opening=described.opening,
            options=options,
            splitting=Splitting(keep_split, max_size, max_tensors),
            include_weights=tuple(include_weights),
            exclude_weights=tuple(exclude_weights),
            prune_layers=tuple(prune_layers),
            override=overridden_values(model.metadata, values),
            reserve=reserve,
            gptq=None
            if feedback is None
            else Texts(feedback.own_texts, feedback.n_ctx, feedback.chunks, feedback.memory),
        )
        recording = Recording(described, model, same, feedback, run)
        recording.check(paths)

    def finish(recipes: Sequence[Recipe], matrix: PathLike | ImportanceMatrix | None) -> QuantizeReport:
        report: QuantizeReport = write(
            recipes,
            paths,
            run,
            matrix,
            include_weights,
            exclude_weights,
            prune_layers,
            check_tensors=check_tensors,
            dry_run=dry_run,
            encode=None if feedback is None else with_feedback(model, feedback, progress),
        )
        return report if recording is None else recording.write(report, recipes, matrix)

    if target is None:
        return finish(chosen, imatrix)
    sought = _Sought(model, target, searched_on or feedback or Calibration(), write, paths, run, dry_run)
    with sought.searching(options, allow_requantize) as (found, warnings), published_together():
        report = finish([found.recipe], found.matrix)
        if not dry_run:
            with atomic_output(recipe_path(paths[0]), "w", overwrite, run.reads) as file:
                file.write(found.text)
    warnings = [*report.warnings, *(each for each in warnings if each not in report.warnings)]
    return replace(report, search=found.as_dict(), warnings=warnings)


def recipe_path(output: Path) -> Path:
    """Where the text of a recipe goes that was searched for an output."""
    return output.with_name(f"{output.name.removesuffix('.gguf')}-recipe.txt")


def _target(
    size: int | None, bpw: float | None, calibrate: object, recipes: bool, imatrix: bool, pruned: bool
) -> Target | None:
    """What is to be searched for, if anything. Raises OptionError for what does not go together."""
    if size is None and bpw is None:
        if calibrate is not None:
            raise OptionError("texts to calibrate on mean nothing without a target", "give --target-size, --target-bpw")
        return None
    target = Target(size, bpw)
    if recipes:
        raise OptionError("a target does not go with a recipe: one is searched for", "leave the recipe out")
    if imatrix:
        raise OptionError("a target does not go with an importance matrix", "a search measures its own")
    if pruned:
        raise OptionError("a target does not go with layers that are pruned", "prune them first, with the recipe F16")
    return target


@dataclass(frozen=True)
class _Sought:
    """What a recipe is searched for."""

    model: Model
    target: Target
    calibration: Calibration
    write: Callable[..., QuantizeReport]
    paths: Sequence[Path]
    run: Run
    dry_run: bool

    @contextmanager
    def searching(self, options: Options, requantize: bool) -> Iterator[tuple[Found, list[str]]]:
        """Search for the recipe; what can be refused before, is. Yields it, and what is to be warned of; what was
        measured is kept until the block ends, for another run to go on from.
        """
        run, path = self.run, self.paths[0]
        refuse_store(path)  # the recipe's text goes beside it
        check_target(recipe_path(path), run.reads, run.overwrite)
        warnings = [] if self.dry_run else left_behind([path], run.resume, (ENCODED, SEARCHED))

        def decided(tensor: TensorReport) -> bool:
            return (
                tensor.rule is not None
                or (tensor.name == "output.weight" and options.output_type is not None)
                or (tensor.name == "token_embd.weight" and options.token_embedding_type is not None)
            )

        sizes = sizing(self.model, self._plan, decided, requantize)
        sizes.check_formats(self.target)
        if not self.dry_run:
            check_space(path, sizes.total(self.target) - stored_bytes(path.with_name(path.name + PARTIAL)))
        with measured(self.model, sizes, self.calibration, run, None if self.dry_run else path) as search:
            found = recipe_for(search, sizes, self.target, self._plan)
            search.kept.drop_tensors()
            del search  # and the predictions that it compared with
            yield found, [*warnings, *([found.warning] if found.warning else [])]

    def _plan(self, recipe: Recipe, matrix: ImportanceMatrix | None) -> OutputReport:
        return self.write([recipe], self.paths, replace(self.run, progress=None), matrix, dry_run=True).outputs[0]
