"""What URLs name, what is refused in them, and that nobody sees what opens a store."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from gguftools.io.atomic import InputFiles, output_path
from gguftools.io.stores.path import StorePath, first_line, is_url, located, redacted
from quants.errors import FileError, OptionError

SIGNED = "https://jane:pass-word@host.example/models/m.gguf?X-Amz-Signature=abcdef0123&X-Amz-Credential=AKIAQ"


@pytest.mark.parametrize("text", ["s3://b/f/m.gguf", "memory://f/m.gguf", "hf://org/model@refs/pr/1", "gs://b/m.gguf"])
def test_a_url_is_a_path_that_is_that_url(text):
    for path in (located(text), located(Path(text)), pickle.loads(pickle.dumps(located(text)))):
        assert isinstance(path, StorePath)
        assert str(path) == path.url == text
        assert path.resolve() == path.absolute() == path
        assert str(path.with_name("n.gguf")) == text[: text.rindex("/")] + "/n.gguf"
        assert isinstance(path.parent / "n", StorePath)
        assert not path.exists()


@pytest.mark.parametrize("text", ["model.gguf", "/s3:/x", "c:/x", "a/b:/c", "./s3://b/m", "weird:/x", ""])
def test_other_texts_are_paths(text):
    assert not is_url(text)
    assert located(text) == Path(text)


def test_a_files_url_is_the_file():
    assert located("file:///tmp/m.gguf") == Path("/tmp/m.gguf")
    assert type(located(Path("file:///tmp/m.gguf"))) is type(Path())


TRICKS = {
    "s3://b/../other/m.gguf": "contains a step such as ..",
    "s3://b/./m.gguf": "contains a step such as ..",
    "s3://b//m.gguf": "contains an empty step",
    "s3:///m.gguf": "names no object",
    "s3://": "names no object",
    "s3://b/m\n.gguf": "has control characters",
    "s3://b/m\x1b[31m.gguf": "has control characters",
    "https://h/%2e%2e/m.gguf": "contains a step such as ..",
    "https://h/a%2fb/m.gguf": "contains a step such as ..",
    "s3://AKIAQ:secret@b/m.gguf": "these are not read from URLs",
    "s3://b/m.gguf?X-Amz-Signature=secret": "has a query in it",
}


@pytest.mark.parametrize("text", TRICKS)
def test_tricks_are_refused_in_one_line(text):
    with pytest.raises(FileError, match=TRICKS[text]) as caught:
        located(text)
    told = f"{caught.value} {caught.value.hint or ''}"
    assert told.isprintable()
    assert "secret" not in told


def test_what_opens_a_store_is_not_shown():
    path = located(SIGNED)
    assert str(path) == f"{path}" == "https://host.example/models/m.gguf"
    assert path.url == SIGNED
    assert located(Path(SIGNED)).url == SIGNED
    assert pickle.loads(pickle.dumps(path)).url == SIGNED
    assert path.name == "m.gguf"


PRIVATE = [
    f"GET {SIGNED} failed",
    "403 for https://other.example/x?token=abcdefgh and https://u:abcdefgh@h/x",
    "Authorization: Bearer abcdefgh",
    "Authorization: AWS4-HMAC-SHA256 Credential=AKIAQ/x, SignedHeaders=host, Signature=abcdefgh",
    "{'X-Amz-Security-Token': 'abcdefgh'}",
    'aws_secret_access_key="abcdefgh"',
    "token hf_abcdefghijkl of AKIAABCDEFGHIJKLMNOP",
]


@pytest.mark.parametrize("text", PRIVATE)
def test_words_of_libraries_lose_what_is_private(text):
    located(SIGNED)
    told = redacted(text)
    assert not [secret for secret in ("abcdef", "pass-word", "AKIAA", "jane") if secret in told], told


def test_secrets_of_the_environment_are_known(monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "plain words of mine")
    assert redacted("it was 'plain words of mine'") == "it was '…'"
    assert redacted("model.gguf has 4 tokens: a, b") == "model.gguf has 4 tokens: a, b"


def test_outputs():
    assert str(output_path("s3://b/f/", "m.gguf")) == "s3://b/f/m.gguf"
    assert str(output_path("s3://b", "m.gguf")) == "s3://b/m.gguf"
    assert str(output_path("s3://b/f/n.gguf", "m.gguf")) == "s3://b/f/n.gguf"
    with pytest.raises(FileError, match=r"does not end in \.gguf") as caught:
        output_path("s3://b/f", "m.gguf")
    assert "s3://b/f/ would be a folder" in caught.value.hint
    for text in ("https://h/m.gguf", "hf://org/model/m.gguf", "hf://buckets/o/b/m.gguf"):
        with pytest.raises(FileError, match="nothing is written to"):
            output_path(text, "m.gguf")


def test_what_is_read_is_not_written():
    reads = InputFiles().also(["s3a://b/m.gguf", "s3://b/checkpoint"])
    for text in ("s3://b/m.gguf", "s3://b/checkpoint/model.safetensors"):
        with pytest.raises(OptionError, match="is read, so it cannot be written"):
            reads.check_target(located(text))
    reads.check_target(located("s3://b/checkpoint/new.gguf"))


def test_a_password_that_is_part_of_a_name_hides_nothing_else() -> None:
    located("https://user:secret@example.org/model.gguf")
    assert "abcdefgh" not in redacted('aws_secret_access_key="abcdefgh"')


def test_what_pydantic_found_is_named_instead_of_counted():
    class ValidationError(ValueError):
        def errors(self) -> list[dict[str, object]]:
            return [{"loc": ("bundle", 0, "key"), "msg": "Field required", "url": "https://errors.pydantic.dev/2"}]

    error = ValidationError("1 validation error for Bundle\nbundle.0.key\n  Field required [type=missing, …]")
    assert first_line(error) == "bundle.0.key: Field required"
    assert first_line(ValueError("one\ntwo")) == "one"
