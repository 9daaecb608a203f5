"""Model: opened from anything, made of arrays, changed, saved."""

from __future__ import annotations

import shutil

import ml_dtypes
import numpy as np
import pytest

import gguftools
from archs.metadata import ValueType
from gguftools import GgufToolsError, Model
from gguftools.conversion.options import ConvertOptions
from gguftools.quantization.options import QuantizeOptions
from gguftools.writing.options import WriteOptions

from ...conftest import ROOT

AUSTEN = ROOT / "examples" / "austen-4m"
A = np.arange(12, dtype=np.float32).reshape(3, 4)


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "austen.gguf"
    gguftools.convert(AUSTEN, path)
    return path


def test_made_of_arrays_and_read_back(tmp_path):
    arrays = {
        "a": A,
        "half": A.astype(np.float16),
        "double": A.astype(np.float64),
        "cube": np.ones((2, 3, 32), np.float32),
        "empty": np.zeros(0, np.float32),
        **{f"i{8 * n}": np.arange(4, dtype=f"i{n}") for n in (1, 2, 4, 8)},
        "big-endian": A.astype(">f4"),
    }
    made = Model({"general.architecture": "llama", "llama.context_length": 4096, "mine": [1.5, 2.5]}, arrays)
    report = made.save(tmp_path / "a.gguf")
    assert report.outputs[0].files == (tmp_path / "a.gguf",)
    with gguftools.open(tmp_path / "a.gguf") as read:
        assert read.metadata == made.metadata
        assert read.metadata.value("llama.context_length").type is ValueType.UINT32
        assert list(read.tensors) == list(arrays)
        for name, array in arrays.items():
            assert read.tensors[name].shape == array.shape
            np.testing.assert_array_equal(np.asarray(read.tensors[name]), array)
        assert read.tensors["i8"].format.name == "I8"
    assert read.tensors == {}  # the files are let go of


def test_bfloat16_arrays(tmp_path):
    made = Model({}, {"b": A.astype(ml_dtypes.bfloat16)})
    assert made.tensors["b"].format.name == "BF16"
    np.testing.assert_array_equal(np.asarray(made.tensors["b"]), A)


def test_items_of_tensors():
    cube = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    tensors = Model({}, {"a": A, "cube": cube, "line": A[0]}).tensors
    for name, array in (("a", A), ("cube", cube), ("line", A[0])):
        for index in (0, -1, slice(None), slice(1, 2), slice(5, 9), slice(0, None, 2), slice(2, 1)):
            np.testing.assert_array_equal(tensors[name][index], array[index])
        assert len(tensors[name]) == len(array)
    with pytest.raises(IndexError, match="has 3 items; there is no item 3"):
        tensors["a"][3]
    with pytest.raises(IndexError, match="a step of -1 is not"):
        tensors["a"][::-1]


def test_says_what_it_is_in_a_line(file):
    model = gguftools.open(file)
    assert repr(model) == f"<Model {str(file)!r}: llama, 35 keys, 39 tensors, 8,397,824 bytes>"
    assert repr(model.tensors) == "<39 tensors, 8,397,824 bytes>"
    assert repr(model.tensors["token_embd.weight"]).startswith("<Tensor 'token_embd.weight': BF16 (")
    assert repr(model.metadata) == "<Metadata: 35 keys of a llama model>"
    assert (model.architecture, model.path, model.files) == ("llama", file, (file,))


def test_opens_folders_and_any_shard(file, tmp_path):
    folder, whole = gguftools.open(AUSTEN), gguftools.open(file)
    shards = gguftools.split(file, tmp_path / "s", max_tensors=20).shards
    joined = gguftools.open(shards[-1].path)
    assert len(joined.files) == len(shards) > 1
    for model in (folder, joined):
        assert list(model.tensors) == list(whole.tensors)
        assert model.tokenizer.encode("It is a truth") == whole.tokenizer.encode("It is a truth")
    assert folder.save(tmp_path / "from-folder.gguf").outputs[0].recipe == "BF16"
    assert (tmp_path / "from-folder.gguf").read_bytes() == file.read_bytes()


@pytest.mark.parametrize("recipe", ["Q4_K_M", "q8_0"])
def test_saving_by_a_recipe_is_quantizing(file, tmp_path, recipe):
    gguftools.open(file).save(tmp_path / "a.gguf", recipe)
    gguftools.quantize(file, recipe, tmp_path / "b.gguf")
    assert (tmp_path / "a.gguf").read_bytes() == (tmp_path / "b.gguf").read_bytes()


def test_saving_by_rules_alone(tmp_path):
    made = Model({}, {"a": np.ones((2, 32), np.float32), "b": np.ones((2, 32), np.float32), "n": np.ones(2, np.int8)})
    made.save(tmp_path / "m.gguf", {"a": "Q8_0", "n|b": "F16"})
    formats = {name: tensor.format.name for name, tensor in gguftools.open(tmp_path / "m.gguf").tensors.items()}
    assert formats == {"a": "Q8_0", "b": "F16", "n": "I8"}


