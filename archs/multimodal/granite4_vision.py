"""Granite 4 Vision: SigLIP; small transformers (BLIP-2's) with learned queries bring windows of some layers' outputs to
layers of the text model, and others each patch of squares of four.

Layers are counted as in transformers' list of states, which begins with the embeddings: 1 is the first layer's output,
-1 the last one's. llama.cpp's converter takes 1 for the second's output; published configs count from the last.
"""

import re

from quants.errors import ModelError

from ..encoder import CLIP_VISION, VISION, Encoder, always, at, maybe
from ..spec import Computed, Config, Target, Tensors
from ..wrapper import Files, Wrapper, columns, rows, square

PROJECTOR: dict[str, Target] = {
    "image_positions": "img_pos",
    "query": "query",
    "norm": "norm",
    "out_linear": "linear",
    "qformer.layernorm": "post_norm",
    **at(
        "qformer.encoder.layer.0.",
        "",
        {
            **at(
                "attention.",
                "self_attn_",
                {
                    "attention.query": "q",
                    "attention.key": "k",
                    "attention.value": "v",
                    "output.dense": "out",
                    "output.LayerNorm": "norm",
                },
            ),
            **at(
                "crossattention.",
                "cross_attn_",
                {
                    "attention.query": "q",
                    "attention.key": "k",
                    "attention.value": "v",
                    "output.dense": "out",
                    "output.LayerNorm": "norm",
                },
            ),
            "intermediate_query.dense": "ffn_up",
            "output_query.dense": "ffn_down",
            "output_query.LayerNorm": "ffn_norm",
        },
    ),
}
BY_LAYER, BY_PLACE = "layerwise_projectors", "spatial_projectors"
TARGETS = [12, 15, 18, 21]  # layers of the text model, by default
SIZES = [[336, 672], [672, 336], [672, 672], [1008, 336], [336, 1008]]  # height before width, by default


def _projectors(config: Config) -> list[tuple[int, int, str, int]]:
    """Return for each projector: its input layer, the text model's layer that it goes to, its type, and its number in
    that.

    In the order of the text model's layers. Raises ModelError for outputs of missing layers.
    """
    layers, text_layers = int(config["vision"]["num_hidden_layers"]), int(config["text"]["num_hidden_layers"])
    chosen = config.get("deepstack_layer_map") or []
    targets = TARGETS if config.get("spatial_target_layers") is None else config["spatial_target_layers"]
    last = config.get("spatial_vision_layer")
    last = -1 if last is None else last

    def of_layer(place: int) -> int:
        number = place + layers if place < 0 else place - 1
        if not 0 <= number < layers:
            what = "the embeddings before the first layer" if number == -1 else f"of {layers} layers"
            raise ModelError(f"config.json has a projector take states {place}, {what}; a file says a layer's")
        return number

    projectors = [
        (of_layer(place), target + text_layers if target < 0 else target, BY_LAYER, i)
        for i, (place, target) in enumerate(chosen)
    ]
    projectors += [(of_layer(last), target, BY_PLACE, i) for i, target in enumerate(targets)]
    return sorted(projectors, key=lambda each: each[1])


def _in_order(config: Config, tensors: Tensors) -> Tensors:
    """Return projectors of both types, counted together."""
    numbers = {
        f"{projector_type}.{i}.": f"projectors.{n}." for n, (_, _, projector_type, i) in enumerate(_projectors(config))
    }

    def placed(name: str) -> str:
        match = re.match(rf"({BY_LAYER}|{BY_PLACE})\.\d+\.", name)
        return numbers.get(match[0], match[0]) + name.removeprefix(match[0]) if match else name

    return {placed(name): tensor for name, tensor in tensors.items()}


def _window(part: int) -> Computed:
    def side(config: Config) -> int:
        rate = str(config.get("downsample_rate"))
        if not re.fullmatch(r"\d{1,5}/\d{1,5}", rate):
            raise ModelError(f"config.json has downsample_rate = {rate!r}; QUERIES/PATCHES was expected, as in '4/8'")
        return int(rate.split("/")[part])

    return side


def _offsets(config: Config) -> list[int]:
    return [number if projector_type == BY_PLACE else -1 for _, _, projector_type, number in _projectors(config)]


def _sizes(config: Config) -> list[int] | None:
    sizes = SIZES if config.get("image_grid_pinpoints") is None else config["image_grid_pinpoints"]
    return [value for height, width in sizes for value in (width, height)] or None


def _back_in_order(config: Config, tensors: Tensors) -> Tensors:
    """Return projectors of each type counted separately: the inverse of `_in_order`."""
    starts = [f"{projector_type}.{i}." for _, _, projector_type, i in _projectors(config)]
    return {
        re.sub(r"^projectors\.(\d+)\.", lambda match: starts[int(match[1])], name): tensor
        for name, tensor in tensors.items()
    }


