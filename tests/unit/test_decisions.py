"""docs/decisions: each has a number of its own, and all that is said to be there is."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DECISIONS = sorted((ROOT / "docs" / "decisions").glob("*.md"))


def test_each_has_a_number_of_its_own_and_says_it() -> None:
    numbers = [path.name[:4] for path in DECISIONS]
    assert numbers == sorted(set(numbers))
    assert {path.name: path.read_text().partition(".")[0] for path in DECISIONS} == {
        path.name: f"# {path.name[:4]}" for path in DECISIONS
    }


def test_links_lead_to_what_is_there() -> None:
    dead = [
        f"{page.relative_to(ROOT)}: {target}"
        for page in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"))
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text())
        if "://" not in target and not (page.parent / target).exists()
    ]
    assert dead == []
