"""The description of an image or video model family: plain data that conversion, quantization and checks read."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from ..spec import Tensors

Reader = Literal["comfyui", "sdcpp", "diffusers"]
READERS: dict[Reader, str] = {"comfyui": "ComfyUI-GGUF", "sdcpp": "stable-diffusion.cpp", "diffusers": "diffusers"}


@dataclass(frozen=True)
class DiffusionFamily:
    """A family of image or video models, recognized by the names of its tensors.

    name: unique, such as "flux2". title: for people. tag: `general.architecture` of its files, by which ComfyUI-GGUF
        decides whether it takes them; several families share one.
    signatures: sets of tensor names; a model has all names of one set.
    absent: tensor names of relatives; a model has none of them.
    shapes: shapes of tensors that tell relatives with the same names apart; None matches any size.
    kept: parts of names of weights that are not quantized. float32: parts of names of tensors stored in F32 whatever
        the type of the others.
    ignored: globs of names that no reader needs → why.
    from_diffusers: names and tensors of diffusers' layout → those of the published one; None if both are the same, or
        if nobody publishes that layout. diffusers_signatures: as `signatures`, in diffusers' layout.
    rearranged: ComfyUI-GGUF reads rows of convolutions rearranged in rows of 256 (U-Nets).
    refused: readers that do not load it → why, as of the date in the documentation.
    """

    name: str
    title: str
    tag: str
    signatures: tuple[tuple[str, ...], ...]
    absent: tuple[str, ...] = ()
    shapes: Mapping[str, tuple[int | None, ...]] = field(default_factory=dict)
    kept: tuple[str, ...] = ()
    float32: tuple[str, ...] = ()
    ignored: Mapping[str, str] = field(default_factory=dict)
    from_diffusers: Callable[[Tensors], Tensors] | None = None
    diffusers_signatures: tuple[tuple[str, ...], ...] = ()
    rearranged: bool = False
    refused: Mapping[Reader, str] = field(default_factory=dict)
