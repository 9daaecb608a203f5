"""Chat templates taken apart, and put together again in Go."""

import json

import pytest

from archs.metadata import Metadata
from gguftools.publish.cards.ollama import OllamaModel, go_template
from gguftools.publish.cards.turns import ASSISTANT, SYSTEM, USER, Around, Turns, turns_of
from quants.errors import VocabularyError

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
DEFAULT = (
    "{% if messages[0]['role'] != 'system' %}{{ '<|im_start|>system\\nBe good.<|im_end|>\\n' }}{% endif %}" + CHATML
)
LLAMA_3 = (
    "{% for m in messages %}{% set text = '<|start_header_id|>' + m['role'] + '<|end_header_id|>\\n\\n' + m['content']"
    " + '<|eot_id|>' %}{% if loop.first %}{% set text = bos_token + text %}{% endif %}{{ text }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}"
)
GEMMA = (
    "{% set first = '' %}{% if messages[0]['role'] == 'system' %}{% set first = messages[0]['content'] + '\\n\\n' %}"
    "{% set messages = messages[1:] %}{% endif %}{% for m in messages %}"
    "{{ '<start_of_turn>' + ('model' if m['role'] == 'assistant' else 'user') + '\\n' }}"
    "{{ (first if loop.first else '') + m['content'] + '<end_of_turn>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}"
)
REFUSES_SYSTEM = (
    "{% for m in messages %}{% if m['role'] == 'system' %}{{ raise_exception('no system') }}{% endif %}"
    "{{ m['role'] + ': ' + m['content'] + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
)
COUNTS = (
    "{% for m in messages %}{{ loop.index ~ m['role'] ~ ': ' ~ m['content'] ~ '\\n' }}{% endfor %}{{ 'assistant: ' }}"
)


def apart(template: str, bos: str = "") -> Turns | None:
    tokens = {"tokenizer.ggml.tokens": ["<s>", "</s>"], "tokenizer.ggml.bos_token_id": 0}
    return turns_of(Metadata({"tokenizer.chat_template": template, **tokens}), bos)


def test_chatml() -> None:
    around = [Around(f"<|im_start|>{role}\n", "<|im_end|>\n") for role in (USER, ASSISTANT, SYSTEM)]
    assert apart(CHATML) == Turns(*around)
    assert apart(DEFAULT) == Turns(*around, default_system="Be good.")


def test_llama_3_without_the_token_that_the_vocabulary_adds() -> None:
    around = [Around(f"<|start_header_id|>{role}<|end_header_id|>\n\n", "<|eot_id|>") for role in (USER, ASSISTANT)]
    turns = apart(LLAMA_3, bos="<s>")
    assert turns is not None
    assert [turns.user, turns.assistant] == around


def test_a_system_message_within_the_first_question() -> None:
    turns = apart(GEMMA)
    assert turns is not None
    assert turns.system_in_user
    words = {SYSTEM: ["be brief"], USER: ["hello"], ASSISTANT: []}
    expected = "<start_of_turn>user\nbe brief\n\nhello<end_of_turn>\n<start_of_turn>model\n"
    assert turns.text([SYSTEM, USER], words) == expected


def test_templates_without_a_system_message() -> None:
    turns = apart(REFUSES_SYSTEM)
    assert turns is not None
    assert turns.system is None
    assert turns.user == Around("user: ", "\n")


def test_an_answer_that_begins_otherwise_than_earlier_ones() -> None:
    inst = (
        "{% for m in messages %}{% if m['role'] == 'user' %}{{ '[INST] ' + m['content'] + '[/INST]' }}"
        "{% elif m['role'] == 'system' %}{{ m['content'] + '\\n' }}{% else %}{{ ' ' + m['content'] + '</s>' }}"
        "{% endif %}{% endfor %}{% if add_generation_prompt and thinks %}{{ '<think>' }}{% endif %}"
    )
    turns = apart(inst)
    assert turns is not None
    assert (turns.user, turns.assistant, turns.opening) == (Around("[INST] ", "[/INST]"), Around(" ", "</s>"), "")
    thinks = apart(inst.replace(" and thinks", ""))
    assert thinks is not None
    assert thinks.to_answer == "<think>"
    assert thinks.assistant == Around(" ", "</s>")


def test_a_template_that_says_the_date_is_not_taken_apart() -> None:
    dated = DEFAULT.replace("Be good.", "Today is ' + strftime_now('%d %b %Y') + '.")
    assert apart(dated) is None
    assert apart(dated.replace("strftime_now('%d %b %Y')", "'a day'")) is not None


def test_a_template_that_counts_is_not_taken_apart() -> None:
    assert apart(COUNTS) is None


@pytest.mark.parametrize("template", ["{{ raise_exception('no') }}", "{{ 1 / 0 }}"])
def test_a_template_that_fails_is_named(template: str) -> None:
    with pytest.raises(VocabularyError, match="chat template"):
        apart(template)


def test_files_without_a_template() -> None:
    with pytest.raises(VocabularyError, match="no chat template"):
        turns_of(Metadata({}))


@pytest.mark.parametrize("template", [CHATML, DEFAULT, GEMMA, REFUSES_SYSTEM])
def test_the_template_in_go_has_every_text(template: str) -> None:
    turns = apart(template)
    assert turns is not None
    text = go_template(turns)
    for around in filter(None, (turns.user, turns.assistant, turns.system)):
        assert all(json.dumps(each) in text for each in (around.before, around.after) if each)
    assert text.count("{{- if") + text.count("{{- range") == text.count("{{- end }}")


def test_a_modelfile_quotes_what_it_must() -> None:
    model = OllamaModel("{{ .Prompt }}", 'Say "yes"', ["<end>"], {"temperature": 0.7, "top_k": 40}, "mit")
    lines = model.modelfile("a.gguf").splitlines()
    assert lines[0] == "FROM ./a.gguf"
    assert 'SYSTEM Say "yes"' in lines
    assert 'PARAMETER stop "<end>"' in lines
    assert "PARAMETER temperature 0.7" in lines
    assert json.loads(model.params()) == {"temperature": 0.7, "top_k": 40, "stop": ["<end>"]}
