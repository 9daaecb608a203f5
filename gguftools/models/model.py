"""A model: typed metadata and named tensors, opened from anywhere or made of arrays, changed, and saved."""

from __future__ import annotations

import os
from collections import UserDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from archs.metadata import Metadata, Value
from quants import Tensor, from_array
from quants.arguments import PathLike, as_count, as_path, thread_count, wrong
from quants.errors import FileError, OptionError, VocabularyError
from quants.patterns import compile_pattern
from quants.spelling import quote
from quants.tensor import all_readable

from ..io.atomic import check_target, output_path
from ..io.gguf.reader import GgufFile, open_gguf
from ..io.naming import is_remote, is_stored_gguf
from ..io.stores.path import StorePath, located
from ..metadata.chat_templates import CHAT_TEMPLATE
from ..metadata.checks import check_types
from ..metadata.difference import compare_metadata
from ..writing.executors import leaves_process
from ..writing.origin import Origin
from ..writing.remote_tasks import Source
from .generation import Drafts, GenerateOptions, by_beams, generations, grammar_of, options_of, prompt_tokens, truncated
from .sources import Parts, of_checkpoint, of_gguf, pread_tensors

if TYPE_CHECKING:
    from runtime.evaluation.pooling import Embeddings, Text
    from runtime.generation import Generation
    from runtime.images import EmbeddedImage
    from runtime.model import Model as RunningModel
    from runtime.sampling.grammar import Grammar, GrammarVocabulary
    from runtime.sampling.parameters import Sampling
    from runtime.speculation.assistants import Assistant
    from runtime.speculation.blocks import BlockWriter
    from runtime.speculation.parameters import Drafting
    from runtime.speculation.readers import Reader
    from runtime.tokenizer import Tokenizer

    from ..metadata.images import Sight
    from ..quantization.imatrix import ImportanceMatrix
    from ..quantization.options import QuantizeOptions
    from ..quantization.outputs import EncodeAhead
    from ..quantization.planning import Planner
    from ..quantization.recipes import Recipe
    from ..writing.options import WriteOptions
    from ..writing.pipeline import Resumable
    from ..writing.report import QuantizeReport
    from ..writing.row_blocks import Progress
    from .chat import Conversation

NO_MODELS = {  # by general.type: what such a file is, and what to do with it
    "imatrix": ("an importance matrix", "it is used by `gguftools quantize MODEL RECIPE --imatrix MATRIX`"),
    "mmproj": ("an encoder for images or sounds", "`gguftools generate MODEL --mmproj TOWER --image PICTURE` reads it"),
    "delta": ("a delta between two files", "`gguftools patch apply OLD DELTA -o NEW` makes the new one"),
    "logits-base": ("a base of logits", "`gguftools divergence BASE MODEL` measures a model from it"),
    "adapter": ("an adapter", "`gguftools convert BASE --lora ADAPTER --outtype q8_0` writes a smaller one"),
}


class Tensors(UserDict[str, Tensor]):
    """Tensors by name, in order. What is set may be an array; a Tensor takes the name that it is set under."""

    def __setitem__(self, name: str, tensor: Tensor | ArrayLike) -> None:
        """Raises FormatError for an array of a type that GGUF has no tensors of."""
        if not isinstance(name, str):
            raise wrong("a tensor's name", name, "a text")
        made = tensor if isinstance(tensor, Tensor) else from_array(name, np.asarray(tensor))
        super().__setitem__(name, made if made.name == name else made.renamed(name))

    def __repr__(self) -> str:
        return f"<{len(self)} tensors, {sum(tensor.nbytes for tensor in self.values()):,} bytes>"


