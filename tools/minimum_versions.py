"""The oldest versions that pyproject.toml claims, as constraints for pip.

    python tools/minimum_versions.py > oldest.txt                  # every dependency
    python tools/minimum_versions.py torch torchvision > oldest.txt
    pip install -c oldest.txt -e '.[dev]'

Needs Python alone, since it runs before anything is installed.
"""

import re
import sys
import tomllib
from pathlib import Path

PYPROJECT = Path(__file__).parents[1] / "pyproject.toml"
LINE = re.compile(r"(?P<name>[\w.-]+)>=(?P<version>[\d.]+)")


def minimum_versions(dependencies: list[str]) -> dict[str, str]:
    """Name to oldest version, of lines such as ``torch>=2.6``.

    Example:
        >>> minimum_versions(["torch>=2.6", "rich>=13.7"])
        {'torch': '2.6', 'rich': '13.7'}
    """
    found = {}
    for line in dependencies:
        match = LINE.fullmatch(line)
        if match is None:
            raise ValueError(f"expected NAME>=VERSION, got {line!r}")
        found[match["name"]] = match["version"]
    return found


def main() -> None:
    """Print one constraint per line; of the named packages alone where some are named."""
    versions = minimum_versions(tomllib.loads(PYPROJECT.read_text())["project"]["dependencies"])
    names = sys.argv[1:] or list(versions)
    if unknown := [name for name in names if name not in versions]:
        sys.exit(f"expected dependencies of pyproject.toml, got {', '.join(unknown)}")
    for name in names:
        print(f"{name}=={versions[name]}")


if __name__ == "__main__":
    main()
