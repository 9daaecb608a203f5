"""What a model is made of, by where it comes from: a GGUF file, a checkpoint, or a checkpoint's encoders."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from archs.metadata import Metadata
from archs.small_files import recorded_reads
from quants import Tensor
from quants.arguments import PathLike
from quants.errors import FileError, ModelError

from ..io.gguf.reader import GgufFile, open_gguf
from ..io.naming import is_remote
from ..io.positioned import PositionedInput, row_reader
from ..io.stores.path import located
from ..io.stores.store import is_pinned
from ..writing.origin import Origin
from .left_out import DENSE, left_out

if TYPE_CHECKING:
    from archs.plans.text import Change, Plan

    from ..io.checkpoint.folder import Checkpoint

KEPT_OPEN = 16  # shards; of a set of more, each is opened for each read


class Parts(NamedTuple):
    """Typed metadata, tensors by name in order, and the files that they come from."""

    metadata: Metadata
    tensors: Mapping[str, Tensor]
    origin: Origin


def of_gguf(file: GgufFile) -> Parts:
    """Return the parts of an open GGUF file: its tensors as its map has them."""
    shards = tuple(tuple(part.tensors) for part in file.parts)
    recorded = tuple((str(part.path), part.stored) for part in file.parts if part.stored)
    reopen = partial(tensors_of_file, file.path if file.is_stored else file.path.absolute())
    origin = Origin(
        file.path,
        tuple(file.shards),
        file.states,
        shards,
        file.magic,
        file.alignment,
        recorded,
        remote=file.is_stored,
        reopen=reopen,
    )
    return Parts(file.metadata, file.tensors, origin)


def pread_tensors(file: GgufFile) -> dict[str, Tensor]:
    """Return the tensors of a GGUF file, read by system calls instead of through a map. See `io.positioned`."""
    if file.is_stored:
        return dict(file.tensors)
    tensors = {}
    for part in file.parts:
        source = PositionedInput(part.path, keep_open=len(file.parts) <= KEPT_OPEN)
        for name, tensor in part.tensors.items():
            read = row_reader(source.read, part.offsets[name], tensor.shape, tensor.format, part.byte_order)
            tensors[name] = Tensor(name, tensor.shape, tensor.format, read, tensor.origin, tensor.tail)
    return tensors


def tensors_of_file(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a GGUF file or split set for another process, which knows its path."""
    return pread_tensors(open_gguf(path))


def tensors_of_checkpoint(
    source: str, pre: str | None, target: Path | None = None, tokenizer: Path | None = None
) -> dict[str, Tensor]:
    """Return the same of a checkpoint, as `of_checkpoint` does."""
    return dict(of_checkpoint(source, pre, target=target, tokenizer=tokenizer).tensors)


def tensors_of_encoders(source: str, processor: Path | None = None) -> dict[str, Tensor]:
    """Return the same of a checkpoint's encoders, as `of_encoders` does."""
    return dict(of_encoders(source, processor).tensors)


class Changes(NamedTuple):
    """What is done to a checkpoint on its way to a file.

    change: to its tensors first (adapters); derive: to the plan after that (a PowerInfer predictor, whose files have
    another magic; some of the layers). derived: what that was. config: keys of config.json as what is merged changes
    them.
    """

    change: Change | None = None
    derive: Callable[[Plan, Checkpoint], Plan] | None = None
    derived: str = ""
    magic: bytes = b"GGUF"
    config: Mapping[str, Any] = {}


def of_checkpoint(
    source: PathLike,
    pre: str | None = None,
    embed_tokenizer: bool = False,
    target: Path | None = None,
    *,
    changes: Changes = Changes(),
    inspect: Callable[[Metadata, Path], str] | None = None,
    with_encoders: bool = False,
    tokenizer: Path | None = None,
) -> Parts:
    """Return the parts of the file that a checkpoint becomes; small tensors are float32, nothing is read but headers.

    pre: the pre-tokenizer's GGUF name, where the tokenizer's structure does not tell. embed_tokenizer: also keep
    tokenizer.json itself. target: the folder of the model that the checkpoint is a draft for (EAGLE-3).
    inspect(metadata, folder of the tokenizer): gives a warning, or "", while the folder is there. with_encoders: they
    are written, too, so that nothing warns of their tensors. tokenizer: its folder, where it is another one. Raises
    FileError, ModelError, VocabularyError.
    """
    from archs.plans.mmproj import without_encoders
    from archs.tasks import TASK, check_task

    from ..quantization.outtypes import FILE_TYPES, checkpoint_type, with_file_type

    with recorded_reads() as states, _checkpoint(source) as checkpoint:
        if TASK in changes.config:
            check_task(checkpoint.config, changes.config[TASK])
        checkpoint = replace(checkpoint, config={**checkpoint.config, **changes.config})
        tensors, claimed = without_encoders(checkpoint.config, checkpoint.tensors)
        planned = _planned(checkpoint, tensors, pre, embed_tokenizer, target, changes.change, tokenizer)
        if changes.derive is not None:
            planned = changes.derive(planned, checkpoint)
        inspected = "" if inspect is None else inspect(planned.metadata, target or tokenizer or checkpoint.folder)
    tensors = _small_in_float32(planned)
    task = ("task", changes.config[TASK]) if TASK in changes.config else ()
    made_of = (checkpoint.remote, ("an adapter",) if changes.change else (), (changes.derived,) * bool(changes.derive))
    outtype = checkpoint_type(checkpoint.tensors.values(), bool(planned.packed))
    is_other = changes.change or task or changes.magic != b"GGUF" or DENSE in tensors
    origin = Origin(
        checkpoint.folder,
        tuple(checkpoint.files),
        states,
        magic=changes.magic,
        recorded=tuple(filter(None, (*made_of, task))),
        outtype=outtype,
        float32=planned.architecture.float32,
        remote=bool(checkpoint.remote),
        warnings=left_out(checkpoint, planned, claimed, with_encoders, inspected),
        reopen=None if is_other else partial(tensors_of_checkpoint, _named(checkpoint), pre, target, tokenizer),
    )
    return Parts(with_file_type(planned.metadata, FILE_TYPES[outtype]), tensors, origin)


