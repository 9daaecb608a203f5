"""AutoRound: the layouts of GPTQ and AWQ; `packing_format` says which."""

from collections.abc import Mapping

from quants import Tensor

from . import awq, gptq
from .parts import Settings, Unpacked, refused

ZEROS = {  # packing format → GPTQ's name for how zero points are stored
    "auto_round:auto_gptq": "gptq", "auto_round:gptqmodel": "gptq_v2", "auto_round": "gptq_v2",
}  # fmt: skip


def unpacked(settings: Settings, tensors: Mapping[str, Tensor]) -> Unpacked:
    """Every quantized weight under its name. Raises ModelError for layouts that are not read."""
    packing = str(settings.get("packing_format") or "auto_round:auto_gptq")
    if packing == "auto_round:auto_awq":
        return awq.unpacked({**settings, "version": "gemm"}, tensors)
    if packing not in ZEROS:
        raise refused("auto-round", f"packing format {packing!r}")
    return gptq.unpacked({**settings, "checkpoint_format": ZEROS[packing]}, tensors)
