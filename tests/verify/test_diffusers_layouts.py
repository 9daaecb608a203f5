"""Published names made of diffusers' layout are what diffusers makes that layout of, bit for bit."""

from __future__ import annotations

import pytest

from .diffusers_layouts import RECORDS, recorded, stored
from .diffusers_models import SMALL, back, built, layout_of, tensors_of, torch_of

pytestmark = [pytest.mark.verify, pytest.mark.filterwarnings("ignore")]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", SMALL)
def test_diffusers_reads_the_published_names_as_the_same_tensors(name: str, dtype: str) -> None:
    import torch

    model = SMALL[name]
    whole = built(model)
    state = {key: value.to(getattr(torch, dtype)) for key, value in whole.state_dict().items()}
    published = {key: torch_of(tensor) for key, tensor in layout_of(model.layout)(tensors_of(state)).items()}
    converted = back(model, published, dict(whole.config))
    assert converted.keys() == state.keys()
    for key, tensor in state.items():
        assert converted[key].dtype == tensor.dtype
        assert torch.equal(converted[key], tensor), key


@pytest.mark.parametrize("name", SMALL)
def test_the_record_is_what_diffusers_does(name: str) -> None:
    assert stored(RECORDS)[name] == recorded(SMALL[name])