def test_changes_are_saved(file, tmp_path):
    model = gguftools.open(file)
    model.metadata["general.name"] = "mine"
    model.chat_template = "{{ messages }}"
    model.tensors["renamed"] = model.tensors.pop("token_embd.weight")
    model.tensors["added"] = A
    model.save(tmp_path / "changed.gguf")
    read = gguftools.open(tmp_path / "changed.gguf")
    assert (read.metadata["general.name"], read.chat_template) == ("mine", "{{ messages }}")
    assert (read.tensors["renamed"].name, "token_embd.weight" in read.tensors) == ("renamed", False)
    np.testing.assert_array_equal(read.tensors["added"][:], A)
    model.chat_template = None
    assert model.chat_template is None


def test_the_tokenizer_follows_the_metadata(file):
    model = gguftools.open(file)
    before = model.tokenizer
    assert model.tokenizer is before
    model.metadata["tokenizer.ggml.add_bos_token"] = not before.add_bos
    assert model.tokenizer.add_bos is not before.add_bos


def test_a_model_is_not_saved_over_what_it_reads(file, tmp_path):
    shutil.copy(file, tmp_path / "m.gguf")
    with pytest.raises(GgufToolsError, match="is read, so it cannot be written"):
        gguftools.open(tmp_path / "m.gguf").save(tmp_path / "m.gguf", overwrite=True)
    with pytest.raises(GgufToolsError, match="exists"):
        gguftools.open(AUSTEN).save(tmp_path / "m.gguf")


class InterruptedRunError(Exception):
    """What interrupts a run."""


def test_a_run_is_not_taken_up_with_other_arrays(tmp_path):
    def stop(done, total, name):
        if done:
            raise InterruptedRunError

    arrays = {f"blk.{i}.ffn_up.weight": np.full((512, 1024), i + 1, np.float32) for i in range(8)}
    metadata, target = {"general.architecture": "llama"}, tmp_path / "r.gguf"
    with pytest.raises(InterruptedRunError):
        gguftools.quantize(Model(metadata, arrays), "Q8_0", target, write=WriteOptions(progress=stop, threads=1))
    other = Model(metadata, {name: -array for name, array in arrays.items()})
    with pytest.raises(GgufToolsError, match="is not recorded"):
        gguftools.quantize(other, "Q8_0", target, write=WriteOptions(resume=True))
    gguftools.quantize(other, "Q8_0", target)
    assert all((tensor[:] < 0).all() for tensor in gguftools.open(target).tensors.values())


def test_a_changed_model_is_not_as_it_was_opened(file):
    model = gguftools.open(file)
    assert model.is_as_opened
    assert gguftools.open(AUSTEN).is_as_opened
    model.tensors["output_norm.weight"] = np.ones(256, np.float32)
    assert not model.is_as_opened
    assert not Model({}, {"a": A}).is_as_opened


def test_a_closed_model_is_not_saved(file, tmp_path):
    with gguftools.open(file) as model:
        pass
    with pytest.raises(GgufToolsError, match="is closed: its tensors are gone"):
        model.save(tmp_path / "empty.gguf")
    assert not (tmp_path / "empty.gguf").exists()


