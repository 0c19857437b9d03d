"""Formulas as MathML: made when the site is built, drawn by the browser, with no script.

Without a font that knows how brackets and sums grow a browser draws them badly, so STIX Two Math
comes along, as the package ziamath ships it (SIL Open Font License).
"""

import shutil
from importlib.metadata import files
from pathlib import Path
from typing import Any

from docutils import nodes
from math_core import LatexToMathML
from sphinx.application import Sphinx
from sphinx.util.logging import getLogger

FONT = "STIXTwoMath-Regular.ttf"
_converter = LatexToMathML()
_log = getLogger(__name__)


def mathml(node: nodes.Element, *, block: bool) -> str:
    """The formula of a node; a broken one is a warning that names its place."""
    latex = node.astext()
    try:
        return _converter.convert_with_local_state(latex, displaystyle=block)
    except Exception as error:
        _log.warning("the formula %r: %s", latex, error, location=node)
        return f"<code>{latex}</code>"


def inline(writer: Any, node: nodes.Element) -> None:
    """A formula in a line of text."""
    writer.body.append(mathml(node, block=False))
    raise nodes.SkipNode


def block(writer: Any, node: nodes.Element) -> None:
    """A formula in a line of its own; it scrolls where the screen is too narrow."""
    formula = mathml(node, block=True)
    writer.body.append(f'<div class="formula" tabindex="0">{formula}</div>\n')
    raise nodes.SkipNode


def copy_font(app: Sphinx, failed: Exception | None) -> None:
    """Put the font beside the style sheet that names it."""
    if failed is None and app.builder.format == "html":
        (font,) = (file.locate() for file in files("ziamath") or [] if file.name == FONT)
        shutil.copyfile(font, Path(app.outdir) / "_static" / FONT)


def setup(app: Sphinx) -> dict[str, Any]:
    """Make it the way in which formulas come into HTML."""
    app.add_html_math_renderer("mathml", (inline, None), (block, None))
    app.connect("build-finished", copy_font)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
