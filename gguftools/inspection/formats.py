"""The formats that weights are stored in."""

from dataclasses import asdict, dataclass
from typing import Any, Literal

from quants.format import formats as registered

FLOATS = ("F32", "F16", "BF16")  # of the types whose values have bytes of their own, those that weights are stored in


@dataclass(frozen=True)
class FormatInfo:
    """A format by its name and its number in files: `block` values take `block_bytes` bytes.

    importance: what becomes of importance weights.
    """

    name: str
    ggml_type: int
    bits_per_weight: float
    block: int
    block_bytes: int
    importance: Literal["needed", "used", "ignored"]

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def formats() -> tuple[FormatInfo, ...]:
    """All formats that tensors can be quantized to or kept in, in the order of their numbers."""
    return tuple(
        FormatInfo(
            each.name, each.ggml_type, each.bits_per_weight, each.block_size, each.block_bytes,
            "needed" if each.needs_importance else "used" if each.uses_importance else "ignored",
        )
        for each in registered().values()
        if each.has_codec and (each.is_quantized or each.name in FLOATS)
    )  # fmt: skip