class Model:
    """Metadata and tensors of a model, wherever they come from.

    metadata: typed, changed like a dict. tensors: read when asked for; changed like a dict. origin: the files that
    values come from. file: of a GGUF file, how it is laid out.

        with gguftools.open("model.gguf") as model:
            model.metadata["general.name"] = "mine"
            model.save("other.gguf", "Q4_K_M")
    """

    def __init__(
        self,
        metadata: Mapping[str, Any],
        tensors: Mapping[str, Tensor | ArrayLike],
        *,
        origin: Origin | None = None,
        file: GgufFile | None = None,
    ) -> None:
        """metadata: plain data or Values. tensors: arrays (floats or signed integers) or Tensors, rows first.

        Raises OptionError for what are no mappings, FormatError for arrays that GGUF has no tensors of.
        """
        self.metadata = metadata
        self.tensors = tensors
        self.origin = origin or Origin()
        self.file = file
        self._closed = False
        self._opened = None if origin is None else dict(self.tensors)
        self._tokenizer: tuple[list[Value], Tokenizer] | None = None
        self._vocabulary: tuple[Tokenizer, GrammarVocabulary] | None = None
        self._running: tuple[list[Any], RunningModel] | None = None
        self._seeing: dict[str, tuple[list[Any], Sight]] = {}

    @property
    def metadata(self) -> Metadata:
        """Values by key; setting takes any mapping of plain data or Values."""
        return self._metadata

    @metadata.setter
    def metadata(self, metadata: Mapping[str, Any]) -> None:
        self._metadata = metadata if isinstance(metadata, Metadata) else Metadata(_mapping("metadata", metadata))

    @property
    def tensors(self) -> Tensors:
        """Tensors by name, in order; setting takes any mapping of Tensors or arrays, and gives them its names."""
        return self._tensors

    @tensors.setter
    def tensors(self, tensors: Mapping[str, Tensor | ArrayLike]) -> None:
        self._tensors = Tensors()
        self._tensors.update(_mapping("tensors", tensors))

    @property
    def path(self) -> Path:
        """The file or folder, as it was named; for a model made of arrays, a name."""
        return self.origin.path

    @property
    def files(self) -> tuple[Path, ...]:
        """All files that its tensors are read from; none for a model made of arrays."""
        return self.origin.files

    @property
    def is_as_opened(self) -> bool:
        """Whether its tensors are those of the files that it was opened from, none of them made or changed since."""
        opened = self._opened if self.file is None else self.file.tensors
        tensors = self.tensors.data
        return opened is not None and list(opened) == list(tensors) and all(tensors[n] is opened[n] for n in opened)

    @property
    def architecture(self) -> str:
        """`general.architecture`; empty where the metadata does not say."""
        name = self.metadata.get("general.architecture", "")
        return name if isinstance(name, str) else ""

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors, as they are stored."""
        return sum(tensor.nbytes for tensor in self.tensors.values())

    @property
    def chat_template(self) -> str | None:
        """The template that conversations are rendered with; setting None removes it."""
        return self.metadata.get(CHAT_TEMPLATE)

    @chat_template.setter
    def chat_template(self, template: str | None) -> None:
        if template is None:
            self.metadata.pop(CHAT_TEMPLATE, None)
        else:
            self.metadata[CHAT_TEMPLATE] = template

    @property
    def tokenizer(self) -> Tokenizer:
        """Made from the metadata alone: `encode(text)` → ids, `decode(ids)` → text.

        Raises VocabularyError where there is no vocabulary, or one we can't run.
        """
        values = [self.metadata.value(key) for key in self.metadata if key.startswith("tokenizer.")]
        if self._tokenizer is None or list(map(id, self._tokenizer[0])) != list(map(id, values)):
            from runtime.tokenizer import tokenizer_from_metadata

            check_types(self.metadata, "tokenizer.")
            self._tokenizer = values, tokenizer_from_metadata(self.metadata)
        return self._tokenizer[1]

    def running(self, threads: int | None = None) -> RunningModel:
        """What computes logits, kept until something of the model changes. Raises ModelError, OptionError."""
        from runtime.model import Model as RunningModel

        values = [threads, *map(self.metadata.value, self.metadata), *self.tensors.data.values()]
        if self._running is None or list(map(id, self._running[0])) != list(map(id, values)):
            self._running = values, RunningModel(self.metadata, self.tensors, threads=threads)
        return self._running[1]

    def generate(
        self,
        prompt: str | Sequence[int] | Sequence[Mapping[str, Any]],
        options: GenerateOptions | Sampling | None = None,
        **changes: Any,
    ) -> Generation:
        """Let the model go on with a prompt: iterate for (token, text) as they come.

            for token, text in model.generate("It is", temperature=0.7, max_tokens=100):
                print(text, end="")

        prompt: a text; token ids; or messages, such as {"role": "user", "content": "Hello"}, which the file's chat
        template renders. options: a `GenerateOptions`, or a `Sampling` alone. changes: fields of both by name, over
        those of `options`.

        What is returned also has `tokens`, `text`, `stop_reason`, `prompt_tokens`, `prefill_seconds`,
        `decode_seconds`, `logprobs`, `prompt_logprobs`, `cache_bytes`, `speculated`, and `stop()`. Raises ModelError,
        VocabularyError, OptionError for a prompt without room, and for what can't draft.
        """
        chosen = options_of(options, changes)
        if chosen.n != 1:
            hint = "max_tokens limits the tokens of a text; `generate_samples` writes several texts"
            raise OptionError(f"n is {chosen.n}, and `generate` writes one text", hint)
        return self.generate_samples(prompt, chosen)[0]

    def generate_samples(
        self,
        prompt: str | Sequence[int] | Sequence[Mapping[str, Any]],
        options: GenerateOptions | Sampling | None = None,
        **changes: Any,
    ) -> list[Generation]:
        """Write several texts that go on with one prompt, which is read once: as many as the option `n` says.

        They may be iterated over in any order, also by turns. Arguments and errors are those of `generate`.
        """
        from runtime.batched_generation import write_together

        if (kind := self.metadata.get("general.type")) in NO_MODELS:
            raise _no_model(self.path, str(kind))
        chosen = options_of(options, changes)
        tokenizer = self.tokenizer
        context = chosen.context or self.context_length
        chosen = replace(chosen, sampling=chosen.sampling_for(self.metadata), context=context)
        embedded: Sequence[EmbeddedImage] = ()
        if chosen.has_media:
            from ..metadata.images import read_prompt

            ids, embedded = read_prompt(prompt, self._sights(chosen), chosen.progress)
        else:
            ids = truncated(prompt_tokens(tokenizer, self.metadata, prompt), chosen, context)
        follow = self._grammar(chosen.grammar, chosen.json_schema)
        model = self.running(chosen.threads)
        drafts = self._drafts(chosen.draft, chosen.drafting, chosen.threads)
        made = generations(model, tokenizer, ids, chosen, follow, drafts, embedded)
        if chosen.beam_width is not None:
            return by_beams(made[0], chosen)
        write_together(made, chosen.parallel)
        if chosen.best_of is None:
            return made
        for each in made:
            for _ in each:
                pass
        return sorted(made, key=lambda each: -each.cumulative_logprob)[: chosen.n]

    def chat(
        self, options: GenerateOptions | Sampling | None = None, *, system: str | None = None, **changes: Any
    ) -> Conversation:
        """Begin a conversation: `ask(text)` yields the answer as it comes, and `messages` has all turns.

        options, changes: as of `generate`, for every answer. system: the system message. Raises VocabularyError where
        the file has no chat template, OptionError for more than one text a turn.
        """
        from .chat import Conversation

        if (kind := self.metadata.get("general.type")) in NO_MODELS:
            raise _no_model(self.path, str(kind))
        chosen = options_of(options, changes)
        if chosen.texts != 1 or chosen.has_media or chosen.beam_width:
            raise OptionError("a conversation has one answer a turn, and no images or sounds", "see `generate`")
        self._grammar(chosen.grammar, chosen.json_schema)  # raises now what is wrong with it
        return Conversation(self, chosen, system)

    def embed(
        self,
        texts: str | Sequence[Text],
        *,
        pooling: str | None = None,
        normalize: int | None = None,
        truncate: bool = False,
        threads: int | None = None,
        progress: Callable[[int, int, Any], None] | None = None,
    ) -> Embeddings:
        """Vectors of texts: `embed(["a text", "another"]).vectors` is float32 (2, width).

        texts: one or several; with pooling="rank" pairs of a query and a document, which get scores. pooling: "mean",
        "cls" (the first token), "last", "none" (a vector for each token) or "rank"; None for what the file says.
        normalize: p of the norm that becomes 1, 2 if not given; -1 for none, 0 for a largest value of 32760. truncate:
        leave out ends of texts that the model has no positions for. threads: default all processors. progress(tokens
        done, of how many, None).
        Raises ModelError, VocabularyError, and OptionError for a text that is too long or has no tokens.
        """
        from runtime.evaluation.pooling import embeddings

        given = [texts] if isinstance(texts, str) else list(texts)
        return embeddings(
            self.running(threads),
            self.tokenizer,
            given,
            pooling=pooling,
            normalize=normalize,
            truncate=truncate,
            progress=progress,
        )

    def _sights(self, options: GenerateOptions) -> list[tuple[Sight, Sequence[Any]]]:
        """What sees images and hears sounds for this model, with these; kept as long as the projector is the same."""
        images, audio, projector, most_tokens = options.images, options.audio, options.projector, options.image_tokens
        if not (images or audio) or projector is None:
            media = "audio" if audio and not images else "images"
            given, absent = (media, "projector") if images or audio else ("projector", "images")
            none = not (images or audio or projector)
            raise OptionError("there are no images" if none else f"{given} is given without {absent}")
        if options.draft not in (None, "lookup"):
            media = "images" if images else "audio"
            raise OptionError("drafts do not see images or hear sounds", f'none, or "lookup", go with {media}')
        if most_tokens is not None and not images:
            raise OptionError("image_tokens is given without images")
        if most_tokens is not None:
            as_count(most_tokens, "image_tokens", 1)
        model = opened_gguf(projector)
        parts = (("images", images, most_tokens), ("audio", audio, None))
        return [(self._sight(part, model, most, options.threads), given) for part, given, most in parts if given]

    def _sight(self, part: str, model: Model, most_tokens: int | None, threads: int | None) -> Sight:
        from runtime.multimodal.audio import AudioEncoder
        from runtime.multimodal.vision import VisionEncoder

        from ..metadata.images import Sight

        made_for = [model, most_tokens, threads, self.tokenizer]
        kept = self._seeing.get(part)
        if kept is None or list(map(id, kept[0])) != list(map(id, made_for)):
            kind: type[AudioEncoder | VisionEncoder] = AudioEncoder if part == "audio" else VisionEncoder
            encoder = kind(model.metadata, model.tensors, thread_count(threads))
            kept = self._seeing[part] = made_for, Sight(encoder, self.metadata, self.tokenizer, most_tokens)
        return kept[1]

    def _drafts(self, draft: PathLike | Model | None, drafting: Drafting | None, threads: int | None) -> Drafts:
        if draft in (None, "lookup", "mtp"):
            own: Literal["lookup", "mtp"] | None = None if draft is None else "lookup" if draft == "lookup" else "mtp"
            return Drafts(own, None, drafting)
        assert draft is not None
        other = opened(draft)
        self._check_draft(other)
        return Drafts(other.reader_for(self.running(threads)) or other.running(threads), other.context_length, drafting)

    def reader_for(self, target: RunningModel) -> Reader | Assistant | BlockWriter | None:
        """What drafts for a target by reading its states, where this is such a draft's file. Raises ModelError."""
        from runtime.speculation.draft_files import reader_of

        return reader_of(target, self.metadata, self.tensors)

    def _check_draft(self, draft: Model) -> None:
        from ..metadata.vocabularies import compare_vocabularies

        files = [each.file for each in (self, draft) if each.file is not None and each.is_as_opened]
        if len(files) == 2 and list(files[0].states.values()) == list(files[1].states.values()):
            raise OptionError(f"the draft {draft.path} is the model itself", "a smaller one is needed")
        found = compare_vocabularies(
            (self.path, draft.path), (self.metadata, draft.metadata), (self.tokenizer, draft.tokenizer)
        )
        if found.obstacles:
            hint = f"`gguftools diff {self.path} {draft.path} --vocab` says more"
            if found.edits:
                hint = f"`gguftools set-metadata {draft.path} {' '.join(found.edits)}` mends it"
            raise VocabularyError(f"{draft.path} can't draft for {self.path}: {found.obstacles[0]}", hint)

    @property
    def context_length(self) -> int | None:
        """Tokens that the model was made for, if the file says it."""
        length = self.metadata.get(f"{self.architecture}.context_length")
        return int(length) if isinstance(length, (int, np.integer)) and length > 0 else None

    def _grammar(self, gbnf: str | None, schema: str | Mapping[str, Any] | None) -> Grammar | None:
        if gbnf is None and schema is None:
            return None
        from runtime.generation import grammar_vocabulary

        tokenizer = self.tokenizer
        if self._vocabulary is None or self._vocabulary[0] is not tokenizer:
            self._vocabulary = tokenizer, grammar_vocabulary(tokenizer)
        return grammar_of(self._vocabulary[1], gbnf, schema)

    def streamed(self) -> dict[str, Tensor]:
        """The tensors for reading them all: those of a GGUF file by system calls, which read ahead, not by its map."""
        if self.file is None:
            return dict(self.tensors)
        read = pread_tensors(self.file)
        mapped, tensors = self.file.tensors, self.tensors.data
        return {name: read[name] if mapped.get(name) is each else each for name, each in tensors.items()}

    def source(self, tensors: Mapping[str, Tensor]) -> Source | None:
        """How other processes read these, of `streamed`, those that are as they were opened; None where none can."""
        reopen, opened = self.origin.reopen, self._opened if self.file is None else self.file.tensors
        if reopen is None or opened is None:
            return None
        same = [name for name, tensor in self.tensors.data.items() if opened.get(name) is tensor]
        states = tuple((str(path.absolute()), *state[2:]) for path, state in self.origin.states.items())
        return Source(reopen, states, {id(tensors[name].read): name for name in same})

    def readable(self) -> Mapping[str, Tensor]:
        """The same for whoever needs values: tensors of dialects in ggml's own formats, or in float32."""
        return all_readable(self.streamed())

    def save(  # noqa: PLR0913  # what `quantize` takes, for a model in memory
        self,
        path: PathLike,
        recipe: str | Mapping[str, str] | None = None,
        *,
        rules: Mapping[str, str] | None = None,
        imatrix: PathLike | ImportanceMatrix | None = None,
        reserve: int = 0,
        allow_requantize: bool = False,
        overwrite: bool = False,
        threads: int | None = None,
        progress: Progress | None = None,
    ) -> QuantizeReport:
        """Write a GGUF file, and return what was written.

        recipe: None for every tensor as it is (of a checkpoint: in the type that follows it); a recipe's name, such as
        "Q4_K_M"; or rules alone. rules: regular expression → format, such as {"attn_v": "Q8_0"}: the first that is
        found in a tensor's name decides. imatrix: an importance matrix or its file. reserve: bytes of slack for later
        edits. allow_requantize: also encode again what is quantized. overwrite: replace a file that exists, but for
        those that the model is read from. threads: default all processors. progress(bytes read, of how many, tensor).
        Raises OptionError, FormatError, FileError.
        """
        from ..quantization.options import QuantizeOptions
        from ..quantization.outtypes import FILE_TYPES
        from ..quantization.recipes import recipe_named
        from ..writing.options import WriteOptions

        if self._closed:
            raise OptionError(f"the model of {self.path} is closed: its tensors are gone", "save it before that")
        if recipe is not None and not isinstance(recipe, (str, Mapping)):
            raise wrong("recipe", recipe, "a recipe's name, or rules,")
        if isinstance(recipe, Mapping):
            rules, recipe = {**recipe, **(rules or {})}, None
        run = WriteOptions(threads, progress=progress, overwrite=overwrite, reserve=reserve, reads=self.origin.reads)
        target = output_path(path, f"{self.path.stem}.gguf")
        outtype = self.origin.outtype if recipe is None else recipe.upper()
        if not rules and (recipe is None or (self.origin.outtype and outtype in FILE_TYPES)):
            if imatrix is not None:
                raise OptionError(f"imatrix changes nothing in {outtype or 'a copy'}", "name a recipe, such as Q4_K_M")
            return write_plain(self, target, outtype, run)
        return write_quantized(
            self,
            [recipe_named(recipe or "COPY")],
            [target],
            run,
            imatrix,
            QuantizeOptions(rules=rules or (), allow_requantize=allow_requantize),
            rules_alone=recipe is None,
        )

    def close(self) -> None:
        """Let go of the files; the tensors are gone then, the metadata stays."""
        self.tensors.clear()
        self._running = None
        self.file = None
        self._closed = True

    def __enter__(self) -> Model:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        what = self.architecture or "no architecture"
        held = f"{len(self.metadata)} keys, {len(self.tensors)} tensors, {self.nbytes:,} bytes"
        return f"<Model {str(self.path)!r}: {what}, {held}>"


