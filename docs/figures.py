"""Draw the figures of the pages from small data files next to them."""

from __future__ import annotations

import csv
import hashlib
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
DATA = FOLDER / "kl-by-size.csv"
STYLES = {
    "importance matrix": ("importance matrix (llama.cpp)", "#8a8f98", "o"),
    "trellis": ("trellis formats (ik_llama.cpp), importance matrix", "#c77d2e", "D"),
    "GPTQ": ("GPTQ error feedback (gguftools)", "#1f6feb", "o"),
}
OFFSETS = {"importance matrix": (0, 8), "trellis": (0, -14), "GPTQ": (0, -14)}


def digest() -> str:
    """Return a hash of the data and how it is drawn; an SVG that holds it is up to date."""
    return hashlib.sha256(DATA.read_bytes() + repr(STYLES).encode()).hexdigest()[:16]


def rows() -> list[dict[str, str]]:
    lines = DATA.read_text(encoding="utf-8").splitlines()
    return list(csv.DictReader(line for line in lines if not line.startswith("#")))


def kl_by_size(path: Path) -> None:
    """Draw KL divergence against bits per weight."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    mpl.rcParams.update({"svg.hashsalt": "gguftools", "svg.fonttype": "path", "font.size": 10})
    figure = Figure(figsize=(8, 4.2), layout="constrained")
    axes = figure.add_subplot()
    for method, (label, colour, marker) in STYLES.items():
        points = sorted(
            (float(row["bits_per_weight"]), float(row["kl_mean"]), row["format"])
            for row in rows()
            if row["method"] == method
        )
        if not points:
            continue
        line = "" if method == "trellis" else "-"
        axes.plot([x for x, _, _ in points], [y for _, y, _ in points], line, marker=marker, color=colour, label=label)
        for x, y, name in points:
            if method != "GPTQ":
                axes.annotate(
                    name, (x, y), OFFSETS[method], textcoords="offset points", ha="center", fontsize=8, color=colour
                )
    axes.set_yscale("log")
    axes.set_xlabel("bits per weight of the layers")
    axes.set_ylabel("mean KL divergence, nats per token")
    axes.set_title("Lower is better: KL divergence from the unquantized model, austen-4m, held-out text", fontsize=10)
    axes.grid(which="both", color="#e6e8eb", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    figure.savefig(path, format="svg", facecolor="white", metadata={"Date": None, "Description": digest()})
