"""Choose the format of each tensor of a model that is quantized to a recipe, say Q4_K_M.

The reference (llama.cpp) decides by a tensor's role, which it takes from the name, by the number of earlier tensors of
that role, and by a few facts about the model. The tables below are these decisions; `choose` applies them. Tensors are
counted in output order (`visit_order`): those outside layers first, then by layer number, then by name. Image and video
models have decisions of their own (`diffusion_recipes`), and keep the order of their file.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, NamedTuple

from archs.diffusion.spec import DiffusionFamily
from quants.errors import FormatError, OptionError
from quants.format import Format, format_named
from quants.patterns import Pattern, compile_pattern
from quants.spelling import did_you_mean

from .diffusion_recipes import Chooser as ImageChooser
from .diffusion_recipes import family_for

Triple = tuple[str, tuple[int, ...], Format]  # a tensor: name, shape rows first, stored format
Rule = tuple[Pattern, Format]
MAX_RULES = 1 << 17
LAYER = re.compile(r"blk\.(\d+)")


@dataclass(frozen=True)
class Recipe:
    """Describe a recipe.

    file_type: stored as `general.file_type`. default: name of the main format. COPY and STOCK have neither: None.
    typical_bits: bits per weight of an 8B Llama, quantized without an importance matrix. rules: of a recipe from a text
    file, applied after the user's.
    """

    name: str
    file_type: int | None
    default: str | None
    typical_bits: float
    description: str
    aliases: tuple[str, ...] = ()
    rules: tuple[tuple[str, str], ...] = ()

    def as_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "bits_per_weight": self.typical_bits,
            "format": self.default,
            "description": self.description,
        }


RECIPES: dict[str, Recipe] = {
    recipe.name: recipe
    for recipe in (
        Recipe("F32", 0, "F32", 32.0, "single precision"),
        Recipe("F16", 1, "F16", 16.0, "half precision"),
        Recipe("BF16", 32, "BF16", 16.0, "bfloat16: the range of F32, 8 bits of precision"),
        Recipe("Q8_0", 7, "Q8_0", 8.5, "indistinguishable from F16 in use"),
        Recipe("Q6_K", 18, "Q6_K", 6.56, "very close to F16"),
        Recipe("Q5_K_M", 17, "Q5_K", 5.7, "Q5_K, half of attn_v and ffn_down in Q6_K", ("Q5_K",)),
        Recipe("Q5_K_S", 16, "Q5_K", 5.57, "Q5_K, the output in Q6_K"),
        Recipe("Q5_1", 9, "Q5_1", 6.04, "legacy; Q5_K_M is better"),
        Recipe("Q5_0", 8, "Q5_0", 5.57, "legacy; Q5_K_S is better"),
        Recipe("Q4_K_M", 15, "Q4_K", 4.89, "Q4_K, half of attn_v and ffn_down in Q6_K: the usual choice", ("Q4_K",)),
        Recipe("Q4_K_S", 14, "Q4_K", 4.67, "Q4_K, the first attn_v and ffn_down in Q5_K"),
        Recipe("Q4_1", 3, "Q4_1", 5.1, "legacy; Q4_K_M is better"),
        Recipe("Q4_0", 2, "Q4_0", 4.64, "legacy; fast where the CPU has kernels for it"),
        Recipe("IQ4_NL", 25, "IQ4_NL", 4.68, "non-linear 4 bits, in blocks of 32"),
        Recipe("IQ4_XS", 30, "IQ4_XS", 4.46, "non-linear 4 bits, in blocks of 256"),
        Recipe("MXFP4_MOE", 38, "MXFP4", 8.5, "expert tensors in MXFP4, all others in Q8_0"),
        Recipe("Q3_K_L", 13, "Q3_K", 4.3, "Q3_K, attention output, attn_v and ffn_down in Q5_K"),
        Recipe("Q3_K_M", 12, "Q3_K", 4.0, "Q3_K, attention output, attn_v and ffn_down in Q4_K or Q5_K", ("Q3_K",)),
        Recipe("Q3_K_S", 11, "Q3_K", 3.64, "Q3_K, the output in Q6_K"),
        Recipe("IQ3_M", 27, "IQ3_S", 3.76, "IQ3_S, attention output and attn_v in Q4_K"),
        Recipe("IQ3_S", 26, "IQ3_S", 3.66, "3 bits by lookup, better than Q3_K_S"),
        Recipe("IQ3_XS", 22, "IQ3_S", 3.5, "IQ3_S and IQ3_XXS; needs an importance matrix"),
        Recipe("IQ3_XXS", 23, "IQ3_XXS", 3.37, "IQ3_XXS and IQ2_S; needs an importance matrix"),
        Recipe("Q2_K", 10, "Q2_K", 3.16, "Q2_K, attention output and ffn_down in Q3_K"),
        Recipe("Q2_K_S", 21, "Q2_K", 2.97, "Q2_K nearly everywhere; needs an importance matrix"),
        Recipe("IQ2_M", 29, "IQ2_S", 2.93, "IQ2_S, attention output in IQ3_S; needs an importance matrix"),
        Recipe("IQ2_S", 28, "IQ2_XS", 2.74, "IQ2_XS, attention output in IQ3_S; needs an importance matrix"),
        Recipe("IQ2_XS", 20, "IQ2_XS", 2.59, "2.3 bits by lookup; needs an importance matrix"),
        Recipe("IQ2_XXS", 19, "IQ2_XXS", 2.38, "2.1 bits by lookup; needs an importance matrix"),
        Recipe("IQ1_M", 31, "IQ1_M", 2.15, "1.75 bits by lookup; needs an importance matrix"),
        Recipe("IQ1_S", 24, "IQ1_S", 2.0, "1.56 bits by lookup; needs an importance matrix"),
        Recipe("TQ2_0", 37, "TQ2_0", 2.52, "for models trained with ternary weights"),
        Recipe("TQ1_0", 36, "TQ1_0", 2.19, "for models trained with ternary weights, packed tighter"),
        Recipe("Q2_0", 41, "Q2_0", 2.68, "for models trained with weights of -1, 0, 1, 2"),
        Recipe("Q1_0", 40, "Q1_0", 1.48, "for models trained with binary weights"),
        Recipe("COPY", None, None, 16.0, "every tensor as it is"),
        Recipe("STOCK", None, None, 16.0, "convert formats of forks to llama.cpp's, losslessly"),
    )
}


class ModelFacts(NamedTuple):
    """Hold the facts about a model that rules use; 0 if its metadata lacks one. Heads are those of layer 0.

    looks_up_ngrams: it has a table with rows for several tokens (`per_layer_token_embd.weight` of Qwen4 Exp).
    image_family: of an image or video model (`diffusion_recipes.family_for`).
    """

    architecture: str = ""
    block_count: int = 0
    head_count: int = 0
    head_count_kv: int = 0
    expert_count: int = 0
    looks_up_ngrams: bool = False
    image_family: DiffusionFamily | None = None

    @property
    def query_heads_per_kv_head(self) -> int:
        return self.head_count // self.head_count_kv if self.head_count_kv else 0

    @property
    def is_70b(self) -> bool:
        """Return True for 80-layer models of a few families, which get a better attn_v as in the reference."""
        if self.block_count != 80:
            return False
        if self.architecture == "llama":
            return self.head_count != self.head_count_kv
        return self.architecture in ("qwen2", "deci", "olmo")


@dataclass(frozen=True)
class Options:
    """Options that change a recipe. Format names may be in any case.

    pure: the recipe's default format for every tensor. leave_output: keep `output.weight` as it is. output_type,
    token_embedding_type: format of `output.weight` (or of the tied embedding), of `token_embd.weight`. rules: (regular
    expression, format): the first that matches part of a tensor's name, in any case, decides.
    """

    pure: bool = False
    output_type: str | None = None
    token_embedding_type: str | None = None
    leave_output: bool = False
    rules: tuple[tuple[str, str], ...] = ()


class Choice(NamedTuple):
    """Hold the format chosen for one tensor.

    wanted: the format of the recipe or rule; fallback: why it is another. rule: the user's regular expression that
    decided. needs_importance: the reference refuses to write this tensor without importance.
    """

    name: str
    format: Format
    wanted: Format
    fallback: str | None = None
    rule: str | None = None
    needs_importance: bool = False


# Recipes with embedding and output in Q8_0, by the names that publishers gave them: name → the recipe besides.
IN_Q8_0 = {"Q2_K_L": "Q2_K", "Q3_K_XL": "Q3_K_L", "Q4_K_L": "Q4_K_M", "Q5_K_L": "Q5_K_M", "Q6_K_L": "Q6_K"}
EDGES = (r"^token_embd\.weight$", r"^output\.weight$")


def _with_edges_in_q8_0(name: str) -> Recipe:
    recipe = RECIPES[IN_Q8_0[name]]
    about = f"{recipe.name}, embedding and output in Q8_0"
    return replace(recipe, name=name, description=about, aliases=(), rules=tuple((edge, "Q8_0") for edge in EDGES))


VARIANTS = {name: _with_edges_in_q8_0(name) for name in IN_Q8_0}


def recipe_named(name: str) -> Recipe:
    """Return a recipe or variant by name in any case, alias, or file type number.

    Raises OptionError with the nearest name.
    """
    wanted = str(name).strip().upper()
    if wanted in VARIANTS:
        return VARIANTS[wanted]
    for recipe in RECIPES.values():
        if wanted in (recipe.name, *recipe.aliases) or wanted == str(recipe.file_type):
            return recipe
    if wanted == "EXACT":
        raise OptionError("exact is no recipe to quantize to", "`gguftools convert CHECKPOINT --outtype exact` it is")
    known = f"recipes are {', '.join(RECIPES)}"
    raise OptionError(f"there is no recipe {name!r}", did_you_mean(wanted, RECIPES, known, cutoff=0.5))


def model_facts(metadata: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]] = {}) -> ModelFacts:
    """Return the facts of a model from its GGUF metadata; missing or odd keys count as 0.

    shapes: of its tensors by name as they were published, which tell relatives among image models apart.
    """
    architecture = metadata.get("general.architecture", "")
    keys = "block_count", "attention.head_count", "expert_count"
    blocks, heads, experts = (_first_layer(metadata, f"{architecture}.{key}") for key in keys)
    heads_kv = _first_layer(metadata, f"{architecture}.attention.head_count_kv", heads)
    looks_up = f"{architecture}.ple.layers" in metadata
    family = family_for(str(architecture), shapes)
    return ModelFacts(str(architecture), blocks, heads, heads_kv, experts, looks_up, family)


def _first_layer(metadata: Mapping[str, Any], key: str, missing: int = 0) -> int:
    value = metadata.get(key, missing)
    if not isinstance(value, (str, bytes)) and hasattr(value, "__getitem__"):
        value = value[0] if len(value) else missing
    try:
        return int(value)
    except (TypeError, ValueError, OverflowError):
        return missing


def layer_of(name: str) -> int:
    """Return the layer number in a tensor's name, -1 outside layers."""
    match = LAYER.match(name)
    return int(match[1]) if match else -1


