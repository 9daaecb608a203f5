"""Graft: copy a GGUF file with tensors and keys of other files, or without some; stored bytes stay as they are.

Nothing is decoded: the new file is made of byte ranges of the inputs. Parts that do not fit (shapes, vocabularies,
numbers of layers) are refused before anything is written.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from archs.general import size_label
from archs.metadata import Metadata
from archs.mtp import faults_beyond
from archs.registry import architectures
from archs.validation.model_validators import faults
from quants import Tensor
from quants.arguments import PathLike, as_path, as_texts, wrong
from quants.errors import GgufToolsError, ModelError, OptionError, VocabularyError
from quants.patterns import compile_pattern
from quants.spelling import quote

from ...conversion import mtp_layers
from ...io.atomic import InputFiles, check_target, output_path
from ...io.gguf.assembly import Stored, check_alike, mapping, plan_like, planned_file, stored_tensors
from ...io.gguf.copies import planned_traffic, warning_of, write_copies
from ...io.gguf.reader import GgufFile, open_gguf
from ...io.gguf.shards import without_split_keys
from ...io.gguf.writer import RESERVE_KEY
from ...io.stores.pieces import Traffic
from ...measurement.text_tokens import read_text
from ...metadata.checks import problems, removal_problem
from ...metadata.difference import KeyDifference, compare_metadata
from ...models.contents import NO_MODELS
from ...models.model import Model, of_file, stored_file
from ...quantization.planning import without_layers
from ...writing.options import WriteOptions, shown
from ...writing.row_blocks import Progress
from .expert_choice import ExpertOptions, chosen_experts, list_of_experts
from .expert_merging import Partners, merged
from .experts import mixture_of, without_experts

if TYPE_CHECKING:
    from ...measurement.divergence_report import DivergenceReport

KEY = "key:"
MTP = "mtp"
SHORTHANDS = {  # tensors, keys; {} is the architecture's name
    "tokenizer": ("", r"tokenizer\..*"),
    "template": ("", r"tokenizer\.chat_templates?(\..*)?"),
    "embeddings": (r"token_embd\.weight", ""),
    "head": (r"output\.(weight|bias)", ""),
    "rope": (r"rope_(freqs|factors_long|factors_short)\.weight", r"{}\.rope\..*"),
}
STRUCTURE = {"general.architecture", "general.alignment", "general.type", RESERVE_KEY}  # of a file, not of a part
OF_VOCABULARY = re.compile(
    r"(token_embd|output|per_layer_token_embd)\.(weight|bias)|.*\.nextn\.(embed_tokens|shared_head_head)\.weight"
)
TOKENS, SIZE_LABEL = "tokenizer.ggml.tokens", "general.size_label"
FORCE = "pass `force` to write it all the same"


@dataclass(frozen=True)
class MovedTensor:
    """A tensor of a donor: its name in the output and in the donor, and its bytes."""

    name: str
    donor: Path
    donor_name: str
    nbytes: int

    def as_dict(self) -> dict[str, Any]:
        return {"name": self.name, "donor": str(self.donor), "donor_name": self.donor_name, "size_bytes": self.nbytes}


@dataclass(frozen=True)
class GraftReport:
    """The result of a graft, or (dry_run) its plan.

    moved: tensors of donors; removed: names of the source's tensors that are gone; keys: differences in the metadata;
    experts: those dropped, by layer; merged: by layer and remaining expert, the experts averaged into it; scores: of
    all experts, if measured. divergence: from the source, if requested. traffic: bytes read from and written to a
    store.
    """

    path: Path
    nbytes: int
    moved: list[MovedTensor]
    removed: list[str]
    keys: list[KeyDifference]
    experts: Mapping[int, Sequence[int]] = field(default_factory=dict)
    merged: Partners = field(default_factory=dict)
    scores: Mapping[int, Sequence[float]] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    dry_run: bool = False
    divergence: "DivergenceReport | None" = None
    traffic: Traffic | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return the contract of `graft --json`."""
        return {
            "file": str(self.path),
            "size_bytes": self.nbytes,
            "moved": [each.as_dict() for each in self.moved],
            "removed": self.removed,
            "keys": [each.as_dict() for each in self.keys],
            "experts": {str(layer): list(numbers) for layer, numbers in self.experts.items()},
            "merged": {
                str(layer): {str(expert): list(others) for expert, others in into.items()}
                for layer, into in self.merged.items()
            },
            "scores": {str(layer): [float(score) for score in scores] for layer, scores in self.scores.items()},
            "warnings": self.warnings,
            "dry_run": self.dry_run,
            "divergence": None if self.divergence is None else self.divergence.as_dict(),
            "store": self.traffic.as_dict() if self.traffic else None,
        }


