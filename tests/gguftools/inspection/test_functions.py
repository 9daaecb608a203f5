"""The library functions of this room take paths and Models alike, and say what else they were given."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

import gguftools
from gguftools.inspection.drafting import can_draft
from quants.errors import OptionError

from ...conftest import ROOT


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    target = tmp_path_factory.mktemp("functions") / "model.gguf"
    gguftools.convert(ROOT / "examples" / "austen-4m", target, "f16")
    return target


def test_a_model_gives_what_its_file_gives(path):
    with gguftools.open(path) as model:
        for function in (gguftools.validate, gguftools.audit):
            assert function(model) == function(path)
        assert [each.hex for each in gguftools.hash(model).digests] == [d.hex for d in gguftools.hash(path).digests]
        assert not gguftools.diff(model, path).differ
        assert not gguftools.audit(model, model, tensors=True).reaches("medium")
        assert can_draft(model, path).possible


def test_errors_of_tensors_are_a_plain_list(path):
    with gguftools.open(path) as model:
        model.tensors["output_norm.weight"] = np.asarray(model.tensors["output_norm.weight"].float32()) + 1
        model.metadata["general.name"] = "another"
        report = gguftools.diff(path, model)
    errors = {tensor.name: tensor.figures.rmse for tensor in report.tensors}
    assert {name for name, error in errors.items() if error} == {"output_norm.weight"}
    assert errors["output_norm.weight"] == pytest.approx(1)
    assert [key.key for key in report.keys] == ["general.name"]
    assert report.as_dict()["differ"]


def test_a_changed_model_is_validated_as_it_is(path):
    with gguftools.open(path) as model:
        del model.tensors["blk.0.ffn_up.weight"]
        assert {each.where for each in gguftools.validate(model).problems} == {"blk.0.ffn_up.weight"}


def test_what_is_no_model_is_named(path):
    for call in (
        gguftools.validate,
        gguftools.audit,
        gguftools.hash,
        partial(gguftools.diff, path),
        partial(gguftools.audit, path),
        partial(can_draft, path),
    ):
        with pytest.raises(OptionError, match="is 3; a path was expected"):
            call(3)
