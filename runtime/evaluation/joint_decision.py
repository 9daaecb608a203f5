"""Joint scores of the options of several questions about one text (Clef).

The prompt marks which of its tokens are a question, and which an option of it. Options attend to the whole text,
questions to each other, and an option's score is made of its similarity to its question, before and after that. Source:
llama.cpp's graph.
"""

import re
from dataclasses import dataclass

import numpy as np

from archs.layered import by_layer
from quants.errors import OptionError

from .. import ops
from ..arrays import Floats, Ids
from ..layer import ForwardContext, Layer
from ..model import RunningModel
from ..products.matmul import gather
from ..tokenizer import Tokenizer

QUESTION_TYPES = ("noul", "choice", "score")
SEPARATOR, QUESTION, OPTION = "<<clef:sep>>", "<<clef:question>>", "<<clef:option>>"  # markers of rendered templates
TYPE_LINE = re.compile(r"\nTYPE: (\w+)\nINSTRUCTION: $")
EPS = 1e-12


@dataclass(frozen=True)
class Spans:
    """The spans of a prompt's questions, with the number of their type, and of options, with the number of their
    question: (type or question, first token, end).
    """

    tokens: tuple[int, ...]
    questions: tuple[tuple[int, int, int], ...]
    options: tuple[tuple[int, int, int], ...]


def spans_of(tokenizer: Tokenizer, prompt: str) -> Spans:
    """Return the spans of a rendered prompt, whose pieces are tokenized separately: between `SEPARATOR`, questions
    after `QUESTION`, options after `OPTION`. Raises OptionError for a prompt of another form.
    """
    tokens, questions, options, before = list[int](), list[tuple[int, int, int]](), list[tuple[int, int, int]](), ""
    for piece in prompt.split(SEPARATOR):
        bare = piece.removeprefix(QUESTION).removeprefix(OPTION)
        ids, first = tokenizer.encode(bare, add_special=False, parse_special=True), len(tokens)
        tokens += ids
        if piece.startswith((QUESTION, OPTION)) and not ids:
            raise OptionError("a question or an option of the prompt is empty")
        if piece.startswith(QUESTION):
            match = TYPE_LINE.search(before)
            if match is None or match[1] not in QUESTION_TYPES:
                known = ", ".join(QUESTION_TYPES)
                raise OptionError("a question of the prompt is not of a known type", f"known are {known}")
            questions.append((QUESTION_TYPES.index(match[1]), first, len(tokens)))
        elif piece.startswith(OPTION):
            if not questions:
                raise OptionError("the prompt has an option in front of all questions")
            options.append((len(questions) - 1, first, len(tokens)))
        before = bare
    if {question for question, _, _ in options} != set(range(len(questions))) or not questions:
        raise OptionError("the prompt has no questions, or one without options")
    return Spans(tuple(tokens), tuple(questions), tuple(options))


def joint_scores(model: RunningModel, spans: Spans) -> Floats:
    """Return a score for each option: float32 (options,). Raises ModelError as `RunningModel.hidden_states` does."""
    forward, tokens = model.new_pass(1, len(spans.tokens)), np.asarray(spans.tokens, np.int64)
    return _Head(model, forward).scores(model.hidden_states(tokens[None])[0], tokens, spans)


