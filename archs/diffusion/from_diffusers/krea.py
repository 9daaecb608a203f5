"""Krea 2."""

from .rules import DiffusersLayout, Rule, flat, modules, parameters


def _block(to: str, of: str) -> tuple[Rule, ...]:
    return (
        *modules(
            {
                "attn.wq": "attn.to_q",
                "attn.wk": "attn.to_k",
                "attn.wv": "attn.to_v",
                "attn.wo": "attn.to_out.0",
                "attn.gate": "attn.to_gate",
                "mlp.gate": "ff.gate",
                "mlp.up": "ff.up",
                "mlp.down": "ff.down",
            },
            to,
            of,
        ),
        *parameters(
            {
                "attn.qknorm.qnorm.scale": "attn.norm_q.weight",
                "attn.qknorm.knorm.scale": "attn.norm_k.weight",
                "prenorm.scale": "norm1.weight",
                "postnorm.scale": "norm2.weight",
            },
            to,
            of,
        ),
    )


KREA_2 = DiffusersLayout(
    rules=(
        *_block("blocks.{i}.", "transformer_blocks.{i}."),
        *_block("txtfusion.layerwise_blocks.{i}.", "text_fusion.layerwise_blocks.{i}."),
        *_block("txtfusion.refiner_blocks.{i}.", "text_fusion.refiner_blocks.{i}."),
        *parameters(
            {
                "blocks.{i}.mod.lin": flat("transformer_blocks.{i}.scale_shift_table"),
                "last.modulation.lin": "final_layer.scale_shift_table",
                "last.norm.scale": "final_layer.norm.weight",
                "txtmlp.0.scale": "txt_in.norm.weight",
            }
        ),
        *modules(
            {
                "first": "img_in",
                "tmlp.0": "time_embed.linear_1",
                "tmlp.2": "time_embed.linear_2",
                "tproj.1": "time_mod_proj",
                "txtmlp.1": "txt_in.linear_1",
                "txtmlp.3": "txt_in.linear_2",
                "txtfusion.projector": "text_fusion.projector",
                "last.linear": "final_layer.linear",
            }
        ),
    ),
    signatures=(("text_fusion.projector.weight", "time_mod_proj.weight", "txt_in.linear_1.weight"),),
)