def _placed(files: Files) -> list[tuple[int, int, int]]:
    """Return for each projector: its input layer, the text model's layer, and its number or -1.

    The first one's output replaces the image itself, as input of the first layer. Layers are counted from the last, -1:
    transformers counts from the first, the embeddings included.
    """
    count = int(files.keys["vision.block_count"])
    mapping = [int(layer) for layer in files.of_text["deepstack_mapping"]]
    targets = [0, *(mapping.index(number) for number in range(1, len(files.keys["vision.feature_layer"])))]
    return list(
        zip(
            (int(layer) - count for layer in files.keys["vision.feature_layer"]),
            targets,
            map(int, files.keys["vision.projector.spatial_offsets"]),
            strict=True,
        )
    )


def _by_place(files: Files) -> list[int]:
    return [target for _, target, _ in sorted((place for place in _placed(files) if place[2] >= 0), key=lambda p: p[2])]


def _layer_of_places(files: Files) -> int:
    """Return the one input layer of all numbered projectors."""
    layers = {layer for layer, _, number in _placed(files) if number >= 0}
    if len(layers) > 1:
        raise ModelError(f"projectors of places take the outputs of layers {sorted(layers)}; a config has one for all")
    return layers.pop() if layers else -1


def _by_size(files: Files) -> list[list[int]]:
    sides = [int(side) for side in files.keys["vision.image_grid_pinpoints"]]
    return [[height, width] for width, height in zip(sides[::2], sides[1::2], strict=True)]


GRANITE4_VISION = Encoder(
    hf_classes=("Granite4VisionForConditionalGeneration",),
    metadata={
        **VISION,
        "projector_type": always("granite4_vision"),
        "vision.attention.layer_norm_epsilon": maybe("vision.layer_norm_eps", 1e-6),
        "use_gelu": always(True),
        "vision.preproc_image_size": maybe("vision.image_size", 384),
        "vision.projector.query_side": _window(0),
        "vision.projector.window_side": _window(1),
        "vision.feature_layer": lambda config: [layer for layer, *_ in _projectors(config)],
        "vision.projector.spatial_offsets": _offsets,
        "vision.image_grid_pinpoints": _sizes,
    },
    defaults={
        "vision": {
            "hidden_size": 768,
            "intermediate_size": 3072,
            "num_hidden_layers": 12,
            "num_attention_heads": 12,
            "image_size": 224,
            "patch_size": 16,
        }
    },
    tensors={
        **at("vision_tower.", "", CLIP_VISION),
        **at("projectors.{i}.", "v.proj_blk.{i}.", PROJECTOR),
        "image_newline": "v.image_newline",
    },
    ignored={"vision_tower.head.*": "a pooling head of SigLIP that images in texts do not use"},
    spellings={"vision_tower.vision_model.": "vision_tower."},
    claimed=(f"{BY_LAYER}.*", f"{BY_PLACE}.*"),
    prepare=_in_order,
    prepare_export=_back_in_order,
    wrappers=(
        Wrapper(
            "Granite4VisionForConditionalGeneration",
            "granite4_vision",
            texts=("granite",),
            positions=0,
            fits=lambda files: "deepstack_mapping" in files.of_text,
            text_names={"model.": "model.language_model."},
            encoder_names={
                "vision_tower.": "model.vision_tower.vision_model.",
                **{name: f"model.{name}" for name in (BY_LAYER, BY_PLACE, "image_newline")},
            },
            biased=("v.patch_embd", "v.post_ln"),
            config={
                "vision.model_type": "siglip_vision_model",
                "vision.vision_use_head": False,
                "vision.hidden_act": "gelu_pytorch_tanh",
                "vision.num_channels": columns("v.patch_embd.weight"),
                "qformer_config": lambda files: {
                    "model_type": "blip_2_qformer",
                    "num_hidden_layers": 1,
                    "cross_attention_frequency": 1,
                    "intermediate_size": rows("v.proj_blk.0.ffn_up.weight")(files),
                    "use_qformer_text_input": False,
                },
                "downsample_rate": lambda files: "/".join(
                    str(int(files.keys[f"vision.projector.{which}_side"])) for which in ("query", "window")
                ),
                "deepstack_layer_map": lambda files: [
                    [layer, target] for layer, target, number in sorted(_placed(files)) if number < 0
                ],
                "spatial_target_layers": _by_place,
                "spatial_vision_layer": _layer_of_places,
                "image_grid_pinpoints": _by_size,
                "vision_feature_select_strategy": "full",
            },
            tokens={"image_token_index": ("<image>",)},
            processor="Granite4VisionProcessor",
            image_processor="LlavaNextImageProcessor",
            preprocessor={"size": square(), "image_grid_pinpoints": _by_size},
        ),
    ),
)
