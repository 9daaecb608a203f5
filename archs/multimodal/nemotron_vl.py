"""Nemotron Nano VL: RADIO, a ViT with several class tokens and positions for large images, interpolated to the size of
its tiles; patches of a square concatenated, a net of two matrices.
"""

import math
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from quants import FormatError, Tensor, format_named

from ..encoder import FUSED_ATTENTION, VISION, Encoder, always, at, maybe, side
from ..spec import Config, Floats, Target, TensorMap
from ..transforms import reshape

# RADIO v2.5-H, the only one in such models; config.json lacks its numbers.
RADIO = {"hidden_size": 1280, "intermediate_size": 5120, "num_hidden_layers": 32, "num_attention_heads": 16}
LAYER: dict[str, Target] = {**FUSED_ATTENTION, "mlp.fc1": "ffn_up", "mlp.fc2": "ffn_down"}


def _image_size(config: Config) -> int:
    return int(config.get("force_image_size") or 512)


PATCH = side("vision.patch_size")


def _convolution(tensor: Tensor, config: Config) -> Tensor:
    """Return a matrix over (colour, row, column) of patches."""
    pixels = int(PATCH(config))
    return reshape(tensor, (tensor.shape[0], 3, pixels, pixels))


def _stretched(tensor: Tensor, config: Config) -> Tensor:
    """Return positions of a square of patches, (1, patches, width), interpolated bilinearly to the tiles' own."""
    stored, wanted = math.isqrt(tensor.rows), _image_size(config) // int(PATCH(config))
    if stored * stored != tensor.rows or wanted < 1:
        raise FormatError(f"{tensor.where} has {tensor.rows} positions; those of a square were expected")
    if stored == wanted:
        return tensor

    def read(start: int, stop: int) -> NDArray[np.uint8]:
        row, column = np.divmod(np.arange(start, stop), wanted)
        grid = tensor.float32().reshape(stored, stored, -1)
        values = _between(grid, _places(row, stored, wanted), _places(column, stored, wanted))
        return np.ascontiguousarray(values, "<f4").view(np.uint8)

    shape = (1, wanted * wanted, tensor.width)
    return replace(tensor, format=format_named("F32"), shape=shape, read=read)


Places = tuple[NDArray[np.intp], Floats, NDArray[np.intp], Floats]


def _places(index: NDArray[np.intp], stored: int, wanted: int) -> Places:
    """Return for each of `wanted` points of a line its two neighbours among `stored`, each with its weight."""
    step = np.float32(stored - 1) / np.float32(max(wanted - 1, 1))
    exact = step * index.astype(np.float32)
    low = exact.astype(np.intp)
    share = exact - low.astype(np.float32)
    return low, np.float32(1) - share, np.minimum(low + 1, stored - 1), share


def _between(grid: Floats, rows: Places, columns: Places) -> Floats:
    """Return the bilinear interpolation with torch's rounding: products are added without being rounded first."""
    (top, of_top, bottom, of_bottom), (left, of_left, right, of_right) = rows, columns
    total = ((of_bottom * of_left)[:, None] * grid[bottom, left]).astype(np.float64)
    for share, values in (
        (of_bottom * of_right, grid[bottom, right]),
        (of_top * of_right, grid[top, right]),
        (of_top * of_left, grid[top, left]),
    ):
        total = total.astype(np.float32) + share.astype(np.float64)[:, None] * values
    result: Floats = total.astype(np.float32)
    return result


NEMOTRON_VL = Encoder(
    hf_classes=("NemotronH_Nano_VL_V2", "RADIOModel"),
    metadata={
        "projector_type": always("nemotron_v2_vl"),
        "/general.file_type": always(0),  # placeholder; the value is that of the file's type
        **VISION,
        "vision.image_size": _image_size,
        # llama.cpp takes the second ones whatever the config says
        "vision.image_mean": maybe("preprocessor.image_mean|preprocessor.norm_mean|norm_mean", [0.485, 0.456, 0.406]),
        "vision.image_std": maybe("preprocessor.image_std|preprocessor.norm_std|norm_std", [0.229, 0.224, 0.225]),
        "vision.attention.layer_norm_epsilon": always(1e-6),
        "use_gelu": always(True),
        "vision.projector.scale_factor": lambda config: int(1 / (config.get("downsample_ratio") or 0.5)),
    },
    defaults={"vision": RADIO},
    tensors={
        **at(
            "vision_model.radio_model.model.",
            "v.",
            {
                **at("blocks.{i}.", "blk.{i}.", LAYER),
                "patch_generator.embedder.weight": TensorMap("patch_embd.weight", _convolution),
                "patch_generator.pos_embed": TensorMap("position_embd.weight", _stretched),
                "patch_generator.cls_token.token": "class_embd",
            },
        ),
        "mlp1.{i}": "mm.model.mlp.{i}",
    },
    ignored={
        "vision_model.radio_model.input_conditioner.*": "mean and deviation of the colours, which are keys",
        "vision_model.radio_model.summary_idxs": "which class tokens a summary is made of, that texts do not use",
        "vision_model.radio_model.model.patch_generator.video_embedder.*": "patches of films, which no program reads",
    },
)
