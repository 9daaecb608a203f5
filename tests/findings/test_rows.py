"""Every row of the list of findings has tests that found it."""

from __future__ import annotations

import re
from pathlib import Path

HERE = Path(__file__).parent
# U2 and U5 are wishes for commands to come. F, E and T have rows within rows.
ELSEWHERE = {"U2", "U5"}
ROW = re.compile(r"\*\*([TDSWUFE]\d?)\*\*|(?<=[ :(])(E\d+)(?= )")


def test_every_row_has_its_tests(shared: Path) -> None:
    text = (shared / "findings.md").read_text(encoding="utf-8")
    rows = {a or b for a, b in ROW.findall(text)} - ELSEWHERE
    assert {"T0", "D1", "S7", "W7", "U8", "F5", "E", "E10", "T3"} <= rows
    files = [file.stem.removeprefix("test_").upper() for file in HERE.glob("test_*.py")]
    assert sorted(row for row in rows if not any(name == row or name.startswith(f"{row}_") for name in files)) == []