@dataclass
class Body:
    """The model between source and output. force: warn about parts that do not fit instead of refusing them."""

    opened: GgufFile
    metadata: Metadata
    tensors: dict[str, Stored]
    force: bool = False
    moved: dict[str, MovedTensor] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)

    @property
    def architecture(self) -> str:
        name = self.metadata.get("general.architecture", "")
        return name if isinstance(name, str) else ""

    def refuse(self, error: GgufToolsError) -> None:
        """Raise the error, or with `force` record it as a warning."""
        if not self.force:
            raise error
        self.warnings.append(str(error))


@dataclass(frozen=True)
class GraftOptions:
    """How to graft.

    force: write parts that do not fit, too. measure: a text to measure the divergence from the source on. n_ctx,
    chunks: windows of this text, and of one that scores experts.
    """

    force: bool = False
    measure: PathLike | None = None
    n_ctx: int = 512
    chunks: int | None = None

    def __repr__(self) -> str:
        return shown(self)


def graft(
    source: PathLike | Model,
    output: PathLike,
    donors: Sequence[tuple[PathLike, str | Sequence[str]]] = (),
    *,
    drop: str | Sequence[str] = (),
    drop_layers: Sequence[int] = (),
    experts: ExpertOptions | None = None,
    options: GraftOptions = GraftOptions(),
    write: WriteOptions = WriteOptions(),
) -> GraftReport:
    """Write a copy of a GGUF file with tensors and keys of others, or without some of its own; nothing is decoded.

    source: the file, any shard of a set, or a Model opened from one. output: a file, or a folder. donors: files, and
    what to take from each: regular expressions for names of tensors, `key:REGEX` for keys, or mtp (the MTP layers),
    tokenizer, template, embeddings, head, rope. drop: the same, to leave out. drop_layers: numbers of layers; the rest
    is renumbered. experts: which experts of each layer to leave out. options: checks and measurement. write: how to
    write files; threads, progress, overwrite and dry_run apply here. Order: drop layers and tensors, take from donors,
    drop experts. Raises FileError, OptionError, ModelError, VocabularyError.
    """
    write.check_used(graft, "threads", "progress", "overwrite", "dry_run", "reads")
    opened = open_gguf(stored_file(source))
    body = Body(opened, without_split_keys(opened.metadata), stored_tensors(opened), options.force)
    if not isinstance(donors, Sequence) or any(not isinstance(each, Sequence) or len(each) != 2 for each in donors):
        raise wrong("donors", donors, "a list of pairs of a file and what is taken from it")
    others = [(open_gguf(as_path(path, "a donor")), as_texts(patterns, "patterns")) for path, patterns in donors]
    dropped = as_texts(drop, "drop")
    if not (others or dropped or drop_layers or experts is not None):
        raise OptionError("there is nothing to change", hint="name a donor, or what is left out (`drop`)")
    target = output_path(output, opened.path.name)
    listed = None if experts is None else list_of_experts(experts.drop)
    read = _reads(opened, [donor for donor, _ in others], experts, listed, options)
    write = replace(write, reads=read.union(write.reads))
    check_target(target, write.reads, write.overwrite or write.dry_run)
    if options.measure is not None:
        read_text(options.measure)  # raise before a file is written
    if drop_layers:
        _drop_layers(body, drop_layers)
    for pattern in dropped:
        _drop(body, pattern)
    for donor, patterns in others:
        _take(body, donor, patterns)
    before = mapping(stored_tensors(opened))
    _check_vocabulary(body, others)
    _check(body, before)
    left_out = DroppedExperts()
    if experts is not None:
        left_out = _without_experts(body, experts, listed, options, write)
        _check(body, before)
    _relabel(body, before)
    return _written(body, target, left_out, options, write)