def _place(name: str) -> tuple[int, str]:
    return layer_of(name), name


def visit_order(names: Iterable[str]) -> list[str]:
    """Return names in the order in which the reference visits and writes tensors."""
    return sorted(names, key=_place)


# What is never quantized, whatever the recipe or the rules. Parts of names, then whole names.
KEPT_PARTS = re.compile(
    r"_norm\.weight|ffn_gate_inp\.weight|ffn_gate_tid2eid\.weight|altup|laurel|per_layer_model_proj|ssm_conv1d"
    r"|shortconv\.conv\.weight|indexer\.[kq]_proj\.weight|attn_rel_b\.weight|\.position_embd|sam\.pos_embd|sam\.neck\."
    r"|sam\.net_|\.rel_pos|\.patch_embd|\.patch_merger|a\.rvq\.codebook|mm\.a\.code_embd"
    r"|time_mix_(first|[wva][012]|g[12]|decay_w[12]|lerp_fused)\.weight"
)
KEPT_BY_ARCHITECTURE = {
    # Of encoders, which llama-quantize does quantize: llama.cpp's convolutions over frames stop at others than float32,
    # and Gemma 3's last matrix, which it transposes, gives nonsense.
    "clip": re.compile(r"\.conv_dw\.weight|^mm\.input_projection\.weight"),
    "glm5-next": re.compile(
        r"hc_|indexer\.attn_q_b|indexer\.attn_k|indexer\.proj|indexer_compressor_gate|indexer_compressor_ape"
        r"|ssm_[fg]_[ab]\.weight|ssm_beta\.weight|attn_kv_a_mqa\.weight|attn_[kv]_b\.weight"
    ),
}
ALWAYS_Q8_0 = {"glm5-next": re.compile(r"attn_q_a|attn_q_b|nextn\.eh_proj")}  # by architecture: 8 bits at least
KEPT_NAMES = ("position_embd.weight", "token_types.weight")
KEPT_FORMATS = ("I8", "I16", "I32", "I64", "F64")  # not weights
NOT_STORED = (*KEPT_FORMATS, "Q8_1", "Q8_K")  # formats no tensor of a file can be asked to take


