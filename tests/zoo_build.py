"""Build the zoo's checkpoints from their specs: tensors are not stored but drawn from their names.

    seed  = first 8 bytes, little endian, of sha256(entry + ":" + tensor name)
    raw   = numpy.random.PCG64(seed).random_raw(n)          (n 64-bit words)
    u     = the word's four 16-bit parts, each /65536
    z     = (u0+u1+u2+u3 - 2 + 2/65536) * sqrt(3)           (mean 0, std 1, |z|<3.47)
    value = float32(mean + std*z), then rounded to the stored dtype (nearest even)

which depends on PCG64's raw stream alone, not on numpy's distributions. `make_tensor` has the other kinds of "init".
"""

from __future__ import annotations

import hashlib
import json
import shutil
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

Spec = dict[str, Any]  # of a tensor: name, shape, dtype, init
RECORDS = ("spec.json", "ref.json", "ref-quant.json", "logits.npz")
DTYPES = {"F32": "<f4", "F64": "<f8", "U8": "u1", "I64": "<i8", "BOOL": "u1"}


def seed_of(entry: str, name: str) -> int:
    """Return the seed of a tensor's random stream."""
    return int.from_bytes(hashlib.sha256(f"{entry}:{name}".encode()).digest()[:8], "little")


def unit(entry: str, name: str, count: int) -> Any:
    """Draw `count` values of mean 0 and standard deviation 1, float64."""
    raw = np.random.PCG64(seed_of(entry, name)).random_raw(count).astype("<u8")
    parts = raw.view("<u2").reshape(count, 4).astype(np.int64).sum(axis=1)
    return (parts - 2 * 65536 + 2) / 65536.0 * np.sqrt(3.0)


def make_tensor(entry: str, spec: Spec) -> Any:
    """Return a tensor's values, float64 or integers, before they are rounded to the stored dtype."""
    shape, init, name = tuple(spec["shape"]), spec["init"], spec["name"]
    count = int(np.prod(shape)) if shape else 1
    kind = init["kind"]
    if kind == "copy":  # the bytes of another tensor (an untied duplicate)
        return make_tensor(entry, {**spec, "name": init["of"], "init": init["init"]})
    if kind == "normal":
        values = init.get("mean", 0.0) + init["std"] * unit(entry, name, count)
    elif kind == "abs_normal":  # strictly positive
        values = init.get("mean", 0.0) + np.abs(init["std"] * unit(entry, name, count))
    elif kind == "const":
        values = np.full(count, init["value"], dtype=np.float64)
    elif kind == "log_arange":  # mamba's A_log: log(1..d_state) in each row
        rows = np.tile(np.log(np.arange(1, shape[-1] + 1, dtype=np.float64)), count // shape[-1])
        values = rows + init.get("std", 0.0) * unit(entry, name, count)
    elif kind == "tril":  # GPT-2's buffers of causal masks
        values = np.tril(np.ones(shape[-2:], dtype=np.float64))
    elif kind == "arange":
        values = np.arange(count)
    elif kind == "u8":  # bytes from lo to hi, all as likely
        raw = np.random.PCG64(seed_of(entry, name)).random_raw(count)
        values = init["lo"] + (raw >> np.uint64(16)) % np.uint64(init["hi"] - init["lo"] + 1)
    else:
        raise ValueError(f"no tensor is drawn as {kind!r}")
    return np.asarray(values).reshape(shape)


def to_bytes(values: Any, dtype: str) -> bytes:
    """Round values to a stored dtype."""
    if dtype == "BF16":
        bits = values.astype(np.float32).view(np.uint32)
        return bytes(((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2").tobytes())
    if dtype == "F16":
        return bytes(values.astype(np.float32).astype("<f2").tobytes())
    return bytes(values.astype(DTYPES[dtype]).tobytes())


def write_safetensors(path: Path, entry: str, tensors: Sequence[Spec]) -> int:
    """Write tensors to a file and return the bytes of their data."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    blobs, place = [], 0
    for spec in tensors:
        raw = to_bytes(make_tensor(entry, spec), spec["dtype"])
        header[spec["name"]] = {
            "dtype": spec["dtype"],
            "shape": spec["shape"],
            "data_offsets": [place, place + len(raw)],
        }
        place += len(raw)
        blobs.append(raw)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(blobs))
    return place


def build(root: Path, entry: str, out: Path) -> Path:
    """Write a checkpoint folder, which has to be called like the entry: general.name derives from the folder's name."""
    source, out = Path(root) / entry, Path(out)
    spec = json.loads((source / "spec.json").read_text())
    out.mkdir(parents=True, exist_ok=True)
    if spec.get("tokenizer"):
        for path in sorted((Path(root) / "tokenizers" / spec["tokenizer"]).iterdir()):
            if path.name not in ("encodings.json", "README"):
                shutil.copyfile(path, out / path.name)
    for path in sorted(source.iterdir()):  # the entry's own files override the tokenizer's
        if path.name not in RECORDS:
            shutil.copyfile(path, out / path.name)
    name, tensors, shards = spec.get("file", "model.safetensors"), spec["tensors"], spec.get("shards", 1)
    if name.endswith(".bin"):  # stored, not drawn
        return out
    if shards == 1:
        write_safetensors(out / name, entry, tensors)
        return out
    places: dict[str, str] = {}
    total = 0
    for i in range(shards):
        file = f"model-{i + 1:05d}-of-{shards:05d}.safetensors"
        part = tensors[i * len(tensors) // shards : (i + 1) * len(tensors) // shards]
        total += write_safetensors(out / file, entry, part)
        places |= {each["name"]: file for each in part}
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(places.items()))}
    (out / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")
    return out
