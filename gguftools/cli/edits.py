"""Make operations of the options of `set-metadata`, which all hold at once: none may contradict another."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..metadata.operations import Operation


def operations_of(
    values: Mapping[str, Any],
    types: Mapping[str, str],
    remove: Sequence[str],
    rename: Mapping[str, str],
    chat_template: str | None,
    special_tokens: Mapping[str, str],
) -> "Iterator[Operation]":
    """Yield operations. Raises OptionError where two options contradict each other."""
    from quants.errors import OptionError

    from ..metadata.operations import ITEM, Remove, Rename, Set, SetChatTemplate, SetSpecialToken, SetType

    special: list[SetChatTemplate | SetSpecialToken] = [
        *([] if chat_template is None else [SetChatTemplate(chat_template)]),
        *(SetSpecialToken(role, token) for role, token in special_tokens.items()),
    ]
    for operation in special:
        if operation.key in values:
            raise OptionError(f"{operation.key!r} is given twice")
    for key in remove:
        if key in values or key in rename:
            raise OptionError(f"{key!r} cannot be both removed and {'set' if key in values else 'renamed'}")
        yield Remove(key)
    for key, name in rename.items():
        if list(rename.values()).count(name) > 1:
            raise OptionError(f"{key!r} cannot be renamed to {name!r}")
        if key in values:
            raise OptionError(f"{key!r} cannot be both renamed and set", hint=f"set {name!r}")
        yield Rename(key, name)
    for key, data in values.items():
        if (item := ITEM.fullmatch(key)) and item[1] in values:
            raise OptionError(f"{item[1]!r} is set as a whole and by items", "give all changes of an array in one way")
        yield Set(key, data, types.get(key))
    yield from special
    yield from (SetType(key, name) for key, name in types.items() if key not in values)
