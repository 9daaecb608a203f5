"""Warn of what a checkpoint has and the file that it is converted to does not: nothing is dropped in silence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from quants.errors import ModelError

if TYPE_CHECKING:
    from archs.plans.text import Plan

    from ..io.checkpoint.folder import Checkpoint

DENSE = "dense_2.weight"  # the first of the matrices that pooled states are multiplied with


def left_out(
    checkpoint: Checkpoint, planned: Plan, claimed: Sequence[str], with_encoders: bool, inspected: str
) -> tuple[str, ...]:
    """Return all warnings of a plan, a line each. claimed: tensors that encoders claimed. with_encoders: they are
    written, too. inspected: a warning of what else looked at the plan, or "". Raises ModelError for lost tensors.
    """
    return (
        *encoders_left_out(checkpoint, planned.left_out, claimed, with_encoders),
        *mtp_left_out(checkpoint, planned),
        *dense_left_out(checkpoint, planned),
        *tasks_left_out(checkpoint),
        *((inspected,) if inspected else ()),
    )


def dense_left_out(checkpoint: Checkpoint, planned: Plan) -> tuple[str, ...]:
    """Return a warning of matrices that sentence-transformers multiplies pooled states with."""
    from archs.general import modules_of

    if DENSE in planned.tensors or not (folders := modules_of(checkpoint.folder, "Dense")):
        return ()
    return (f"the matrices of {', '.join(folders)} are not in this file: its vectors are those that come before them",)


def tasks_left_out(checkpoint: Checkpoint) -> tuple[str, ...]:
    """Return a warning of adapters for tasks (Jina v3), or how texts of a merged task begin."""
    from archs.tasks import TASK, tasks_of

    if (task := checkpoint.config.get(TASK)) is not None:
        beginnings = checkpoint.config.get("task_instructions")
        begins = beginnings.get(task) if isinstance(beginnings, dict) else None
        return (f"texts of this task begin with {begins!r}",) if begins else ()
    if not any(name.endswith(".lora_A") for name in checkpoint.tensors):
        return ()
    named = f" ({', '.join(tasks)})" if (tasks := tasks_of(checkpoint.config)) else ""
    what = f"the adapters for tasks{named} are not in this file: its vectors are those of the base model"
    return (f"{what} (`task` writes those of a task)",)


def mtp_left_out(checkpoint: Checkpoint, planned: Plan) -> tuple[str, ...]:
    """Return a warning of MTP layers, which have a file of their own, or none."""
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
    what = f"MTP layers are not in this file ({names[0]!r}{more})"
    return (f"{what}: {why}",)


def encoders_left_out(
    checkpoint: Checkpoint, names: Sequence[str], claimed: Sequence[str], with_encoders: bool
) -> tuple[str, ...]:
    """Return a warning of tensors of encoders, which a text model's file has no place for. claimed: those that encoders
    claimed. with_encoders: whose file is written, too.

    Raises ModelError where encoders of the class are known, and a tensor is none of theirs: nothing is lost in silence.
    """
    from archs.plans.mmproj import encoders_of, left_to_encoders
    from archs.plans.text import is_left_out

    names = [*claimed, *(name for name in names if is_left_out(name))]  # others predict further tokens
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
