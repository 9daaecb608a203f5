"""Converting a synthetic checkpoint, beside copying its bytes and the reference's converter, in turn in one run.

    python -m benchmarks.convert [--gigabytes 4 | --small] [--rounds 3] [--reference SCRIPT] [--work FOLDER]

Wall time and peak memory of whole processes; each round begins with another of them. `cp` leaves its copy in the page
cache, while a conversion's result is on the disk when it ends, so `cp` is also timed with a sync of the copy. --small:
the 349M model of facts and figures. --reference: convert_hf_to_gguf.py of llama.cpp's sources, which are in the source
package of llama-cpp-python; it needs torch. A recipe takes it a float16 file and llama_model_quantize.
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

from gguftools.quantization.recipes import recipe_named

from .memory import measured, synthetic
from .quantize import REFERENCE, same_tensors

# It knows vocabularies by a hash, and the synthetic one not at all: it is told what that is.
CONVERTER = """
import os, runpy, sys
sys.argv = sys.argv[1:]
sys.path.insert(0, os.path.dirname(sys.argv[0]))
import conversion.base
conversion.base.TextModel.get_vocab_base_pre = lambda self, tokenizer: "llama-bpe"
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def copied(folder: Path, target: Path) -> str:
    """A shell command that copies the weights of a checkpoint into one file."""
    return f"cat {' '.join(map(str, sorted(folder.glob('*.safetensors'))))} > {target}"


def reference(script: Path, model: Path, target: Path, outtype: str) -> list[str]:
    """The reference's command, or commands, for an outtype."""
    python = sys.executable
    plain = outtype.islower()
    first = target if plain else target.with_suffix(".f16")
    outputs = ["--outfile", str(first), "--outtype", outtype if plain else "f16"]
    converting = [python, "-c", CONVERTER, str(script), str(model), *outputs]
    if plain:
        return converting
    number, threads = str(recipe_named(outtype).file_type), str(os.cpu_count() or 1)
    quantizing = [python, "-c", REFERENCE, str(first), str(target), number, threads]
    return ["sh", "-c", f"{shlex.join(converting)} && {shlex.join(quantizing)}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=4)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--outtypes", nargs="+", default=["f16", "bf16", "q8_0", "Q4_K_M"])
    parser.add_argument("--reference", type=Path, help="convert_hf_to_gguf.py of llama.cpp's sources")
    parser.add_argument("--work", type=Path, help="where files go (four times the size)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.work) as work:
        model, target = Path(work) / "model", Path(work) / "out.gguf"
        if options.small:
            tool = [sys.executable, "-m", "benchmarks.synthetic_checkpoint", str(model)]
            subprocess.run(tool, check=True)
        else:
            synthetic(model, options.gigabytes)
        size = sum(path.stat().st_size for path in model.glob("*.safetensors"))
        print(f"checkpoint of {size / 1e9:.2f} GB")
        commands = {
            "cp": ["sh", "-c", copied(model, target)],
            "cp, synced": ["sh", "-c", f"{copied(model, target)} && sync {target}"],
        } | {
            outtype: [sys.executable, "-m", "gguftools", "convert", str(model), "-o", str(target), "--outtype", outtype]
            for outtype in options.outtypes
        }
        if options.reference:
            commands |= {
                f"reference {outtype}": reference(options.reference, model, target, outtype)
                for outtype in options.outtypes
            }
        same = []
        for name, command in commands.items():  # once uncounted: page cache, compiled kernels
            measured(command)
            if options.reference and name in options.outtypes:
                target.rename(target.with_suffix(".ours"))
                measured(commands[f"reference {name}"])
                if same_tensors(target, target.with_suffix(".ours")):
                    same.append(name)
        names = list(commands)
        runs = []
        for start in range(0, 2 * options.rounds, 2):  # who follows whom matters: files are replaced, memory is freed
            turn = start % len(names)
            runs.append({name: measured(commands[name]) for name in [*names[turn:], *names[:turn]]})
        for name in commands:
            wall, cpu, peak = (median(run[name][i] for run in runs) for i in range(3))
            ratio = median(run[name][0] / run["cp, synced"][0] for run in runs)
            print(f"{name:16s} {wall:6.2f} s   {cpu:6.2f} CPU-s   peak {peak:5.0f} MB   {ratio:.2f} x cp, synced")
        if options.reference:
            print(f"same tensors: {' '.join(same)}")


if __name__ == "__main__":
    main()
