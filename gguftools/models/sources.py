"""What a model is made of, by where it comes from: a GGUF file, a checkpoint, or a checkpoint's encoders."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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

if TYPE_CHECKING:
    from archs.plans.text import Change, Plan

    from ..io.checkpoint.folder import Checkpoint

DENSE = "dense_2.weight"  # the first of the matrices that pooled states are multiplied with
KEPT_OPEN = 16  # shards; of a set of more, each is opened for each read


class Parts(NamedTuple):
    """Typed metadata, tensors by name in order, and the files that they come from."""

    metadata: Metadata
    tensors: Mapping[str, Tensor]
    origin: Origin


def of_gguf(file: GgufFile) -> Parts:
    """Of an open GGUF file: its tensors as its map has them."""
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
    """The tensors of a GGUF file, read by system calls instead of through a map. See `files.positioned`."""
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
    """The tensors of a GGUF file or split set for another process that is told its path."""
    return pread_tensors(open_gguf(path))


def tensors_of_checkpoint(source: str, pre: str | None, target: Path | None = None) -> dict[str, Tensor]:
    """The same of a checkpoint, as `of_checkpoint` has them."""
    return dict(of_checkpoint(source, pre, target=target).tensors)


def tensors_of_encoders(source: str) -> dict[str, Tensor]:
    """The same of a checkpoint's encoders, as `of_encoders` has them."""
    return dict(of_encoders(source).tensors)


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
) -> Parts:
    """Of the file that a checkpoint is converted to; small tensors are float32, nothing is read but headers.

    pre: the pre-tokenizer's GGUF name, where the tokenizer's structure does not tell. embed_tokenizer: also keep
    tokenizer.json itself. target: the folder of the model that the checkpoint is a draft for (EAGLE-3).
    inspect(metadata, folder of the tokenizer): gives a warning, or "", while the folder is there. with_encoders: they
    are written, too, so that nothing is said of their tensors. Raises FileError, ModelError, VocabularyError.
    """
    from archs.plans.draft import is_draft, plan_draft
    from archs.plans.mmproj import only_encoders, without_encoders
    from archs.plans.text import plan, stays_float32
    from archs.tasks import TASK, check_task
    from archs.transforms import computed

    from ..quantization.outtypes import FILE_TYPES, checkpoint_type, with_file_type

    change, derive, derived, magic, meaning = changes
    with recorded_reads() as states, _checkpoint(source) as checkpoint:
        if TASK in meaning:
            check_task(checkpoint.config, meaning[TASK])
        checkpoint = replace(checkpoint, config={**checkpoint.config, **meaning})
        tensors, beside = without_encoders(checkpoint.config, checkpoint.tensors)
        if target is not None or is_draft(checkpoint.config):
            planned = plan_draft(
                checkpoint.folder,
                checkpoint.config,
                checkpoint.tensors,
                target,
                pre=pre,
                embed_tokenizer=embed_tokenizer,
            )
        else:
            if only_encoders(checkpoint.config, checkpoint.tensors):
                problem = f"all {len(checkpoint.tensors)} tensors are of encoders: the text model's are not there"
                raise ModelError(
                    problem, "fetch the rest; `gguftools convert MODEL --mmproj` writes the encoders alone"
                )
            planned = plan(
                checkpoint.folder,
                checkpoint.config,
                tensors,
                checkpoint.generation_config,
                pre=pre,
                embed_tokenizer=embed_tokenizer,
                change=change,
            )
        if derive is not None:
            planned = derive(planned, checkpoint)
        seen = "" if inspect is None else inspect(planned.metadata, target or checkpoint.folder)
    told = _left_out(checkpoint, planned.left_out, beside, with_encoders)
    told += _further_left_out(checkpoint, planned) + _dense_left_out(checkpoint, planned) + _tasks_left_out(checkpoint)
    told += (seen,) if seen else ()
    keep, tensors = planned.architecture.float32, dict(planned.tensors)
    for name, tensor in planned.tensors.items():
        if tensor.format.name not in ("F32", "I64") and stays_float32(name, tensor.shape, keep):
            tensors[name] = computed(tensor, lambda x: x)
    task = ("task", meaning[TASK]) if TASK in meaning else ()
    made_of = (checkpoint.remote, ("an adapter",) if change else (), (derived,) if derive else (), task)
    outtype = checkpoint_type(checkpoint.tensors.values(), bool(planned.packed))
    origin = Origin(
        checkpoint.folder,
        tuple(checkpoint.files),
        states,
        magic=magic,
        recorded=tuple(filter(None, made_of)),
        outtype=outtype,
        float32=keep,
        remote=bool(checkpoint.remote),
        warnings=told,
        reopen=_reopening(checkpoint, pre, change or task or None, magic != b"GGUF" or DENSE in tensors, target),
    )
    return Parts(with_file_type(planned.metadata, FILE_TYPES[outtype]), tensors, origin)


def _checkpoint(source: PathLike) -> AbstractContextManager[Checkpoint]:
    """A checkpoint, whose folder may be gone after the block."""
    if is_remote(source):
        from ..io.checkpoint.remote import open_remote  # here, because it imports much

        return open_remote(source)
    from ..io.checkpoint.folder import open_checkpoint  # here, because GGUF files open without

    return nullcontext(open_checkpoint(Path(source)))