def _reads(
    opened: GgufFile,
    donors: Sequence[GgufFile],
    experts: ExpertOptions | None,
    listed: Path | None,
    options: GraftOptions,
) -> InputFiles:
    """Return the inputs, which must not be overwritten."""
    states = {path: state for file in (opened, *donors) for path, state in file.states.items()}
    texts = () if experts is None else (listed, experts.text, experts.imatrix)
    return InputFiles(tuple(path for donor in donors for path in donor.shards), states).also([*texts, options.measure])


def _written(
    body: Body, target: Path, left_out: "DroppedExperts", options: GraftOptions, write: WriteOptions
) -> GraftReport:
    """Write the output, or plan it, and measure its divergence."""
    opened, kept = body.opened, list(body.tensors.values())
    layout = plan_like(opened, body.metadata, [each.tensor for each in kept])
    copies, cost = [planned_file(target, layout, kept, opened.byte_order)], None
    if write.dry_run:
        traffic = planned_traffic(copies)
    else:
        traffic = write_copies(copies, write.overwrite, write.reads, write.progress)
    body.warnings.extend(filter(None, [warning_of(copies, traffic)]))
    if options.measure is not None and not write.dry_run:
        from ...measurement.divergence import divergence

        progress = None if write.progress is None else _window_progress(write.progress)
        cost = divergence(
            opened.path,
            target,
            text=options.measure,
            n_ctx=options.n_ctx,
            chunks=options.chunks,
            threads=write.threads,
            progress=progress,
        )
    return GraftReport(
        target,
        layout.total,
        [each for name, each in body.moved.items() if name in body.tensors],
        [name for name in opened.tensors if name not in body.tensors],
        list(compare_metadata(without_split_keys(opened.metadata), body.metadata)),
        left_out.experts,
        left_out.merged,
        left_out.scores,
        body.warnings,
        write.dry_run,
        cost,
        traffic,
    )


def _relabel(body: Body, before: Mapping[str, Tensor]) -> None:
    """Update a size label that was counted from the tensors."""
    if SIZE_LABEL in body.metadata and body.metadata[SIZE_LABEL] == size_label(before.values()):
        label = size_label(each.tensor for each in body.tensors.values())
        if label is not None:
            body.metadata[SIZE_LABEL] = label


# Drop


def _drop_layers(body: Body, layers: Sequence[int]) -> None:
    pruned = without_layers(body.metadata, mapping(body.tensors), list(layers))
    old = {name: body.tensors[pruned.old_names.get(name, name)] for name in pruned.tensors}
    body.metadata, body.tensors = pruned.metadata, {name: each.renamed(name) for name, each in old.items()}


def _drop(body: Body, pattern: str) -> None:
    if pattern == MTP:
        body.metadata, body.tensors = mtp_layers.without(body.metadata, body.tensors, body.opened.path)
        return
    names, keys = matched(pattern, body.tensors, body.metadata, body.architecture)
    if not names and not keys:
        raise _nothing(pattern, body.opened)
    for key in keys:
        if problem := removal_problem(key, body.metadata):
            body.refuse(OptionError(problem, FORCE))
        del body.metadata[key]
    for name in names:
        del body.tensors[name]


def _nothing(pattern: str, opened: GgufFile) -> OptionError:
    if pattern == "head" and "token_embd.weight" in opened.tensors:
        problem = f"{opened.path} has no output.weight: its embeddings are its head, too"
        return OptionError(problem, hint="take the embeddings")
    what = "key" if pattern.startswith(KEY) else "tensor"
    return OptionError(f"no {what} of {opened.path} matches {pattern!r}", "`gguftools show` lists them")


def matched(
    pattern: str, tensors: Iterable[str], keys: Iterable[str], architecture: str
) -> tuple[list[str], list[str]]:
    """Return the tensors and keys that match a pattern. Raises OptionError for an invalid regular expression."""
    if pattern in SHORTHANDS:
        of_tensors, of_keys = SHORTHANDS[pattern]
        of_keys = of_keys.replace("{}", re.escape(architecture))
        return (
            [name for name in tensors if of_tensors and re.fullmatch(of_tensors, name)],
            [key for key in keys if of_keys and re.fullmatch(of_keys, key)],
        )
    expression = compile_pattern(pattern.removeprefix(KEY), "the pattern")
    if not expression.text:
        raise OptionError("an empty pattern means every tensor", hint="name some of them, such as output")
    if pattern.startswith(KEY):
        return [], [key for key in keys if expression.search(key) and key not in STRUCTURE]
    return [name for name in tensors if expression.search(name)], []


