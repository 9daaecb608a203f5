"""Generated blocks are replaced; what a person wrote stays."""

import pytest

from gguftools.publish.cards.markers import block, updated
from quants.errors import FileError

OLD = f"# Mine\n\nMy words.\n\n{block('files', 'old table')}\n\nMore words.\n"


def test_only_the_block_changes() -> None:
    result = updated(OLD, {"files": "new table"})
    assert result.text == OLD.replace(block("files", "old table"), block("files", "new table"))
    assert not result.edited
    assert not result.missing


def test_a_block_that_a_person_changed_stays() -> None:
    changed = OLD.replace("old table", "old table, and my remark")
    result = updated(changed, {"files": "new table"})
    assert result.text == changed
    assert result.edited == ["files"]


def test_an_empty_block_is_filled() -> None:
    text = "# Mine\n<!-- gguftools: files -->\n<!-- /gguftools: files -->\n"
    assert "new table" in updated(text, {"files": "new table"}).text


def test_blocks_that_are_not_there_are_named() -> None:
    assert updated(OLD, {"files": "a", "run": "b"}).missing == ["run"]


def test_unknown_blocks_stay() -> None:
    text = OLD + block("of a later version", "x").replace("of a later version", "later")
    assert "later" in updated(text, {"files": "new"}).text


@pytest.mark.parametrize(
    "text",
    [
        OLD + OLD,
        OLD.replace("<!-- /gguftools: files -->", ""),
        "<!-- /gguftools: files -->",
        "<!-- gguftools: files -->\n<!-- /gguftools: other -->",
    ],
    ids=["twice", "no end", "no beginning", "another end"],
)
def test_broken_blocks_are_refused(text: str) -> None:
    with pytest.raises(FileError, match=r"block files is there twice|has no beginning or no end"):
        updated(text, {"files": "new"})
