"""Record what layers that predict a token further make of a text: python -m tests.verify.further > FILE.

FILE is tests/data/further.json. Such a layer is run by transformers as a model of that layer alone, which is given
eh_proj(enorm(embedding of the next token), hnorm(state behind the last norm)) as embeddings, and has the layer's own
norm and head (DeepSeek-V3's report, section 2.2). Of Qwen4 Exp each stream behind the last layer is that state, and
what comes of each is put where the model would put copies of its embeddings; the norms' weights are less one there
(llama.cpp's graph of `qwen4exp`). DeepSeek V4's is e_proj of one and h_proj of the other, of each stream (its report,
and SGLang's code of it); HY V4's a layer of transformers' without what makes and mixes streams, as in vLLM's code.
Needs torch and transformers (extra `verify`).
"""

from __future__ import annotations

import contextlib
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import gguftools
from tests.archs import checkpoints

TEXT = np.arange(40, 84)
POSITIONS, TOKENS = (0, 1, 9, 20, 42), range(0, 280, 11)

# Entry of tests/data/families → what its config.json says of the layer as the only one.
ENTRIES: dict[str, dict[str, Any]] = {
    "exaone-moe": {"mlp_layer_types": ["dense"], "layer_types": ["sliding_attention"]},
    "glm-moe-dsa": {"mlp_layer_types": ["sparse"], "indexer_types": ["full"], "first_k_dense_replace": 0},
    "deepseek-v3-mtp": {"first_k_dense_replace": 0},
    "deepseek-v32": {"mlp_layer_types": ["sparse"], "first_k_dense_replace": 0},
    "qwen4-exp": {"layer_types": ["full_attention"], "ple_layer_ids": []},
}
APART = ("deepseek-v3-mtp", "deepseek-v4", "hy-v4")  # whose layer has a file to itself
PLAIN = ("hy-v4", "glm5-next")  # whose layer reads one stream, of a model of several
OUTSIDE = {  # EXAONE's names, and DeepSeek's, of what stands around the layer
    "fc.weight": "eh_proj.weight",
    "pre_fc_norm_embedding.weight": "enorm.weight",
    "pre_fc_norm_hidden.weight": "hnorm.weight",
    "norm.weight": "shared_head.norm.weight",
}
MIXER = "hyper_connection_mixer."


def truth(entry: str) -> dict[str, Any]:
    """Some logits of the text's places, of the token after the next, and the standard deviation of all."""
    import torch
    from safetensors.torch import load_file

    with tempfile.TemporaryDirectory() as folder:
        checkpoint = Path(folder, entry)
        checkpoints.build(entry, checkpoint)
        config = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
        loaded = load_file(checkpoint / "model.safetensors")
        tensors = {name.replace(".language_model.", "."): tensor.float() for name, tensor in loaded.items()}
        gguftools.convert(checkpoint, Path(folder, "f32.gguf"), "f32")
        states = torch.tensor(gguftools.load(Path(folder, "f32.gguf")).lazy_logits(TEXT[None]).states[0])
    config |= config.pop("text_config", {})  # transformers' model of text alone
    layer = _layer(tensors, int(config["num_hidden_layers"]))

    def normed(name: str, x: torch.Tensor) -> torch.Tensor:
        weight = layer[name].reshape(-1, x.shape[-1]) + (1 if "hc_count" in config else 0)
        return torch.nn.functional.rms_norm(x, x.shape[-1:], None, config["rms_norm_eps"]) * weight

    table = layer.get("embed_tokens.weight", tensors["model.embed_tokens.weight"])
    each = states[:-1].reshape(len(TEXT) - 1, -1, table.shape[1])
    following = normed("enorm.weight", table[TEXT[1:]])[:, None].expand(each.shape)
    given = torch.cat((following, normed("hnorm.weight", each)), dim=2) @ layer["eh_proj.weight"].T
    own_norm = {"model.norm.weight": layer["shared_head.norm.weight"]} if "shared_head.norm.weight" in layer else {}
    values = _run(
        {**config, "num_hidden_layers": 1, "num_nextn_predict_layers": 0, **ENTRIES[entry]},
        {
            **{
                f"model.{'' if name.startswith(MIXER) else 'layers.0.'}{name}": tensor
                for name, tensor in layer.items()
                if not name.startswith(("eh_proj", "enorm", "hnorm", "shared_head", "embed_tokens"))
            },
            **own_norm,
            "model.embed_tokens.weight": table,
            "lm_head.weight": layer.get("shared_head.head.weight", tensors["lm_head.weight"]),
        },
        given,
    )
    some = values[np.ix_(POSITIONS, [*TOKENS])]
    return {"std": float(f"{values.std():.7g}"), "logits": [[float(f"{x:.7g}") for x in row] for row in some.tolist()]}