# Take from donors


def _take(body: Body, donor: GgufFile, patterns: Sequence[str]) -> None:
    check_alike(body.opened, donor)
    if not patterns:
        raise OptionError(
            f"nothing is named that should come from {donor.path}", hint="name them, such as mtp or tokenizer"
        )
    own = donor.metadata.get("general.architecture")
    stored = stored_tensors(donor)
    for pattern in patterns:
        if pattern == MTP:
            _check_architecture(body, donor)
            for reason in mtp_layers.differences(body.metadata, donor.metadata):
                body.refuse(ModelError(f"{donor.path} computes differently from {body.opened.path}: {reason}", FORCE))
            body.metadata, tensors = mtp_layers.with_donor(
                body.metadata, body.tensors, donor.metadata, stored, donor.path
            )
            for name, (each, old) in tensors.items():
                _put(body, donor, name, old, each)
            continue
        names, keys = matched(pattern, stored, donor.metadata, str(own or ""))
        if not names and not keys:
            raise _nothing(pattern, donor)
        if names or any(key.startswith(f"{own}.") for key in keys):
            _check_architecture(body, donor)
        for name in names:
            _check_shape(body, donor, name, stored[name].tensor, patterns)
            _put(body, donor, name, name, stored[name])
        if pattern in SHORTHANDS:  # remove keys that the donor lacks
            for key in matched(pattern, (), body.metadata, body.architecture)[1]:
                del body.metadata[key]
        for key in keys:
            body.metadata[key] = donor.metadata.value(key)


def _put(body: Body, donor: GgufFile, name: str, old: str, each: Stored) -> None:
    body.tensors[name] = each.renamed(name)
    body.moved[name] = MovedTensor(name, donor.path, old, each.tensor.nbytes)


def _check_architecture(body: Body, donor: GgufFile) -> None:
    architecture = donor.metadata.get("general.architecture")
    if architecture != body.metadata.get("general.architecture"):
        problem = (
            f"{donor.path} is of architecture {quote(architecture)}, {body.opened.path} of {quote(body.architecture)}"
        )
        body.refuse(ModelError(problem, FORCE))


def _check_shape(body: Body, donor: GgufFile, name: str, tensor: Tensor, patterns: Sequence[str]) -> None:
    """Refuse a tensor of another shape, except one row per token if the tokenizer is taken, too."""
    there = body.tensors.get(name)
    if there is None or there.tensor.shape == tensor.shape:
        return
    if OF_VOCABULARY.fullmatch(name) and there.tensor.shape[1:] == tensor.shape[1:] and "tokenizer" in patterns:
        return
    shapes = f"{list(tensor.shape)} in {donor.path}, {list(there.tensor.shape)} in {body.opened.path}"
    hint = "take the tokenizer, the embeddings and the head together" if OF_VOCABULARY.fullmatch(name) else FORCE
    body.refuse(ModelError(f"{name!r} has shape {shapes}", hint))


# Checks


