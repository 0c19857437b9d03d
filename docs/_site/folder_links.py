"""Links to what a repository browser shows and the site does not: folders, and stored reports.

A folder's link leads to its README.md; where there is none, and for Markdown that is no page, the
text stays without its link.
"""

import re
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

LINK = re.compile(r"\[([^\]\[]+)\]\(([^)\s#:]+)\)")


def mend(app: Sphinx, page: str, source: list[str]) -> None:
    """Change the links of one page as it is read."""
    folder = Path(app.env.doc2path(page)).parent

    def is_page(file: Path) -> bool:
        return app.env.path2doc(file) in app.env.found_docs

    def mended(link: re.Match[str]) -> str:
        text, target = link.groups()
        there = (folder / target).resolve()
        if there.is_dir():
            readme = there / "README.md"
            return f"[{text}]({target.rstrip('/')}/README.md)" if is_page(readme) else text
        stored = there.suffix == ".md" and there.is_file() and not is_page(there)
        return text if stored else link[0]

    source[0] = LINK.sub(mended, source[0])


def setup(app: Sphinx) -> dict[str, Any]:
    """Look at every page before it is parsed."""
    app.connect("source-read", mend)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
