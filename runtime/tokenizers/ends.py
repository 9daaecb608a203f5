"""Which tokens end a generated text. Source: llama.cpp, llama-vocab.cpp, whose list goes by what tokens are called."""

from gguf.constants import Keys

from archs.vocab.ends import TEXTS, listed_ends
from archs.vocab.listed import TokenList

ROLES = (
    Keys.Tokenizer.EOS_ID, Keys.Tokenizer.EOT_ID, Keys.Tokenizer.EOM_ID, Keys.Tokenizer.FIM_PAD_ID,
    Keys.Tokenizer.FIM_REP_ID, Keys.Tokenizer.FIM_SEP_ID,
)  # fmt: skip
# Of models that fill gaps, where no key names them; of each group the first.
GAPS = {
    Keys.Tokenizer.FIM_PAD_ID: ("<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"),
    Keys.Tokenizer.FIM_REP_ID: ("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"),
    Keys.Tokenizer.FIM_SEP_ID: ("<|file_sep|>",),
}


def end_ids(tokens: TokenList) -> tuple[int, ...]:
    """Tokens that end a text, in order: those that keys name or list, and those that are called so."""
    found = {text: number for number, text in enumerate(tokens.texts) if text in TEXTS}
    numbers = {number for key in ROLES if (number := tokens.id(key)) is not None} | set(found.values())
    places = {text: number for number, text in enumerate(tokens.texts) if any(text in names for names in GAPS.values())}
    for key, names in GAPS.items():
        if tokens.id(key) is None and (of := [places[name] for name in names if name in places]):
            numbers.add(min(of))
    texts = {tokens.texts[number] for number in numbers}
    if texts > {"<|call|>", "<|return|>", "<|end|>"} or (
        texts & {"<|call|>", "<|calls|>"} and texts > {"<|flush|>", "<|end|>"}
    ):
        numbers -= {found["<|end|>"]}  # ends a message there, of which there may be several
    if texts & {"<|tool_response>", "<|plamo:eos|>"} and "</s>" in found:
        numbers -= {found["</s>"]}  # an HTML tag there
    return tuple(sorted(numbers.union(listed_ends(tokens.metadata))))
