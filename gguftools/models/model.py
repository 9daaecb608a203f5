"""A model: typed metadata and named tensors, opened from anywhere or made of arrays, changed, and saved."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quants import Tensor
from quants.arguments import PathLike, as_path, wrong
from quants.errors import OptionError
from quants.patterns import compile_pattern
from quants.spelling import quote

from ..io.atomic import output_path
from ..io.gguf.reader import GgufFile, open_gguf
from ..io.naming import is_remote, is_stored_gguf
from ..io.stores.path import located
from ..metadata.difference import compare_metadata
from .contents import Contents, check_is_model, check_runs
from .devices import DeviceOptions
from .diffusion_sources import RECIPE, is_diffusion, of_diffusion
from .generation import Drafts, GenerateOptions, by_beams, generations, options_of, prompt_tokens, truncated
from .outputs import write_plain, write_quantized
from .running import check_fits, check_media, drafts_of, grammar_for, media_encoders, running_model
from .sources import Parts, of_checkpoint, of_gguf

if TYPE_CHECKING:
    from runtime.evaluation.pooling import Embeddings, Text
    from runtime.generation import Generation
    from runtime.images import EmbeddedImage
    from runtime.model import RunningModel
    from runtime.sampling.parameters import Sampling

    from ..quantization.imatrix import ImportanceMatrix
    from ..writing.options import WriteOptions
    from ..writing.report import QuantizeReport
    from .chat import Conversation


class Model(Contents):
    """A model as a file has it: typed metadata and tensors, wherever they come from.

    metadata: typed, changed like a dict. tensors: read when asked for; changed like a dict. origin: the files that
    values come from. file: of a GGUF file, how it is laid out.

        with gguftools.open("model.gguf") as model:
            model.metadata["general.name"] = "mine"
            model.save("other.gguf", "Q4_K_M")
    """

    def generate(
        self,
        prompt: str | Sequence[int] | Sequence[Mapping[str, Any]],
        options: GenerateOptions | Sampling | None = None,
        **changes: Any,
    ) -> Generation:
        """Generate text from a prompt: iterate for (token, text) as they come.

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
        """Generate several texts from one prompt, which is read once: as many as the option `n` says.

        They may be iterated over in any order, also by turns. Arguments and errors are those of `generate`.
        """
        from runtime.batched_generation import write_together

        check_runs(self)
        chosen = options_of(options, changes)
        tokenizer = self.tokenizer
        context = chosen.context or self.context_length
        chosen = replace(chosen, sampling=chosen.sampling_for(self.metadata), context=context)
        embedded: Sequence[EmbeddedImage] = ()
        if chosen.has_media:
            from ..metadata.images import read_prompt

            check_media(chosen)
            encoders = media_encoders(self, opened_gguf(chosen.projector), chosen)
            ids, embedded = read_prompt(prompt, encoders, chosen.progress)
        else:
            ids = truncated(prompt_tokens(tokenizer, self.metadata, prompt), chosen, context)
        follow = grammar_for(self, chosen.grammar, chosen.json_schema)
        model = running_model(self, chosen.threads, chosen.device)
        check_fits(model)
        drafts = self._drafts(chosen)
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
        """Start a conversation: `ask(text)` yields the answer as it comes, and `messages` has all turns.

        options, changes: as of `generate`, for every answer. system: the system message. Raises VocabularyError where
        the file has no chat template, OptionError for more than one text a turn.
        """
        from .chat import Conversation

        check_runs(self)
        chosen = options_of(options, changes)
        if chosen.texts != 1 or chosen.has_media or chosen.beam_width:
            raise OptionError("a conversation has one answer a turn, and no images or sounds", "see `generate`")
        grammar_for(self, chosen.grammar, chosen.json_schema)  # raises now what is wrong with it
        chosen.sampling_for(self.metadata)
        return Conversation(self, chosen, system)

    def embed(
        self,
        texts: str | Sequence[Text],
        *,
        pooling: str | None = None,
        normalize: int | None = None,
        truncate: bool = False,
        threads: int | None = None,
        device: str | DeviceOptions | None = None,
        progress: Callable[[int, int, Any], None] | None = None,
    ) -> Embeddings:
        """Compute embeddings of texts: `embed(["a text", "another"]).vectors` is float32 (2, width).

        texts: one or several; with pooling="rank" pairs of a query and a document, which get scores. pooling: "mean",
        "cls" (the first token), "last", "none" (a vector for each token) or "rank"; None for what the file says.
        normalize: p of the norm that becomes 1, 2 if not given; -1 for none, 0 for a largest value of 32760. truncate:
        leave out ends of texts that the model has no positions for. threads: default all processors. device: as of
        `GenerateOptions`; texts go layer by layer through a model that is too large for it. progress(tokens done, of
        how many, None).
        Raises ModelError, VocabularyError, and OptionError for a text that is too long or has no tokens.
        """
        from runtime.evaluation.pooling import embeddings

        if not isinstance(texts, Iterable):
            raise wrong("texts", texts, "a text, or a list of texts,")
        given = [texts] if isinstance(texts, str) else list(texts)
        return embeddings(
            running_model(self, threads, device),
            self.tokenizer,
            given,
            pooling=pooling,
            normalize=normalize,
            truncate=truncate,
            progress=progress,
        )

    def _drafts(self, options: GenerateOptions) -> Drafts:
        draft = options.draft
        if draft is None or draft in ("lookup", "mtp"):
            return Drafts(draft, None, options.drafting)
        return drafts_of(self, opened(draft), options)

    def save(
        self,
        path: PathLike,
        recipe: str | Mapping[str, str] | None = None,
        *,
        rules: Mapping[str, str] | None = None,
        imatrix: PathLike | ImportanceMatrix | None = None,
        allow_requantize: bool = False,
        overwrite: bool = False,
        write: WriteOptions | None = None,
    ) -> QuantizeReport:
        """Write a GGUF file, and return what was written.

        recipe: None for every tensor as it is (of a checkpoint: in the type that follows it); a recipe's name, such as
        "Q4_K_M"; or rules alone. rules: regular expression → format, such as {"attn_v": "Q8_0"}: the first that is
        found in a tensor's name decides. imatrix: an importance matrix or its file. allow_requantize: also
        encode again what is quantized. overwrite: replace a file that exists, but for those that the model is read
        from. write: threads, memory, progress, reserve and the like.
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
        run = write or WriteOptions()
        run.check_used(
            self.save, "threads", "memory", "progress", "overwrite", "reserve", "reads", "dry_run", "statistics"
        )
        run = replace(run, overwrite=overwrite or run.overwrite, reads=self.origin.reads.union(run.reads))
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
            only_rules=recipe is None,
        )

    def close(self) -> None:
        """Close the files: the tensors are gone then, the metadata stays."""
        self.tensors.clear()
        self._kept.clear()
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


def open(source: PathLike) -> Model:
    """Open a GGUF file, any shard of a split set, a Hugging Face folder, or the URL of one, as hf://ORG/MODEL.

    Headers are read and checked, tensors are read when asked for. A checkpoint is the GGUF file that it would become.
    Raises FileError, and for checkpoints ModelError, VocabularyError.
    """
    path = as_path(source, "the model")
    if is_stored_gguf(source):
        return of_file(open_gguf(located(source)))
    if is_diffusion(source):
        return of_parts(of_diffusion(source, RECIPE))
    return of_parts(of_checkpoint(source)) if is_remote(source) or path.is_dir() else of_file(open_gguf(path))


def opened(source: PathLike | Model) -> Model:
    """Return what a function was given, as a Model. Raises OptionError for what is neither, and as `open` does."""
    return source if isinstance(source, Model) else open(source)


def opened_gguf(source: PathLike | Model) -> Model:
    """Return the same of a GGUF file: no checkpoint, which would have to be converted first."""
    if isinstance(source, (str, os.PathLike)):
        return of_file(open_gguf(located(source)))
    return opened(source)


def path_of(source: PathLike | Model) -> Path:
    """Return the file that a function was given, as it was named."""
    if isinstance(source, Model):
        return source.path
    as_path(source, "the model")
    return located(source)


def model_of_weights(source: PathLike | Model) -> Model:
    """Return what a function was given, as a Model with weights. Raises FileError for what holds no model."""
    model = opened(source)
    check_is_model(model)
    return model


def stored_file(source: PathLike | Model) -> Path:
    """Return the GGUF file to work on: the one named, or that holds a Model as it is. Raises OptionError."""
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


def load(
    source: PathLike | Model, *, threads: int | None = None, device: str | DeviceOptions | None = None
) -> RunningModel:
    """Open a model ready to run: `load(path).logits([1, 2, 3])` is float32 (tokens, vocabulary).

    threads: of this model; None for all processors. device: as of `GenerateOptions`. Raises as `open` does, OptionError
    for fewer threads than one and for a device that is not there, and ModelError for what the runtime cannot run.
    """
    return running_model(opened(source), threads, device)


def selected(tensors: Mapping[str, Tensor], pattern: str | None) -> list[Tensor]:
    """Return tensors whose name matches. Raises OptionError for a bad expression or no match."""
    if pattern is None:
        return list(tensors.values())
    expression = compile_pattern(pattern, "tensors")
    matching = [t for name, t in tensors.items() if expression.search(name)]
    if not matching:
        raise OptionError(f"no tensor's name matches {pattern!r}")
    return matching


def of_file(file: GgufFile) -> Model:
    """Return an open GGUF file as a Model."""
    parts = of_gguf(file)
    model = of_parts(parts._replace(tensors={}), file)
    model.tensors.data.update(parts.tensors)  # of a hundred thousand, without a look at each
    return model


def of_parts(parts: Parts, file: GgufFile | None = None) -> Model:
    """Return what was found in a source, as a Model."""
    return Model(parts.metadata, parts.tensors, origin=parts.origin, file=file)
