"""The formats of ComfyUI's quantized layers, by the names that their settings give (comfy-kitchen defines the layouts).

    float8_e4m3fn, float8_e5m2    weight * weight_scale, which is one number or one for each output
    int8_tensorwise               the same for I8; "convrot": rotated groups of columns, see `quants.kernels.hadamard`
    float8_e4m3fn_rowwise         float8_e4m3fn with one number for each output (convert_to_quant)
    float8_e4m3fn_blockwise,      weight_scale has one number for each square of `group_size` rows and columns
    int8_blockwise                (convert_to_quant)
    mxfp8                         E4M3 with a power of two for each 32 columns, in tiles
    nvfp4                         E2M1 in pairs, the even column in the upper half; E4M3 for each 16 columns, in tiles;
                                  weight_scale_2 multiplies all
    convrot_w4a4                  signed integers in pairs, the even column in the lower half, * weight_scale; rotated
    asym_w4a8_int8                codes of 4 or 6 bits, see `grouped`; rotated
    awq_w4a16                     integers 0 … 15 in pairs: (q - 8) * weight_scale + weight_zeros, (groups, outputs)
    nf4                           bitsandbytes' blocks: weight_scale is absmax, weight_code the table

Rows and columns of nvfp4 and mxfp8 are padded to multiples of 16 and 32. "orig_shape" in the settings tells how many
there were, or a bias the number of rows. Tiles: see `comfy_scales`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from quants import Tensor

from .comfy_eight_bits import blocks_of_float8, blocks_of_int8, float8, int8, mxfp8
from .comfy_four_bits import four_bit_floats, four_bit_integers, grouped, table_of_bitsandbytes, with_zeros
from .comfy_layer import Layer


@dataclass(frozen=True)
class Form:
    """How a format's weights are read. needed, optional: the tensors of a layer that it uses, besides the weight."""

    read: Callable[[Layer], Tensor]
    needed: tuple[str, ...] = ("weight_scale",)
    optional: tuple[str, ...] = ()


FORMATS: Mapping[str, Form] = {
    "float8_e4m3fn": Form(float8),
    "float8_e5m2": Form(float8),
    "int8_tensorwise": Form(int8),
    "float8_e4m3fn_rowwise": Form(float8),
    "float8_e4m3fn_blockwise": Form(blocks_of_float8),
    "int8_blockwise": Form(blocks_of_int8),
    "mxfp8": Form(mxfp8),
    "nvfp4": Form(four_bit_floats, ("weight_scale", "weight_scale_2"), ("pre_quant_scale",)),
    "convrot_w4a4": Form(four_bit_integers),
    "asym_w4a8_int8": Form(grouped, ("weight_s_rel", "weight_s_channel"), ("weight_codebook", "weight_correction")),
    "awq_w4a16": Form(with_zeros, ("weight_scale", "weight_zeros")),
    "nf4": Form(table_of_bitsandbytes, ("weight_scale", "weight_code")),
}
