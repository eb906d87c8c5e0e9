"""How Sphinx builds the site from the Markdown in this folder: `make docs`."""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "agent")]

import gpq  # noqa: E402  (from this checkout)

project = "gpq"
version = release = gpq.__version__
copyright = "the authors of gpq"
html_theme = "furo"
html_title = f"gpq {version}"
extensions = ["myst_parser", "sphinx.ext.autodoc"]
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 4  # links to headings, as in the repository
nitpicky = False
exclude_patterns = ["_build"]
suppress_warnings = ["misc.highlighting_failure"]
# A link leads to a page of the site, or to a file of the repository.
html_show_sourcelink = False
autodoc_typehints = "signature"
autodoc_member_order = "bysource"
default_role = "code"  # docstrings have names between single backticks, as in Markdown


def _shortened(*words: object) -> tuple[str, object] | None:
    """Signatures of answers without the modules of their types and the `<factory>` of defaults."""
    signature, returned = words[-2:]
    if not isinstance(signature, str):
        return None
    return re.sub(r"~?gpq\.(\w+\.)+", "", signature).replace("<factory>", "..."), returned


def setup(app: object) -> None:
    app.connect("autodoc-process-signature", _shortened)  # type: ignore[attr-defined]