def write_plain(
    model: Model,
    target: Path,
    outtype: str | None,
    run: WriteOptions,
    resumable: Resumable | None = None,
    warnings: Sequence[str] = (),
) -> QuantizeReport:
    """Write a model's tensors as they are (outtype None), or as a plain conversion to one of FILE_TYPES does."""
    from ..quantization.outputs import write_file
    from ..quantization.outtypes import plan_conversion
    from ..writing.items import Item
    from ..writing.pipeline import FilePlan

    streamed = model.streamed()
    if leaves_process(run.executor):
        run = replace(run, source=model.source(streamed))
    tensors = streamed.values()
    if outtype is None:
        items = tuple(Item(tensor, tensor.format) for tensor in tensors)
        file = FilePlan(target, model.metadata, items, model.origin.alignment, run.reserve, model.origin.magic)
    else:
        file = plan_conversion(target, model.metadata, tensors, model.origin, outtype, run.reserve)
    check_target(target, run.reads, run.overwrite or run.dry_run or (run.resume and isinstance(target, StorePath)))
    return write_file(file, outtype or "COPY", run, resumable, warnings)


def write_quantized(
    model: Model,
    recipes: Sequence[Recipe],
    paths: Sequence[Path],
    run: WriteOptions,
    imatrix: PathLike | ImportanceMatrix | None = None,
    options: QuantizeOptions | None = None,
    encode: EncodeAhead | None = None,
    rules_alone: bool = False,
) -> QuantizeReport:
    """Write a model once for each recipe, as `quantize` does; encode: see `write_recipes`; rules_alone: see `Planner`.

    Raises FileError for no model.
    """
    from ..quantization.imatrix import ImportanceMatrix
    from ..quantization.options import QuantizeOptions
    from ..quantization.outputs import write_recipes

    options, tensors = options or QuantizeOptions(), model.streamed()
    if leaves_process(run.executor):
        run = replace(run, source=model.source(tensors))
    planner = planner_of(model, recipes, imatrix, options, run, tensors, rules_alone)
    planner.check_overrides()
    read = run.reads.also([None if isinstance(imatrix, ImportanceMatrix) else imatrix])
    return write_recipes(planner, recipes, paths, replace(run, reads=read), encode)