def is_quantizable(name: str, shape: tuple[int, ...], form: Format, architecture: str = "") -> bool:
    """Return True if a recipe may change this tensor. A single row counts as one dimension, as in ggml."""
    own = KEPT_BY_ARCHITECTURE.get(architecture)
    is_weight = name.endswith("weight") and name not in KEPT_NAMES and not KEPT_PARTS.search(name)
    is_weight = is_weight and not (own and own.search(name))
    return is_weight and form.name not in KEPT_FORMATS and any(n > 1 for n in shape[:-1])


TOKEN_TABLE = "per_layer_token_embd.weight"
TOKEN_EMBEDDINGS = ("token_embd.weight", TOKEN_TABLE)

ROLES = {  # part of the name: role; the first that is found
    "attn_qkv.weight": "V",
    "attn_kv_b.weight": "V",
    "attn_v.weight": "V",
    "attn_k.weight": "K",
    "attn_q.weight": "Q",
    "attn_output.weight": "O",
    "ffn_up": "up",
    "ffn_gate": "gate",
    "ffn_down": "down",
}


@dataclass(frozen=True)
class Site:
    """Describe the place of a tensor: i-th of n layers (with experts) or of its role's tensors.

    count: tensors of its role before it.
    """

    i: int
    n: int
    count: int
    model: ModelFacts
    weighted: bool


