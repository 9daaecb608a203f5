"""Hints that rewrite a call: each is run, and keeps every word of the call but those that were wrong."""

from __future__ import annotations

import ast
import json
import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest

from gguftools.cli.calls import arities, parse_call
from gguftools.cli.elsewhere import NOT_NEEDED, meaning
from gguftools.cli.usage import mistaken

from ... import hints
from ...conftest import DATA, ROOT
from ..command_line import EXAMPLE, program, run, typed

COMMANDS: Any = program().commands
GOLDEN = DATA / "golden" / "e2e"
OPTIONS: dict[str, str] = json.loads((DATA / "llama_cpp_options.json").read_text())
WITH_COMMON = ("generate", "embed", "imatrix", "perplexity", "tokenize")
SHARDS = " ".join(f"set-{i}-of-00003.gguf" for i in ("00001", "00002", "00003"))
# A wrong call -> the words that its hint's call must have, in that order; "!" in front of words that it must not have.
# The call of the hint is run in a folder with the files in.gguf, im.gguf, text.txt, set-…, checkpoint; it succeeds.
REWRITTEN = {
    "quantize --imatrix im.gguf in.gguf out.gguf IQ3_M": "--imatrix im.gguf in.gguf IQ3_M --output out.gguf",
    "quantize --allow-requantize --leave-output-tensor --pure in.gguf out.gguf Q4_0 2": "--allow-requantize --leave-output-tensor --pure in.gguf Q4_0 --output out.gguf --threads 2",
    "quantize --imatrix-file im.gguf --token-embedding-type q8_0 --tensor-type ffn_down=q5_K in.gguf out.gguf 15 2": "--imatrix im.gguf --token-embedding-type q8_0 --tensor-type ffn_down=q5_K in.gguf 15 --output out.gguf"
    " --threads 2",
    "quantize in.gguf out.gguf Q8_0 --max-buffer-size 64": "in.gguf Q8_0 --memory 64M --output out.gguf",
    "quantize Q8_0 in.gguf -o out.gguf --imatrix im.gguf": "in.gguf Q8_0 -o out.gguf --imatrix im.gguf",
    "quantize Q8_0 in.gguf out.gguf": "in.gguf Q8_0 --output out.gguf",
    "quantize in.gguf Q8_0 2 -o out.gguf": "in.gguf Q8_0 -o out.gguf --threads 2",
    "quantize in.gguf --outtype Q8_0 -o x.gguf": "in.gguf -o x.gguf Q8_0",
    "-q quantize in.gguf -ox.gguf --ftype=Q8_0": "-q quantize in.gguf -ox.gguf Q8_0",
    "quantize in.gguf Q8_0 --nthreads 2 -qo x.gguf": "in.gguf Q8_0 --threads 2 -qo x.gguf",
    "llama-quantize in.gguf out.gguf Q8_0": "quantize in.gguf Q8_0 --output out.gguf",
    "split --split --split-max-size 100K in.gguf foo": "--split-max-size 100K in.gguf --output foo",
    "gguf-split --merge set-00001-of-00003.gguf out.gguf": "merge set-00001-of-00003.gguf --output out.gguf",
    f"merge {SHARDS} -o out.gguf": "set-00001-of-00003.gguf -o out.gguf ! set-00002",
    f"merge --dry-run {SHARDS}": "--dry-run set-00001-of-00003.gguf ! set-00002 --output",
    "convert checkpoint out.gguf --outtype q8_0": "checkpoint --outtype q8_0 --output out.gguf",
    "convert checkpoint --outfile out.gguf --no-lazy --ftype f16 --no-nextn": "checkpoint --output out.gguf --outtype f16 --no-mtp",
    "perplexity -m checkpoint.gguf -f text.txt -ngl 99 -t 2 -c 64 --chunks 1 -fa -b 512": "checkpoint.gguf -f text.txt -t 2 -c 64 --chunks 1",
    "imatrix -m checkpoint.gguf -f text.txt -o i.gguf -ngl 99 --no-ppl -c 64 --chunks 1 -ofreq 5 --chunk 0": "checkpoint.gguf -f text.txt -o i.gguf -c 64 --chunks 1 --skip-chunks 0",
    "imatrix checkpoint.gguf text.txt i.dat -c 64 --chunks 1": "checkpoint.gguf -c 64 --chunks 1 --file text.txt --output i.dat",
    "generate checkpoint.gguf -ngl 99 -p Hello -n 1": "checkpoint.gguf -p Hello -n 1 ! 99",
    "generate -m checkpoint.gguf -cnv --xtc-probability 0.5 -p Hello --n-predict 1 --temperature 0": "checkpoint.gguf --chat --sampling xtc_probability=0.5 -p Hello --predict 1 --temp 0",
    "generate checkpoint.gguf -sys Yes -p Hello -n 1 -ctk f16 -ctv f16 --n-probs 2": "checkpoint.gguf --chat --system Yes -p Hello -n 1 --cache-type f16 --json --logprobs 2 ! f16",
    "generate checkpoint.gguf -n 1 Hello": "checkpoint.gguf -n 1 --prompt Hello",
    "generate --mlock --seed 4 -sm none --repeat-penalty 1.1 checkpoint.gguf -p Hello -n 1 -st": "--seed 4 --repeat-penalty 1.1 checkpoint.gguf -p Hello -n 1",
    "tokenize -m checkpoint.gguf -p Hello --show-count": "checkpoint.gguf -p Hello --count",
    "--json show in.gguf": "show in.gguf --json",
    "set-metadata checkpoint.gguf general.name 'Foo bar' --dry-run": "checkpoint.gguf 'general.name=Foo bar' --dry-run",
    "set-metadata checkpoint.gguf --dry-run --remove general.name tokenizer.ggml.pre": "checkpoint.gguf --dry-run --remove general.name --remove tokenizer.ggml.pre",
    "set-metadata checkpoint.gguf --dry-run --force --special-token eos 3": "checkpoint.gguf --dry-run --force --special-token eos=3",
    "set-metadata checkpoint.gguf --remove-metadata general.name --dry-run": "checkpoint.gguf --remove general.name --dry-run",
    "hash in.gguf --no-layer --sha256": "in.gguf --no-tensors --sha256",
    "gguf-hash in.gguf": "in.gguf",
    "gguf-dump in.gguf --markdown": "show in.gguf --markdown",
    "convert_hf_to_gguf.py checkpoint --outfile out.gguf": "convert checkpoint --output out.gguf",
}
# A wrong call -> what its hint says where no call is certain to be meant.
TEXTS = {
    "generate -hf a/b -p x": "hf://a/b/NAME.gguf",
    "generate -hf a/b:Q4_K_M -p x": "hf://a/b/NAME-Q4_K_M.gguf",
    "generate in.gguf -f text.txt": "-p - <",
    "generate in.gguf -p x --rope-freq-base 5": "set-metadata FILE KEY=VALUE",
    "perplexity checkpoint.gguf -f text.txt --lora a": "--merge-lora",
    "perplexity checkpoint.gguf -p Hello": "-f FILE",
    "quantize in.gguf out.gguf": "name a recipe",
    "quantize in.gguf a.gguf Q8_0 -o b.gguf": "already named",
    "quantize in.gguf Q8_0 2 --threads 1": "already given",
    "show in.gguf --no-tensors": "--key KEY",
    "validate in.gguf --bogus": "--help",
    "convert checkpoint x y z": "--help",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny model, a matrix, a split set, a checkpoint and its file, and a text."""
    made = tmp_path_factory.mktemp("hints")
    shutil.copyfile(GOLDEN / "tiny-dense-f16.gguf", made / "in.gguf")
    shutil.copyfile(GOLDEN / "tiny-dense.imatrix.gguf", made / "im.gguf")
    (made / "checkpoint").symlink_to(EXAMPLE)
    (made / "text.txt").write_text((ROOT / "examples" / "persuasion.txt").read_text(encoding="utf-8")[:2000])
    for words in (
        "convert checkpoint -o plain.gguf",
        "set-metadata plain.gguf --chat-template CHAT -o checkpoint.gguf",
    ):
        template = "{% for each in messages %}{{ each.content }} {% endfor %}"
        done = typed_in(made, [template if word == "CHAT" else word for word in words.split()])
        assert done.returncode == 0, done.stderr
    count = len(json.loads(typed_in(made, ["show", "in.gguf", "--json"]).stdout)["tensors"])
    done = typed_in(made, ["split", "in.gguf", "-o", "set", "--split-max-tensors", str(-(-count // 3))])
    assert done.returncode == 0, done.stderr
    (made / "plain.gguf").unlink()
    return made


def typed_in(folder: Path, words: list[str]) -> Any:
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(folder)
        return typed(*words)


def hint_of(done: Any) -> str:
    assert done.returncode == 2, done.stdout + done.stderr
    error, hint = done.stderr.splitlines()
    assert error.startswith("error: ")
    return str(hint.removeprefix("hint: "))


@pytest.mark.parametrize("call", REWRITTEN)
def test_the_call_of_a_hint_runs_and_keeps_every_option(call: str, folder: Path):
    there = set(folder.iterdir())
    hint = hint_of(typed_in(folder, shlex.split(call)))
    words = hints.calls(hint)[-1]
    wanted, _, absent = (shlex.split(part) for part in REWRITTEN[call].partition("!"))
    assert words in (wanted, [next(word for word in words if word in COMMANDS), *wanted])
    assert not set(absent) & set(words) or call.startswith("generate checkpoint.gguf -sys")
    done = run(*words, cwd=folder)
    for made in set(folder.iterdir()) - there:
        made.unlink()
    assert done.returncode == 0, f"{hint}: {done.stderr}"


@pytest.mark.parametrize("call", TEXTS)
def test_what_is_not_certain_is_said_in_words(call: str, folder: Path):
    hint = hint_of(typed_in(folder, call.split()))
    assert TEXTS[call] in hint
    assert "type `" not in hint


@pytest.mark.parametrize("command", [name for name in OPTIONS if name != "common"])
def test_every_option_of_llama_cpp_has_an_answer(command: str):
    """A call with it runs here, or a hint says what to type, or why it is not needed."""
    own = arities(COMMANDS[command])
    for option in [*OPTIONS[command].split(), *(OPTIONS["common"].split() if command in WITH_COMMON else ())]:
        name, values = option.rstrip("="), option.count("=")
        if name in own and name != "--special-token":
            assert own[name] == values, f"{command} {option}"
        elif name not in own:
            found = meaning(command, name, own)
            assert found is not None, f"{command} {option}"
            assert found.becomes == "text" or found.values == values, f"{command} {option}: {found}"
            problem, hint = mistaken(COMMANDS[command], ["x.gguf", name, *["1"] * values]) or ("", "")
            assert name in problem
            assert not hints.wrong_names(hint, command), hint


def test_no_option_is_both_needed_and_not():
    for reasons in NOT_NEEDED.values():
        words = [word.rstrip("=") for options in reasons.values() for word in options.split()]
        assert len(words) == len(set(words))


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        ("m -j8 --json", [("", "m"), ("-j", "-j8"), ("--json", "--json")]),
        ("-qj 8 m", [("-j", "-qj 8"), ("", "m")]),
        ("--threads=8 -", [("--threads", "--threads=8"), ("", "-")]),
        ("--tensor-type a=b -- --json", [("--tensor-type", "--tensor-type a=b"), ("--", "--"), ("", "--json")]),
        ("-o", [("-o", "-o")]),
        ("-qv m", [("-v", "-qv"), ("", "m")]),
        ("-x y", [("-x", "-x"), ("", "y")]),
    ],
)
def test_words_are_taken_apart_as_the_parser_does(words: str, parts: list[tuple[str, str]]):
    call = parse_call("quantize", words.split(), arities(COMMANDS["quantize"]))
    assert [(part.option, " ".join(part.words)) for part in call.parts] == parts
    assert call.words == words.split()


def test_an_option_has_all_words_up_to_the_next_one():
    words = ["t", "--from=d", "a", "b", "--from", "e", "c", "-o", "x"]
    call = parse_call("graft", [*words, "y"], arities(COMMANDS["graft"], ("--from",)))
    assert [part.words for part in call.parts] == [
        ("t",),
        ("--from=d", "a", "b"),
        ("--from", "e", "c"),
        ("-o", "x"),
        ("y",),
    ]
    assert mistaken(COMMANDS["graft"], words) is None


def sentences() -> list[tuple[str, str]]:
    """(where, text) of every text in the code that names a call of ours."""
    found = []
    for package in ("archs", "gguftools", "quants", "runtime"):
        for path in sorted((ROOT / package).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.JoinedStr):
                    pieces = [piece.value if isinstance(piece, ast.Constant) else "VALUE" for piece in node.values]
                    found.append((f"{path.name}:{node.lineno}", "".join(map(str, pieces))))
                elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                    found.append((f"{path.name}:{node.lineno}", node.value))
    return [(where, text) for where, text in found if re.search(r"`gguftools [a-zA-Z]", text)]


def test_calls_that_the_code_names_exist():
    texts = [each for each in sentences() if "`gguftools COMMAND" not in each[1] and "`gguftools VALUE" not in each[1]]
    assert len(texts) > 50
    for where, text in texts:
        for call in re.findall(r"`gguftools [^`]*`", text):
            assert not hints.wrong_names(call, None), f"{where}: {call}"


@pytest.mark.parametrize(
    ("call", "shown"),
    [
        ("convert org/model --outtype q8_0 -o x.gguf", "gguftools convert hf://org/model --outtype q8_0 -o x.gguf"),
        (
            "-q convert -o x.gguf https://huggingface.co/org/model/tree/v2",
            "gguftools -q convert -o x.gguf hf://org/model@v2",
        ),
        ("quantize org/model Q8_0", "gguftools convert hf://org/model"),
    ],
)
def test_a_hint_of_the_library_keeps_the_options_of_the_call(call: str, shown: str, folder: Path):
    done = typed_in(folder, call.split())
    assert done.returncode == 1
    assert f"hint: `{shown}`" in done.stderr


def test_names_in_hints_are_quoted_for_the_shell(folder: Path):
    (folder / "a b").mkdir()
    (folder / "a b" / "config.json").write_text("{}")
    done = typed_in(folder, ["show", "a b"])
    assert "`gguftools convert 'a b'`" in done.stderr
    done = typed_in(folder, ["quantize", "a b.gguf", "out.gguf", "Q8_0"])
    assert "`gguftools quantize 'a b.gguf' Q8_0 --output out.gguf`" in done.stderr


@pytest.mark.parametrize(
    ("call", "said"),
    [
        ("generate in.gguf -p x -n gl", "--predict is 'gl'; a whole number of at least 0 was expected"),
        ("generate in.gguf -p x --temp z", "--temp is 'z'; a number was expected"),
        (
            "generate in.gguf -p x --seed=99999999999",
            "--seed is '99999999999'; a whole number of at least 0 and at most 4294967295 was expected",
        ),
        ("quantize in.gguf Q8_0 -j0", "--threads is '0'; a whole number of at least 1 was expected"),
        (
            "generate in.gguf -p x --draft-min-p 3",
            "--draft-min-p is '3'; a number of at least 0 and at most 1 was expected",
        ),
    ],
)
def test_a_wrong_number_is_named_in_our_words(call: str, said: str, folder: Path):
    done = typed_in(folder, call.split())
    assert done.returncode == 2
    assert said in done.stderr
    assert "Input should" not in done.stderr
