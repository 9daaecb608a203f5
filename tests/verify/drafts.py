"""Record what llama.cpp's converter and transformers make of the small drafts of tests/archs/drafts.py.

    python -m tests.verify.drafts CONVERTER [NAME …]

CONVERTER is llama.cpp's convert_hf_to_gguf.py. Written into tests/data/drafts: NAME.json, what it writes with
--target-model-dir; and of EAGLE-3 drafts that run beside their target NAME-truth.json: a text, and of drafts behind its
parts what they say of the next tokens. States are those of transformers' target, the draft is computed by its published
definition (SafeAILab/EAGLE, eagle/model/cnets.py): what it makes of a token it reads in place of the next state.
Assistants of Gemma 4's are transformers' own. Drafts that write blocks are computed as llama.cpp's graph has them.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch.nn import functional
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

import gguftools
from tests.archs.drafts import CONFIGS, DRAFTS, build

RUN, ASSISTANTS = ("speculator", "shared"), ("gemma4-assistant",)
IN_STREAMS = ("deepseek4-dspark",)
WRITING = ("dflash", "dflash2", "dspark", "dspark-speculator", "muse-assistant", *IN_STREAMS)
TEXT = (7, 130, 22, 61, 201, 9, 22, 61, 44, 250, 3, 18)
# The converter knows vocabularies by hashes; of the small ones it is told which they are like.
AS_QWEN2 = """
import os, runpy, sys
sys.argv = sys.argv[1:]
sys.path.insert(0, os.path.dirname(sys.argv[0]))
from conversion.base import TextModel
TextModel.get_vocab_base_pre = lambda *_: "qwen2"
runpy.run_path(sys.argv[0], run_name="__main__")
"""
PARTS, AHEAD = (5, 9, 12), 3  # behind so many tokens, and how many tokens are drafted


def record_reference(converter: Path, name: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        draft, target = build(name, Path(folder))
        file = Path(folder, "x.gguf")
        arguments = [converter, draft, "--outtype", "f32", "--outfile", file, "--target-model-dir", target]
        subprocess.run([sys.executable, "-c", AS_QWEN2, *arguments], check=True, stdout=2)
        with gguftools.open(file) as model:
            keys = {key: model.metadata.value(key) for key in model.metadata if not key.startswith("tokenizer.")}
            found = {
                "keys": {
                    key: [
                        f"ARRAY/{value.element.name}" if value.element else value.type.name,
                        np.asarray(value.data).tolist(),
                    ]
                    for key, value in keys.items()
                },
                "tensors": {
                    each.name: [list(each.shape[::-1]), each.format.name, sha256(each.raw().tobytes()).hexdigest()]
                    for each in model.tensors.values()
                },
            }
    (DRAFTS / f"{name}.json").write_text(json.dumps(found) + "\n", encoding="utf-8")


class Draft:
    """One layer over embeddings and states, by the published definition. At most 288 tokens of the target."""

    def __init__(self, name: str, folder: Path, target: torch.nn.Module) -> None:
        config = CONFIGS[name]
        self.config = {**config, **config.get("transformer_layer_config", {})}
        self.tensors = {
            key.replace("layers.0.", "midlayer."): each.double() if each.is_floating_point() else each
            for key, each in load_file(folder / "model.safetensors").items()
        }
        own = self.tensors
        self.embedding = own.get("embed_tokens.weight", target.model.embed_tokens.weight.double())
        self.output = own.get("lm_head.weight", target.lm_head.weight.double())
        self.rotary = LlamaRotaryEmbedding(
            transformers.LlamaConfig(
                **{
                    key: self.config.get(key)
                    for key in (
                        "hidden_size",
                        "num_attention_heads",
                        "head_dim",
                        "rope_theta",
                        "max_position_embeddings",
                        "rope_scaling",
                    )
                }
            )
        )

    def norm(self, name: str, x: torch.Tensor) -> torch.Tensor:
        return functional.rms_norm(x, x.shape[-1:], self.tensors[f"{name}.weight"], self.config["rms_norm_eps"])

    def fused(self, states: torch.Tensor) -> torch.Tensor:
        if self.config.get("norm_before_fc"):
            states = self.norm("input_norm", states)
        return states @ self.tensors["fc.weight"].T

    def layer(self, states: torch.Tensor, ids: list[int]) -> torch.Tensor:
        """What it makes of all tokens, (n, width): without a cache, everything at once."""
        normed = self.norm("midlayer.hidden_norm", states)
        both = torch.cat([self.norm("midlayer.input_layernorm", self.embedding[ids]), normed], dim=-1)
        x = normed if self.config.get("norm_before_residual") else states
        x = x + self.attention(both)
        y = self.norm("midlayer.post_attention_layernorm", x)
        net = {key: self.tensors[f"midlayer.mlp.{key}_proj.weight"].T for key in ("gate", "up", "down")}
        return x + (functional.silu(y @ net["gate"]) * (y @ net["up"])) @ net["down"]

    def attention(self, x: torch.Tensor) -> torch.Tensor:
        heads, groups = self.config["num_attention_heads"], self.config["num_key_value_heads"]
        q, k, v = (
            (x @ self.tensors[f"midlayer.self_attn.{key}_proj.weight"].T).view(1, len(x), count, -1).transpose(1, 2)
            for key, count in (("q", heads), ("k", groups), ("v", groups))
        )
        q, k = apply_rotary_pos_emb(q, k, *self.rotary(v, torch.arange(len(x))[None]))
        k, v = (each.repeat_interleave(heads // groups, dim=1) for each in (k, v))
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return mixed.transpose(1, 2).reshape(len(x), -1) @ self.tensors["midlayer.self_attn.o_proj.weight"].T

    def logits(self, x: torch.Tensor) -> torch.Tensor:
        """Of the target's tokens, (288,)."""
        own = self.norm("norm", x) @ self.output.T
        if "d2t" not in self.tensors:
            return own
        placed = torch.full((288,), -torch.inf, dtype=own.dtype)
        placed[torch.arange(len(own)) + self.tensors["d2t"]] = own
        return placed


