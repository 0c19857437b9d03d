"""Docstrings as they are written here: prose, then perhaps ``Example:`` with a session below.

The fields of a dataclass are described by the comments behind them, so these come along.
"""

import dataclasses
import inspect
import re
from typing import Any

from sphinx.application import Sphinx

FIELD = re.compile(r"^    (?P<name>[a-z]\w*): .*?  # (?P<comment>.+)$", re.MULTILINE)
RANGED = re.compile(r"(?:\w+\.)*Annotated\[(\w+), [^\]]*\)\]")


def shaped(app: Sphinx, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    """Put the comments of fields below the prose, and a small heading above the example."""
    example = lines.index("Example:") if "Example:" in lines else len(lines)
    fields = comments(thing) if dataclasses.is_dataclass(thing) and what == "class" else []
    session = lines[example + 1 :]
    if session:
        session = [
            ".. rubric:: Example",
            "",
            *inspect.cleandoc("\n".join(["", *session])).splitlines(),
        ]
    lines[example:] = ["", *fields, "", *session, ""]


def comments(cls: type[Any]) -> list[str]:
    """One item per field that has a comment in its line."""
    found = FIELD.finditer(inspect.getsource(cls))
    return [f"- ``{field['name']}``: {escaped(field['comment'])}" for field in found]


def escaped(text: str) -> str:
    """A comment as reStructuredText: stars, bars and final underscores mean nothing in it."""
    return re.sub(r"([*|\\]|_(?!\w))", r"\\\1", text)


def without_ranges(
    app: Sphinx,
    what: str,
    name: str,
    thing: Any,
    options: Any,
    signature: str | None,
    returned: str | None,
) -> tuple[str | None, str | None]:
    """A signature with the types of fields and not the ranges that stand beside them."""
    return signature and RANGED.sub(r"\1", signature), returned


def setup(app: Sphinx) -> dict[str, Any]:
    """Look at every docstring and signature before it is parsed."""
    app.connect("autodoc-process-docstring", shaped)
    app.connect("autodoc-process-signature", without_ranges)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
