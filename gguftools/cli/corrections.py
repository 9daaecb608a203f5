"""Find what is wrong with the words of a call, and correct it; all other words stay as they were typed.

Each step looks for one kind of mistake. All steps run in turn, so that the call in a hint has no second mistake. A call
that cannot be corrected with certainty gets a text.
"""

import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from . import elsewhere
from .calls import Call, Part, arities, capacity, parse_call, renamed, spellings

SHARD = re.compile(r"-\d{5}-of-\d{5}\.gguf$")
WRITTEN = (".gguf", ".dat", "/")  # endings of names of output files
TEXT_ENDINGS = (".txt", ".raw", ".md")  # of names of texts
SEARCHED = ("--target-size", "--target-bpw")
# Command → the options that an argument too many may have been meant for, the likeliest first.
PLACES: Mapping[str, Sequence[str]] = {
    "show": ("--key",),
    "generate": ("--prompt",),
    "tokenize": ("--prompt",),
    "embed": ("--prompt", "--output"),
    "check": ("--against",),
    "chat-template": ("--messages",),
    "report": ("--html",),
}


@dataclass(frozen=True)
class Mistake:
    """A problem, with the corrected call, or a text if no call corrects it."""

    problem: str
    call: Call | None = None
    text: str = ""
    remark: str = ""  # printed in front of the corrected call


@dataclass(frozen=True)
class Known:
    """A command and its options, for corrections."""

    command: Any
    own: Mapping[str, int]  # option → how many values it has

    def spellings(self, name: str) -> tuple[str, ...]:
        return spellings(self.command, name)


def read_call(
    command: Any, words: Sequence[str], before: Sequence[str], aliases: Mapping[str, str], several: Sequence[str]
) -> tuple[Call, Known]:
    """Take a call of a command apart. aliases: older spellings of its options; several: options of many values."""
    name = str(command.name)
    own = arities(command, several)
    known = Known(command, own | {old: own[new] for old, new in aliases.items()})

    def foreign(option: str) -> int | None:
        meaning = elsewhere.meaning(name, option, known.own)
        return meaning.values if meaning else None

    return parse_call(name, words, known.own, foreign, before), known


def correct(call: Call, known: Known) -> tuple[str, str] | None:
    """Return what is wrong with a call and what to type instead; None where no mistake is known."""
    first: Mistake | None = None
    remarks: list[str] = []
    if any(_is_unknown(part, known) for part in call.parts):
        return None  # the next word may be its value
    for step in STEPS:
        mistake = step(call, known)
        if mistake is None:
            continue
        if mistake.call is None:
            return mistake.problem, mistake.text
        first, call = first or mistake, mistake.call
        remarks += [mistake.remark] if mistake.remark else []
    if first is None:
        return None
    if not _is_parsed(call, known):
        return first.problem, f"`gguftools {call.command} --help` lists its arguments and options"
    return first.problem, "; ".join((*remarks, f"type `{call.line()}`"))


def _is_unknown(part: Part, known: Known) -> bool:
    """Return True for an option that neither the command nor another program has."""
    name = part.option
    return name not in ("", "--", *known.own) and elsewhere.meaning(str(known.command.name), name, known.own) is None


def completed(hint: str, call: Call) -> str:
    """Add the typed options to a hint that shows a call of the same command with arguments only."""

    def whole(shown: re.Match[str]) -> str:
        words = shlex.split(shown[1])
        arguments = words[1:]
        is_alone = words[0] == call.command and not any(word.startswith("-") or word.isupper() for word in arguments)
        if not is_alone or not arguments or len(arguments) > len(call.arguments):
            return shown[0]
        return f"`{call.with_arguments([*arguments, *call.arguments[len(arguments) :]]).line()}`"

    return re.sub(r"`gguftools ([^`'\"]+)`", whole, hint)


def _is_parsed(call: Call, known: Known) -> bool:
    """Return True if the command's parser takes a call, and no option of one value is given twice."""
    context = typer.Context(known.command)
    try:
        _, _, given = known.command.make_parser(context).parse_args(list(call.words))
    except Exception as error:
        if hasattr(error, "format_message"):  # click's
            return False
        raise
    single = [each for each in given if each.param_type_name == "option" and not (each.multiple or each.is_flag)]
    return len(single) == len(set(single))