def planner_of(
    model: Model,
    recipes: Sequence[Recipe],
    imatrix: PathLike | ImportanceMatrix | None,
    options: QuantizeOptions,
    run: WriteOptions,
    tensors: Mapping[str, Tensor] | None = None,
    rules_alone: bool = False,
) -> Planner:
    """What plans a model's outputs, one of each recipe, from its tensors, as `streamed` gives them if not given.

    Raises FileError for no model.
    """
    from ..quantization.imatrix import usable_matrix
    from ..quantization.planning import Planner, without_layers
    from ..quantization.stock import in_stock_formats

    kind = model.metadata.get("general.type")
    if isinstance(kind, str) and kind in NO_MODELS and kind != "mmproj":  # encoders are only no text models
        raise _no_model(model.path, kind)
    matrix, warnings = usable_matrix(imatrix, options.include_weights, options.exclude_weights)
    stock = in_stock_formats(model.streamed() if tensors is None else tensors, recipes, model.path)
    layers = without_layers(model.metadata, stock.tensors, options.prune_layers)
    told = [*warnings, *stock.warnings]
    return Planner(
        model.metadata,
        layers,
        model.origin,
        matrix,
        options,
        run.reserve,
        run.writes_nothing,
        warnings=told,
        rules_alone=rules_alone,
        restated=stock.changed,
    )