def _planned(
    checkpoint: Checkpoint,
    tensors: Mapping[str, Tensor],
    pre: str | None,
    embed_tokenizer: bool,
    target: Path | None,
    change: Change | None,
    tokenizer: Path | None,
) -> Plan:
    """Plan the file of a text model or a draft. tensors: without those of encoders."""
    from archs.plans.draft import is_draft, plan_draft
    from archs.plans.mmproj import only_encoders
    from archs.plans.text import plan

    folder, config = checkpoint.folder, checkpoint.config
    if target is not None or is_draft(config):
        return plan_draft(folder, config, checkpoint.tensors, target, pre=pre, embed_tokenizer=embed_tokenizer)
    if only_encoders(config, checkpoint.tensors):
        problem = f"all {len(checkpoint.tensors)} tensors are of encoders: the text model's are not there"
        raise ModelError(problem, "fetch the rest; `gguftools convert MODEL --mmproj` writes the encoders alone")
    generation_config = checkpoint.generation_config
    return plan(
        folder,
        config,
        tensors,
        generation_config,
        pre=pre,
        embed_tokenizer=embed_tokenizer,
        change=change,
        tokenizer=tokenizer,
    )


def _small_in_float32(planned: Plan) -> dict[str, Tensor]:
    """Return a plan's tensors, those in float32 that stay so in every type."""
    from archs.plans.text import stays_float32
    from archs.transforms import computed

    keep = planned.architecture.float32
    return {
        name: computed(tensor, lambda x: x)
        if tensor.format.name not in ("F32", "I64") and stays_float32(name, tensor.shape, keep)
        else tensor
        for name, tensor in planned.tensors.items()
    }


def _checkpoint(source: PathLike) -> AbstractContextManager[Checkpoint]:
    """Open a checkpoint, whose folder may be gone after the block."""
    if is_remote(source):
        from ..io.checkpoint.remote import open_remote  # here, because it imports much

        return open_remote(source)
    from ..io.checkpoint.folder import open_checkpoint  # here, because GGUF files open without

    return nullcontext(open_checkpoint(Path(source)))


def of_encoders(source: PathLike, processor: Path | None = None) -> Parts:
    """Return the parts of the file of a checkpoint's image and audio encoders, written next to its text model's.

    processor: the folder of its preprocessor, if another. As of `of_checkpoint`, nothing is read but headers. Raises
    FileError, ModelError.
    """
    from archs.encoder import encoder_format
    from archs.plans.mmproj import plan_encoders
    from archs.transforms import as_float32

    from ..quantization.outtypes import FILE_TYPES, checkpoint_type, with_file_type

    with recorded_reads() as states, _checkpoint(source) as checkpoint:
        checkpoint = _with_folders(checkpoint)
        planned = plan_encoders(checkpoint.folder, checkpoint.config, checkpoint.tensors, processor)
    tensors = dict(planned.tensors)
    for name, tensor in planned.tensors.items():
        if {encoder_format(name, tensor.shape, planned.fixed, outtype) for outtype in FILE_TYPES} == {"F32"}:
            tensors[name] = as_float32(tensor)
    outtype = checkpoint_type(checkpoint.tensors.values(), bool(planned.packed))
    origin = Origin(
        checkpoint.folder,
        tuple(checkpoint.files),
        states,
        recorded=tuple(filter(None, (checkpoint.remote, ("towers",)))),
        outtype=outtype,
        fixed=planned.fixed,
        remote=bool(checkpoint.remote),
        reopen=partial(tensors_of_encoders, _named(checkpoint), processor),
    )
    return Parts(with_file_type(planned.metadata, FILE_TYPES[outtype]), tensors, origin)


def _with_folders(checkpoint: Checkpoint) -> Checkpoint:
    """Add what encoders have in folders of their own. Raises FileError."""
    from archs.plans.mmproj import encoders_of
    from archs.small_files import read_json_object

    from ..io.checkpoint.safetensors import open_safetensors

    encoder = encoders_of(checkpoint.config)
    config, tensors, files = dict(checkpoint.config), dict[str, Tensor](), list(checkpoint.files)
    for name in encoder.folders if encoder else ():
        folder = checkpoint.folder / name
        if checkpoint.remote:
            problem = f"the folder {name} of {checkpoint.remote[0]} is not read over the network"
            raise FileError(problem, "fetch the repository, and convert its folder")
        config[name] = read_json_object(folder / "config.json")
        files.append(folder / "model.safetensors")
        inside = {f"{name}.{inner}": each for inner, each in open_safetensors(files[-1]).items()}
        tensors |= {full: each.renamed(full) for full, each in inside.items()}
    return replace(checkpoint, config=config, tensors=tensors | checkpoint.tensors, files=files)


def _named(checkpoint: Checkpoint) -> str:
    """Return what another process opens a checkpoint by."""
    if checkpoint.remote:
        name, commit = checkpoint.remote
        return f"{name.partition('@')[0]}@{commit}" if is_pinned(located(name)) else name
    return str(checkpoint.folder.absolute())
