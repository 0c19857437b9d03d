"""What is imported is declared, and what is declared is imported."""

import ast
import sys
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
DISTRIBUTIONS = {"cv2": "opencv-python-headless", "PIL": "pillow", "sklearn": "scikit-learn"}
OURS = {path.stem for path in (ROOT / "tests").rglob("*.py")} | {"opentta"}
TOOLS = {"ruff", "mypy", "import-linter", "hatchling"}  # commands, and pytest's own additions
PLUGINS = {"pytest-timeout", "pytest-xdist", "pytest-cov"}


def imported(folder):
    """Distributions that the Python files below a folder import, wherever in a file."""
    modules = set()
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                modules |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                modules.add(node.module)
    tops = {name.partition(".")[0] for name in modules} - sys.stdlib_module_names - OURS
    return {canonicalize_name(DISTRIBUTIONS.get(name, name)) for name in tops}


def declared(lines):
    return {canonicalize_name(Requirement(line).name) for line in lines}


EXTRAS = {name: declared(lines) for name, lines in PROJECT["optional-dependencies"].items()}
USED_BY_EXTRAS = {"ray": "ray", "hf": "transformers"}


def test_the_library_imports_what_it_declares_and_nothing_else():
    optional = set(USED_BY_EXTRAS.values())
    assert imported(ROOT / "src") - optional == declared(PROJECT["dependencies"])
    assert optional <= imported(ROOT / "src")
    for extra, name in USED_BY_EXTRAS.items():
        assert EXTRAS[extra] == {name}


def test_the_tests_import_what_is_declared():
    available = declared(PROJECT["dependencies"]).union(*EXTRAS.values())
    assert imported(ROOT / "tests") <= available
    assert EXTRAS["dev"] - TOOLS - PLUGINS <= imported(ROOT / "tests")
