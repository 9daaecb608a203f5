"""generation_config.json of an exported checkpoint: the tokens that begin and end texts, and its authors' sampling
parameters.
"""

from collections.abc import Mapping
from typing import Any

from ...general import SAMPLING
from ...vocab.ends import SUPPRESSED
from .config import number

GENERATES = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")  # endings of classes that generate
TOKEN_IDS = ("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id")
NEEDS_SAMPLING = {"top_k", "top_p", "min_p", "temperature"}  # which transformers uses if `do_sample` is set


def generation_config(config: Mapping[str, Any], metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of generation_config.json; nothing for a class that does not generate.

    config: config.json, with the ids of special tokens. metadata: the file's.
    """
    if not config["architectures"][0].endswith(GENERATES):
        return {}
    content = {key: config[key] for key in TOKEN_IDS if config.get(key) is not None}
    if SUPPRESSED in metadata:
        content["suppress_tokens"] = [int(each) for each in metadata[SUPPRESSED]]
    advised = {key: metadata.get(f"general.sampling.{'temp' if key == 'temperature' else key}") for key in SAMPLING}
    content |= {key: number(value) for key, value in advised.items() if value is not None}
    return content | ({"do_sample": True} if NEEDS_SAMPLING & content.keys() else {})