def truth_apart(entry: str) -> dict[str, Any]:
    """The same of a layer of models whose states are mixed streams: a model of that layer alone, exported from our file
    of it where its weights are quantized.
    """
    import torch
    import transformers

    from .drafts import exported

    with tempfile.TemporaryDirectory() as folder:
        checkpoint, layer = Path(folder, entry), Path(folder, "layer")
        checkpoints.build(entry, checkpoint)
        gguftools.convert(checkpoint, Path(folder, "model.gguf"), "f32")
        read = gguftools.load(Path(folder, "model.gguf")).lazy_logits(TEXT[None])
        around = _alone(checkpoint, layer)
        if entry == "glm5-next":
            model, said = transformers.Glm5NextForConditionalGeneration.from_pretrained(
                layer, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
            )
            lost = [key for key in ("missing_keys", "unexpected_keys", "mismatched_keys") for key in said[key]]
            assert not [key for key in lost if ".visual." not in key], lost
            model.model.layers = model.model.language_model.layers
        else:
            model = exported(layer)
        run = _in_one_stream if entry in PLAIN else _in_streams
        values = run(model.eval(), around, read).double().numpy()
    some = values[np.ix_(POSITIONS, [*TOKENS])]
    return {"std": float(f"{values.std():.7g}"), "logits": [[float(f"{x:.7g}") for x in row] for row in some.tolist()]}


def _alone(checkpoint: Path, layer: Path) -> dict[str, Any]:
    """Write a checkpoint of the layer as the only one; what stands around it by its names there."""
    from safetensors.torch import load_file, save_file

    config = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
    tensors, around = load_file(checkpoint / "model.safetensors"), {}
    starts = {"mtp.0.": "", "model.mtp_layers.0.": "model.", "model.language_model.layers.4.": "model.language_model."}
    start, before = next(each for each in starts.items() if any(name.startswith(each[0]) for name in tensors))
    own = {name: tensor for name, tensor in tensors.items() if not name.startswith((start, f"{before}layers."))}
    for name, tensor in tensors.items():
        bare = name.removeprefix(start)
        if name.startswith(start) and bare.split(".")[0] in ("enorm", "hnorm", "e_proj", "h_proj", "eh_proj"):
            around[bare.removesuffix(".weight")] = tensor.float()
        elif name.startswith(start) and bare.startswith(("norm.", "final_layernorm.", "shared_head.norm", "hc_head")):
            own[f"{before}{bare.replace('final_layernorm', 'norm').removeprefix('shared_head.')}"] = tensor
        elif name.startswith(start):
            own[f"{before}layers.0.{bare}"] = tensor
        elif name.startswith(f"{before}layers.1.hc_"):  # which HY V4's layer lacks; transformers' needs some
            own.setdefault(name.replace("layers.1.", "layers.0."), tensor)
    alone = {
        "num_hidden_layers": 1,
        "num_nextn_predict_layers": 0,
        "compress_ratios": [0],
        "num_hash_layers": 0,
        "indexer_types": ["full"],
        "mlp_layer_types": ["sparse"],
        "first_k_dense_replace": 0,
        "layer_types": ["indexed_attention"],
    }
    shutil.copytree(checkpoint, layer)
    text = config.get("text_config", config)
    text |= {key: value for key, value in alone.items() if key in text}
    (layer / "config.json").write_text(json.dumps(config), encoding="utf-8")
    save_file(own, layer / "model.safetensors")
    return {**around, "eps": text["rms_norm_eps"]}