def translate_options(call: Call, known: Known) -> Mistake | None:
    """Find options of other programs: renamed, made arguments, or left out."""
    foreign = [
        (part, meaning)
        for part in call.parts
        if part.option and (meaning := elsewhere.meaning(call.command, part.option, known.own))
    ]
    if not foreign:
        return None
    foreign, call = _with_hub_file(call, known, foreign)
    for part, meaning in foreign:
        if meaning.becomes == "text":
            return Mistake(f"{call.command} has no option {part.option}", text=_of_hub(part) or meaning.text)
    meanings = {id(part): meaning for part, meaning in foreign}
    front, middle, end = list[Part](), list[Part](), list[Part]()
    reasons: dict[str, str] = {}
    for part in call.parts:
        meaning = meanings.get(id(part))
        if meaning is None or meaning.becomes == "nothing":
            middle += [part] if meaning is None else []
            if meaning is not None:
                reasons[meaning.text] = part.option
        elif meaning.becomes == "argument":
            place = front if meaning.text == elsewhere.FIRST else end
            place.extend(() if part.value is None else [Part((part.value,))])
        else:
            middle += _added(middle, _own(part, meaning.text))
    if elsewhere.ON_THE_HUB in reasons:
        middle = _on_the_hub(middle)
    remark = "; ".join(f"{option} is not needed: {reason}" for reason, option in reasons.items())
    names = [part.option for part, _ in foreign]
    problem = f"{call.command} has no option {names[0] if names else '-hf'}"
    return Mistake(problem, call.with_parts([*front, *middle, *end]), remark=remark)


def _own(part: Part, new: str) -> Part:
    """Return another program's option under our name; `new` may have flags before it, and a form for its value."""
    *names, last = new.split()
    if "{}" in last:
        return renamed(part, names, last.replace("{}", part.value or ""))
    return renamed(part, [*names, last], part.value)


def _added(parts: Sequence[Part], part: Part) -> list[Part]:
    """Return the part without words that are already there: an option of two translated ones, an added flag."""
    there = {words for each in parts for words in (each.words, *((word,) for word in each.words))}
    if part.words in there:
        return []
    words = [word for word in part.words if not (word in (each.option for each in parts) and word != part.option)]
    return [Part(tuple(words), part.option, part.value)]


def _on_the_hub(parts: Sequence[Part]) -> list[Part]:
    """Return the first argument as a name on the hub."""
    first = next((part for part in parts if part.is_argument), None)
    if first is None or "://" in first.words[0] or Path(first.words[0]).exists():
        return list(parts)
    return [Part((f"hf://{first.words[0]}",)) if part is first else part for part in parts]


def _with_hub_file(
    call: Call, known: Known, foreign: list[tuple[Part, elsewhere.Meaning]]
) -> tuple[list[tuple[Part, elsewhere.Meaning]], Call]:
    """Return the call with the file that -hf and -hff name together as its first argument."""
    repository, file = call.value_of(elsewhere.REPOSITORY), call.value_of(elsewhere.OF_REPOSITORY)
    both = (*elsewhere.REPOSITORY, *elsewhere.OF_REPOSITORY)
    if not repository or not file or set(both) & set(known.own):
        return foreign, call
    kept = [part for part in call.parts if part.option not in both]
    name = repository.partition(":")[0]
    return [each for each in foreign if each[0].option not in both], call.with_parts(
        [Part((f"hf://{name}/{file}",)), *kept]
    )


def _of_hub(part: Part) -> str:
    """Return what to do about -hf alone, with its name."""
    if part.option not in elsewhere.REPOSITORY or not part.value:
        return ""
    name, _, quant = part.value.partition(":")
    return f"name a file of the repository as the model: hf://{name}/{f'NAME-{quant}' if quant else 'NAME'}.gguf"


def order_recipes(call: Call, known: Known) -> Mistake | None:
    """Find words given to quantize in llama-quantize's order, or swapped."""
    if call.command != "quantize" or len(call.arguments) < 2 or call.gives(("--frontier",)):
        return None
    source, *rest = call.arguments
    names, numbers = ([each for each in rest if each.isdecimal() is number] for number in (False, True))
    outputs = [each for each in names if each.endswith((".gguf", "/")) and not _is_recipe(each)]
    if outputs and not _is_recipe(source):
        return _with_output(call, known, outputs[0])
    if _is_recipe(source) and not Path(source).exists() and (outputs or any(Path(each).exists() for each in names)):
        return _with_model_first(call, known, outputs)
    if names and numbers:
        problem = f"{numbers[0]} may be a recipe or the number of threads"
        text = f"for threads type --threads {numbers[0]}"
        if call.gives(known.spellings("--threads")):
            text = "--threads is already given; `gguftools quantize --list-recipes` lists recipes"
            return Mistake(problem, text=text)
        without = call.with_arguments([source, *(each for each in rest if each != numbers[0])])
        return Mistake(problem, text=f"{text}: `{without.with_option('--threads', numbers[0]).line()}`")
    return None


def _with_model_first(call: Call, known: Known, outputs: Sequence[str]) -> Mistake:
    """Correct `RECIPE IN`, perhaps with OUT."""
    source, *rest = call.arguments
    file = next((each for each in rest if Path(each).exists()), outputs[0] if outputs else "")
    others = [each for each in rest if each != file]
    made = call.with_arguments([file, source, *others])
    output = next((each for each in others if each in outputs), None)
    corrected = _with_output(made, known, output).call if output is not None else made
    return Mistake(f"{source!r} is a recipe; the model comes first", corrected or made)


