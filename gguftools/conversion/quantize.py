"""Quantize a model: several recipes in one pass over a GGUF file, a split set or a Hugging Face folder."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from archs.diffusion.detection import is_tag
from quants.arguments import PathLike, as_texts, thread_count
from quants.errors import OptionError

from ..calibration.outputs import with_feedback
from ..calibration.target import SearchOptions, SearchResult, Target, measured, recipe_for, sizing
from ..calibration.texts import Calibration, as_calibration
from ..calibration.weight_search import WeightSearchResult, weight_search
from ..io.atomic import atomic_output, check_space, check_target, published_together
from ..io.naming import refuse_store
from ..models.devices import torch_device_for
from ..models.diffusion_gguf import arranged
from ..models.model import Model, opened
from ..models.outputs import write_quantized
from ..provenance.parameters import Parameters, Texts, overridden_values
from ..provenance.recording import Described, Recording, described_as
from ..quantization.imatrix import ImportanceMatrix, usable_matrix
from ..quantization.options import QuantizeOptions
from ..quantization.outputs import output_paths
from ..quantization.recipe_texts import recipe_or_file
from ..quantization.recipes import Options, Recipe
from ..writing.options import WriteOptions
from ..writing.report import OutputReport, QuantizeReport, TensorReport
from ..writing.resume import ENCODED, PARTIAL, SEARCHED, stored_bytes, unfinished_warnings

REMOTE_THREADS = 8  # most of the time they wait for the network


def quantize(
    source: PathLike | Model,
    recipes: str | Sequence[str] = (),
    output: PathLike | Sequence[PathLike] | None = None,
    *,
    imatrix: PathLike | ImportanceMatrix | None = None,
    gptq: PathLike | Sequence[PathLike] | Calibration | None = None,
    search: SearchOptions | None = None,
    options: QuantizeOptions = QuantizeOptions(),
    write: WriteOptions = WriteOptions(),
) -> QuantizeReport:
    """Write `source` once for each recipe, reading it once.

    source: a GGUF file, a shard of a split set, a Hugging Face folder, the weight file of an image or video model,
    hf://ORG/MODEL, or a Model. recipes: names, such as "Q4_K_M", or files with a recipe's text. output: a file (for one
    recipe), a folder, or a file for each recipe; default MODEL-RECIPE.gguf next to the source. imatrix: an importance
    matrix or its file. gptq: texts for GPTQ calibration, by which weights are encoded with error feedback
    (`calibration.feedback`): files, to which the package's own are added, or a Calibration. search: a size instead of a
    recipe: the recipe is searched for, and its text is written next to the file, OUTPUT-recipe.txt. Of an image model
    by errors of weights, which imatrix weighs. options: more of the output. write: how files are written. Raises
    OptionError, FormatError, FileError, before any work if possible.
    """
    request = QuantizeRequest(as_texts(recipes, "recipes"), imatrix, gptq, search, options)
    request.check()
    model = arranged(opened(source))
    described = described_as(source, write.manifest, write.writes_nothing)
    report = quantize_model(model, request, output, write, described)
    if not is_tag(model.architecture):
        return report
    more = [each for each in model.origin.warnings if each not in report.warnings]
    return replace(report, warnings=[*more, *report.warnings])


@dataclass(frozen=True)
class QuantizeRequest:
    """Hold what is to be made of a model: `recipes` by name or file, or the result of `search`. See `quantize`."""

    recipes: Sequence[str]
    imatrix: PathLike | ImportanceMatrix | None = None
    gptq: PathLike | Sequence[PathLike] | Calibration | None = None
    search: SearchOptions | None = None
    options: QuantizeOptions = QuantizeOptions()

    @cached_property
    def read(self) -> list[tuple[Recipe, Path | None]]:
        """Return the recipes, each with its file or None. Raises OptionError, FileError."""
        return [recipe_or_file(name) for name in self.recipes]

    @property
    def chosen(self) -> list[Recipe]:
        return [recipe for recipe, _ in self.read]

    @cached_property
    def feedback(self) -> Calibration | None:
        """Return the texts for error feedback. Raises OptionError, FileError."""
        return None if self.gptq is None else as_calibration(self.gptq)

    @cached_property
    def searched_on(self) -> Calibration | None:
        """Return the texts that a search measures on, if given. Raises OptionError, FileError."""
        given = None if self.search is None else self.search.calibrate
        return None if given is None else as_calibration(given)

    def check(self) -> None:
        """Raise OptionError for arguments that exclude each other."""
        if self.search is not None:
            if self.recipes:
                raise OptionError("a target does not go with a recipe: one is searched for", "leave the recipe out")
            if self.options.prune_layers:
                hint = "prune them first, with the recipe F16"
                raise OptionError("a target does not go with layers that are pruned", hint)
            return
        chosen = self.chosen
        if len(set(chosen)) < len(chosen):
            named = ", ".join(recipe.name for recipe in chosen)
            raise OptionError(f"{' '.join(self.recipes)} is one recipe twice", f"they are {named}")
        if not chosen:
            raise OptionError("no recipe is named", "`gguftools quantize --list-recipes` shows them")

    def check_model(self, model: Model, resume: bool) -> None:
        """Raise OptionError for what cannot be done with a model, or has no effect."""
        if resume and not model.is_as_opened:
            problem = f"the source of {model.path} is not recorded, so a run cannot be resumed"
            raise OptionError(problem, "leave out `resume`, or save the model and quantize that file")
        if is_tag(model.architecture):
            self._check_image_model()
        elif self.search is not None and self.imatrix is not None:
            raise OptionError("a target does not go with an importance matrix", "a search measures its own")
        idle = self.search is None and all(recipe.default is None for recipe in self.chosen)
        if idle and self.options.formats != Options():
            kept = " and ".join(recipe.name for recipe in self.chosen)
            raise OptionError(f"{kept} keeps every value as it is; options that choose formats have nothing to do")

    def _check_image_model(self) -> None:
        """Raise OptionError for what runs a model."""
        problem = "image and video models are not run"
        if self.gptq is not None:
            raise OptionError(
                f"{problem}, so there is no GPTQ for them", "an importance matrix of another program helps"
            )
        if self.searched_on is not None and self.searched_on.texts:
            raise OptionError(f"{problem}: a search measures their weights, on no texts", "leave out `calibrate`")
        if self.searched_on is not None and self.searched_on.device is not None:
            raise OptionError(f"{problem}: a search needs no device", "leave out `device`")

    def files(self) -> list[Path]:
        """Return the files that it is read from."""
        texts = (text.path for each in (self.feedback, self.searched_on) if each for text in each.texts)
        return [*(path for _, path in self.read if path), *texts]


def quantize_model(
    model: Model,
    request: QuantizeRequest,
    output: PathLike | Sequence[PathLike] | None,
    write: WriteOptions,
    described: Described | None = None,
) -> QuantizeReport:
    """Do `quantize` for an open model. described: the source in its manifest, if there is to be one."""
    request.check_model(model, write.resume)
    if model.origin.remote and write.threads is None:
        write = replace(write, threads=max(thread_count(None), REMOTE_THREADS))
    named = request.chosen if request.search is None else [Recipe(request.search.target.name, None, None, 0.0, "")]
    paths = output_paths(model.path, named, output)
    write = replace(write, reads=model.origin.reads.union(write.reads).also(request.files()))
    recording = None
    if described is not None:
        recording = Recording(described, model, _parameters(model, request, write, described), request.feedback, write)
        recording.check(paths)
    job = _Job(model, request, paths, write, recording)
    return job.write_files(request.chosen, request.imatrix) if request.search is None else job.searched(request.search)


def _parameters(model: Model, request: QuantizeRequest, write: WriteOptions, described: Described) -> Parameters:
    """Return the parameters that a manifest records."""
    options, texts = request.options, request.feedback
    return Parameters(
        opening=described.opening,
        options=options.formats,
        splitting=options.splitting,
        include_weights=tuple(options.include_weights),
        exclude_weights=tuple(options.exclude_weights),
        prune_layers=tuple(options.prune_layers),
        override=overridden_values(model.metadata, options.overrides),
        reserve=write.reserve,
        gptq=None if texts is None else _texts_of(texts),
    )


def _texts_of(calibration: Calibration) -> Texts:
    """Return what a manifest records of texts, and of the device on which weights are encoded."""
    device = torch_device_for(calibration.device)
    title = "" if device is None else device.title
    return Texts(calibration.own_texts, calibration.n_ctx, calibration.chunks, calibration.memory, title)


def recipe_path(output: Path) -> Path:
    """Return the path of a searched recipe's text."""
    return output.with_name(f"{output.name.removesuffix('.gguf')}-recipe.txt")