def test_quantize_takes_models_and_plain_values(file, tmp_path):
    model = gguftools.open(file)
    gguftools.quantize(
        model,
        "Q8_0",
        tmp_path / "q.gguf",
        options=QuantizeOptions(rules={"attn_v": "F16"}, override={"llama.context_length": 77}),
    )
    read = gguftools.open(tmp_path / "q.gguf")
    assert read.metadata.value("llama.context_length").type is ValueType.UINT32
    assert read.metadata["llama.context_length"] == 77
    assert read.tensors["blk.0.attn_v.weight"].format.name == "F16"
    assert gguftools.load(model).logits([1, 2]).shape == (2, len(model.tensors["token_embd.weight"]))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda file, out: gguftools.open(3), "the model is 3; a path was expected"),
        (lambda file, out: gguftools.load(None), "the model is NoneType; a path was expected"),
        (lambda file, out: Model([], {}), "metadata is list; a mapping by name was expected"),
        (lambda file, out: Model({}, 3), "tensors is int; a mapping by name was expected"),
        (lambda file, out: Model({"a": {1: 2}}, {}), "'a': {1: 2} has no GGUF type"),
        (lambda file, out: Model({"llama.block_count": "x"}, {}), "'llama.block_count' is UINT32: 'x' is not an int"),
        (lambda file, out: Model({}, {"a": np.zeros(3, np.complex64)}), "'a' is an array of complex64"),
        (lambda file, out: Model({}, {"a": "text"}), "'a' is an array of <U4"),
        (lambda file, out: gguftools.open(file).save(3), "the output is 3; a path"),
        (lambda file, out: gguftools.open(file).save(out, 3), "recipe is 3; a recipe's name, or rules,"),
        (
            lambda file, out: gguftools.open(file).save(out, write=WriteOptions(reserve=-5)),
            "reserve is -5; 0 or more is expected",
        ),
        (lambda file, out: Model({}, {1: A}), "a tensor's name is 1; a text was expected"),
        (lambda file, out: Model({1: 2}, {}), "a metadata key is 1; a text was expected"),
        (lambda file, out: Model({}, {"n" * 65536: A}).save(out), "has 65536 bytes; 1 to 65535 are allowed"),
        (lambda file, out: Model({}, {"": A}).save(out), "has 0 bytes; 1 to 65535 are allowed"),
        (lambda file, out: Model({}, {"\ud800": A}).save(out), "is no UTF-8: surrogates not allowed"),
        (lambda file, out: Model({"general.type": "adapter"}, {"a": A}).save(out, "F16"), "is an adapter, not a model"),
        (lambda file, out: gguftools.open(file).save(out, "Q9"), "there is no recipe 'Q9'"),
        (lambda file, out: gguftools.open(file).save(out, {"zzz": "Q8_0"}), "'zzz' matches none of the 39 tensors"),
        (lambda file, out: gguftools.open(file).save(out, rules={"a": "Q9"}), "there is no format 'Q9'"),
        (lambda file, out: gguftools.open(file).save(out, imatrix="x"), "imatrix changes nothing in a copy"),
        (lambda file, out: gguftools.quantize(3, "Q8_0"), "the model is 3; a path"),
        (lambda file, out: gguftools.quantize(file, []), "no recipe is named"),
        (
            lambda file, out: gguftools.quantize(file, "Q8_0", out, options=QuantizeOptions(rules=[1])),
            "rules has 1; a regular expression and",
        ),
        (
            lambda file, out: gguftools.quantize(
                file, "Q8_0", out, options=QuantizeOptions(override={"llama.block_count": "x"})
            ),
            "is not",
        ),
        (lambda file, out: gguftools.convert(3, out), "the model is 3; a path"),
        (lambda file, out: gguftools.export(file, out, outtype="Q8_0"), "cannot be exported as 'Q8_0'"),
        (lambda file, out: gguftools.imatrix(file, 3), "the text is 3; a path"),
        (lambda file, out: gguftools.perplexity(file, 3), "the text is 3; a path"),
        (lambda file, out: gguftools.perplexity(3, out), "the model is 3; a path"),
        (lambda file, out: gguftools.gpu_split(3, 1), "activations is 3; a path"),
        (lambda file, out: gguftools.audit(file, against=3), "is 3; a path"),
        (lambda file, out: gguftools.validate(None), "the model is NoneType; a path was expected"),
        (lambda file, out: gguftools.diff(file, 3), "the model is 3; a path"),
        (lambda file, out: gguftools.hash(file, 3), "algorithms is 3; a text, or several, was expected"),
        (lambda file, out: gguftools.split(file, out, max_size="1G"), "max_size is '1G'; a whole number"),
        (lambda file, out: gguftools.merge(3), "source is 3;"),
        (lambda file, out: gguftools.convert_endian(file, "middle"), "'middle'"),
        (lambda file, out: gguftools.set_metadata(file, {1: 2}), "changes is dict; a mapping with texts as keys"),
        (
            lambda file, out: gguftools.set_metadata(file, [gguftools.Remove(3)]),
            "3 was given as a key; a text was expected",
        ),
        (lambda file, out: gguftools.divergence(file, file, text=3), "the text is 3; a path"),
        (lambda file, out: gguftools.perplexity(file, AUSTEN / "config.json", n_ctx="x"), "n_ctx is 'x'"),
        (lambda file, out: gguftools.load(file, threads="x"), "threads is 'x'; a whole number"),
        (lambda file, out: gguftools.export(file, 3), "the output is 3; a path"),
        (lambda file, out: gguftools.export(file, out, max_size="1G"), "max_size is '1G'; a whole number"),
        (lambda file, out: gguftools.quantize(file, 3), "recipes is 3; a text, or several,"),
        (
            lambda file, out: gguftools.quantize(file, "Q8_0", out, write=WriteOptions(memory=-1)),
            "memory is -1; 1 or more is expected",
        ),
        (lambda file, out: gguftools.quantize(file, "Q8_0", out, imatrix=3), "importance matrix is 3; a path"),
        (lambda file, out: gguftools.open(file).save(out, "Q8_0", imatrix=3), "importance matrix is 3; a path"),
        (
            lambda file, out: gguftools.quantize(file, "Q8_0", out, options=QuantizeOptions(max_size=0)),
            "max_size is 0; 1 or more is expected",
        ),
        (
            lambda file, out: gguftools.quantize(file, "Q8_0", out, options=QuantizeOptions(override=3)),
            "override is 3; a mapping with texts",
        ),
        (
            lambda file, out: gguftools.convert(AUSTEN, out, options=ConvertOptions(merge_lora=[3])),
            "merge_lora is 3; a path",
        ),
    ],
)
def test_wrong_input(file, tmp_path, call, words):
    with pytest.raises(GgufToolsError) as told:
        call(file, tmp_path / "out.gguf")
    assert words in str(told.value)
    assert not (tmp_path / "out.gguf").exists()


def test_everything_public_is_listed_and_says_what_it_does():
    assert set(gguftools.__all__) - {"__version__"} <= set(dir(gguftools))
    for name in set(gguftools.__all__) - {"__version__"}:
        assert getattr(gguftools, name).__doc__, name