def _with_output(call: Call, known: Known, output: str) -> Mistake:
    """Correct `IN OUT RECIPE [THREADS]`: make OUT and THREADS options; a single number after OUT is a recipe."""
    source, *rest = call.arguments
    problem = f"{output!r} is not a recipe"
    wanted = [each for each in rest if each != output]
    threads = wanted.pop() if len(wanted) > 1 and wanted[-1].isdecimal() else None
    if not wanted and not call.gives(SEARCHED):
        return Mistake(problem, text="name a recipe, e.g. Q4_K_M; `gguftools quantize --list-recipes` lists them")
    if call.gives(known.spellings("--output")):
        return Mistake(problem, text=f"the output is already named; leave out {output}")
    made = call.with_arguments([source, *wanted]).with_option("--output", output)
    if threads is not None and not call.gives(known.spellings("--threads")):
        made = made.with_option("--threads", threads)
    return Mistake(problem, made)


def _is_recipe(word: str) -> bool:
    from gguftools.quantization.recipes import RECIPES

    return any(word.upper() in (recipe.name, *recipe.aliases) for recipe in RECIPES.values())


def join_pairs(call: Call, known: Known) -> Mistake | None:
    """Find ROLE TOKEN of --special-token as two words, as gguf-new-metadata has them."""
    for i, part in enumerate(call.parts[:-1]):
        token = call.parts[i + 1]
        if part.option == "--special-token" and "=" not in (part.value or "=") and token.is_argument:
            pair = f"{part.value}={token.words[0]}"
            made = Part((part.option, pair), part.option, pair)
            call = call.with_parts([*call.parts[:i], made, *call.parts[i + 2 :]])
            return Mistake(f"{part.value!r} is not of the form ROLE=TOKEN", call)
    return None


def place_assignments(call: Call, known: Known) -> Mistake | None:
    """Find words given to set-metadata that are no assignments."""
    words = call.arguments[1:]
    bare = [word for word in words if "=" not in word]
    if call.command != "set-metadata" or not bare:
        return None
    problem = f"{bare[0]!r} is not of the form KEY=VALUE"
    if call.gives(known.spellings("--remove")):
        return Mistake(problem, call.with_parts(_removed(call.parts)), remark="--remove takes one key")
    if len(words) == 2 and words[0] == bare[0]:
        return Mistake(problem, call.with_arguments([call.arguments[0], "=".join(words)]))
    return Mistake(problem, text="KEY=VALUE sets a key, --remove KEY removes one")


def _removed(parts: Sequence[Part]) -> Iterator[Part]:
    """Yield the parts with every argument but the first that is no assignment as a key to remove."""
    is_first = True
    for part in parts:
        if part.is_argument and not is_first and "=" not in part.words[0]:
            yield Part(("--remove", part.words[0]), "--remove", part.words[0])
        else:
            yield part
        is_first = is_first and not part.is_argument


def place_arguments(call: Call, known: Known) -> Mistake | None:
    """Find arguments that the command does not take: of an option, or shards of a set that one shard names."""
    room, arguments = capacity(known.command), call.arguments
    if room is None and known.spellings("--file"):  # any number of models, but no texts
        texts = [word for word in arguments if word.endswith(TEXT_ENDINGS)]
        arguments = [word for word in arguments if word not in texts] + texts
        room = len(arguments) - len(texts)
    if room is None or len(arguments) <= room:
        return None
    extra = arguments[room:]
    problem = f"{call.command} takes no argument {' '.join(extra)}"
    made = call.with_arguments(arguments[:room])
    remark = ""
    for word in extra:
        if call.command == "merge" and (SHARD.search(word) or Path(word).exists()):
            remark = "one shard is enough"
            continue
        option = _place(word, made, known)
        if option is None:
            return Mistake(problem, text=f"`gguftools {call.command} --help` lists its arguments and options")
        made = made.with_option(option, word)
    return Mistake(problem, made, remark=remark)


def _place(word: str, call: Call, known: Known) -> str | None:
    """Return the option that an argument too many was meant for."""
    places = [*PLACES.get(call.command, ("--file", "--output"))]
    if word.endswith(WRITTEN):
        places.sort(key=lambda name: name != "--output")
    for name in places:
        spelled = known.spellings(name)
        option = next((each for each in known.command.params if each.name and name in each.opts), None)
        if spelled and option is not None and (option.multiple or not call.gives(spelled)):
            return name
    return None


Step = Callable[[Call, Known], Mistake | None]
STEPS: Sequence[Step] = (translate_options, order_recipes, join_pairs, place_assignments, place_arguments)
