"""What larger parts of models consist of: steps with llama.cpp's names, each of which texts can compute."""

from __future__ import annotations

import numpy as np
import pytest

from runtime import decoder
from runtime.graph import indexer_operations as idx
from runtime.graph import operations as op
from runtime.graph.text import COMPUTE
from runtime.importance import Observe
from runtime.model import RunningModel
from tests import absent_keys

from .recorded import operation_types

STEPS = {  # model → steps of one of its layers, in their order
    "mamba": "mamba_in_proj mamba_conv1d mamba_conv1d_silu mamba_bcdt_proj mamba_dt_proj mamba_ssm_scan mamba_out",
    "mamba2": "mamba_in_proj mamba_conv1d mamba_dt_softplus mamba_ssm_scan mamba_y_add_d mamba_normed mamba_out",
    "lfm2": "conv.in_proj conv.conv conv.out_proj ffn_inp",
    "rwkv6": "time_mix_sx time_mix_xxx time_mix_xw time_mix_r wkv_output time_mix_ln time_mix_out channel_mix_k l_out",
    "rwkv7": "time_mix_sx time_mix_xr time_mix_kk_l2_norm wkv_output time_mix_rk time_mix_out channel_mix_xk l_out",
    "kimi-linear": "qkv_mixed conv_output_silu q_l2_norm kda_g1 kda_beta attn_output kda_normed kda_out",
    "deepseek-v4": "hc_attn_mixes hc_attn_pre attn_norm qr_norm kv_norm attn_raw attn_wo_a hc_attn_comb hc_attn_post",
    "deepseek-v32": "kv_cmpr indexer_k k_all indexer_q indexer_weights indexer_score top_k kqv ffn_inp",
    "gemma3n": "predictions laurel_out attn_laurel corrected first_prediction inp_per_layer_selected l_out",
    "mixtral": "ffn_moe_logits ffn_moe_probs ffn_moe_topk ffn_moe_weights ffn_moe_weights_norm ffn_moe_out",
}


def model_of(name: str, observe: Observe | None = None) -> RunningModel:
    description, case = absent_keys.descriptions()[name], absent_keys.cases()[name][0]
    return RunningModel(description.metadata(case), absent_keys.tensors(description), threads=1, observe=observe)


@pytest.mark.parametrize("name", [name for name in STEPS if name in absent_keys.descriptions()])
def test_steps_have_their_names(name: str) -> None:
    nodes = decoder.graph_of(model_of(name).network).nodes
    of_layers = [[n.name.rsplit("-", 1)[0] for n in nodes if n.layer == i] for i in {n.layer for n in nodes}]
    wanted = STEPS[name].split()
    assert any([step for step in layer if step in wanted] == wanted for layer in of_layers)


def test_texts_compute_every_operation() -> None:
    assert set(operation_types()) - {op.Input} == set(COMPUTE)


def test_an_indexer_compares_nothing_while_all_keys_are_seen() -> None:
    seen: set[str] = set()
    model = model_of("deepseek-v32", lambda name, x, expert, experts: seen.add(name))
    most = int(model.network.keys.need("attention.indexer.top_k"))
    steps = [node.operation for node in decoder.graph_of(model.network).nodes]
    assert {step.top_k for step in steps if isinstance(step, idx.TopKeys)} == {most}
    model.forward(np.arange(most))
    assert not any("indexer.attn_q_b" in name for name in seen)
    model.forward(np.arange(most + 1))
    assert any("indexer.attn_q_b" in name for name in seen)
