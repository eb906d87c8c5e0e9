"""How Sphinx builds the site from the Markdown in this folder: `make docs`."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from sphinx.application import Sphinx

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


# Links that a git host follows as they are, and the pages or files that the site has instead.
_IN_ROOT = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
_OUTSIDE = re.compile(r"\]\(((?:\.\./)+)([\w./-]+\.md)")


def _site_link(link: re.Match[str]) -> str:
    """A page of the site for a document in the root, a download for any other file outside docs."""
    up, path = link.groups()
    if path in _IN_ROOT:
        return f"]({up.removeprefix('../')}{_IN_ROOT[path]}"
    if path.startswith("benchmarks/") or path.startswith("tests/"):
        return f"](path:{up}{path}"
    return link[0]


def _rewrite_links(app: Sphinx, name: str, source: list[str]) -> None:
    source[0] = _OUTSIDE.sub(_site_link, source[0])


def setup(app: Sphinx) -> None:
    app.connect("source-read", _rewrite_links)
    app.connect("autodoc-process-signature", _shortened)