TESTS: dict[str, Callable[[Site], bool]] = {
    "first 2": lambda site: site.i < 2,
    "first 4": lambda site: site.i < 4,
    "first 16th": lambda site: site.i < site.n // 16,
    "first 8th": lambda site: site.i < site.n // 8,
    "first 8th counted": lambda site: site.count < site.n // 8,
    "middle": lambda site: site.n // 8 <= site.i < 7 * site.n // 8,
    # The first eighth, the last eighth, and every third between.
    "more": lambda site: site.i < site.n // 8 or site.i >= 7 * site.n // 8 or (site.i - site.n // 8) % 3 == 2,
    "shared kv": lambda site: site.model.query_heads_per_kv_head >= 4,
    "4 experts": lambda site: site.model.expert_count >= 4,
    "8 experts": lambda site: site.model.expert_count == 8,
    "falcon": lambda site: site.model.architecture == "falcon",
    "weighted": lambda site: site.weighted,
}
LOW_BIT_RECIPES = "IQ1_S IQ1_M IQ2_XXS IQ2_XS IQ2_S IQ2_M"
# role → recipes → formats: the first whose tests hold decides; the recipe's default where none does.
ROLE_FORMATS = {
    "V": {
        "IQ1_S IQ1_M IQ2_XXS IQ2_XS": "shared kv: Q4_K, 4 experts: Q4_K, Q2_K",
        "IQ2_S IQ2_M": "shared kv: Q4_K, 4 experts: Q4_K, IQ3_S",
        "Q2_K": "shared kv: Q4_K, Q3_K",
        "Q2_K_S IQ3_XS IQ3_S": "shared kv: Q4_K",
        "IQ3_XXS": "shared kv: Q4_K, not weighted: IQ3_S",
        "IQ3_M": "Q4_K",
        "Q3_K_M": "first 2: Q5_K, Q4_K",
        "Q3_K_L": "Q5_K",
        "IQ4_NL IQ4_XS": "shared kv: Q5_K",
        "Q4_K_M Q5_K_M": "more: Q6_K",
        "Q4_K_S": "first 4: Q5_K",
    },
    "K": {LOW_BIT_RECIPES: "8 experts: Q4_K", "IQ3_XS": "IQ3_XXS", "IQ3_XXS": "IQ2_S"},
    "Q": {"IQ3_XS": "IQ3_XXS", "IQ3_XXS": "IQ2_S"},
    "down": {
        "IQ1_S IQ1_M IQ2_XXS IQ2_XS": "first 8th counted: Q2_K",
        "IQ2_S IQ2_M": "first 8th counted: IQ3_S",
        "Q2_K": "Q3_K",
        "Q2_K_S": "first 8th: Q4_K",
        "IQ3_XXS": "not weighted & first 8th: Q4_K, not weighted: Q3_K",
        "IQ3_M": "first 8th: Q4_K, 8 experts & more: Q4_K",
        "Q3_K_M": "first 16th: Q5_K, falcon & not more: Q3_K, Q4_K",
        "Q3_K_L": "falcon: Q4_K, Q5_K",
        "IQ4_NL IQ4_XS": "not weighted & first 8th: Q5_K",
        "Q4_K_M": "falcon & first 16th: Q6_K, falcon & more: Q5_K, not falcon & more: Q6_K",
        "Q5_K_M": "more: Q6_K",
        "Q4_K_S": "not falcon & first 8th: Q5_K",
        # With a matrix the search of the legacy types profits from a minimum in the layers that matter most.
        "Q4_0": "weighted & first 8th: Q4_1",
        "Q5_0": "weighted & first 8th: Q5_1",
    },
    "O": {
        "IQ1_S IQ1_M": "8 experts: Q5_K, IQ2_XXS",
        "IQ2_XXS IQ2_XS": "8 experts: Q5_K",
        "IQ2_S IQ2_M": "8 experts: Q5_K, IQ3_S",
        "Q2_K": "falcon: Q2_K, 8 experts: Q5_K, Q3_K",
        "IQ3_XXS": "falcon: IQ3_XXS, 8 experts: Q5_K, IQ3_S",
        "IQ3_M": "falcon: IQ3_S, 8 experts: Q5_K, Q4_K",
        "Q3_K_M": "falcon: Q3_K, 8 experts: Q5_K, Q4_K",
        "Q3_K_L": "falcon: Q4_K, 8 experts: Q3_K, Q5_K",
        "IQ3_XS Q3_K_S IQ4_NL Q4_K_S Q4_K_M IQ3_S IQ4_XS": "8 experts & not falcon: Q5_K",
    },
    "gate": {"IQ3_XS": "middle: IQ3_XXS"},
    "up": {"IQ3_XS": "middle: IQ3_XXS"},
    "embedding": {"IQ1_S IQ1_M IQ2_XXS IQ2_XS": "Q2_K", "IQ2_S IQ2_M IQ3_XXS": "IQ3_S", "TQ1_0 TQ2_0 Q2_0": "Q4_K"},
    "head": {f"{LOW_BIT_RECIPES} IQ3_XXS": "Q5_K", "Q8_0 MXFP4_MOE": "Q8_0"},
}


