"""Record where diffusers takes each tensor of its layout from: `python -m tests.verify.diffusers_layouts`.

Diffusers' own converters are given published tensors that hold the numbers of their places. What each tensor of
diffusers' layout then holds are the places that it was taken from.
"""

from __future__ import annotations

import gzip
import json
import math
from pathlib import Path
from typing import Any

from .diffusers_models import SMALL, SmallModel, back, built, layout_of, tensors_of

RECORDS = Path(__file__).parents[1] / "data" / "diffusers_layouts.json.gz"


def recorded(model: SmallModel) -> dict[str, Any]:
    """Return the layout's name, the shapes of published tensors, and of each of diffusers': shape, name, ranges."""
    import torch

    whole = built(model)
    published = layout_of(model.layout)(tensors_of(whole.state_dict()))
    shapes = {name: list(tensor.shape) for name, tensor in published.items()}
    places, begins, begin = {}, {}, 0
    for name, shape in shapes.items():
        size = math.prod(shape)
        places[name] = torch.arange(begin, begin + size).reshape(shape)
        begins[name] = begin
        begin += size
    tensors = {}
    for name, held in sorted(back(model, places, dict(whole.config)).items()):
        flat = held.reshape(-1)
        source = max((each for each in begins if begins[each] <= int(flat[0])), key=lambda each: begins[each])
        cuts = (torch.where(flat[1:] - flat[:-1] != 1)[0] + 1).tolist()
        ranges = [
            [int(flat[start]) - begins[source], int(flat[stop - 1]) + 1 - begins[source]]
            for start, stop in zip([0, *cuts], [*cuts, len(flat)], strict=True)
        ]
        tensors[name] = [list(held.shape), source, ranges]
    return {"layout": model.layout, "published": dict(sorted(shapes.items())), "tensors": tensors}


def stored(path: Path) -> dict[str, Any]:
    """Return the records of a file."""
    records: dict[str, Any] = json.loads(gzip.decompress(path.read_bytes()))
    return records


def main() -> None:
    """Write the records of all small models."""
    text = json.dumps({name: recorded(model) for name, model in SMALL.items()}, separators=(",", ":"))
    RECORDS.write_bytes(gzip.compress(text.encode(), 9, mtime=0))
    print(f"{RECORDS}: {len(SMALL)} models")


if __name__ == "__main__":
    main()
