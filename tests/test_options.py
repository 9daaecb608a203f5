"""Every option of every command: one meaning, documented, and refused where its value means nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gguftools.cli.exclusions import EXCLUSIONS, NEEDS, exclusions, flag

from .gguftools.command_line import EXAMPLE, TEXT, program, run, typed
from .gguftools.publish.report.example import results

PROGRAM: Any = program()
OPTIONS = {
    (name, option.opts[0]): option
    for name, command in PROGRAM.commands.items()
    for option in command.params
    if option.param_type_name == "option"
}

# A call of each command that is right; MODEL, CK, TEXT, MATRIX and SHARD stand for files.
CALLS = {
    "architectures": "",
    "attest": "MODEL",
    "audit": "MODEL",
    "convert": "CK -o out.gguf",
    "convert-endian": "MODEL -o out.gguf",
    "chat-template": "CHAT",
    "chat": "CHAT",
    "check": "MODEL --predict 1",
    "demo": "-o out",
    "diff": "MODEL MODEL",
    "divergence": "MODEL MODEL -f TEXT",
    "embed": "MODEL --pooling mean --prompt word",
    "draft-check": "MODEL --draft-lookup -f TEXT -c 64 --chunks 1 --simulate 0 --draft-max 2",
    "evaluate": "MODEL --hellaswag TASKS",
    "export": "MODEL -o out",
    "fit": "MODEL",
    "card": "CARDS",
    "release": "CK -o out",
    "fetch": "org/model",
    "formats": "",
    "generate": "MODEL --prompt word --predict 1",
    "gpu-split": "activations --vram 1G",
    "graft": "MODEL -o out.gguf --drop-layers 1",
    "graph": "MODEL",
    "hash": "MODEL",
    "imatrix": "MODEL -f TEXT -o out.gguf",
    "imatrix-info": "MATRIX",
    "merge": "SHARD -o out.gguf",
    "patch": "make MODEL MODEL -o out.gguf",
    "perplexity": "MODEL -f TEXT",
    "quantize": "MODEL Q4_K_M -o out.gguf",
    "report": "RESULTS",
    "schema": "perplexity",
    "set-metadata": "MODEL general.name=x",
    "reproduce": "MODEL --source CK",
    "show": "MODEL",
    "split": "MODEL -o out",
    "tokenize": "MODEL --prompt word",
    "upload": "CK org/model",
    "validate": "MODEL",
}
SIZES = ("0", "-1", "x", "1.5G", "")
COUNTS = ("0", "-3", "x", "1.5", "")
# Values that an option must not take: for all commands, or for one.
WRONG_VALUES: dict[str, tuple[str, ...]] = {
    "--threads": COUNTS,
    "--include": ("",),
    "--exclude": ("",),
    "--revision": ("",),
    "--message": ("",),
    "--workers": COUNTS,
    "--scheduler": ("", "x:y", "nonsense://a"),
    "--card": ("", "Voodoo 2", "A100"),
    "--ladder": ("", "tall"),
    "--work": ("", "TEXT"),
    "--also": ("", "Q9_K", "absent.txt"),
    "--name": ("",),
    "--title": ("",),
    "--repository": ("", "name", "a/b/c"),
    "--quantized-by": ("",),
    "--original": ("", "name", "a/b/c"),
    "--imatrix-chunks": COUNTS,
    "--only": ("", "cards"),
    "--skip": ("", "cards"),
    "--settings": ("", "absent.toml", "TEXT"),
    "--device": ("", "gpu", "cuda:x", "cuda:1000", "cuda:99"),
    "--device-memory": SIZES,
    "--rate": SIZES,
    "--prices": ("", "absent.json", "TEXT"),
    "--memory": SIZES,
    "--reserve": SIZES,
    "--chunks": COUNTS,
    "--ctx": ("0", "1", "-5", "x", ""),
    "--split-max-size": SIZES,
    "--split-max-tensors": COUNTS,
    "--stride": ("-1", "512", "x", ""),
    "--gptq": ("", "absent.txt", ".", "=TEXT"),
    "--gptq-chunks": ("0", "1", "-5", "x", ""),
    "--gptq-memory": SIZES,
    "--precision": ("", "float16", "Exact"),
    "--skip-chunks": ("-1", "x", "", "99999"),
    "--save-every": ("-1", "x", ""),
    "--check-model": ("", "absent.gguf", "MATRIX"),
    "--min-rows": COUNTS,
    "--tasks": COUNTS,
    "--seed": ("-1", "x", "4294967296", ""),
    "--hellaswag": ("", "absent", "TEXT", "MODEL"),
    "--winogrande": ("", "absent", "TEXT", "MODEL"),
    "--multiple-choice": ("", "absent", "TEXT", "MODEL"),
    "--save-base": ("", "absent/base.kld", "TEXT"),
    "--worst": ("-1", "21", "x", ""),
    "--top-k": COUNTS,
    "--base-model": ("", "absent.gguf", "TEXT", "MODEL"),
    "--record": ("", ".", "absent/x", "TEXT"),
    "--fail-above": ("", "mean", "p98=1", "mean=x", "mean=-1"),
    "--batch": COUNTS,
    "--min-neurons": ("-1", "x", ""),
    "--vram": SIZES,
    "--check-logits": ("-1", "x", ""),
    "--outtype": ("", "q4km", "f17"),
    "--fallback": ("", "exact", "Q4_K_M"),
    "--pre": ("", "nonsense"),
    "--fail-on": ("", "hihg"),
    "--file": ("", "absent.txt", "."),
    "--imatrix": ("", "absent.gguf", "MODEL"),
    "--against": ("", "absent"),
    "--lora": ("", "absent", "CK"),
    "--predictor": ("", "absent", "CK"),
    "--target-model-dir": ("", "absent", "CK"),
    "--task": ("", "absent"),
    "--part": ("", "absent", "vae"),
    "--for": ("", "absent", "comfyui"),
    "--merge-lora": ("", "absent", "CK=nan", "CK=x"),
    "--model": ("", "absent.gguf"),
    "--output": ("",),
    "--html": ("", ".", "absent/x.html"),
    "--merge": ("",),
    "--check": ("", "absent"),
    "--tensors": ("", "(", "nothing_matches"),
    "--key": ("", "general.nmae"),
    "--include-weights": ("", "fnn"),
    "--exclude-weights": ("", "fnn"),
    "--tensor-type": ("", "x", "=Q8_0", "(=Q8_0", "attn=Q8", "fnn=Q8_0"),
    "--tensor-type-file": ("", "absent"),
    "--output-tensor-type": ("", "Q8", "I32"),
    "--token-embedding-type": ("", "Q8", "I32"),
    "--prune-layers": ("", "x", "99", "-1", "0,1,2,3"),
    "--override-kv": (
        "",
        "a",
        "a=int",
        "llama.contxt_length=int:5",
        "llama.context_length=int:x",
        "llama.rope.scaling.type=str:yarnn",
        "llama.context_length=int:0",
    ),
    "--from-json": ("", "absent.json", "TEXT"),
    "--type": ("", "x", "general.url=STRING", "general.name=TEXT"),
    "--remove": ("", "general.nmae", "llama.block_count"),
    "--rename": ("", "x", "general.nmae=y", "general.name=x y"),
    "--chat-template": ("", "@absent", "absent.jinja", "{{"),
    "--special-token": ("", "x", "eso=1", "eos=99999999"),
    "--sort": ("", "wrost"),
    "--from": ("", "absent.gguf", "MODEL"),
    "--drop": ("", "(", "nothing_matches", "mtp"),
    "--drop-layers": ("", "x", "99", "-1", "3-1", "0-3"),
    "--drop-experts": ("", "25%", "0", "x"),
    "--measure": ("", "absent.txt", "."),
    "--target-size": ("", "0", "-1", "x", "1.5X", "1K", "900G"),
    "--target-bpw": ("", "x", "nan", "0", "-4", "0.6", "31"),
    "--calibrate": ("", "absent.txt", "."),
    "--frontier": ("", "x", "3,", "0", "4,nan", "1.0", "31"),
    "--source": ("", "absent", "TEXT"),
    "--manifest-file": ("", "absent", "TEXT"),
    "--sample": COUNTS,
    "--recipe": ("", "Q9_K", "absent.txt"),
    "--prompt": ("\udcff",),
    "--prompts": ("", "absent.txt", "MODEL", "."),
    "--predict": ("-1", "x", "1.5", ""),
    "--samples": COUNTS,
    "--best-of": COUNTS,
    "--beam-width": COUNTS,
    "--length-penalty": ("x", "nan", "inf", "2", ""),
    "--prompt-logprobs": ("-1", "x", ""),
    "--truncate-prompt-tokens": ("-2", "0", "x", ""),
    "--bad-words": ("",),
    "--parallel": COUNTS,
    "--logprobs": ("-1", "x", ""),
    "--cache-type": ("", "q4_0", "8"),
    "--cache-type-v": ("", "q2_k", "8"),
    "--ubatch": COUNTS,
    "--margin": ("-1", "x", "1.5G", ""),
    "--temp": ("-1", "x", "nan", "inf", ""),
    "--top-p": ("-0.1", "1.1", "x", "nan", ""),
    "--min-p": ("-0.1", "1.1", "x", "nan", ""),
    "--samplers": ("tempereture", "kz"),
    "--repeat-last-n": ("-1", "x", ""),
    "--repeat-penalty": ("0", "-1", "nan", "x", ""),
    "--presence-penalty": ("nan", "inf", "x", ""),
    "--frequency-penalty": ("nan", "inf", "x", ""),
    "--sampling": ("", "mirostat", "mirostat=3", "mirostat=x", "mirostt=1", "top_p=nan", "logit_bias=x", "stop_ids=1"),
    "--stop": ("",),
    "--grammar": ("", "absent", "MODEL", "TEXT"),
    "--json-schema": ("", "absent", "MODEL", "TEXT"),
    "--temps": ("", "x", "-1", "nan", "1,1"),
    "--cost-ratio": ("", "x", "-1", "nan"),
    "--verify-cost": ("-1", "x", "nan", ""),
    "--simulate": ("-1", "x", ""),
    "--system": ("\udcff",),
    "--messages": ("", "absent", "MODEL", "TEXT"),
    "--pooling": ("", "men", "max", "rank"),
    "--normalize": ("-2", "x", "1.5", ""),
    "--draft": ("", "absent.gguf", "MODEL", "TEXT"),
    "--draft-max": COUNTS,
    "--draft-tree": COUNTS,
    "--draft-min-p": ("-0.1", "1.1", "x", "nan", ""),
    "--image": ("", "absent.png", "TEXT"),
    "--audio": ("", "absent.wav", "TEXT"),
    "--image-tokens": COUNTS,
    "--layer": ("-1", "x", "99", ""),
    "--tokens": ("", "x"),
    "--tolerance": ("-1", "x", "nan", ""),
    "--save": ("", "absent/x.npz", "TEXT"),
    "--plot": ("", "x.pdf", ".", "absent/x.svg"),
}
OF_ONE = {
    ("validate", "--for"): ("", "forge"),
    ("release", "--file"): ("", "absent.txt", "."),
    ("release", "--threads"): COUNTS,
    ("chat", "--top-k"): ("x", "1.5", ""),
    ("generate", "--top-k"): ("x", "1.5", ""),  # where 0 and less mean all of them
    ("generate", "--mmproj"): ("", "absent.gguf", "MODEL", "TEXT"),
    ("export", "--mmproj"): ("", "absent.gguf", "MODEL", "TEXT"),
    ("fit", "--mmproj"): ("", "absent.gguf", "MODEL", "TEXT"),
    ("fit", "--cache-type"): ("", "q2_k", "8"),
}  # of others a flag
NEEDED_BESIDE = {
    "--system": ["--chat"],
    "--include-weights": ["--imatrix", "MATRIX"],
    "--exclude-weights": ["--imatrix", "MATRIX"],
    "--tolerance": ["--against", "MODEL"],
    "--sort": ["--errors"],
    "--logprobs": ["--json"],
    "--prompt-logprobs": ["--json"],
    "--top-k": ["--save-base", "base.gguf"],
    "--gptq-chunks": ["--gptq", "TEXT"],
    "--gptq-memory": ["--gptq", "TEXT"],
    "--device-memory": ["--device", "cpu"],
    "--draft-max": ["--draft-lookup"],
    "--draft-tree": ["--draft-mtp"],
    "--draft-min-p": ["--draft-mtp"],
    "--mmproj": ["--image", "TEXT"],
    "--image": ["--mmproj", "MODEL"],
    "--audio": ["--mmproj", "MODEL"],
    "--image-tokens": ["--image", "TEXT", "--mmproj", "MODEL"],
    "--card": ["--plan"],
    "--rate": ["--plan"],
    "--prices": ["--plan"],
    "--min-rows": ["--merge", "filled.gguf"],
}
# Flags. What they do not go with stands in gguftools.cli.exclusions, whose every entry is tried below.
FLAGS = {
    "--keep-source",
    "--no-ollama",
    "--no-manifests",
    "--fast",
    "--cpu",
    "--quiet",
    "--verbose",
    "--debug",
    "--json",
    "--include-stop-str-in-output",
    "--early-stopping",
    "--header",
    "--vocab",
    "--new",
    "--force",
    "--overwrite",
    "--free",
    "--no-tensor-first-split",
    "--process-output",
    "--nextn",
    "--round-activations",
    "--pure",
    "--allow-requantize",
    "--no-fallback",
    "--statistics",
    "--resume",
    "--check-tensors",
    "--sparse",
    "--tensor-values",
    "--no-tensors",
    "--embed-tokenizer",
    "--markdown",
    "--text",
    "--running",
    "--no-dense",
    "--dry-run",
    "--recover",
    "--roll-back",
    "--keep-split",
    "--leave-output-tensor",
    "--allow-missing-experts",
    "--list-recipes",
    "--all",
    "--all-tensors",
    "--xxh64",
    "--sha1",
    "--sha256",
    "--uuid",
    "--profile",
    "--errors",
    "--identify",
    "--full",
    "--parse-special",
    "--rounded-grids",
    "--fill",
    "--gptq-only",
    "--manifest",
    "--verify",
    "--recheck",
    "--private",
    "--create-pr",
    "--no-check",
    "--delete",
    "--sign",
    "--trust",
    "--show-statistics",
    "--plan",
    "--chat",
    "--with-output",
    "--ignore-eos",
    "--special",
    "--count",
    "--merge-experts",
    "--truncate",
    "--values",
    "--dot",
    "--draft-lookup",
    "--draft-mtp",
    "--draft-typical",
    "--mmproj",
    "--all-parts",
    "--mtp",
    "--no-mtp",
    "--no-check-tokenizer",
    "--sentence-transformers-dense-modules",
}


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("options")
    model, matrix = folder / "model.gguf", folder / "matrix.gguf"
    assert run("convert", EXAMPLE, "-o", model, cwd=folder).returncode == 0
    assert run("split", model, "-o", folder / "set", "--split-max-size", "4M", cwd=folder).returncode == 0
    done = run("imatrix", model, "-f", TEXT, "-o", matrix, "--chunks", 1, "-c", 64, cwd=folder)
    assert done.returncode == 0, done.stderr
    chat = folder / "chat.gguf"
    template = "{% for each in messages %}{{ each.content }} {% endfor %}"
    done = run("set-metadata", model, "--chat-template", template, "-o", chat, cwd=folder)
    assert done.returncode == 0, done.stderr
    shard = next(folder.glob("set-00001-*"))
    cards = folder / "cards"
    cards.mkdir()
    (cards / "model-Q8_0.gguf").symlink_to(model)
    tasks = folder / "tasks.txt"
    tasks.write_text("Talking: They went\n2\nout.\nin.\naway.\nhome.\n")
    (folder / "results.json").write_text(json.dumps(results(1, passages=1)))
    return {
        "RESULTS": folder / "results.json",
        "TASKS": tasks,
        "MODEL": model,
        "MATRIX": matrix,
        "CK": EXAMPLE,
        "CHAT": chat,
        "TEXT": TEXT,
        "SHARD": shard,
        "CARDS": cards,
    }


def refuses(words: list[str], files: dict[str, Path], folder: Path, monkeypatch) -> str:
    """Assert that the call ends with an error of one line and leaves no file; returns what was said."""
    monkeypatch.chdir(folder)
    done = typed(*(files.get(word, word) for word in words))
    assert done.returncode in (1, 2), f"{words} ended with {done.returncode}: {done.stdout[-300:]}{done.stderr[-300:]}"
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1, done.stderr
    assert "Traceback" not in done.stderr
    assert not list(folder.iterdir()), f"{words} left {list(folder.iterdir())}"
    return done.stderr


def test_every_command_and_option_is_tried():
    """A new one needs an entry above: the values that it must not take, or why it has none."""
    assert set(CALLS) == set(PROGRAM.commands)
    names = {name for _, name in OPTIONS}
    assert names == set(WRONG_VALUES) | FLAGS
    assert set(OF_ONE) <= set(OPTIONS)
    for (command, name), option in OPTIONS.items():
        assert option.is_flag == (name in FLAGS and (command, name) not in OF_ONE), f"{command} {name}"


@pytest.mark.parametrize(("command", "name"), [key for key in OPTIONS if key[1] in WRONG_VALUES or key in OF_ONE])
def test_values_that_mean_nothing_are_refused(command, name, files, tmp_path, monkeypatch):
    for value in OF_ONE.get((command, name)) or WRONG_VALUES[name]:
        words = [command, *CALLS[command].split()]
        if name in words:
            words[words.index(name) + 1] = value
        else:
            alone = (command, name) == ("export", "--mmproj")
            words += [*([] if alone else NEEDED_BESIDE.get(name, [])), name, value]
        refuses(words, files, tmp_path, monkeypatch)


def entries() -> list[tuple[str, str, str]]:
    """(command, option, another that it cannot be combined with) of every pair."""
    found = []
    for command in EXCLUSIONS:
        for one, others, _ in exclusions(PROGRAM.commands[command]) if command else EXCLUSIONS[command]:
            names = others.split() if not others.startswith("*") else ["imatrix"]
            found += [(command or "validate", one, other) for other in names]
    return found


@pytest.mark.parametrize(("command", "one", "other"), entries())
def test_options_that_contradict_each_other_are_refused(command, one, other, files, tmp_path, monkeypatch):
    words = [command, *CALLS[command].split(), *with_value(command, one), *with_value(command, other)]
    said = refuses(words, files, tmp_path, monkeypatch)
    assert "cannot be combined with" in said


@pytest.mark.parametrize(
    ("command", "one"), [(command or "evaluate", one) for command, needs in NEEDS.items() for one in needs]
)
def test_options_that_need_another_are_refused_without(command, one, files, tmp_path, monkeypatch):
    said = refuses([command, *CALLS[command].split(), *with_value(command, one)], files, tmp_path, monkeypatch)
    needed = {**NEEDS[""], **NEEDS.get(command, {})}[one].split()[0]
    assert f"{flag(one)} needs {flag(needed)}" in said


def with_value(command: str, name: str) -> list[str]:
    """An option, with a value that it could have."""
    option = OPTIONS[command, flag(name)]
    if option.is_flag:
        return [flag(name)]
    counts = (
        "check_logits",
        "skip_chunks",
        "save_every",
        "split_max_tensors",
        "threads",
        "workers",
        "top_k",
        "worst",
        "min_rows",
        "gptq_chunks",
        "seed",
        "logprobs",
        "prompt_logprobs",
        "beam_width",
        "draft_max",
        "draft_tree",
        "image_tokens",
    )
    sizes = ("device_memory", "split_max_size", "target_size", "gptq_memory", "rate")
    return [
        flag(name),
        "3"
        if name in counts
        else "2M"
        if name in sizes
        else "4.5"
        if name in ("target_bpw", "frontier")
        else "0.5"
        if name in ("draft_min_p", "tolerance", "length_penalty")
        else "TEXT",
    ]


def test_every_contradiction_is_of_options_that_there_are():
    for command, one, other in entries():
        assert {(command, flag(one)), (command, flag(other))} <= set(OPTIONS)


def test_an_option_means_the_same_in_every_command():
    """Its help is the same up to a colon, behind which a command may add what is its own; so are its short names."""
    for name in {name for _, name in OPTIONS}:
        of_commands = [option for (_, other), option in OPTIONS.items() if other == name]
        assert len({(option.help or "").rstrip(".").partition(": ")[0] for option in of_commands}) == 1, name
        assert len({(*option.opts, *option.secondary_opts) for option in of_commands}) == 1, name


def test_a_short_name_belongs_to_one_option():
    owners: dict[str, set[str]] = {}
    for (_, name), option in OPTIONS.items():
        for short in option.opts[1:]:
            owners.setdefault(short, set()).add(name)
    assert {short: names for short, names in owners.items() if len(names) > 1} == {}


def test_an_option_has_each_spelling_once():
    spellings = {key: [*option.opts, *option.secondary_opts] for key, option in OPTIONS.items()}
    assert {key: each for key, each in spellings.items() if len(each) > len(set(each))} == {}
