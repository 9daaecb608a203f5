"""Choose formats for the weights of an image or video model, as ComfyUI-GGUF's patched llama-quantize does.

It decides by parts of names, in the order of the file, and knows the K formats and the legacy ones. Recipes that it
refuses (IQ, ternary, MXFP4) have rules of ours, in the manner of llama.cpp's for text models: values and the second
matrix of a feed-forward get more bits in the larger recipes, and more matrices have these roles.
"""

import re
from collections import Counter
from collections.abc import Mapping

from archs.diffusion.detection import families_by_tag, family_of
from archs.diffusion.formats import may_be_quantized
from archs.diffusion.spec import DiffusionFamily

# role → what a name has; the first that is found.
ROLES = {
    "V": re.compile(r"attn_v\.weight|\.to_v\.weight|\.v\.weight|\.attn\.w[12]v\.weight|_attn\.v_proj\.weight"),
    "QKV": re.compile(r"(attn_|attn\.|attention\.)qkv\.weight"),
    "down": re.compile(
        r"ffn_down|experts(?=\.).*\.w2\.weight|\.(ffn\.2|ff\.net\.2|mlp\.layer2|adaln_modulation_mlp\.2)\.weight"
        r"|\.feed_forward\.w2\.weight"
    ),
}
# The same for recipes that ComfyUI-GGUF lacks: of Flux and its single blocks, SD3, Hunyuan Video, Qwen-Image, Wan.
MORE_ROLES = {
    "V": re.compile(r"\.(add_v_proj|v_img)\.weight"),
    "QKV": re.compile(r"attn\.to_qkv\.weight"),
    "down": re.compile(r"_mlp\.(2|fc2|net\.2)\.weight|\.mlp\.fc2\.weight|\.linear2\.weight"),
}
EXPERTS = re.compile(r"\.experts\.")
# role → recipes → format, that of the first weights before it: "Q5_K 2, Q4_K" is Q5_K for two. Else the recipe's own.
ROLE_FORMATS = {
    "V": {
        "Q2_K": "Q3_K",
        "Q3_K_M": "Q5_K 2, Q4_K",
        "Q3_K_L": "Q5_K",
        "Q4_K_S": "Q5_K 4",
        "Q4_K_M Q5_K_M": "Q6_K",
        "IQ1_S IQ1_M IQ2_XXS IQ2_XS": "Q2_K",
        "IQ2_S IQ2_M IQ3_XXS": "IQ3_S",
        "IQ3_M": "Q4_K",
    },
    "QKV": {
        "Q3_K_M Q3_K_L": "Q4_K",
        "Q4_K_M": "Q5_K",
        "Q5_K_M": "Q6_K",
        "IQ2_S": "IQ2_S",
        "IQ2_M": "IQ3_S",
        "IQ3_M": "Q4_K",
    },
    "down": {
        "Q3_K_M": "Q4_K",
        "Q3_K_L Q4_K_S": "Q5_K",
        "Q4_K_M Q5_K_M": "Q6_K",
        "Q4_0": "Q4_1",
        "Q5_0": "Q5_1",
        "IQ1_M": "Q2_K",
        "IQ2_M": "IQ3_S",
        "IQ3_M": "Q4_K",
    },
    "": {"IQ3_XS": "IQ3_XXS"},
    # Of Qwen-Image, which ComfyUI-GGUF quantizes on a branch only (its pull request 370): the first and the last block.
    "edge": {
        "Q2_K Q3_K_S Q3_K_M Q3_K_L Q4_0 Q4_1 Q4_K_S Q4_K_M": "Q5_K",
        "Q2_K_S IQ1_S IQ1_M IQ2_XXS IQ2_XS IQ2_S IQ2_M IQ3_XXS IQ3_XS IQ3_S IQ3_M IQ4_XS IQ4_NL": "Q5_K",
        "Q5_K_M": "Q6_K",
    },
}
OWN_RECIPES = ("IQ", "TQ", "MXFP4", "Q2_0", "Q1_0", "Q2_K_S")  # how names of recipes begin that ComfyUI-GGUF lacks
BLOCK = re.compile(r"^transformer_blocks\.(\d+)\.")
WITH_EDGES = ("qwen_image",)  # tags


def family_for(tag: str, shapes: Mapping[str, tuple[int, ...]]) -> DiffusionFamily | None:
    """Return the family of a file with a tag of image models, whichever its names tell; None for another tag.

    shapes: by name, as they were published. A family without a name is returned where they tell none.
    """
    relatives = families_by_tag().get(tag)
    if not relatives:
        return None
    matched = family_of(shapes)
    if matched is not None:
        return matched
    kept = dict.fromkeys(part for each in relatives for part in each.kept)
    float32 = dict.fromkeys(part for each in relatives for part in each.float32)
    return DiffusionFamily("", tag, tag, (), kept=tuple(kept), float32=tuple(float32))


class Chooser:
    """Choose formats weight by weight in the order of the file; the number of earlier weights of a role matters."""

    def __init__(
        self, family: DiffusionFamily, recipe: str, default: str, names: Mapping[str, tuple[int, ...]]
    ) -> None:
        self.family, self.recipe, self.default = family, recipe, default
        blocks = {int(matched[1]) for name in names if (matched := BLOCK.match(name))}
        self._edges = {min(blocks), max(blocks)} if blocks and family.tag in WITH_EDGES else set()
        self._seen: Counter[str] = Counter()

    def may_change(self, name: str, shape: tuple[int, ...]) -> bool:
        """Return True if a recipe may change a tensor's format."""
        return may_be_quantized(self.family, name, shape)

    def chosen(self, name: str) -> str:
        """Return the format of the next weight."""
        role = role_of(name, self.recipe)
        count = self._seen[role]
        self._seen[role] += 1
        if self.recipe == "MXFP4_MOE":
            return "MXFP4" if EXPERTS.search(name) else "Q8_0"
        form = _of_role(role, self.recipe, count) or self.default
        if not self._is_edge(name) or form == "Q6_K":  # an edge has never fewer bits than its like elsewhere
            return form
        return _of_role("edge", self.recipe, count) or form

    def _is_edge(self, name: str) -> bool:
        matched = BLOCK.match(name)
        return matched is not None and int(matched[1]) in self._edges


def role_of(name: str, recipe: str) -> str:
    """Return the role of a weight in a recipe, "" without one."""
    tables = (ROLES, MORE_ROLES) if recipe.startswith(OWN_RECIPES) else (ROLES,)
    return next((role for table in tables for role, names in table.items() if names.search(name)), "")


def _of_role(role: str, recipe: str, count: int) -> str | None:
    """Return the format of a role's weight with so many before it, None for the recipe's own."""
    rules = next((text for recipes, text in ROLE_FORMATS[role].items() if recipe in recipes.split()), "")
    for rule in filter(None, rules.split(", ")):
        form, _, first = rule.partition(" ")
        if not first or count < int(first):
            return form
    return None