@cache
def _rules_of(role: str, recipe: str) -> list[tuple[list[tuple[str, bool]], str]]:
    """Return, for each format, the tests that must hold, each with its required result."""
    rules = next((text for recipes, text in ROLE_FORMATS[role].items() if recipe in recipes.split()), "")
    parsed = []
    for rule in filter(None, rules.split(", ")):
        tests, _, form = rule.rpartition(": ")
        parsed.append(([(test.removeprefix("not "), test[:4] != "not ") for test in tests.split(" & ") if test], form))
    return parsed


class _Chooser:
    """Choose formats tensor by tensor in the reference's order; the number of earlier tensors matters."""

    def __init__(self, recipe: Recipe, model: ModelFacts, weighted: bool, names: Sequence[str]) -> None:
        self.recipe, self.model, self.weighted = recipe, model, weighted
        self.default = format_named(recipe.default or "")
        self._roles = {name: next((role for part, role in ROLES.items() if part in name), "") for name in names}
        self._seen: Counter[str] = Counter()  # tensors that a role decides
        self._values = list(self._roles.values()).count("V")
        self._layers = model.block_count or max(map(layer_of, names), default=-1) + 1

    def head(self, width: int) -> str:
        if self.model.architecture == "falcon" or width % self.default.block_size:
            return "Q8_0"
        return self._by_role("head", Site(0, 0, 0, self.model, self.weighted), "Q6_K")

    def inner(self, name: str, shape: tuple[int, ...]) -> str:
        if self.recipe.name == "MXFP4_MOE":
            return "MXFP4" if len(shape) >= 3 and shape[-3] > 1 else "Q8_0"
        role = "embedding" if name in TOKEN_EMBEDDINGS else self._roles[name]
        if not role:
            return self.default.name
        i = count = self._seen[role]
        self._seen[role] += 1
        if role != "V" and self.model.expert_count > 1 and layer_of(name) >= 0:
            i = layer_of(name)
        site = Site(i, self._values if role == "V" else self._layers, count, self.model, self.weighted)
        form = self._by_role(role, site, self.default.name)
        if self.recipe.name in LOW_BIT_RECIPES.split():
            return form
        if role in ("V", "K") and self.model.expert_count == 8:
            return "Q8_0"
        return "Q5_K" if role == "V" and self.model.is_70b and form in ("Q3_K", "Q4_K") else form

    def _by_role(self, role: str, site: Site, default: str) -> str:
        rules = _rules_of(role, self.recipe.name)
        return next(
            (form for tests, form in rules if all(TESTS[name](site) is expected for name, expected in tests)), default
        )


