"""Vision encoders from mmproj files: images in, embeddings out."""

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from archs.unsupported_encoders import projector_type
from quants import Tensor
from quants.errors import ModelError, OptionError

from ..arrays import Floats
from . import any_size, mobilenet, queries, rotated, sam, vision_encoders
from .encoder import Parts
from .layers import Weights, fitting
from .places import Embedded

# encoders of text models that may attend to an image's tokens bidirectionally
WHOLE = ("gemma3", "gemma4v", "gemma4uv")
# Types whose tokens are no grid, or whose text models number them consecutively.
IN_LINE = (
    "minicpmv4_6",
    "cogvlm",
    "resampler",
    "granite4_vision",
    "deepseekocr",
    "deepseekocr2",
    "gemma3nv",
    "deepseek4v",
)
LAYOUTS = {"hunyuanvl": "framed", "cogvlm": "together"}  # with tokens of their own around an image
RUN: dict[str, Callable[[Parts, Weights, Floats], Floats]] = {
    "gemma3": vision_encoders.gemma3,
    "pixtral": vision_encoders.pixtral,
    "lightonocr": vision_encoders.pixtral,
    "idefics3": vision_encoders.idefics3,
    "mlp": vision_encoders.llava,
    "internvl": vision_encoders.internvl,
    "llama4": vision_encoders.llama4,
    "qwen2vl_merger": partial(vision_encoders.qwen, norm="layer"),
    "qwen2.5vl_merger": partial(vision_encoders.qwen, norm="rms"),
    "qwen3vl_merger": any_size.qwen3,
    "glm4v": any_size.glm4v,
    "paddleocr": any_size.paddleocr,
    "lfm2": any_size.lfm2,
    "gemma4v": any_size.gemma4,
    "minicpmv4_6": any_size.minicpm,
    "janus_pro": vision_encoders.janus,
    **dict.fromkeys(("exaone4_5", "qwen2.5o"), partial(vision_encoders.qwen, norm="rms")),
    "step3vl": vision_encoders.step3,
    "nemotron_v2_vl": vision_encoders.nemotron,
    "gemma4uv": any_size.gemma4_unified,
    "phi4": any_size.phi4,
    "resampler": queries.resampler,
    "granite4_vision": queries.granite4,
    "deepseekocr": sam.deepseek_ocr,
    "deepseekocr2": sam.deepseek_ocr2,
    "gemma3nv": mobilenet.gemma3n,
    "deepseek4v": any_size.deepseek4,
    "glm5v": any_size.glm4v,
    "dots_ocr": rotated.dots,
    "dots3note_v": rotated.dots,
    "kimivl": partial(rotated.kimi, alternating=True),
    "kimik25": partial(rotated.kimi, alternating=False),
    "minimax_m3": rotated.minimax,
    "muse-glimmer": rotated.muse,
    "ling3vl": rotated.ling3,
    "mimovl": rotated.mimo,
    "youtuvl": rotated.youtu,
    "hunyuanvl": any_size.hunyuan,
    "cogvlm": vision_encoders.cogvlm,
}


class VisionEncoder(Parts):
    """The vision encoder of an mmproj file.

    projector: its type, `clip.projector_type`. image_size: pixels a side, for encoders of one size the only one.
    """

    def __init__(self, metadata: Mapping[str, Any], tensors: Mapping[str, Tensor], threads: int = 1) -> None:
        """Load the encoder. Raises ModelError for a file without one, or of an unsupported type."""
        projector = projector_type(metadata, "vision")
        if not metadata.get("clip.has_vision_encoder"):
            raise ModelError("the file has no encoder for images", "it is made by `gguftools convert MODEL --mmproj`")
        if projector not in RUN:
            raise ModelError(f"encoders of the type {projector!r} are not run", f"those that are: {', '.join(RUN)}")
        super().__init__(str(projector), metadata, tensors, threads)

    def normalized(self, image: ArrayLike) -> Floats:
        """Return normalized pixels, float32 (3, height, width), from values 0…255 of (height, width, 3)."""
        values = np.asarray(image, np.float32) / np.float32(255)
        if values.ndim != 3 or values.shape[2] != 3:
            raise OptionError(f"an image of shape {values.shape}; (height, width, 3) was expected")
        mean, std = (np.asarray(self.key(f"image_{name}"), np.float32) for name in ("mean", "std"))
        if mean.shape != (3,) or std.shape != (3,) or not std.all():
            raise ModelError(
                f"images are normalized by means {mean.tolist()} and deviations {std.tolist()}",
                "3 of each, and no deviation of 0, are expected; convert it again",
            )
        return np.ascontiguousarray(((values - mean) / std).transpose(2, 0, 1))

    def embeddings(self, pixels: ArrayLike) -> Floats:
        """Return embeddings of an image, float32 (tokens, width of the text model).

        pixels: float32 (3, height, width), of the encoder's size, normalized by its mean and deviation. Raises
        OptionError for another shape.
        """
        values = np.asarray(pixels, np.float32)
        if values.ndim != 3 or values.shape[0] != 3:
            raise OptionError(f"pixels of shape {values.shape}; (3, height, width) was expected")
        unit = self.token_side
        if any(side == 0 or side % unit for side in values.shape[1:]):
            raise OptionError(f"pixels of shape {values.shape}; sides that {unit} divides were expected")
        with fitting():
            return RUN[self.projector](self, self.weights, values)

    def embedded(self, pixels: ArrayLike, progress: Callable[[int, int], None] | None = None) -> Embedded:
        """Return embeddings with the layout for the text model: by rows and columns, bidirectional or in sequence.

        progress(layers done, of how many).
        """
        self.progress = progress
        embeddings = self.embeddings(pixels)
        layout = LAYOUTS.get(self.projector, "grid")
        if self.projector in IN_LINE:
            return Embedded(embeddings, layout=layout)
        rows, columns = self.grid(np.asarray(pixels, np.float32))
        if layout == "framed":  # a row of the grid ends with a token of its own
            return Embedded(embeddings, (rows // self.merged, columns // self.merged + 1), layout=layout)
        with fitting():
            side = math.isqrt(rows * columns // len(embeddings))  # patches a side that become a token
            if not side:
                raise ValueError(f"{rows} × {columns} patches become {len(embeddings)} tokens")
        return Embedded(embeddings, (rows // side, columns // side), whole=self.projector in WHOLE, layout=layout)

    @property
    def width(self) -> int:
        """Return the width of an embedding for the text model."""
        return int(self.key("projection_dim"))