def _check_vocabulary(body: Body, others: Sequence[tuple[GgufFile, Sequence[str]]]) -> None:
    """Refuse tensors of a donor that were made for other tokens than the output's. Raises VocabularyError."""
    tokens, architecture = body.metadata.get(TOKENS), body.architecture
    for donor, patterns in others:
        mine = [each for each in body.moved.values() if each.donor == donor.path]
        theirs = donor.metadata.get(TOKENS)
        depends = MTP in patterns or any(OF_VOCABULARY.fullmatch(each.name) for each in mine)
        if depends and theirs is not None and tokens is not None and (count := _differing(tokens, theirs)):
            what = f"{count:,} tokens of {donor.path} are others than those of {body.opened.path}"
            body.refuse(VocabularyError(what, hint="take its tokenizer, too, or pass `force`"))
    table = body.tensors.get("token_embd.weight")
    if table is not None and tokens is not None and table.tensor.shape[0] != len(tokens):
        what = f"the vocabulary has {len(tokens):,} tokens, token_embd.weight {table.tensor.shape[0]:,} rows"
        body.refuse(VocabularyError(what, hint="take tokenizer, embeddings and head from one file"))
    for name, each in body.tensors.items():
        if table is not None and name == "output.weight" and each.tensor.shape[0] != table.tensor.shape[0]:
            what = f"output.weight has {each.tensor.shape[0]:,} rows, token_embd.weight {table.tensor.shape[0]:,}"
            body.refuse(VocabularyError(what, hint="take embeddings and head from one file"))
    size = f"{architecture}.vocab_size"
    if table is not None and size in body.metadata and body.metadata[size] != table.tensor.shape[0]:
        body.metadata[size] = table.tensor.shape[0]
    before = body.opened.metadata.get(TOKENS)
    replaced = any(each.name == "token_embd.weight" for each in body.moved.values())
    if tokens is not None and before is not None and not replaced and (count := _differing(tokens, before)):
        body.warnings.append(f"{count:,} tokens are others than before; the embeddings stay as they were")
    if replaced and "output.weight" not in body.tensors:
        body.warnings.append("there is no output.weight: the new embeddings are the head, too")


def _differing(tokens: Any, others: Any) -> int:
    if len(tokens) != len(others):
        return max(len(tokens), len(others)) - sum(bool(a == b) for a, b in zip(tokens, others, strict=False))
    return sum(bool(a != b) for a, b in zip(tokens, others, strict=True))


def _check(body: Body, before: Mapping[str, Tensor]) -> None:
    """Refuse faults of the output that the source does not have. Raises ModelError."""
    tensors = mapping(body.tensors)
    old = {str(each) for each in _faults(body.opened.metadata, before)}
    for fault in _faults(body.metadata, tensors):
        if str(fault) not in old:
            body.refuse(ModelError(f"the output would not be a valid model: {fault}", FORCE))
    for change in compare_metadata(body.opened.metadata, body.metadata):
        if change.b is not None and not change.key.startswith("split."):
            for problem in problems(change.key, change.a, body.metadata, tensors):
                body.refuse(ModelError(f"the output would not be a valid model: {problem}", FORCE))


def _faults(metadata: Metadata, tensors: Mapping[str, Tensor]) -> Iterator[object]:
    name, file_type = metadata.get("general.architecture"), metadata.get("general.type")
    family = [each for each in architectures() if each.name == name]
    if not family or (isinstance(file_type, str) and file_type in NO_MODELS) or not tensors:
        return  # not known, or no model
    yield from faults(family[0], metadata, tensors)
    yield from faults_beyond(family[0], metadata, tensors)


# Experts


def _window_progress(progress: Progress) -> Callable[[int, int, float], None]:
    return lambda done, total, _: progress(done, total, "windows read")


@dataclass(frozen=True)
class DroppedExperts:
    """Experts that were left out; see `GraftReport`."""

    experts: Mapping[int, Sequence[int]] = field(default_factory=dict)
    merged: Partners = field(default_factory=dict)
    scores: Mapping[int, Sequence[float]] = field(default_factory=dict)


def _without_experts(
    body: Body, experts: ExpertOptions, listed: Path | None, options: GraftOptions, write: WriteOptions
) -> DroppedExperts:
    """Drop experts of the body, averaging them into others if requested."""
    progress = None if write.progress is None else _window_progress(write.progress)
    before = body.tensors
    model = Model(body.metadata, mapping(before), origin=of_file(body.opened).origin)
    mixture = mixture_of(body.metadata, model.tensors, body.opened.path)
    dropped, ranking = chosen_experts(
        model, mixture, experts, listed, options.n_ctx, options.chunks, write.threads, progress
    )
    body.metadata, body.tensors, warnings = without_experts(body.metadata, before, mixture, dropped)
    body.warnings += warnings
    if not experts.merge:
        return DroppedExperts(dropped, {}, ranking.scores)
    if not ranking.counts:
        raise OptionError(
            "experts are averaged by how often they are used, which a list does not have",
            hint="let a text or an importance matrix choose them",
        )
    body.tensors, into = merged(before, body.tensors, mixture, dropped, ranking.counts, experts.allow_requantize)
    return DroppedExperts(dropped, into, ranking.scores)
