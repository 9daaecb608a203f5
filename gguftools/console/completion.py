"""What the shell offers for the value of an option or argument, by the word that stands for it in help."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping


def _recipes() -> Iterable[str]:
    from gguftools.quantization.recipes import RECIPES

    return RECIPES


def _formats() -> Iterable[str]:
    from quants.format import formats

    return (form.name for form in formats().values() if form.has_codec)


def _float_types() -> Iterable[str]:
    return ("f32", "f16", "bf16")


def _outtypes() -> Iterable[str]:
    return ("auto", *_float_types(), "q8_0", *_recipes())


def _severities() -> Iterable[str]:
    return ("info", "low", "medium", "high")


def _starting(values: Callable[[], Iterable[str]]) -> Callable[[str], list[str]]:
    def matching(incomplete: str) -> list[str]:
        return [value for value in values() if value.lower().startswith(incomplete.lower())]

    return matching


VALUES: Mapping[str | None, Callable[[str], list[str]]] = {
    "RECIPE": _starting(_recipes), "FORMAT": _starting(_formats), "FLOAT": _starting(_float_types),
    "OUTTYPE": _starting(_outtypes), "SEVERITY": _starting(_severities),
}  # fmt: skip
