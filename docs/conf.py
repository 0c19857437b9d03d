"""The site: the repository's own Markdown where it stands, and the API from the docstrings.

``make docs`` builds it into build/site. Nothing on it is fetched from elsewhere: Furo's files and
the search index lie beside the pages, and formulas are MathML, which browsers draw themselves.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "_site"))

from opentta import __version__

project = "opentta"
author = "the authors of opentta"
copyright = "the authors of opentta; Apache-2.0"
version = release = __version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "docstrings",
    "folder_links",
    "mathml",
]

# Sphinx runs in the repository's root, so that links between README, docs and code are the same
# in the repository and on the site.
root_doc = "docs/index"
include_patterns = ["*.md", "docs/**.md"]
exclude_patterns = [
    ".*",
    "build",
    "src",
    "tests",
    "tools",
    "experiments",
    "benchmarks",
    "examples",
    "*results/",  # stores of runs
    "docs/results/*/**",
]

myst_enable_extensions = ["dollarmath", "colon_fence"]
myst_fence_as_directive = ["math"]  # as repository browsers know it
myst_heading_anchors = 4

autodoc_typehints = "signature"
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True}
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
autodoc_type_aliases = {name: name for name in ("ArrayLike", "NDArray", "Pixels")}
maximum_signature_line_length = 90
nitpicky = True
nitpick_ignore_regex = [
    # no inventory of other projects is fetched
    ("py:.*", r"(torch|numpy|timm|PIL|collections|dataclasses|pathlib|os|typing)\..*"),
    # annotations that Sphinx takes apart or does not resolve
    ("py:.*", r"Tensor|Path|ArrayLike|NDArray|Pixels|(Mapping|dict|tuple)\[.*"),
    # names that signatures mention and no page describes
    ("py:.*", r"opentta\.(bench|datasets\.(catalog|sets)|models|registry|report)\..*"),
    ("py:.*", r"opentta\.(datasets\.spec\.OwnSet|serve\.network\..*)"),
]

html_theme = "furo"
html_title = "opentta"
html_copy_source = False
html_additional_pages = {"index": "to_docs.html"}
templates_path = ["_site"]
html_static_path = ["_site/opentta.css"]
html_css_files = ["opentta.css"]
