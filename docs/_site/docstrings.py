"""Docstrings as they are written here: prose, then perhaps ``Example:`` with a session below."""

from inspect import cleandoc
from typing import Any

from sphinx.application import Sphinx


def with_heading(
    app: Sphinx, what: str, name: str, thing: Any, options: Any, lines: list[str]
) -> None:
    """Make ``Example:`` a small heading; what is indented below it moves to the margin."""
    if "Example:" in lines:
        start = lines.index("Example:")
        example = cleandoc("\n".join(["", *lines[start + 1 :]])).splitlines()
        lines[start:] = [".. rubric:: Example", "", *example, ""]


def setup(app: Sphinx) -> dict[str, Any]:
    """Look at every docstring before it is parsed."""
    app.connect("autodoc-process-docstring", with_heading)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
