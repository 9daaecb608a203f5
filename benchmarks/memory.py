"""Peak memory and wall time of `convert` and `quantize` on a synthetic checkpoint of any size.

    python -m benchmarks.memory [--gigabytes 4] [--work FOLDER] [--holes]

With --holes it is one of 128 experts a layer whose weights are holes in its files: 40 GB take no room on the disk but
that of the output, a Q8_0.

The bound we promise: 1 GB plus twice the largest row block.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import shutil
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
EXAMPLE = ROOT / "examples" / "austen-4m"
BYTES_OF_A_LAYER = 94.4e6  # at the widths below, in bfloat16
WIDTH, INNER, EXPERTS = 4096, 1536, 128  # of the checkpoint with holes
OF_A_LAYER: dict[str, tuple[int, ...]] = {
    "input_layernorm.weight": (WIDTH,),
    "post_attention_layernorm.weight": (WIDTH,),
    "self_attn.q_proj.weight": (4096, WIDTH),
    "self_attn.k_proj.weight": (512, WIDTH),
    "self_attn.v_proj.weight": (512, WIDTH),
    "self_attn.o_proj.weight": (WIDTH, 4096),
    "self_attn.q_norm.weight": (128,),
    "self_attn.k_norm.weight": (128,),
    "mlp.gate.weight": (EXPERTS, WIDTH),
    **{
        f"mlp.experts.{e}.{name}_proj.weight": (WIDTH, INNER) if name == "down" else (INNER, WIDTH)
        for e in range(EXPERTS)
        for name in ("gate", "up", "down")
    },
}
BYTES_OF_EXPERTS = 2.0 * sum(map(math.prod, OF_A_LAYER.values()))
STEPS = (("convert", "bf16"), ("convert", "Q8_0"), ("convert", "Q4_K_M"), ("quantize", "Q4_K_M"))
MEASURE = """
import json, os, resource, subprocess, sys, time
start = time.perf_counter()
code = subprocess.call(sys.argv[1:], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(json.dumps([time.perf_counter() - start, used.ru_utime + used.ru_stime, used.ru_maxrss / 1e3, code]))
"""


def measured(command: list[str]) -> tuple[float, float, float]:
    """Seconds, CPU seconds and peak MB of a command."""
    done = subprocess.run([sys.executable, "-c", MEASURE, *command], capture_output=True, text=True, check=True)
    wall, cpu, peak, code = json.loads(done.stdout)
    if code:
        raise SystemExit(f"{' '.join(command[:4])} … failed with {code}")
    return wall, cpu, peak


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=4)
    parser.add_argument("--work", type=Path, default=None, help="where the files go (three times the size)")
    parser.add_argument("--holes", action="store_true", help="experts without values, converted to Q8_0 alone")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.work) as work:
        if options.holes:
            run_holes(Path(work), options.gigabytes)
        else:
            run(Path(work), options.gigabytes)


def synthetic(folder: Path, gigabytes: float) -> int:
    """Write a Llama checkpoint of about that size with random weights: its bytes."""
    layers = max(1, round((gigabytes * 1e9 - 0.26e9) / BYTES_OF_A_LAYER))
    tool = [sys.executable, "-m", "benchmarks.synthetic_checkpoint", str(folder), "--shard-gb", "1"]
    subprocess.run([*tool, "--hidden", "2048", "--ffn", "5632", "--layers", str(layers)], check=True)
    return sum(path.stat().st_size for path in folder.glob("*.safetensors"))


def with_holes(folder: Path, gigabytes: float) -> int:
    """Write a Qwen3-MoE checkpoint of about that size, a shard a layer, all zeros: its bytes."""
    layers = max(1, round(gigabytes * 1e9 / BYTES_OF_EXPERTS))
    words = json.loads((EXAMPLE / "config.json").read_text())["vocab_size"]
    folder.mkdir()
    for path in EXAMPLE.glob("tokenizer*"):
        shutil.copy(path, folder)
    (folder / "config.json").write_text(
        json.dumps(
            {
                "architectures": ["Qwen3MoeForCausalLM"],
                "model_type": "qwen3_moe",
                "hidden_size": WIDTH,
                "head_dim": 128,
                "intermediate_size": 3 * INNER,
                "moe_intermediate_size": INNER,
                "num_experts": EXPERTS,
                "num_experts_per_tok": 8,
                "num_attention_heads": 32,
                "num_key_value_heads": 4,
                "num_hidden_layers": layers,
                "vocab_size": words,
                "rms_norm_eps": 1e-6,
                "rope_theta": 1e6,
                "max_position_embeddings": 4096,
                "tie_word_embeddings": True,
                "norm_topk_prob": True,
                "decoder_sparse_step": 1,
                "mlp_only_layers": [],
            }
        )
    )
    around: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (words, WIDTH), "model.norm.weight": (WIDTH,)}
    places, total = {}, 0
    for layer in range(layers):
        names = {f"model.layers.{layer}.{name}": shape for name, shape in OF_A_LAYER.items()}
        names |= around if layer == 0 else {}
        file = f"model-{layer + 1:05d}-of-{layers:05d}.safetensors"
        total += _file_of_holes(folder / file, names)
        places |= dict.fromkeys(names, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
    return total


def _file_of_holes(path: Path, shapes: dict[str, tuple[int, ...]]) -> int:
    header, offset = {}, 0
    for name, shape in shapes.items():
        size = 2 * math.prod(shape)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text)
    os.truncate(path, 8 + len(text) + offset)
    return offset


def run_holes(work: Path, gigabytes: float) -> None:
    size = with_holes(work / "model", gigabytes)
    command = [sys.executable, "-m", "gguftools", "convert", str(work / "model"), "--outtype", "q8_0"]
    seconds, _, peak = measured([*command, "-o", str(work / "q8_0.gguf")])
    rate = size / 1e6 / seconds
    print(f"convert {size / 1e9:.1f} GB to Q8_0: {seconds:.0f} s, {rate:.0f} MB/s, peak {peak / 1e3:.2f} GB")


def run(work: Path, gigabytes: float) -> None:
    size = synthetic(work / "model", gigabytes)
    print(f"checkpoint of {size / 1e9:.2f} GB; this program alone needs {own_memory():.2f} GB")
    source = {"convert": work / "model", "quantize": work / "bf16.gguf"}
    for command, outtype in STEPS:
        target = work / (f"{outtype}.gguf" if command == "convert" else "quantized.gguf")
        arguments = [str(source[command]), *([] if command == "convert" else [outtype]), "-o", str(target)]
        arguments += ["--outtype", outtype] if command == "convert" else []
        seconds, _, peak = measured([sys.executable, "-m", "gguftools", command, *arguments])
        rate = size / 1e6 / seconds
        print(f"{command:9s} {outtype:7s} {seconds:6.1f} s   {rate:6.0f} MB/s   peak {peak / 1e3:.2f} GB")
        if (command, outtype) != ("convert", "bf16"):
            target.unlink()


def own_memory() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


if __name__ == "__main__":
    main()
