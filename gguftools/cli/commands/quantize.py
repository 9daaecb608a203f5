"""Quantize a model with one or more recipes in one pass.

Equals llama-quantize's output byte for byte where both have the recipe. Can also calibrate with GPTQ, or search for
the best recipe of a given size.
"""

from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from ..options import complete

if TYPE_CHECKING:
    from ...calibration.texts import Calibration
    from ...writing.options import WriteOptions

EXAMPLES = (
    "gguftools quantize model-f16.gguf Q4_K_M",
    "gguftools quantize model-f16.gguf Q4_K_M Q8_0 -o quantized/",
    "gguftools quantize model-f16.gguf IQ2_XXS --imatrix imatrix.gguf",
    "gguftools quantize model-f16.gguf Q4_K_M --gptq calibration.txt",
    "gguftools quantize model-f16.gguf --target-size 4.2G --calibrate text.txt",
    "gguftools quantize model-f16.gguf --frontier 3.5,4,4.5 --plot frontier.svg",
    "gguftools quantize model-f16.gguf Q4_K_M --tensor-type ffn_down=Q6_K --dry-run",
    "gguftools quantize --list-recipes",
)
GROUP = "Make"
PANELS = {
    "Importance matrix and GPTQ": (
        "include_weights",
        "exclude_weights",
        "allow_missing_experts",
        "gptq",
        "gptq_only",
        "gptq_chunks",
        "gptq_memory",
    ),
    "Search for a recipe": ("target_size", "target_bpw", "calibrate", "frontier", "plot"),
    "Types of single tensors": (
        "tensor_type",
        "tensor_type_file",
        "output_tensor_type",
        "token_embedding_type",
        "leave_output_tensor",
        "pure",
        "no_fallback",
    ),
    "Expert options": (
        "prune_layers",
        "override_kv",
        "new",
        "keep_split",
        "split_max_size",
        "split_max_tensors",
        "reserve",
        "check_tensors",
        "statistics",
        "manifest",
        "memory",
    ),
}