class _Head:
    """The head's tensors and computations."""

    def __init__(self, model: RunningModel, forward: ForwardContext) -> None:
        self.forward, self.outside = forward, forward.global_tensors
        self.heads = int(forward.keys.need("decision.head_count"))
        routing, others = (forward.keys.need(key) for key in ("decision.routing_block_count", "decision.block_count"))
        grouped = by_layer(model.tensors)
        prefixes = [f"dec.blk.{i}." for i in range(routing + others)]
        layers = [Layer(prefix, grouped.get(prefix, {})) for prefix in prefixes]
        self.routing, self.joint = layers[:routing], layers[routing:]

    def scores(self, states: Floats, tokens: Ids, spans: Spans) -> Floats:
        hidden = self.norm(self.outside, "decision.hidden_norm", states)
        memory, last = self.project("proj_memory", hidden), hidden[-1:]
        question = _means(hidden, [span[1:] for span in spans.questions])
        tables = self.outside.tensors
        table = tables["output.weight" if "output.weight" in tables else "token_embd.weight"]
        of_options, owner = [span[1:] for span in spans.options], np.array([span[0] for span in spans.options])
        lexical = _means(gather(table, tokens), of_options)
        options = self.project("proj_option_context", _means(hidden, of_options))
        options += self.project("proj_option_lexical", lexical) + self.project("proj_option_question", question)[owner]
        for layer in self.routing:
            read = self.norm(layer, "cross_attn_norm", options)
            options = options + self.attend(layer, "cross_attn", read, self.norm(layer, "cross_attn_norm_kv", memory))
            options = options + self.net(layer, options)
        fields = self.fields(question, options, owner, last, np.array([span[0] for span in spans.questions]))
        for layer in self.joint:
            read = self.norm(layer, "attn_norm", fields)
            fields = fields + self.attend(layer, "attn", read, read)
            fields = fields + self.attend(layer, "cross_attn", self.norm(layer, "cross_attn_norm", fields), memory)
            fields = fields + self.net(layer, fields)
        fields = self.norm(self.outside, "decision.field_norm", fields)
        prior = (_unit(lexical) * _unit(question + last)[owner]).sum(axis=1)
        return self.judged(fields[owner], self.norm(self.outside, "decision.option_norm", options), prior)

    def fields(self, question: Floats, options: Floats, owner: Ids, last: Floats, types: Ids) -> Floats:
        """Return a vector of each question: its text, its options, the text's end and its type."""
        vectors = self.project("proj_question", question)
        logits = vectors @ options.T * np.float32(options.shape[1] ** -0.5)
        own = np.arange(len(question))[:, None] == owner
        summary = ops.softmax(np.where(own, logits, np.float32(-np.inf))) @ options
        vectors = vectors + self.norm(self.outside, "decision.option_summary_norm", summary)
        return vectors + self.project("proj_global", last) + self.outside.need_array("token_types.weight")[types]

    def judged(self, fields: Floats, options: Floats, prior: Floats) -> Floats:
        """Return scores of options by the vectors of their questions and the similarities before."""
        scales = self.outside.need_array("decision.scales")
        features = np.concatenate((fields, options, fields * options, np.abs(fields - options)), axis=1)
        hidden = ops.activated("gelu", self.project("scorer", features), self.forward.threads)
        joint = (_unit(fields) * _unit(options)).sum(axis=1) * scales[1] + self.project("scorer_out", hidden)[:, 0]
        return np.asarray(prior * scales[0] + joint * scales[2], np.float32)

    def project(self, name: str, x: Floats) -> Floats:
        return self.forward.project(self.outside, f"decision.{name}", np.ascontiguousarray(x))

    def norm(self, layer: Layer, name: str, x: Floats) -> Floats:
        eps = float(self.forward.keys.need("attention.layer_norm_epsilon"))
        return ops.layer_norm(x, layer.need_array(f"{name}.weight"), layer.array(f"{name}.bias"), eps)

    def net(self, layer: Layer, x: Floats) -> Floats:
        hidden = self.forward.project(layer, "ffn_up", self.norm(layer, "ffn_norm", x))
        return self.forward.project(layer, "ffn_down", ops.activated("gelu", hidden, self.forward.threads))

    def attend(self, layer: Layer, name: str, x: Floats, read: Floats) -> Floats:
        """Return attention of x (n, width) to all of `read` (m, width)."""
        inputs = {"q": x, "k": read, "v": read}
        q, k, v = (
            self.forward.project(layer, f"{name}_{letter}", each).reshape(len(each), self.heads, -1).swapaxes(0, 1)
            for letter, each in inputs.items()
        )
        shares = ops.softmax(q @ k.swapaxes(1, 2) * np.float32(q.shape[2] ** -0.5))
        mixed = np.ascontiguousarray((shares @ v).swapaxes(0, 1)).reshape(len(x), -1)
        return self.forward.project(layer, f"{name}_o", mixed)


def _means(x: Floats, spans: list[tuple[int, int]]) -> Floats:
    """Return the mean of the rows of each span."""
    return np.stack([x[first:stop].mean(axis=0, dtype=np.float64) for first, stop in spans]).astype(np.float32)


def _unit(x: Floats) -> Floats:
    """Return rows scaled to length one."""
    lengths: Floats = np.maximum(np.linalg.norm(x, axis=1, keepdims=True), np.float32(EPS))
    return x / lengths
