"""Plan an output again from its recorded parameters, so that any of its rows can be encoded again."""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from quants.arguments import PathLike
from quants.errors import OptionError

from ...calibration.outputs import with_feedback
from ...calibration.texts import Calibration
from ...conversion.transcoding import EXACT, plan_exact_again
from ...inspection.identification import GUESSED_FILE_TYPE, identify
from ...io.naming import is_remote, is_stored_gguf
from ...measurement.texts import named_texts
from ...models.contents import streamed_tensors
from ...models.diffusion_sources import is_diffusion, of_diffusion
from ...models.model import Model, of_parts
from ...models.model import open as open_model
from ...models.outputs import planner_of
from ...models.sources import of_checkpoint
from ...provenance.parameters import Opening, Parameters
from ...quantization.imatrix import ImportanceMatrix
from ...quantization.outtypes import FILE_TYPES, plan_conversion
from ...quantization.planning import Planned
from ...quantization.recipes import RECIPES, Options
from ...writing.options import WriteOptions
from ...writing.row_blocks import Progress


def opened_again(source: PathLike, opening: Opening, outtype: str | None = None) -> Model:
    """Open a source as it was opened for an output. outtype: as of `Parameters`. Raises as `gguftools.open` does."""
    if is_diffusion(source):
        return of_parts(of_diffusion(source, outtype or "recipe"))
    if not is_stored_gguf(source) and (is_remote(source) or Path(source).is_dir()):
        return of_parts(of_checkpoint(source, opening.pre, opening.embed_tokenizer))
    return open_model(source)


def planned_again(
    model: Model,
    parameters: Parameters,
    matrix: ImportanceMatrix | None,
    formats: Mapping[str, str],
    path: Path,
    texts: list[str] | None = None,
    run: WriteOptions | None = None,
) -> AbstractContextManager[Planned]:
    """Return the plan of an output; within the block, weights that texts decide can be read.

    formats: of the file's tensors, chosen by a search. path: the file's name in the plan; encoded tensors are kept next
    to it. texts: the ones that weights were encoded with, to encode again. Raises OptionError, FormatError, FileError.
    """
    if parameters.recipe is None:
        outtype, reserve = str(parameters.outtype), parameters.reserve
        if outtype == EXACT:
            file = plan_exact_again(model, path, parameters.fallback, formats, parameters.rounded_grids, reserve)
        else:
            tensors = streamed_tensors(model).values()
            file = plan_conversion(path, model.metadata, tensors, model.origin, outtype, reserve)
        return nullcontext(Planned(outtype, (file,)))
    options = parameters.quantize_options
    planner = planner_of(
        model, [parameters.recipe], matrix, options, WriteOptions(reserve=parameters.reserve, dry_run=True)
    )
    planned = planner.plan(parameters.recipe, path)
    if parameters.gptq is None or texts is None:
        return nullcontext(planned)
    encode = with_feedback(model, calibration_of(parameters, texts))
    return encode(planner, planned, run or WriteOptions())


def calibration_of(parameters: Parameters, texts: list[str]) -> Calibration:
    """Return the texts that weights were encoded with, read as they were then. Raises OptionError."""
    read = parameters.gptq
    if read is None:
        raise OptionError("texts mean nothing for this file: no weight was encoded by any", "leave out `gptq`")
    if read.device:
        problem = f"weights were encoded on a device, {read.device}, whose bytes no other one promises to give"
        raise OptionError(problem, "leave out `gptq`: they are compared by their digests")
    return Calibration(tuple(named_texts(texts)), read.own_texts, read.n_ctx, read.chunks, read.memory)


def guessed_parameters(
    source: Model, file: Model, imatrix: PathLike | None, threads: int | None, progress: Progress | None
) -> Parameters:
    """Return the parameters that a file and its source show. Raises OptionError if they don't."""
    number = file.metadata.get("general.file_type")
    declared = number % GUESSED_FILE_TYPE if isinstance(number, int) else None
    outtype = next((name for name, each in FILE_TYPES.items() if each == declared), None)
    if source.origin.outtype is not None and outtype is not None:
        return Parameters(outtype=outtype)
    identification = identify(source, file, imatrix=imatrix, threads=threads, progress=progress)
    return Parameters(
        recipe=RECIPES[identification.recipe], options=Options(pure=identification.pure, rules=identification.rules)
    )
