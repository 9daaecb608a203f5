"""Write a Llama checkpoint of any size with random bfloat16 weights, for speed and memory measurements.

    python -m benchmarks.synthetic_checkpoint OUT --hidden 1024 --ffn 2816 --layers 24 --vocab 32000  # 0.31 B
    python -m benchmarks.synthetic_checkpoint OUT --hidden 2048 --ffn 5632 --layers 40 --shard-gb 1  # 1.9 B, 3.9 GB

Weights are drawn per tensor from N(0, 0.02) by a generator seeded with the tensor's name, so two runs agree. The
tokenizer is that of examples/austen-4m; ids above its own are padding.
"""

from __future__ import annotations

import argparse
import json
import shutil
import struct
import zlib
from pathlib import Path

import numpy as np


def bfloat16(x: np.ndarray) -> np.ndarray:
    u = x.view(np.uint32)
    return ((u + 0x7FFF + ((u >> 16) & 1)) >> 16).astype(np.uint16)


def shapes(a: argparse.Namespace) -> dict[str, tuple[int, ...]]:
    kv = a.hidden // a.heads * a.kv_heads
    names: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (a.vocab, a.hidden)}
    for i in range(a.layers):
        p = f"model.layers.{i}."
        names |= {
            p + "input_layernorm.weight": (a.hidden,),
            p + "post_attention_layernorm.weight": (a.hidden,),
            p + "self_attn.q_proj.weight": (a.hidden, a.hidden),
            p + "self_attn.k_proj.weight": (kv, a.hidden),
            p + "self_attn.v_proj.weight": (kv, a.hidden),
            p + "self_attn.o_proj.weight": (a.hidden, a.hidden),
            p + "mlp.gate_proj.weight": (a.ffn, a.hidden),
            p + "mlp.up_proj.weight": (a.ffn, a.hidden),
            p + "mlp.down_proj.weight": (a.hidden, a.ffn),
        }
    return names | {"model.norm.weight": (a.hidden,), "lm_head.weight": (a.vocab, a.hidden)}


def write(path: Path, names: dict[str, tuple[int, ...]]) -> None:
    header, offset = {}, 0
    for name, shape in names.items():
        n = 2 * int(np.prod(shape))
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [offset, offset + n]}
        offset += n
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for name, shape in names.items():
            rng = np.random.Generator(np.random.SFC64(zlib.crc32(name.encode())))
            rows = int(np.prod(shape[:-1]))
            step = max(1, (1 << 24) // shape[-1])
            for r in range(0, rows, step):
                x = rng.standard_normal((min(step, rows - r), shape[-1]), dtype=np.float32) * np.float32(0.02)
                f.write(bfloat16(x + np.float32(1) if len(shape) == 1 else x).tobytes())


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("out", type=Path)
    sizes = {"hidden": 1024, "ffn": 2816, "layers": 24, "heads": 16, "kv_heads": 8, "vocab": 32000}
    for name, value in sizes.items():
        p.add_argument("--" + name.replace("_", "-"), type=int, default=value)
    p.add_argument("--shard-gb", type=float, default=0, help="split into shards of about this size")
    a = p.parse_args()
    a.out.mkdir(parents=True, exist_ok=True)
    names = shapes(a)
    if a.shard_gb:
        shards: list[dict[str, tuple[int, ...]]] = [{}]
        size = 0
        for name, shape in names.items():
            if size > a.shard_gb * 1e9:
                shards.append({})
                size = 0
            shards[-1][name] = shape
            size += 2 * int(np.prod(shape))
        index = {}
        for i, part in enumerate(shards, 1):
            file = f"model-{i:05d}-of-{len(shards):05d}.safetensors"
            write(a.out / file, part)
            index |= dict.fromkeys(part, file)
        total = sum(2 * int(np.prod(s)) for s in names.values())
        (a.out / "model.safetensors.index.json").write_text(
            json.dumps({"metadata": {"total_size": total}, "weight_map": index}, indent=1)
        )
    else:
        write(a.out / "model.safetensors", names)
    source = Path(__file__).resolve().parent.parent / "examples" / "austen-4m"
    for file in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "generation_config.json"):
        shutil.copy(source / file, a.out / file)
    config = json.loads((source / "config.json").read_text())
    config |= {
        "hidden_size": a.hidden,
        "intermediate_size": a.ffn,
        "num_hidden_layers": a.layers,
        "vocab_size": a.vocab,
        "num_attention_heads": a.heads,
        "num_key_value_heads": a.kv_heads,
        "head_dim": a.hidden // a.heads,
        "max_position_embeddings": 4096,
    }
    (a.out / "config.json").write_text(json.dumps(config, indent=1))


if __name__ == "__main__":
    main()