def choose(
    recipe: Recipe,
    tensors: Sequence[Triple],
    model: ModelFacts,
    has_importance: bool = False,
    options: Options | None = None,
) -> list[Choice]:
    """Choose the format of every tensor, in the order in which the reference writes them.

    has_importance: there is an importance matrix; its values change no choice. Raises OptionError for a rule that is no
    regular expression or matches no tensor, FormatError for a format that does not exist or cannot be stored, and if a
    width suits neither the format nor a fallback.
    """
    options = options or Options()
    if model.image_family is not None:
        return _choose_for_images(recipe, tensors, model.image_family, options)
    of_output, of_embedding = (
        storable_format(name) if name else None for name in (options.output_type, options.token_embedding_type)
    )
    names = [name for name, _, _ in tensors]
    rules = _compiled((*options.rules, *recipe.rules), names)
    if recipe.default is None:
        return [Choice(name, form, form) for name, _, form in _visited(tensors)]
    chooser, default = _Chooser(recipe, model, has_importance, names), format_named(recipe.default)
    heads = ("output.weight",) if "output.weight" in names else TOKEN_EMBEDDINGS  # which may be tied to the head
    choices = []
    for name, shape, form in _visited(tensors):
        is_output, pattern = name == "output.weight", None
        if not is_quantizable(name, shape, form, model.architecture) or (options.leave_output and is_output):
            choices.append(Choice(name, form, form))
            continue
        if name in TOKEN_EMBEDDINGS and of_embedding:
            wanted = of_embedding
        elif is_output and of_output:
            wanted = of_output
        elif not default.is_quantized:
            wanted = default
        elif rule := _deciding(rules, name):
            pattern, wanted = rule[0].text, rule[1]
        elif options.pure:
            wanted = default
        elif _has_eight_bits(name, model):
            wanted = format_named("Q8_0")
        elif name in heads:
            wanted = of_output or format_named(chooser.head(shape[-1]))
        else:
            wanted = format_named(chooser.inner(name, shape))
        choices.append(_settle(recipe, name, shape, wanted, pattern))
    return choices


