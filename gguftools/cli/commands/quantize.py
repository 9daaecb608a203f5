"""Quantize a model with one or more recipes in one pass.

Equals llama-quantize's output byte for byte where both have the recipe. Can also calibrate with GPTQ, or search for
the best recipe of a given size.
"""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from ..device_options import DEVICE_PANEL, DeviceChoice
from ..options import complete
from ..run_options import RunOptions

if TYPE_CHECKING:
    from ...calibration.texts import Calibration
    from ...models.devices import DeviceOptions
    from ...quantization.options import QuantizeOptions

EXAMPLES = (
    "gguftools quantize model-f16.gguf Q4_K_M",
    "gguftools quantize model-f16.gguf Q4_K_M Q8_0 -o quantized/",
    "gguftools quantize model-f16.gguf IQ2_XXS --imatrix imatrix.gguf",
    "gguftools quantize model-f16.gguf Q4_K_M --gptq calibration.txt",
    "gguftools quantize model-f16.gguf --target-size 4.2G --calibrate text.txt",
    "gguftools quantize flux1-dev.safetensors Q4_K_M",
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
    **DEVICE_PANEL,
    "Types of single tensors": (
        "tensor_type",
        "tensor_type_file",
        "output_tensor_type",
        "token_embedding_type",
        "pure",
        "leave_output_tensor",
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


@dataclass(frozen=True)
class TensorOptions:
    """Options for the tensors to write, and their formats."""

    include_weights: Annotated[list[str] | None, "Use the importance matrix only for names with this part."] = None
    exclude_weights: Annotated[list[str] | None, "Don't use the importance matrix for names with this part."] = None
    allow_missing_experts: Annotated[bool, "Accept a matrix that has no data for many experts."] = False
    tensor_type: Annotated[list[Any] | None, "Format of the tensors whose names match."] = None
    tensor_type_file: Annotated[Path | None, "File of such rules, one per line."] = None
    output_tensor_type: Annotated[str | None, "Format of output.weight."] = None
    token_embedding_type: Annotated[str | None, "Format of token_embd.weight."] = None
    pure: Annotated[bool, "Use the recipe's main format for every tensor."] = False
    leave_output_tensor: Annotated[bool, "Leave output.weight unquantized."] = False
    prune_layers: Annotated[Any, "Leave out layers, e.g. 3,5,7; the rest is renumbered."] = None
    override_kv: Annotated[list[Any] | None, "Override a metadata key; TYPE is int, float, bool or str."] = None
    new: bool = False
    keep_split: Annotated[bool, "Write as many shards as the source has."] = False
    split_max_size: int | None = None
    split_max_tensors: int | None = None
    allow_requantize: bool = False
    no_fallback: Annotated[bool, "Fail where a tensor's shape does not fit the recipe's format."] = False
    check_tensors: Annotated[bool, "Check all tensors for NaN and infinity before writing."] = False

    def library_options(self) -> "QuantizeOptions":
        """Return the library's options. Raises OptionError for a key that is overridden twice."""
        from ...quantization.options import QuantizeOptions
        from ..arguments import once, read_rules

        in_file = read_rules(self.tensor_type_file) if self.tensor_type_file else ()
        return QuantizeOptions(
            rules=(*(self.tensor_type or ()), *in_file),
            pure=self.pure,
            output_type=self.output_tensor_type,
            token_embedding_type=self.token_embedding_type,
            leave_output=self.leave_output_tensor,
            prune_layers=self.prune_layers or (),
            override=once(self.override_kv or ()),
            new=self.new,
            include_weights=self.include_weights or (),
            exclude_weights=self.exclude_weights or (),
            allow_missing_experts=self.allow_missing_experts,
            keep_split=self.keep_split,
            max_size=self.split_max_size,
            max_tensors=self.split_max_tensors,
            allow_requantize=self.allow_requantize,
            no_fallback=self.no_fallback,
            check_tensors=self.check_tensors,
        )


@dataclass(frozen=True)
class CalibrationOptions:
    """Texts for GPTQ and for the search, and the sizes to search recipes for."""

    gptq: Annotated[list[str] | None, "Calibration text for GPTQ."] = None
    gptq_only: Annotated[bool, "Calibrate only with the given texts, not also with the built-in ones."] = False
    gptq_chunks: Annotated[int, Option(min=2, help="Maximum number of 512-token chunks per text.")] = 128
    gptq_memory: Annotated[Any, "Memory limit for the Hessians of a layer; wide ones are cut."] = "8G"
    target_size: Annotated[int | None, "Search for the best recipe of this file size, e.g. 4.2G."] = None
    target_bpw: Annotated[float | None, "Search for the best recipe of this many bits per weight, e.g. 4.8."] = None
    calibrate: Annotated[list[str] | None, "Text for the search (default: those of --gptq, or built-in ones)."] = None
    frontier: Annotated[Any, "Search for the best recipes of several sizes, e.g. 3.5,4,4.5 bits; write no model."] = (
        None
    )
    plot: Annotated[Path | None, "Draw what --frontier finds, as SVG or PNG."] = None

    def texts(self, named: Sequence[str] | None, device: "DeviceOptions | None") -> "Calibration | None":
        """Return texts with the limits for reading them, and where they are used; None where none is named."""
        from ...calibration.texts import Calibration
        from ...measurement.texts import named_texts

        texts = tuple(named_texts(named or ()))
        if not texts:
            return None
        own_texts, chunks, memory = not self.gptq_only, self.gptq_chunks, self.gptq_memory
        return Calibration(texts, own_texts=own_texts, chunks=chunks, memory=memory, device=device)


def quantize(
    source: Annotated[
        Path | None, Argument(help="GGUF file, shard of a split set, weight file, folder, or URL.")
    ] = None,
    recipes: Annotated[
        list[str] | None, Argument(autocompletion=complete("RECIPE"), help="Recipes (Q4_K_M, Q8_0, …) or recipe files.")
    ] = None,
    output: Annotated[str | None, "file, or folder or URL/ for MODEL-RECIPE.gguf (default: next to SOURCE)."] = None,
    imatrix: Path | None = None,
    *,
    tensors: TensorOptions,
    calibration: CalibrationOptions,
    dry_run: bool = False,
    statistics: Annotated[
        bool | None, Option("--statistics/--no-statistics", help="Measure the error of every tensor (on with --json).")
    ] = None,
    where: DeviceChoice,
    run: RunOptions,
    list_recipes: Annotated[bool, "List the recipes and exit."] = False,
    json: bool = False,
) -> None:
    from ...calibration.target import SearchOptions
    from ...calibration.texts import Calibration
    from ...conversion.quantize import quantize as quantize_file
    from ...io.atomic import NOTHING
    from ...io.stores.path import is_url
    from ..ui import print_line, print_report, resumable_note, usage

    if list_recipes:
        _print_recipes(json)
        return
    device = where.chosen()
    gptq, measured_on = (calibration.texts(each, device) for each in (calibration.gptq, calibration.calibrate))
    if calibration.frontier is not None:
        if source is None or recipes or output:
            usage("--frontier takes a SOURCE alone", "gguftools quantize SOURCE --frontier 3.5,4,4.5")
        texts_of_search = measured_on or Calibration(device=device)
        _search_sizes(source, calibration, texts_of_search, tensors.allow_requantize, run, json)
        return
    size, bits = calibration.target_size, calibration.target_bpw
    is_search = size is not None or bits is not None
    searched_on = measured_on if measured_on or gptq else Calibration(device=device)
    if source is None or not (recipes or is_search):
        usage("a SOURCE and at least one RECIPE are needed", "gguftools quantize --list-recipes lists them")
    if measured_on and not is_search:
        problem = "texts to calibrate on mean nothing without a target"
        usage(problem, "give --target-size, --target-bpw or --frontier")
    options = tensors.library_options()
    texts = [text.path for each in (gptq, measured_on) if each for text in each.texts]
    reads = NOTHING.also([tensors.tensor_type_file, *texts])
    left = nullcontext() if is_url(source if output is None else output) and not run.resume else resumable_note()
    statistics = json if statistics is None else statistics
    with run.running(f"quantize {source.name}", dry_run=dry_run, statistics=statistics, reads=reads) as write, left:
        search = SearchOptions(size, bits, searched_on) if is_search else None
        report = quantize_file(
            source, recipes or (), output, imatrix=imatrix, gptq=gptq, search=search, options=options, write=write
        )
    print_report(report, json, run.resume)
    if report.search is not None and not json:
        print_line(_found(report.search))


def _found(search: Mapping[str, Any]) -> str:
    """Return what a search found out, in a sentence."""
    if "error" in search:
        return f"relative error of weights {100 * search['error']:.3g} % (root mean square)"
    return f"KL divergence on text held back {search['measured']:.5f}, predicted {search['predicted']:.5f}"


def _print_recipes(json: bool) -> None:
    from ...quantization.recipes import RECIPES
    from ..ui import print_result, print_table

    if not print_result(tuple(RECIPES.values()), json):
        rows = [(r.name, f"{r.typical_bits:.2f}", r.default or "", r.description) for r in RECIPES.values()]
        print_table(None, ("recipe", "bits/weight", "main format", ""), rows, "lrl")


def _search_sizes(
    source: Path,
    calibration: CalibrationOptions,
    texts: "Calibration",
    allow_requantize: bool,
    run: RunOptions,
    json: bool,
) -> None:
    """Search for recipes of several sizes, and print them."""
    from ...conversion.frontier import frontier
    from ..ui import bytes_progress, print_result, print_table

    with bytes_progress(f"measure {source.name}") as progress:
        report = frontier(
            source,
            calibration.frontier,
            calibrate=texts,
            plot=calibration.plot,
            allow_requantize=allow_requantize,
            threads=run.threads,
            progress=progress,
            overwrite=run.overwrite,
        )
    if not print_result(report, json):
        figures = [
            (f"{p.bits_per_weight:.3f}", f"{p.nbytes:,}", f"{p.predicted:.5f}", f"{p.measured:.5f}")
            for p in report.points
        ]
        print_table(None, ("bits/weight", "bytes", "predicted KL", "measured KL"), figures, "rrrr")