def of_encoders(source: PathLike) -> Parts:
    """Of the file of a checkpoint's encoders for images and sounds, which is written beside that of its text model.

    As of `of_checkpoint`, nothing is read but headers. Raises FileError, ModelError.
    """
    from archs.encoder import encoder_format
    from archs.plans.mmproj import plan_encoders
    from archs.transforms import as_float32

    from ..quantization.outtypes import FILE_TYPES, checkpoint_type, with_file_type

    with recorded_reads() as states, _checkpoint(source) as checkpoint:
        checkpoint = _with_folders(checkpoint)
        planned = plan_encoders(checkpoint.folder, checkpoint.config, checkpoint.tensors)
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
        reopen=partial(tensors_of_encoders, _named(checkpoint)),
    )
    return Parts(with_file_type(planned.metadata, FILE_TYPES[outtype]), tensors, origin)


def _with_folders(checkpoint: Checkpoint) -> Checkpoint:
    """With what encoders have in folders of their own. Raises FileError."""
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


def _reopening(
    checkpoint: Checkpoint, pre: str | None, change: object, other_tensors: bool, target: Path | None
) -> Callable[[], dict[str, Tensor]] | None:
    """How another process opens a checkpoint, of a repository the same commit; None for one that was changed."""
    if change is not None or other_tensors:
        return None
    return partial(tensors_of_checkpoint, _named(checkpoint), pre, target)


def _named(checkpoint: Checkpoint) -> str:
    """What another process opens a checkpoint by."""
    if checkpoint.remote:
        name, commit = checkpoint.remote
        return f"{name.partition('@')[0]}@{commit}" if is_pinned(located(name)) else name
    return str(checkpoint.folder.absolute())


def _dense_left_out(checkpoint: Checkpoint, planned: Plan) -> tuple[str, ...]:
    """What is to be said of matrices that sentence-transformers multiplies the pooled states with."""
    from archs.general import modules_of

    if DENSE in planned.tensors or not (folders := modules_of(checkpoint.folder, "Dense")):
        return ()
    return (f"the matrices of {', '.join(folders)} are not in this file: its vectors are those that come before them",)


def _tasks_left_out(checkpoint: Checkpoint) -> tuple[str, ...]:
    """What is to be said of matrices that are added to the weights for a task (Jina v3)."""
    from archs.tasks import TASK, tasks_of

    if (task := checkpoint.config.get(TASK)) is not None:
        beginnings = checkpoint.config.get("task_instructions")
        begins = beginnings.get(task) if isinstance(beginnings, dict) else None
        return (f"texts of this task begin with {begins!r}",) if begins else ()
    if not any(name.endswith(".lora_A") for name in checkpoint.tensors):
        return ()
    named = f" ({', '.join(tasks)})" if (tasks := tasks_of(checkpoint.config)) else ""
    said = f"the adapters for tasks{named} are not in this file: its vectors are those of the base model"
    return (f"{said} (`task` writes those of a task)",)


def _further_left_out(checkpoint: Checkpoint, planned: Plan) -> tuple[str, ...]:
    """What is to be said of layers that predict tokens further: they have a file to themselves, or none."""
    from archs.mtp import COUNT
    from archs.plans.text import is_left_out
    from archs.registry import of_config
    from archs.tensor_maps import MTP_ONLY

    names = [name for name in planned.left_out if not is_left_out(name)]
    if not names:
        return ()
    own, apart = planned.architecture, of_config({**checkpoint.config, MTP_ONLY: True})
    known = COUNT in apart.metadata and COUNT not in own.metadata
    why = "`gguftools convert MODEL --mtp` writes them" if known else f"{own.name} files have no place for them"
    more = f" and {len(names) - 1} more tensors" if len(names) > 1 else ""
    what = f"layers that predict tokens further (MTP) are not in this file ({names[0]!r}{more})"
    return (f"{what}: {why}",)


def _left_out(
    checkpoint: Checkpoint, names: Sequence[str], beside: Sequence[str], with_encoders: bool
) -> tuple[str, ...]:
    """What is to be said of tensors that a text model's file has no place for. beside: those that encoders claimed.
    with_encoders: whose file is written, too.

    Raises ModelError where encoders of the class are known, and a tensor is none of theirs: nothing is lost in silence.
    """
    from archs.plans.mmproj import encoders_of, left_to_encoders
    from archs.plans.text import is_left_out

    names = [*beside, *(name for name in names if is_left_out(name))]  # others predict further tokens
    if not names:
        return ()
    nbytes = sum(checkpoint.tensors[name].nbytes for name in names if name in checkpoint.tensors)
    what = f"{len(names)} tensors ({nbytes:,} bytes) of encoders for images or sounds"
    if encoders_of(checkpoint.config) is None:
        return (f"{what} are left out, such as {names[0]!r}: no encoders of this class are known",)
    if lost := left_to_encoders(checkpoint.config, names):
        more = f" and {len(lost) - 1} more tensors" if len(lost) > 1 else ""
        raise ModelError(f"neither the text model nor its encoders have {lost[0]!r}{more}", "it is of another variant")
    if with_encoders:
        return ()
    return (f"{what} are not in this file: `gguftools convert MODEL --mmproj` writes them",)
