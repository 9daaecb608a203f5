"""Missing or misshapen tensors of an encoders' file, checked before the export: classes that load a checkpoint
initialize missing tensors at random.
"""

import fnmatch
import re
from collections.abc import Iterator

from quants.errors import ModelError

from ...encoder import NAME, Encoder
from ...wrapper import Files, Wrapper
from ..text import PLACE, maps_of

NUMBERED = re.compile(r"([va]\.(?:blk|proj_blk|deepstack|sam\.blk))\.(\d+)\.(.+)")
DISTANCES = re.compile(r"attn\.pos_[hw]\.weight")  # of SAM, more where a layer attends globally
# number of outputs joined into one input
TOGETHER = {"vision": [side**2 for side in range(1, 9)], "audio": [*range(1, 17)]}
Shapes = dict[str, tuple[int, ...]]


def check_whole(encoder: Encoder, wrapper: Wrapper, files: Files) -> None:
    """Raise ModelError for a tensor that is missing, or whose shape differs from that of its peers."""
    for name in (*_needed(encoder, wrapper, files), *(wrapper.needed(files) if wrapper.needed else ())):
        if name not in files.tensors and f"{name}.weight" not in files.tensors:
            raise ModelError(f"the encoders' file has no {name!r}, without which they do not compute")
    for name in wrapper.biased:
        if f"{name}.weight" in files.tensors and f"{name}.bias" not in files.tensors:
            raise ModelError(f"the encoders' file has no '{name}.bias', without which they do not compute")
    if len(patches := files.shape("v.patch_embd.weight")) == 1:
        raise ModelError(f"'v.patch_embd.weight' has the shape {patches}; (out, colours, height, width) was expected")
    if wrapper.layers_alike:
        _check_layers(files)
    _check_pairs(files)
    for part, starts in (("vision", ("v.", "mm.")), ("audio", ("a.", "mm.a."))):
        if files.keys.get(f"has_{part}_encoder"):
            _check_projector(part, starts, files)


def _needed(encoder: Encoder, wrapper: Wrapper, files: Files) -> Iterator[str]:
    """Check tensors outside of layers."""
    absent = tuple(
        beginning
        for part, beginnings in (("vision", ("v.",)), ("audio", ("a.", "mm.a.")))
        if not files.keys.get(f"has_{part}_encoder")
        for beginning in beginnings
    )
    for pattern, target in encoder.tensors.items():
        if PLACE.search(pattern) or any(fnmatch.fnmatchcase(pattern, glob) for glob in wrapper.unused):
            continue
        for each in maps_of(target):
            name = each.name if isinstance(each.name, str) else ""
            may_lack = any(fnmatch.fnmatchcase(name, glob) for glob in ("*.bias", *wrapper.optional))
            if name and not PLACE.search(name) and not may_lack and not name.startswith(absent):
                yield name


def _check_layers(files: Files) -> None:
    """Check that every layer has the tensors of the first one, in the same shapes, and that these fit each other."""
    shapes_of: dict[str, dict[int, Shapes]] = {}
    for name, tensor in files.tensors.items():
        if match := NUMBERED.fullmatch(name):
            shapes_of.setdefault(match[1], {}).setdefault(int(match[2]), {})[match[3]] = tensor.shape
    for prefix, layers in shapes_of.items():
        first = layers[min(layers)]
        for number, shapes in layers.items():
            for name in {*first, *shapes}:
                if DISTANCES.fullmatch(name) and name in first and name in shapes:
                    continue
                if first.get(name) != shapes.get(name):
                    actual, wanted = (str(each.get(name, "not there")) for each in (shapes, first))
                    raise ModelError(f"{prefix}.{number}.{name} is {actual}; that of layer {min(layers)} is {wanted}")
        count = int(files.keys.get("vision.sam.block_count") or 0)
        if prefix == "v.sam.blk" and [*range(count)] != sorted(layers):
            raise ModelError(f"the file has {len(layers)} of SAM's layers; {NAME}.vision.sam.block_count is {count}")
        if prefix.endswith(".blk"):
            _check_widths(prefix, first, files)


def _check_widths(prefix: str, shapes: Shapes, files: Files) -> None:
    """Raise ModelError if a layer's input or output width differs from the keys."""
    part = {"v": "vision", "a": "audio"}[prefix[0]]
    width, net = files.keys.get(f"{part}.embedding_length"), shapes.get("ffn_up.weight", (0,))[0]
    wanted = {
        "ln1.weight": (width,),
        "ln2.weight": (width,),
        "ffn_up.weight": (net, width),
        "ffn_gate.weight": (net, width),
        "ffn_down.weight": (width, net),
        "attn_qkv.weight": (None, width),
        "attn_out.weight": (width, None),
        **{f"attn_{which}.weight": (None, width) for which in "qkv"},
    }
    for name, shape in shapes.items():
        sides = wanted.get(name, shape)
        if len(shape) != len(sides) or any(side not in (None, own) for side, own in zip(sides, shape, strict=True)):
            problem = f"{prefix}.0.{name} has the shape {shape}"
            raise ModelError(f"{problem}; {NAME}.{part}.embedding_length is {width}, the net's width {net}")


def _check_pairs(files: Files) -> None:
    """Raise ModelError for a bias without one number for each output, and for empty tensors."""
    for name, tensor in files.tensors.items():
        if 0 in tensor.shape:
            raise ModelError(f"{name!r} has the shape {tensor.shape}")
        rows = files.shape(f"{name.removesuffix('.bias')}.weight")
        if name.endswith(".bias") and rows and tensor.size != rows[0]:
            raise ModelError(f"{name!r} has the shape {tensor.shape}; its weight has {rows[0]} outputs")


def _check_projector(part: str, starts: tuple[str, str], files: Files) -> None:
    """Raise ModelError for a projector's matrix or norm whose input or output fits no other tensor."""
    outside = {
        name: tensor.shape
        for name, tensor in files.tensors.items()
        if name.startswith(starts)
        and name.endswith(".weight")
        and not NUMBERED.fullmatch(name)
        and (part == "audio" or not name.startswith("mm.a."))
    }
    ends = {files.keys.get(f"{part}.embedding_length"), files.width} - {None}
    for name, shape in outside.items():
        if not name.startswith(starts[1]) or len(shape) > 2 or name.endswith("embedding.weight"):
            continue
        others = [each for other, each in outside.items() if other != name]
        given = ends | {each[0] for each in others}
        taken = ends | {each[1] for each in others if len(each) > 1}
        gives = (shape[0], shape[0] / 2) if part == "audio" else (shape[0],)  # one half may be the other's gate
        if len(shape) == 1:
            fits = shape[0] in given | taken
        else:
            fits = any(shape[1] == side * count for side in given for count in TOGETHER[part]) and any(
                side * count in taken for side in gives for count in TOGETHER[part]
            )
        if not fits:
            raise ModelError(f"{name!r} has the shape {shape}, to which no other tensor's fits")