def _mapping(name: str, given: Any) -> Mapping[str, Any]:
    if not isinstance(given, Mapping):
        raise OptionError(f"{name} is {type(given).__name__}; a mapping by name was expected")
    return given


def open(source: PathLike) -> Model:
    """Open a GGUF file, any shard of a split set, a Hugging Face folder, or the URL of one, as hf://ORG/MODEL.

    Headers are read and checked, tensors are read when asked for. A checkpoint is the GGUF file that it would become.
    Raises FileError, and for checkpoints ModelError, VocabularyError.
    """
    path = as_path(source, "the model")
    if is_stored_gguf(source):
        return of_file(open_gguf(located(source)))
    return of_parts(of_checkpoint(source)) if is_remote(source) or path.is_dir() else of_file(open_gguf(path))


def opened(source: PathLike | Model) -> Model:
    """What a function was given, as a Model. Raises OptionError for what is neither, and as `open` does."""
    return source if isinstance(source, Model) else open(source)


def opened_gguf(source: PathLike | Model) -> Model:
    """The same for what is said of files as they are: no checkpoint, which would have to be converted first."""
    if isinstance(source, (str, os.PathLike)):
        return of_file(open_gguf(located(source)))
    return opened(source)


def path_of(source: PathLike | Model) -> Path:
    """The file that a function was given, as it was named."""
    return source.path if isinstance(source, Model) else located(source)