@dataclass(frozen=True)
class _Job:
    """Hold a model that is being quantized."""

    model: Model
    request: QuantizeRequest
    paths: Sequence[Path]
    write: WriteOptions
    recording: Recording | None

    def write_files(self, recipes: Sequence[Recipe], matrix: PathLike | ImportanceMatrix | None) -> QuantizeReport:
        """Write a file for each recipe, and its manifest."""
        feedback = self.request.feedback
        encode = None if feedback is None else with_feedback(self.model, feedback)
        report = write_quantized(self.model, recipes, self.paths, self.write, matrix, self.request.options, encode)
        return report if self.recording is None else self.recording.write(report, recipes, matrix)

    def searched(self, search: SearchOptions) -> QuantizeReport:
        """Search for a recipe, and write its file and its text."""
        is_image_model = is_tag(self.model.architecture)
        searching = self._searching_weights if is_image_model else self._searching
        with searching(search.target) as (result, warnings), published_together():
            matrix = result.matrix if isinstance(result, SearchResult) else self.request.imatrix
            report = self.write_files([result.recipe], matrix)
            if not self.write.writes_nothing:
                with atomic_output(recipe_path(self.paths[0]), "w", self.write.overwrite, self.write.reads) as file:
                    file.write(result.text)
        warnings = [*report.warnings, *(each for each in warnings if each not in report.warnings)]
        return replace(report, search=result.as_dict(), warnings=warnings)

    def _before_search(self) -> list[str]:
        """Check the place of the recipe's text, which is written next to the file. Returns warnings."""
        write, path = self.write, self.paths[0]
        refuse_store(path)
        check_target(recipe_path(path), write.reads, write.overwrite)
        return [] if write.writes_nothing else unfinished_warnings([path], write.resume, (ENCODED, SEARCHED))

    def _check_space(self, nbytes: int) -> None:
        path = self.paths[0]
        if not self.write.writes_nothing:
            check_space(path, nbytes - stored_bytes(path.with_name(path.name + PARTIAL)))

    @contextmanager
    def _searching_weights(self, target: Target) -> Iterator[tuple[WeightSearchResult, list[str]]]:
        """Do `_searching` for an image model, by the errors of its weights."""
        options, warnings = self.request.options, self._before_search()
        matrix, _ = usable_matrix(self.request.imatrix, options.include_weights, options.exclude_weights)
        search = weight_search(self.model, target, self._plan, self._is_decided, options.allow_requantize, matrix)
        self._check_space(search.sizes.total(target))
        with search.run(target, self.write, None if self.write.writes_nothing else self.paths[0]) as result:
            yield result, [*warnings, *([result.warning] if result.warning else [])]

    @contextmanager
    def _searching(self, target: Target) -> Iterator[tuple[SearchResult, list[str]]]:
        """Search for the recipe, after checking all that can be checked before. Yields it, and warnings.

        Measurements are kept until the block ends, for a resumed run.
        """
        calibration = self.request.searched_on or self.request.feedback or Calibration()
        write, path, is_dry = self.write, self.paths[0], self.write.writes_nothing
        warnings = self._before_search()
        sizes = sizing(self.model, self._plan, self._is_decided, self.request.options.allow_requantize)
        sizes.check_formats(target)
        self._check_space(sizes.total(target))
        with measured(self.model, sizes, calibration, write, None if is_dry else path) as search:
            result = recipe_for(search, sizes, target, self._plan)
            search.kept.drop_tensors()
            del search  # and the predictions that it compared with
            yield result, [*warnings, *([result.warning] if result.warning else [])]

    def _is_decided(self, tensor: TensorReport) -> bool:
        """Return True if the user chose a tensor's format."""
        options = self.request.options
        return (
            tensor.rule is not None
            or (tensor.name == "output.weight" and options.output_type is not None)
            or (tensor.name == "token_embd.weight" and options.token_embedding_type is not None)
        )

    def _plan(self, recipe: Recipe, matrix: ImportanceMatrix | None) -> OutputReport:
        dry = replace(self.write, progress=None, dry_run=True)
        options = replace(self.request.options, include_weights=(), exclude_weights=())
        return write_quantized(self.model, [recipe], self.paths, dry, matrix, options).outputs[0]