def _choose_for_images(
    recipe: Recipe, tensors: Sequence[Triple], family: DiffusionFamily, options: Options
) -> list[Choice]:
    """Choose the formats of an image or video model, in the order of its file. Raises as `choose` does."""
    if recipe.name in IN_Q8_0:
        problem = f"{recipe.name} is {IN_Q8_0[recipe.name]} with token embedding and output in Q8_0"
        raise OptionError(f"{problem}; a model of images has neither", f"name {IN_Q8_0[recipe.name]}")
    shapes = {name: shape for name, shape, _ in tensors}
    rules = _compiled((*options.rules, *recipe.rules), list(shapes))
    if recipe.default is None:
        return [Choice(name, form, form) for name, _, form in tensors]
    chooser, default = ImageChooser(family, recipe.name, recipe.default, shapes), format_named(recipe.default)
    choices = []
    for name, shape, form in tensors:
        if form.name in KEPT_FORMATS or not chooser.may_change(name, shape):
            choices.append(Choice(name, form, form))
            continue
        rule = _deciding(rules, name) if default.is_quantized else None
        of_recipe = format_named(chooser.chosen(name)) if default.is_quantized and not options.pure else default
        choice = _settle(recipe, name, shape, rule[1] if rule else of_recipe, rule[0].text if rule else None)
        if choice.fallback and choice.format.name == "F16" and form.name == "BF16":
            choice = choice._replace(format=form)  # as many bits, with the range that it has
        choices.append(choice)
    return choices


def _has_eight_bits(name: str, model: ModelFacts) -> bool:
    """Return True for a tensor that is Q8_0 in every quantized file, unless a rule decides otherwise."""
    own = ALWAYS_Q8_0.get(model.architecture)
    if own and own.search(name):
        return True
    return name == TOKEN_TABLE and model.looks_up_ngrams  # llama-quantize gives it the embedding's few bits


def choose_by_rules(tensors: Sequence[Triple], rules: Sequence[tuple[str, str]]) -> list[Choice]:
    """Choose by rules only: they apply to all names, not only to weights; the rest stays as it is."""
    compiled = _compiled(rules, [name for name, _, _ in tensors])
    choices = []
    for name, shape, form in _visited(tensors):
        rule = None if form.name in KEPT_FORMATS else _deciding(compiled, name)
        copied = Choice(name, form, form)
        choices.append(_settle(RECIPES["COPY"], name, shape, rule[1], rule[0].text) if rule else copied)
    return choices


def _visited(tensors: Sequence[Triple]) -> list[Triple]:
    return sorted(tensors, key=lambda tensor: _place(tensor[0]))


def _deciding(rules: Sequence[Rule], name: str) -> Rule | None:
    return next((rule for rule in rules if rule[0].search(name)), None)


def _compiled(rules: Sequence[tuple[str, str]], names: Sequence[str]) -> list[Rule]:
    compiled = []
    if len(rules) > MAX_RULES:
        raise OptionError(f"{len(rules):,} tensor rules are given; at most {MAX_RULES:,} are used")
    for pattern, format_name in rules:
        expression = compile_pattern(pattern, "tensor rule", ignore_case=True)
        if not any(map(expression.search, names)):
            hint = did_you_mean(pattern, names, "`gguftools show` lists the names")
            raise OptionError(f"tensor rule {pattern!r} matches none of the {len(names)} tensors", hint)
        compiled.append((expression, storable_format(format_name)))
    return compiled


def storable_format(name: str) -> Format:
    """Return a format by name. Raises FormatError if there is none, or if no tensor can be stored in it."""
    form = format_named(name)
    if form.name in NOT_STORED:
        raise FormatError(f"{form.name} is not a format that weights can be quantized to")
    return form


def _settle(recipe: Recipe, name: str, shape: tuple[int, ...], wanted: Format, rule: str | None) -> Choice:
    """Return the wanted format, or the first fallback whose blocks fit the rows."""
    form, width = wanted, shape[-1]
    while width % form.block_size:
        if form.fallback is None:
            problem = f"{name!r} has rows of {width} values; {form.name} needs a multiple of {form.block_size}"
            hint = f"name another format for it by `rules`: '{re.escape(name)}=Q8_0'"
            raise FormatError(f"{problem}, and there is no format to fall back to", hint)
        form = format_named(form.fallback)
    misfit = f"rows of {width} values; {wanted.name} needs a multiple of {wanted.block_size}"
    low_bits = form.is_very_low_bits or (form.name == "Q2_K" and recipe.name == "Q2_K_S")
    needs = form.needs_importance or (low_bits and name not in (*TOKEN_EMBEDDINGS, "output.weight"))
    return Choice(name, form, wanted, None if form is wanted else misfit, rule, needs)
