"""The pictures in the documents show what the commands print today, and load nothing from elsewhere."""

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from gpq.rpc.job_columns import shown_on
from tests.words.texts import documents

ROOT = Path(__file__).parents[2]
PICTURES = ROOT / "examples" / "pictures"
NAMES = ("status", "why", "top", "report")


def lines(name: str) -> list[str]:
    """The text of a picture, line by line: pieces at the same height form a line, each at its column."""
    found: dict[float, str] = {}
    for piece in ElementTree.parse(PICTURES / f"{name}.svg").iter("{http://www.w3.org/2000/svg}text"):
        text = (piece.text or "").replace("\xa0", " ")
        if text.strip() and "clip-path" in piece.attrib:
            height, x = float(piece.attrib["y"]), float(piece.attrib["x"])
            letter = float(piece.attrib["textLength"]) / len(text)
            found[height] = found.get(height, "").ljust(round(x / letter)) + text
    return [found[height] for height in sorted(found)]


@pytest.mark.parametrize("name", NAMES)
def test_a_picture_needs_nothing_from_elsewhere(name: str) -> None:
    text = (PICTURES / f"{name}.svg").read_text()
    assert set(re.findall(r"https?://[^\"'\s]+", text)) == {"http://www.w3.org/2000/svg"}
    assert not re.search(r"<script|<image|<use|@import|@font-face|href|url\((?!#)", text)
    assert len(lines(name)) > 3


@pytest.mark.parametrize("name", NAMES)
def test_a_document_shows_the_picture(name: str) -> None:
    assert any(f"examples/pictures/{name}.svg)" in path.read_text() for path in documents())
    assert f'scene.picture("{name}"' in (PICTURES / "record.py").read_text()


def test_the_pictures_have_todays_columns() -> None:
    assert set(lines("status")[0].split()) <= {column.title for column in shown_on("status")}
    [heads] = [line.strip("│ ").split() for line in lines("top") if line.startswith("│ ID NAME")]
    assert {"ID", "NAME", "STATE", "GPUS", "GOODPUT"} <= set(heads) <= {column.title for column in shown_on("top")}
    assert {"GPU", "GOODPUT", "WORTH"} <= set(" ".join(lines("report")[:3]).split())
    assert " ".join(lines("why")).startswith("job 1 (running)")
    assert "goodput by number of GPUs" in " ".join(lines("why"))
