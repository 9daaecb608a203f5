"""Print text while it is generated, also where it breaks off."""

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from ..metadata.visible import visible
from . import interruption
from .ui import StepProgress, note, print_json, window_progress

if TYPE_CHECKING:
    from runtime.generation import Generation

KEPT = "\n\t\u200c\u200d"  # invisible characters for layout, and for joining emoji


def stream(generations: "Iterable[Generation]", model: Path, count: int, as_json: bool) -> None:
    """Run each generation to its end. as_json: print all of them then; otherwise text as it comes, then speeds.

    Where one breaks off, by Ctrl-C or an error, what came until then is printed before that goes on.
    """
    from ..models.generating import GenerationReport, report_of

    done: list[GenerationReport] = []
    start = time.perf_counter()
    try:
        for generation in generations:
            try:
                if generation.stop_reason is not None and not as_json:  # complete already, as from beam search
                    _write(generation.text)
                for piece in generation:
                    if not as_json:
                        _write(piece.text)
                    interruption.go_on()
            finally:
                broken = generation.stop_reason is None
                rest = generation.finish()
                done.append(report_of(generation, model, broken))
                if not as_json:
                    _write(rest + "\n")
            if not as_json:
                note(_speeds(generation))
        if not as_json and len(done) > 1:
            tokens, seconds = sum(len(each.tokens) for each in done), time.perf_counter() - start
            note(f"all: {len(done)} texts of {_tokens(tokens)}, {tokens / seconds:.1f}/s with their prompts")
    finally:
        if as_json and done:
            print_json(done[0] if count == 1 else done)
            sys.stdout.flush()


@contextmanager
def prompt_progress(title: str = "") -> Iterator[Callable[[int, int], None]]:
    """Yield a function called with (tokens read, total) while prompts are read; it draws a bar.

    title: draw a bar at once, until the first prompt is read: the model is loaded before, and kernels are compiled. The
    bars of later prompts, which are mostly read in no time, begin with the second call.
    """
    with ExitStack() as shown:
        bar: StepProgress | None = shown.enter_context(window_progress(title)) if title else None
        is_first = True

        def update(done: int, total: int) -> None:
            nonlocal bar, is_first
            if bar is None and (is_first or done) and done < total:
                bar = shown.enter_context(window_progress("read the prompt"))
            if bar is not None:
                bar(done, total, 0.0)
            if done == total:  # the text replaces the bar
                shown.close()
                bar, is_first = None, False

        yield update


def _write(text: str) -> None:
    if text:
        sys.stdout.write(visible(text, KEPT) if sys.stdout.isatty() else text)
        sys.stdout.flush()


def _speeds(generation: "Generation") -> str:
    otherwise = "read before" if generation.tokens else "not read"
    speed = f"{generation.prefill_speed:.1f}/s" if generation.prefill_seconds else otherwise
    read = f"prompt {_tokens(generation.prompt_tokens)}, {speed}"
    written = f"text {_tokens(len(generation.tokens))}, {generation.decode_speed:.1f}/s"
    if counts := generation.speculated:
        written += f", {counts.accepted} of {counts.drafted} drafted stood, {counts.tokens_per_cycle:.2f} a pass"
    return f"{read}; {written}; ended by {ENDINGS[generation.stop_reason or 'stopped']}"


def _tokens(count: int) -> str:
    return f"{count} token{'' if count == 1 else 's'}"


ENDINGS = {
    "end": "the model",
    "stop": "a stop string",
    "length": "-n",
    "context": "the end of the context",
    "stopped": "an interruption",
}
