"""Sphinx's configuration of the documentation site; `scripts/docs` builds it.

- Pages are Markdown that reads the same on GitHub: no directives. The navigation follows from the
  lists of links in the pages `index.md` and `adr/README.md`.
- A link to a page or heading that does not exist is a warning, and `scripts/docs` fails on
  warnings.
"""

import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sphinx.application import Sphinx

HERE = Path(__file__).parent

project = "localpuppet"
author = "the localpuppet authors"
project_copyright = "the localpuppet authors"
extensions = ["myst_parser"]
exclude_patterns = ["examples"]
nitpicky = True

# The same anchors as on GitHub, for headings down to the fourth level.
myst_heading_anchors = 4

html_theme = "furo"
html_title = "localpuppet"
html_static_path: list[str] = []
html_search_scorer = str(HERE / "search.js")
html_copy_source = False
html_show_sphinx = False

_LINK = re.compile(r"(?<!!)\[([^]]+)\]\(([^)#:\s]+)(?:#[^)]*)?\)")
_LISTED = re.compile(r"^(?:[-*]|\d+\.) \[[^]]+\]\(([\w./-]+)\.md\)", re.MULTILINE)
# The lexer for Puppet does not know exported resources and collectors.
suppress_warnings = ["misc.highlighting_failure"]


def prepare_page(app: "Sphinx", page: str, source: list[str]) -> None:
    """Add the pages that an index page lists to the navigation; drop links that leave the site.

    A link to a directory, or to a file of the repository outside of `docs/`, works on a forge only:
    the site keeps its text.

    Args:
        app: Sphinx.
        page: The path of a page below `docs/`, without its ending.
        source: Its text, as the only element.
    """
    directory = (HERE / page).parent

    def drop_outer(link: re.Match[str]) -> str:
        target = (directory / link[2]).resolve()
        outside = target.is_dir() or (target.exists() and not target.is_relative_to(HERE))
        return link[1] if outside else link[0]

    text = _LINK.sub(drop_outer, source[0])
    if page.endswith(("index", "README")):
        listed = "\n".join(_LISTED.findall(text))
        text += f"\n```{{toctree}}\n:hidden:\n\n{listed}\n```\n"
    source[0] = text


def setup(app: "Sphinx") -> dict[str, bool]:
    """Connect `prepare_page` with Sphinx."""
    app.connect("source-read", prepare_page)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