def model_of_weights(source: PathLike | Model) -> Model:
    """The same for what matrices are checked against. Raises FileError for what holds no model."""
    model = opened(source)
    kind = model.metadata.get("general.type")
    if isinstance(kind, str) and kind in NO_MODELS:
        raise _no_model(model.path, kind)
    return model


def _no_model(path: Path, kind: str) -> FileError:
    what, hint = NO_MODELS[kind]
    return FileError(f"{path} is {what}, not a model", hint)


def stored_file(source: PathLike | Model) -> Path:
    """The GGUF file to work on byte by byte: the one named, or that holds a Model as it is. Raises OptionError."""
    if isinstance(source, (str, os.PathLike)):
        return located(source)
    if not isinstance(source, Model):
        raise OptionError(f"source is {quote(source)}; the path of a GGUF file or a Model was expected")
    file, hint = source.file, "save it, and name that file"
    if file is None:
        raise OptionError(f"source is {source!r}; a Model opened from a GGUF file was expected", hint)
    stored = open_gguf(file.path)
    same = source.is_as_opened and stored.states == file.states
    if not same or any(compare_metadata(stored.metadata, source.metadata)):
        raise OptionError(f"source was changed since {file.path} was opened; it was expected as it is there", hint)
    return file.path


def load(source: PathLike | Model, *, threads: int | None = None) -> RunningModel:
    """Open a model ready to run: `load(path).logits([1, 2, 3])` is float32 (tokens, vocabulary).

    threads: of this model; None for all processors. Raises as `open` does, OptionError for fewer threads than one, and
    ModelError for what the runtime cannot run.
    """
    from runtime.model import Model as RunningModel

    model = opened(source)
    return RunningModel(model.metadata, model.tensors, threads=threads)


def selected(tensors: Mapping[str, Tensor], pattern: str | None) -> list[Tensor]:
    """Tensors whose name the regular expression is found in. Raises OptionError for a bad expression or no match."""
    if pattern is None:
        return list(tensors.values())
    expression = compile_pattern(pattern, "--tensors")
    found = [t for name, t in tensors.items() if expression.search(name)]
    if not found:
        raise OptionError(f"no tensor's name matches {pattern!r}")
    return found


def of_file(file: GgufFile) -> Model:
    """An open GGUF file as a Model."""
    parts = of_gguf(file)
    model = of_parts(parts._replace(tensors={}), file)
    model.tensors.data.update(parts.tensors)  # of a hundred thousand, without a look at each
    return model


def of_parts(parts: Parts, file: GgufFile | None = None) -> Model:
    """What was found in a source, as a Model."""
    return Model(parts.metadata, parts.tensors, origin=parts.origin, file=file)