def quantize(
    source: Annotated[Path | None, Argument(help="GGUF file, shard of a split set, folder, or URL.")] = None,
    recipes: Annotated[
        list[str] | None, Argument(autocompletion=complete("RECIPE"), help="Recipes (Q4_K_M, Q8_0, …) or recipe files.")
    ] = None,
    output: Annotated[str | None, "file, or folder or URL/ for MODEL-RECIPE.gguf (default: next to SOURCE)."] = None,
    imatrix: Path | None = None,
    include_weights: Annotated[list[str] | None, "Use the importance matrix only for names with this part."] = None,
    exclude_weights: Annotated[list[str] | None, "Don't use the importance matrix for names with this part."] = None,
    allow_missing_experts: Annotated[bool, "Accept a matrix that has no data for many experts."] = False,
    gptq: Annotated[list[str] | None, "Calibration text for GPTQ."] = None,
    gptq_only: Annotated[bool, "Calibrate only with the given texts, not also with the built-in ones."] = False,
    gptq_chunks: Annotated[int, Option(min=2, help="Maximum number of 512-token chunks per text.")] = 128,
    gptq_memory: Annotated[Any, "Memory limit for the Hessians of a layer; wide ones are cut."] = "8G",
    target_size: Annotated[int | None, "Search for the best recipe of this file size, e.g. 4.2G."] = None,
    target_bpw: Annotated[float | None, "Search for the best recipe of this many bits per weight, e.g. 4.8."] = None,
    calibrate: Annotated[list[str] | None, "Text for the search (default: those of --gptq, or built-in ones)."] = None,
    frontier: Annotated[
        Any, "Search for the best recipes of several sizes, e.g. 3.5,4,4.5 bits; write no model."
    ] = None,
    plot: Annotated[Path | None, "Draw what --frontier finds, as SVG or PNG."] = None,
    tensor_type: Annotated[list[Any] | None, "Format of the tensors whose names match."] = None,
    tensor_type_file: Annotated[Path | None, "File of such rules, one per line."] = None,
    output_tensor_type: Annotated[str | None, "Format of output.weight."] = None,
    token_embedding_type: Annotated[str | None, "Format of token_embd.weight."] = None,
    pure: Annotated[bool, "Use the recipe's main format for every tensor."] = False,
    leave_output_tensor: Annotated[bool, "Leave output.weight unquantized."] = False,
    prune_layers: Annotated[Any, "Leave out layers, e.g. 3,5,7; the rest is renumbered."] = None,
    override_kv: Annotated[list[Any] | None, "Override a metadata key; TYPE is int, float, bool or str."] = None,
    new: bool = False,
    keep_split: Annotated[bool, "Write as many shards as the source has."] = False,
    split_max_size: int | None = None,
    split_max_tensors: int | None = None,
    reserve: int | None = None,
    allow_requantize: bool = False,
    no_fallback: Annotated[bool, "Fail where a tensor's shape does not fit the recipe's format."] = False,
    check_tensors: Annotated[bool, "Check all tensors for NaN and infinity before writing."] = False,
    dry_run: bool = False,
    overwrite: bool = False,
    resume: bool = False,
    statistics: Annotated[
        bool | None, Option("--statistics/--no-statistics", help="Measure the error of every tensor (on with --json).")
    ] = None,
    manifest: bool = False,
    threads: int | None = None,
    memory: Any = "512M",
    workers: int | None = None,
    scheduler: str | None = None,
    plan: bool = False,
    rate: Any = None,
    prices: Path | None = None,
    list_recipes: Annotated[bool, "List the recipes and exit."] = False,
    json: bool = False,
) -> None:
    from ...calibration.target import SearchOptions
    from ...calibration.texts import Calibration
    from ...conversion.quantize import quantize as run
    from ...io.atomic import NOTHING
    from ...io.stores.path import is_url
    from ...measurement.texts import NamedText, named_texts
    from ...quantization.options import QuantizeOptions
    from ...writing.options import WriteOptions
    from ..arguments import once, planned_terms, read_rules
    from ..ui import bytes_progress, print_line, print_report, resumable_note, shared_work
    from ..ui import usage as wrong_call

    if list_recipes:
        _print_recipes(json)
        return
    texts, measured_on = named_texts(gptq or ()), named_texts(calibrate or ())

    def calibration(texts: Sequence[NamedText]) -> Calibration | None:
        if not texts:
            return None
        return Calibration(tuple(texts), own_texts=not gptq_only, chunks=gptq_chunks, memory=gptq_memory)

    if frontier is not None:
        if source is None or recipes or output:
            wrong_call("--frontier takes a SOURCE alone", "gguftools quantize SOURCE --frontier 3.5,4,4.5")
        write = WriteOptions(threads, overwrite=overwrite)
        _search_sizes(source, frontier, calibration(measured_on), plot, allow_requantize, write, json)
        return
    target = target_size is not None or target_bpw is not None
    if source is None or not (recipes or target):
        wrong_call("a SOURCE and at least one RECIPE are needed", "gguftools quantize --list-recipes lists them")
    if calibrate and not target:
        problem = "texts to calibrate on mean nothing without a target"
        wrong_call(problem, "give --target-size, --target-bpw or --frontier")
    rules = (*(tensor_type or ()), *(read_rules(tensor_type_file) if tensor_type_file else ()))
    options = QuantizeOptions(
        rules=rules,
        pure=pure,
        output_type=output_tensor_type,
        token_embedding_type=token_embedding_type,
        leave_output=leave_output_tensor,
        prune_layers=prune_layers or (),
        override=once(override_kv or ()),
        new=new,
        include_weights=include_weights or (),
        exclude_weights=exclude_weights or (),
        allow_missing_experts=allow_missing_experts,
        keep_split=keep_split,
        max_size=split_max_size,
        max_tensors=split_max_tensors,
        allow_requantize=allow_requantize,
        no_fallback=no_fallback,
        check_tensors=check_tensors,
    )
    reads = [*([tensor_type_file] if tensor_type_file else ()), *(text.path for text in (*texts, *measured_on))]

    cost_model = planned_terms(workers, rate, prices) if plan else None
    bar = bytes_progress(f"quantize {source.name}")
    left = nullcontext() if is_url(source if output is None else output) and not resume else resumable_note()
    with shared_work(None if plan else workers, scheduler) as executor, bar as progress, left:
        write = WriteOptions(
            threads,
            memory,
            progress,
            executor,
            cost_model,
            dry_run=dry_run,
            statistics=json if statistics is None else statistics,
            resume=resume,
            overwrite=overwrite,
            reserve=reserve or 0,
            manifest=manifest,
            reads=NOTHING.also(reads),
        )
        report = run(
            source,
            recipes or (),
            output,
            imatrix=imatrix,
            gptq=calibration(texts),
            search=SearchOptions(target_size, target_bpw, calibration(measured_on)) if target else None,
            options=options,
            write=write,
        )
    print_report(report, json, resume)
    if report.search is not None and not json:
        predicted, found = report.search["predicted"], report.search["measured"]
        print_line(f"KL divergence on text held back {found:.5f}, predicted {predicted:.5f}")


def _print_recipes(json: bool) -> None:
    from ...quantization.recipes import RECIPES
    from ..ui import print_table, said

    if not said(tuple(RECIPES.values()), json):
        rows = [(r.name, f"{r.typical_bits:.2f}", r.default or "", r.description) for r in RECIPES.values()]
        print_table(None, ("recipe", "bits/weight", "main format", ""), rows, "lrl")


def _search_sizes(
    source: Path,
    bits: Sequence[float],
    calibration: "Calibration | None",
    plot: Path | None,
    allow_requantize: bool,
    write: "WriteOptions",
    json: bool,
) -> None:
    """Search for recipes of several sizes, and print what is found."""
    from ...conversion.frontier import frontier
    from ..ui import bytes_progress, print_table, said

    with bytes_progress(f"measure {source.name}") as progress:
        found = frontier(
            source,
            bits,
            calibrate=calibration,
            plot=plot,
            allow_requantize=allow_requantize,
            threads=write.threads,
            progress=progress,
            overwrite=write.overwrite,
        )
    if not said(found, json):
        figures = [
            (f"{p.bits_per_weight:.3f}", f"{p.nbytes:,}", f"{p.predicted:.5f}", f"{p.measured:.5f}")
            for p in found.points
        ]
        print_table(None, ("bits/weight", "bytes", "predicted KL", "measured KL"), figures, "rrrr")