def record_truth(name: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path, target_path = build(name, Path(folder))
        target = transformers.AutoModelForCausalLM.from_pretrained(target_path, dtype=torch.float32).eval()
        draft = Draft(name, path, target)
        layers = draft.config.get("eagle_aux_hidden_state_layer_ids")
        with torch.no_grad():
            states = draft.fused(torch.cat(layer_inputs(target, layers), dim=-1).double())
            drafts = []
            for part in PARTS:
                known, ids, rows = states[: part - 1], [*TEXT[1:part]], []
                for _ in range(AHEAD):
                    x = draft.layer(known, ids)[-1]
                    rows.append(draft.logits(x))
                    known, ids = torch.cat([known, x[None]]), [*ids, int(rows[-1].argmax())]
                drafts.append({"part": part, "logits": [[_short(each) for each in row.tolist()] for row in rows]})
    found: dict[str, Any] = {"text": TEXT, "drafts": drafts}
    (DRAFTS / f"{name}-truth.json").write_text(json.dumps(found) + "\n", encoding="utf-8")


class LayerSpec:
    """A block's draft as llama.cpp's graph of `dflash` has it: no cache, all tokens at once, in float64."""

    def __init__(self, name: str, folder: Path, target_path: Path) -> None:
        target = transformers.AutoModelForCausalLM.from_pretrained(target_path, dtype=torch.float32).eval()
        config = CONFIGS[name]
        self.config = {**config, **config.get("transformer_layer_config", {})}
        self.target = target
        self.settings = {**self.config, **config.get("dflash_config", {})}
        self.tensors = {
            key.removeprefix("model."): each.double() if each.is_floating_point() else each
            for key, each in load_file(folder / "model.safetensors").items()
        }
        own, words = self.tensors, target.lm_head.weight.double()
        self.output = own["lm_head.weight"] if "d2t" in own else words  # else the target's
        self.embedding = target.model.embed_tokens.weight.double()
        self.anchored = name == "dspark"
        self.read = config.get("aux_hidden_state_layer_ids") or [i + 1 for i in self.settings["target_layer_ids"]]

    def states(self) -> torch.Tensor:
        return torch.cat(layer_inputs(self.target, self.read), dim=-1).double()

    def norm(self, name: str, x: torch.Tensor) -> torch.Tensor:
        return functional.rms_norm(x, x.shape[-1:], self.tensors[f"{name}.weight"], self.config["rms_norm_eps"])

    def rotated(self, x: torch.Tensor, first: int) -> torch.Tensor:
        """x (tokens, heads, width) at positions first, …"""
        half = x.shape[-1] // 2
        angles = torch.arange(first, first + len(x)).double()[:, None] * self.config["rope_theta"] ** (
            -torch.arange(half).double() / half
        )
        cos, sin = angles.cos()[:, None], angles.sin()[:, None]
        if not self.config.get("rope_is_neox_style", True):
            a, b = x[..., 0::2], x[..., 1::2]
            return torch.stack([a * cos - b * sin, b * cos + a * sin], dim=-1).flatten(-2)
        a, b = x[..., :half], x[..., half:]
        return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)

    def convolved(self, name: str, made_of: torch.Tensor, x: torch.Tensor, side: int) -> torch.Tensor:
        """x (tokens, width); made_of: what weights are made of. As it is where the draft has no convolutions."""
        if f"{name}.base_kernel" not in self.tensors:
            return x
        fixed, group = self.tensors[f"{name}.base_kernel"][side], self.settings["conv_group_size"]
        made = (made_of @ self.tensors[f"{name}.kernel_projection.weight"].T).view(len(x), 2, len(fixed), -1)[:, side]
        out = torch.zeros_like(x)
        for token in range(len(x)):
            for back in range(min(len(fixed), token + 1)):
                weights = fixed[back] + made[token, back].repeat_interleave(group)
                out[token] += weights * x[token - back]
        return out

    def keys_values(self, layer: str, x: torch.Tensor, first: int) -> tuple[torch.Tensor, torch.Tensor]:
        k, v = (
            (x @ self.tensors[f"{layer}.self_attn.{part}_proj.weight"].T).view(
                len(x), self.config["num_key_value_heads"], -1
            )
            for part in ("k", "v")
        )
        return self.rotated(self.norm(f"{layer}.self_attn.k_norm", k), first), v

    def rows(self, states: torch.Tensor, last: int, drafted: int) -> torch.Tensor:
        """Logits of the block's tokens, of those that the draft knows."""
        context = self.norm("hidden_norm", states @ self.tensors["fc.weight"].T)
        seen, count = len(context), drafted + (not self.anchored)
        x = self.embedding[[last, *[self.settings["mask_token_id"]] * (count - 1)]]
        x = x * self.settings.get("input_embedding_scale", 1.0)
        for i, kind in enumerate(self.config.get("layer_types") or ["full_attention"] * 2):
            layer, heads = f"layers.{i}", self.config["num_attention_heads"]
            given = self.norm(f"{layer}.input_layernorm", x)
            normed = self.convolved(f"{layer}.attention_conv", given, given, 0)
            q = (normed @ self.tensors[f"{layer}.self_attn.q_proj.weight"].T).view(count, heads, -1)
            q = self.rotated(self.norm(f"{layer}.self_attn.q_norm", q), seen)
            pairs = zip(self.keys_values(layer, context, 0), self.keys_values(layer, normed, seen), strict=True)
            k, v = (torch.cat(pair).repeat_interleave(heads // self.config["num_key_value_heads"], 1) for pair in pairs)
            scores = torch.einsum("qhd,khd->hqk", q, k) / q.shape[-1] ** 0.5
            if kind == "sliding_attention":
                apart = torch.arange(seen, seen + count)[:, None] - torch.arange(seen + count)[None]
                scores = scores.masked_fill(apart >= self.config["sliding_window"], -torch.inf)
            if f"{layer}.self_attn.sinks" in self.tensors:
                sinks = self.tensors[f"{layer}.self_attn.sinks"][:, None, None].expand(heads, count, 1)
                scores = torch.cat([scores, sinks], dim=-1)
            mixed = torch.einsum("hqk,khd->qhd", scores.softmax(-1)[..., : seen + count], v).reshape(count, -1)
            mixed = mixed @ self.tensors[f"{layer}.self_attn.o_proj.weight"].T
            mixed = mixed * self.settings.get("attention_value_scale", 1.0)
            x = x + self.convolved(f"{layer}.attention_conv", given, mixed, 1)
            given = self.norm(f"{layer}.post_attention_layernorm", x)
            y = self.convolved(f"{layer}.mlp_conv", given, given, 0)
            net = {key: self.tensors[f"{layer}.mlp.{key}_proj.weight"].T for key in ("gate", "up", "down")}
            fed = (functional.silu(y @ net["gate"]) * (y @ net["up"])) @ net["down"]
            x = x + self.convolved(f"{layer}.mlp_conv", given, fed, 1)
        self.states = self.norm("norm", x)[count - drafted :]
        return self.states @ self.output.T

    def selected(self, row: torch.Tensor, place: int, before: int) -> torch.Tensor:
        """Scores of the likeliest tokens of a place by what stands before it; -inf for others."""
        own, cap = self.tensors, self.settings["final_logit_softcapping"]
        row = cap * torch.tanh(row * self.settings["output_multiplier"] / cap)
        gate = own["candidate_selector.hidden_projection.weight"] @ self.states[place]
        known = own["candidate_selector.predecessor_codebook"][before] * gate
        best = row.topk(self.settings["selector_top_k"]).indices
        out = torch.full_like(row, -torch.inf)
        out[best] = row[best] + own["candidate_selector.successor_codebook"][best] @ known
        return out

    def logits(self, row: torch.Tensor, place: int, before: int) -> torch.Tensor:
        if "candidate_selector.predecessor_codebook" in self.tensors:
            return self.selected(row, place, before)
        if "markov_head.markov_w1.weight" in self.tensors:
            w1, w2 = (self.tensors[f"markov_head.markov_w{i}.weight"] for i in (1, 2))
            row = row + w2 @ w1[before]
        if "d2t" not in self.tensors:
            return row
        placed = torch.full((288,), -torch.inf, dtype=row.dtype)
        placed[torch.arange(len(row)) + self.tensors["d2t"]] = row
        return placed


def record_block(name: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path, target_path = build(name, Path(folder))
        draft: LayerSpec | StreamsBlock
        draft, drafts = (
            StreamsBlock(path, target_path) if name in IN_STREAMS else LayerSpec(name, path, target_path),
            [],
        )
        with torch.no_grad():
            states = draft.states()
            for part in PARTS:
                rows, token = [], TEXT[part - 1]
                for place, row in enumerate(draft.rows(states[: part - 1], token, AHEAD)):
                    rows.append(draft.logits(row, place, token))
                    token = int(rows[-1].argmax())
                drafts.append({"part": part, "logits": [[_short(each) for each in row.tolist()] for row in rows]})
    found: dict[str, Any] = {"text": TEXT, "drafts": drafts}
    (DRAFTS / f"{name}-truth.json").write_text(json.dumps(found) + "\n", encoding="utf-8")


class StreamsBlock:
    """DeepSeek V4's draft, run by transformers' layers of that model, which are given what the graph of `dflash` has
    beside the block's tokens in front of them; exported by us from the same tensors.
    """

    def __init__(self, path: Path, target_path: Path) -> None:
        self.target = exported(target_path)
        outside = {
            "main_proj",
            "main_norm",
            "markov_head",
            "confidence_head",
            "norm",
            "hc_head_fn",
            "hc_head_base",
            "hc_head_scale",
        }
        tensors, self.own = {}, {}
        for name, tensor in load_file(path / "model.safetensors").items():
            _, number, bare = name.split(".", 2) if name.startswith("mtp.") else ("", "", "")
            if bare.startswith(("main_", "markov_")):
                self.own[bare.removesuffix(".weight")] = tensor.float()
            elif bare and not bare.startswith("confidence_head"):
                tensors[bare if bare.split(".")[0] in outside else f"layers.{number}.{bare}"] = tensor
        published = load_file(target_path / "model.safetensors")
        layers = path.parent / "layers"
        layers.mkdir()
        for file in target_path.glob("tokenizer*"):
            (layers / file.name).write_bytes(file.read_bytes())
        config = {
            **CONFIGS["deepseek4-dspark"],
            "architectures": ["DeepseekV4ForCausalLM"],
            "num_hidden_layers": 2,
            "compress_ratios": [0, 0],
            "num_hash_layers": 0,
            "num_nextn_predict_layers": 0,
        }
        (layers / "config.json").write_text(json.dumps(config), encoding="utf-8")
        given = {name: published[name] for name in ("embed.weight", "head.weight")}
        save_file({**tensors, **given}, layers / "model.safetensors")
        self.layers, self.config = exported(layers).model, config
        self.read = [layer + 1 for layer in config["dspark_target_layer_ids"]]

    def states(self) -> torch.Tensor:
        """What the target's layers are given of TEXT: means of its streams."""
        return torch.cat([streams.mean(dim=-2) for streams in layer_inputs(self.target, self.read)], dim=-1)

    def rows(self, states: torch.Tensor, last: int, drafted: int) -> torch.Tensor:
        context = states @ self.own["main_proj"].T
        context = functional.rms_norm(context, context.shape[-1:], self.own["main_norm"], self.config["rms_norm_eps"])
        seen = len(context)
        places = torch.arange(seen + drafted)[None]
        apart = places[0, :, None] - places
        mask = torch.zeros(apart.shape).masked_fill(apart >= self.config["sliding_window"], -torch.inf)[None, None]
        ids = torch.tensor([[last, *[self.config["dspark_noise_token_id"]] * (drafted - 1)]])
        x = self.target.model.embed_tokens(ids)
        rotation = {"main": self.layers.rotary_emb(x, position_ids=places, layer_type="main")}
        for layer in self.layers.layers:
            layer.self_attn.register_forward_pre_hook(
                lambda _, a, k: ((torch.cat([context[None], a[0]], dim=1), *a[1:]), k), with_kwargs=True
            )
            layer.self_attn.register_forward_hook(lambda _, a, out: (out[0][:, seen:], out[1]))
        x = x.unsqueeze(2).expand(-1, -1, self.config["hc_mult"], -1).contiguous()
        for layer in self.layers.layers:
            x = layer(x, position_embeddings=rotation, position_ids=places, attention_mask=mask, input_ids=ids)
            layer.self_attn._forward_pre_hooks.clear()
            layer.self_attn._forward_hooks.clear()
        return self.target.lm_head(self.layers.norm(self.layers.hc_head(x)))[0]

    def logits(self, row: torch.Tensor, place: int, before: int) -> torch.Tensor:
        return row + self.own["markov_head.markov_w2"] @ self.own["markov_head.markov_w1"][before]


def exported(checkpoint: Path) -> Any:
    """A checkpoint of quantized weights in transformers, with the values that our files have."""
    file, folder = checkpoint.parent / f"{checkpoint.name}.gguf", checkpoint.parent / f"{checkpoint.name}-exported"
    gguftools.convert(checkpoint, file, "f32")
    gguftools.export(file, folder)
    return transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    ).eval()


def layer_inputs(target: torch.nn.Module, layers: list[int]) -> list[torch.Tensor]:
    """What these layers of the target are given of TEXT; the one behind the last: what that gives."""
    given: dict[int, torch.Tensor] = {}
    for number, layer in enumerate(target.model.layers):
        layer.register_forward_pre_hook(
            lambda _, a, k, number=number: given.update({number: (a[0] if a else k["hidden_states"])[0]}),
            with_kwargs=True,
        )
    target.model.norm.register_forward_pre_hook(lambda _, a: given.update({len(target.model.layers): a[0][0]}))
    target(torch.tensor([TEXT]), use_cache=False)
    return [given[layer] for layer in layers]


def sharing(config: Any) -> list[str | None]:
    """Of layers, what becomes of keys; transformers 5.23 refuses assistants, whose layers all look at others'."""
    count, shared = config.num_hidden_layers, config.num_kv_shared_layers
    own = config.layer_types[: count - shared]
    last = {kind: i for i, kind in enumerate(own)}
    return ["reuse" if i >= len(own) else "store" if i in last.values() else None for i in range(count)]


def record_assistant(name: str) -> None:
    """What transformers' assistant says from each of the places."""
    transformers.Gemma4TextConfig.kv_sharing_modes = property(sharing)
    with tempfile.TemporaryDirectory() as folder:
        path, target_path = build(name, Path(folder))
        target, assistant = (
            transformers.AutoModelForCausalLM.from_pretrained(each, dtype=torch.float32).eval()
            for each in (target_path, path)
        )
        assert isinstance(assistant, transformers.Gemma4AssistantForCausalLM)
        drafts, embedding = [], target.get_input_embeddings()
        with torch.no_grad():
            for part in PARTS:
                ids = torch.tensor([TEXT[:part]])
                run = target(ids[:, :-1], output_hidden_states=True, return_shared_kv_states=True, use_cache=False)
                state, token, rows = run.hidden_states[-1][:, -1:], ids[:, -1:], []
                for _ in range(AHEAD):
                    said = assistant(
                        inputs_embeds=torch.cat([embedding(token), state], dim=-1),
                        attention_mask=None,
                        position_ids=torch.tensor([[part - 1]]),
                        shared_kv_states=run.shared_kv_states,
                    )
                    state, token = said.last_hidden_state, said.logits.argmax(dim=-1)
                    rows.append(said.logits[0, 0])
                drafts.append({"part": part, "logits": [[_short(each) for each in row.tolist()] for row in rows]})
    found: dict[str, Any] = {"text": TEXT, "drafts": drafts}
    (DRAFTS / f"{name}-truth.json").write_text(json.dumps(found) + "\n", encoding="utf-8")


def _short(value: float) -> float | None:
    """None for tokens that are never drafted."""
    return None if value == -np.inf else float(f"{value:.7g}")


def main(arguments: list[str]) -> int:
    converter, *names = arguments
    for name in names or CONFIGS:
        record_reference(Path(converter), name)
        if name in RUN:
            record_truth(name)
        if name in WRITING:
            record_block(name)
        if name in ASSISTANTS:
            record_assistant(name)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
