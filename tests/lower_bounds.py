"""Print the lowest version of each dependency that pyproject.toml allows, as pip's requirements.

python tests/lower_bounds.py > requirements.txt
pip install --requirement requirements.txt --editable . pytest
"""

from __future__ import annotations

import re
from pathlib import Path

PYPROJECT = Path(__file__).resolve().parent.parent / "pyproject.toml"
LIST = re.compile(r"^dependencies = \[(.*?)^\]", re.DOTALL | re.MULTILINE)
REQUIREMENT = re.compile(r'"([A-Za-z0-9_.-]+)>=([0-9.]+)[^"]*"')  # "name>=1.2,<3"


def lower_bounds(pyproject: str) -> dict[str, str]:
    """Return the lowest allowed version of each package that a plain installation needs, by name."""
    packages = LIST.search(pyproject)
    assert packages is not None
    return dict(REQUIREMENT.findall(packages.group(1)))


if __name__ == "__main__":
    for name, version in lower_bounds(PYPROJECT.read_text(encoding="utf-8")).items():
        print(f"{name}=={version}")
