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
OURS = {"opentta"} | {
    p.stem for d in ("tests", "tools", "experiments") for p in (ROOT / d).rglob("*")
}
COMMANDS = {"ruff", "mypy", "import-linter", "hatchling", "pytest-timeout", "pytest-xdist"}


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


def test_the_library_imports_what_it_declares_and_nothing_else():
    extras = EXTRAS["ray"] | EXTRAS["serve"]
    assert imported(ROOT / "src") - extras == declared(PROJECT["dependencies"])


def test_an_extra_names_what_the_code_looks_for():
    assert EXTRAS["ray"] == {"ray"} <= imported(ROOT / "src")
    assert EXTRAS["serve"] - {"python-multipart"} <= imported(ROOT / "src")  # starlette's need
    assert EXTRAS["hf"] == {"transformers"}  # models are recognised, nothing is imported
    assert 'modules.get("transformers")' in (ROOT / "src/opentta/models/wrap.py").read_text()


def test_the_tests_import_what_is_declared():
    available = declared(PROJECT["dependencies"]).union(*EXTRAS.values())
    assert imported(ROOT / "tests") <= available
    assert EXTRAS["dev"] - COMMANDS <= imported(ROOT / "tests")
