"""Graphics cards and what their makers publish of them, for plans.

Rates are those without sparsity. `float32` is of IEEE products: AMD's data center cards do them in matrix cores. `tf32`
is None where there is no such type, or none that torch uses. `link`: one direction of PCI Express; a chip with unified
memory copies at its memory's rate. Sources: W: the maker's architecture whitepaper; D: the maker's data sheet; S: cores
× clock × 2 of the maker's specification. Most figures were not compared with that source once more: an estimate by
them is one.
"""

from dataclasses import asdict, dataclass
from typing import Any

from quants.errors import OptionError
from quants.spelling import quote

GIB, TERA, GIGA = 1 << 30, 1e12, 1e9
PCIE_3, PCIE_4, PCIE_5 = 15.75, 31.5, 63.0  # GB/s of 16 lanes


@dataclass(frozen=True)
class Card:
    """A graphics card. memory: bytes; bandwidth, link: bytes per second of its memory, and from the host's. float32,
    tf32: floating-point operations per second of matrix products. source: where the figures come from.
    """

    name: str
    memory: int
    float32: float
    tf32: float | None
    bandwidth: float
    link: float
    source: str

    def as_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return asdict(self)

    def rate(self, fast: bool) -> float:
        """Return operations per second of products. fast: in TF32, where the card has it."""
        return self.tf32 if fast and self.tf32 else self.float32


def _card(
    name: str, memory: float, rates: tuple[float, float | None], bandwidth: float, link: float, source: str
) -> Card:
    """Return a card. memory: GiB. rates: TFLOPS. bandwidth, link: GB/s."""
    tf32 = None if rates[1] is None else rates[1] * TERA
    return Card(name, int(memory * GIB), rates[0] * TERA, tf32, bandwidth * GIGA, link * GIGA, source)


CARDS = (
    _card("RTX 3060 12GB", 12, (12.7, 12.7), 360, PCIE_4, "GeForce RTX 3060 specification (S)"),
    _card("RTX 3090", 24, (35.6, 35.6), 936, PCIE_4, "Ampere GA102 (W)"),
    _card("RTX 4060 Ti 16GB", 16, (22.1, 22.1), 288, PCIE_4 / 2, "GeForce RTX 4060 Ti specification (S)"),
    _card("RTX 4070 Ti Super", 16, (44.1, 44.1), 672, PCIE_4, "GeForce RTX 4070 Ti Super specification (S)"),
    _card("RTX 4080", 16, (48.7, 48.7), 717, PCIE_4, "Ada (W)"),
    _card("RTX 4090", 24, (82.6, 82.6), 1008, PCIE_4, "Ada (W)"),
    _card("RTX 5070 Ti", 16, (43.9, 43.9), 896, PCIE_5, "RTX Blackwell (W)"),
    _card("RTX 5080", 16, (56.3, 56.3), 960, PCIE_5, "RTX Blackwell (W)"),
    _card("RTX 5090", 32, (104.8, 104.8), 1792, PCIE_5, "RTX Blackwell (W)"),
    _card("RTX A4000", 16, (19.2, 38.3), 448, PCIE_4, "RTX A4000 (D)"),
    _card("RTX A6000", 48, (38.7, 77.4), 768, PCIE_4, "Ampere GA102 (W)"),
    _card("RTX 6000 Ada", 48, (91.1, 182.1), 960, PCIE_4, "Ada (W)"),
    _card("RTX PRO 6000 Blackwell", 96, (126.0, 251.9), 1792, PCIE_5, "RTX PRO Blackwell (W)"),
    _card("T4", 16, (8.1, None), 320, PCIE_3, "T4 (D)"),
    _card("V100 32GB", 32, (14.0, None), 900, PCIE_3, "V100 PCIe (D)"),
    _card("A100 40GB", 40, (19.5, 156.0), 1555, PCIE_4, "A100 (D)"),
    _card("A100 80GB", 80, (19.5, 156.0), 1935, PCIE_4, "A100 80GB PCIe (D)"),
    _card("L4", 24, (30.3, 60.0), 300, PCIE_4, "L4 (D)"),
    _card("L40S", 48, (91.6, 183.0), 864, PCIE_4, "L40S (D)"),
    _card("H100", 80, (67.0, 494.7), 3350, PCIE_5, "H100 SXM (D)"),
    _card("H200", 140, (67.0, 494.7), 4800, PCIE_5, "H200 SXM (D)"),
    _card("MI210", 64, (45.3, None), 1638, PCIE_4, "Instinct MI210 (D)"),
    _card("MI300X", 192, (163.4, None), 5300, PCIE_5, "Instinct MI300X (D); its XF32 is off by more than TF32"),
    _card("RX 7900 XTX", 24, (61.4, None), 960, PCIE_4, "Radeon RX 7900 XTX specification, two operations at once (S)"),
    _card("Arc B580", 12, (13.7, None), 456, PCIE_4 / 2, "Arc B580 specification (S)"),
    # the GPU may use about three quarters of the memory
    _card("Apple M1 Max 64GB", 48, (10.4, None), 400, 400, "Apple's announcement"),
    _card("Apple M2 Ultra 192GB", 144, (27.2, None), 800, 800, "76 cores (S)"),
    _card("Apple M3 Max 128GB", 96, (14.3, None), 400, 400, "40 cores (S)"),
    _card("Apple M4 Max 128GB", 96, (17.2, None), 546, 546, "40 cores (S)"),
)
MAKERS = ("nvidia", "geforce", "quadro", "tesla", "amd", "radeon", "instinct", "intel")


def card_named(name: str) -> Card:
    """Return a card by its name, or by a part that no other card's name has: "RTX 4090", "m4 max". Raises OptionError
    for others.
    """
    wanted = _plain(name)
    if exact := [card for card in CARDS if _plain(card.name) == wanted]:
        return exact[0]
    near = [card for card in CARDS if wanted and wanted in _plain(card.name)]
    if len(near) == 1:
        return near[0]
    known = ", ".join(card.name for card in near or CARDS)
    problem = f"{len(near)} cards are called so" if near else "no card is called so"
    raise OptionError(f"card {quote(name)}: {problem}", f"{'choose one of' if near else 'known are'} {known}")


def _plain(name: str) -> str:
    words = (word for word in name.lower().replace("-", " ").split() if word not in MAKERS)
    return "".join(words).removeprefix("apple")
