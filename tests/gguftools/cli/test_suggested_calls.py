"""Calls in the style of llama.cpp's programs, and mistaken ones, end with a hint what to type."""

from __future__ import annotations

from pathlib import Path

import pytest

from ..command_line import EXAMPLE, TEXT, refused, run, typed

# What is typed -> what the hint has; "MODEL" is a small model, "CK" its checkpoint folder.
CALLS = {
    # llama-quantize
    "quantize in.gguf out.gguf Q4_K_M 8": "`gguftools quantize in.gguf Q4_K_M --output out.gguf --threads 8`",
    "quantize MODEL out.gguf Q4_K_M": "--output out.gguf`",
    "quantize MODEL Q4_K_M 8": "--threads 8",
    "quantize MODEL out.gguf q8_0": "q8_0 --output out.gguf`",
    "quantize Q4_K_M MODEL": "Q4_K_M`",
    "quantize MODEL --outtype Q4_K_M -o x.gguf": "--output x.gguf Q4_K_M`|-o x.gguf Q4_K_M`",
    "quantize MODEL Q8_0 --outfile x.gguf": "--output x.gguf`",
    "quantize MODEL Q8_0 --nthreads 3": "--threads 3`",
    # llama-perplexity, llama-imatrix
    "perplexity -m model.gguf -f t.txt -c 512 -ngl 99 -t 8": ("`gguftools perplexity model.gguf -f t.txt -c 512 -t 8`"),
    "perplexity --model model.gguf -f t.txt -t8 -b 512": "`gguftools perplexity model.gguf -f t.txt -t8`",
    "perplexity model.gguf -f t.txt --ctx-size=512": "--ctx 512`",
    "perplexity model.gguf -f t.txt --ppl-stride 256": "--stride 256`",
    "perplexity model.gguf -f t.txt --hellaswag": "`gguftools evaluate MODEL --hellaswag FILE`",
    "perplexity model.gguf t.txt -f x": "--file t.txt",
    "imatrix -m model.gguf -f t.txt -o i.gguf -ngl 99": "`gguftools imatrix model.gguf -f t.txt -o i.gguf`",
    "imatrix model.gguf -f t.txt -o i.gguf --in-file a.gguf": "imatrix-info",
    # convert_hf_to_gguf.py
    "convert CK --outfile x.gguf --outtype q8_0": "--output x.gguf --outtype q8_0`",
    "convert CK x.gguf": "--output x.gguf",
    "convert CK --vocab-only": "only a vocabulary",
    "convert CK --model-name X": "general.name=NAME",
    "convert CK --split-max-size 2G": "gguftools split",
    "convert --remote org/model": "`gguftools convert hf://org/model`",
    # llama-gguf-split
    "split --split MODEL out": "`gguftools split",
    "split MODEL out": "--output out",
    "merge --merge a-00001-of-00002.gguf": "`gguftools merge a-00001-of-00002.gguf`",
    "gguf-split --merge a-00001-of-00002.gguf out.gguf": "`gguftools merge`",
    "llama-gguf-split --split in out": "`gguftools split`",
    # gguf_set_metadata.py, gguf_new_metadata.py, gguf_dump.py, gguf_hash.py
    "set-metadata MODEL general.name Foo": "general.name=Foo",
    "set-metadata MODEL --remove a b": "--remove a --remove b",
    "set-metadata MODEL --general-name Foo": "general.name=NAME",
    "set-metadata MODEL --remove-metadata general.url": "--remove general.url`",
    "show MODEL --no-tensors": "--key KEY",
    "hash MODEL --no-layer": "--no-tensors`",
    "gguf-dump MODEL": "`gguftools show`",
    "llama-quantize a b Q4_K_M": "`gguftools quantize`",
    "convert_hf_to_gguf.py CK": "`gguftools convert`",
    "set_metadata MODEL a=b": "`gguftools set-metadata`",
    # mistakes without a teacher
    "quantise MODEL Q8_0": "quantize",
    "quantize MODEL Q8_0 --tensor-typ a=b": "--tensor-type",
    "perplexity MODEL -f t.txt --pure": "it is an option of quantize",
    "--json show MODEL": "after the command",
    "imatrix MODEL -f t.txt": "gguftools imatrix --help",
    "perplexity MODEL -f": "gguftools perplexity --help",
}


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("model") / "model.gguf"
    assert run("convert", EXAMPLE, "-o", path, cwd=path.parent).returncode == 0
    return path


@pytest.mark.parametrize("call", CALLS)
def test_a_wrong_call_is_told_what_to_type(call: str, model: Path, monkeypatch):
    monkeypatch.chdir(model.parent)
    done = typed(*({"MODEL": model, "CK": EXAMPLE}.get(word, word) for word in call.split()))
    said = refused(done, code=2)
    assert [line.partition(":")[0] for line in said.splitlines()] == ["error", "hint"], said
    assert any(text in said for text in CALLS[call].split("|")), said
    assert sorted(path.name for path in model.parent.iterdir()) == ["model.gguf"]


PATHS = {
    ("convert", "org/model"): "`gguftools convert hf://org/model`",
    ("quantize", "org/model", "Q8_0"): "`gguftools convert hf://org/model`",
    ("convert", "https://huggingface.co/org/model"): "hf://org/model`",
    ("convert", "https://huggingface.co/org/model/tree/v2"): "hf://org/model@v2`",
    ("show", "https://huggingface.co/org/model"): "hf://org/model`",
    ("show", EXAMPLE): "`gguftools convert",
    ("perplexity", EXAMPLE, "-f", TEXT): "`gguftools convert",
    ("set-metadata", EXAMPLE, "general.name=x"): "`gguftools convert",
    ("imatrix", EXAMPLE, "-f", TEXT, "-o", "i.gguf"): "`gguftools convert",
    ("show", "."): "name a file in it: model.gguf",
    ("show", "-"): "standard input",
    ("quantize", "MODEL", "IQ2_XXS"): "gguftools imatrix",
}


@pytest.mark.parametrize("call", PATHS, ids=lambda call: " ".join(str(word)[-40:] for word in call))
def test_a_wrong_name_is_told_the_right_one(call: tuple[object, ...], model: Path, monkeypatch):
    monkeypatch.chdir(model.parent)
    refused(typed(*(model if word == "MODEL" else word for word in call)), "hint: ", PATHS[call])
