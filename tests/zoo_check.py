"""Compare a converted file with what the reference's converter wrote of a zoo entry (its ref.json).

Keys that the reference does not write do not count: a converter may say more than it (REFERENCE_DEFECTS.md). The order
of keys and tensors is not compared.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

Record = Mapping[str, Any]


def same(ours: Record, theirs: Record) -> bool:
    """Return True if two values of a key, as ref.json has them, are equal in type and value."""
    if any(ours.get(part) != theirs.get(part) for part in ("type", "elem", "len")):
        return False
    if "sha256" in ours or "sha256" in theirs:
        return bool(ours.get("sha256") == theirs.get("sha256"))
    x, y = ours["value"], theirs["value"]
    return bool(x == y or (ours["type"] in ("FLOAT32", "FLOAT64") and math.isnan(x) and math.isnan(y)))


def differences(root: Path, entry: str, found: Record, outtype: str) -> list[str]:
    """Return a line for each key and tensor that differs; empty where the reference has no such file.

    found: the file's keys and tensors in ref.json's form.
    """
    reference = json.loads((root / entry / "ref.json").read_text(encoding="utf-8")).get(outtype)
    if reference is None or "error" in reference:
        return []
    return _different_keys(found["kv"], reference["kv"]) + _different_tensors(found, reference)


def _different_keys(ours: Mapping[str, Record], theirs: Mapping[str, Record]) -> list[str]:
    lines = []
    for key, wanted in sorted(theirs.items()):
        if key not in ours:
            lines.append(f"key {key} is missing, the reference has {shown(wanted)}")
        elif not same(ours[key], wanted):
            lines.append(f"key {key} is {shown(ours[key])}, the reference has {shown(wanted)}")
    return lines


def _different_tensors(found: Record, reference: Record) -> list[str]:
    ours, theirs = ({tensor["name"]: tensor for tensor in each["tensors"]} for each in (found, reference))
    lines = [f"tensor {name} is extra" for name in sorted(ours.keys() - theirs.keys())]
    lines += [f"tensor {name} is missing" for name in sorted(theirs.keys() - ours.keys())]
    for name in sorted(ours.keys() & theirs.keys()):
        for part in ("shape", "type", "sha256"):
            if ours[name][part] != theirs[name][part]:
                lines.append(f"tensor {name}: {part} {ours[name][part]}, the reference has {theirs[name][part]}")
                break
    return lines


def shown(value: Record) -> str:
    return json.dumps(value, ensure_ascii=False)[:200]