def _normed(x: Any, around: dict[str, Any], name: str) -> Any:
    import torch

    return torch.nn.functional.rms_norm(x, x.shape[-1:], around[name], around["eps"])


def _in_streams(model: Any, around: dict[str, Any], read: Any) -> Any:
    """DeepSeek V4's logits."""
    import torch

    ids = torch.tensor(TEXT[1:])[None]
    with torch.inference_mode():
        following = _normed(model.model.embed_tokens(ids), around, "enorm") @ around["e_proj"].T
        streams = torch.tensor(read.states[0][:-1]).reshape(1, ids.shape[1], -1, following.shape[-1])
        given = following[:, :, None] + _normed(streams, around, "hnorm") @ around["h_proj"].T
        model.model.layers[0].register_forward_pre_hook(lambda module, args: (given, *args[1:]))
        return model(input_ids=ids).logits[0]


def _in_one_stream(model: Any, around: dict[str, Any], read: Any) -> Any:
    """HY V4's logits, and GLM-5-Next's."""
    import torch

    from .original import hy_v4_as_published

    ids = torch.tensor(TEXT[1:])[None]
    layer, inner = model.model.layers[0], getattr(model.model, "language_model", model.model)

    def plain(*args: Any, **others: Any) -> Any:
        states = _normed(torch.tensor(read.x[:, :-1]), around, "hnorm")
        x = torch.cat((_normed(inner.embed_tokens(ids), around, "enorm"), states), dim=2) @ around["eh_proj"].T
        x = x + layer.self_attn(hidden_states=layer.input_layernorm(x), **others)[0]
        found.append(x + layer.mlp(layer.post_attention_layernorm(x)))
        return args[0], None

    found: list[Any] = []
    layer.forward = plain
    with torch.inference_mode(), hy_v4_as_published(model) if inner is model.model else contextlib.nullcontext():
        model(input_ids=ids)
        return model.lm_head(inner.norm(found[0]))[0]


def _layer(tensors: dict[str, Any], last: int) -> dict[str, Any]:
    """The layer's tensors, and those around it, by DeepSeek's names without what stands in front."""
    import torch

    found = {}
    for name, tensor in tensors.items():
        for start in (f"model.layers.{last}.", "mtp.layers.0.", "mtp."):
            if name.startswith(start):
                bare = name.removeprefix(start)
                found[OUTSIDE.get(bare, bare) if start == "mtp." else bare] = tensor
                break
    if "fc_embedding.weight" in found:
        halves = found.pop("fc_embedding.weight"), found.pop("fc_hidden.weight")
        found["eh_proj.weight"] = torch.cat(halves, dim=1)
    return found


def _run(config: dict[str, Any], tensors: dict[str, Any], given: Any) -> Any:
    import torch
    import transformers
    from safetensors.torch import save_file

    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(config), encoding="utf-8")
        plain = {name: tensor.clone().contiguous() for name, tensor in tensors.items()}
        save_file(plain, Path(folder, "model.safetensors"), {"format": "pt"})
        name = config["architectures"][0].replace("MoE", "Moe").replace("ForConditionalGeneration", "ForCausalLM")
        model, said = getattr(transformers, name).from_pretrained(
            folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
        )
    assert not any(said[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys")), said
    with torch.inference_mode():
        model.model.layers[0].register_forward_pre_hook(lambda module, args: (given.flatten(1)[None], *args[1:]))
        return model.eval()(inputs_embeds=given[None, :, 0]).logits[0].double().numpy()


if __name__ == "__main__":
    every = [*ENTRIES, *sorted({*APART, *PLAIN} - {*ENTRIES})]
    print(json.dumps({entry: truth(entry) if entry in ENTRIES else truth_apart(entry) for entry in every}))
