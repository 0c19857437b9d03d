"""The version stands in one place, and the oldest versions come from pyproject.toml."""

import re
import runpy
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

import opentta

ROOT = Path(__file__).parents[1]
TOOL = ROOT / "tools" / "minimum_versions.py"
DEPENDENCIES = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]


def test_the_citation_has_the_version_of_the_package():
    (line,) = re.findall(r"^version: (.*)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)
    assert line == opentta.__version__
    assert Version(line).public == line


def test_the_newest_release_of_the_changelog_is_this_version():
    headings = re.findall(r"^## (\d\S*)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings[:1] in ([], [opentta.__version__])


def test_the_oldest_versions_are_the_lowest_that_pyproject_allows():
    command = [sys.executable, str(TOOL)]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    pins = [Requirement(line) for line in lines]
    assert [pin.name for pin in pins] == [Requirement(line).name for line in DEPENDENCIES]
    for pin, line in zip(pins, DEPENDENCIES, strict=True):
        (only,) = pin.specifier
        assert only.operator == "==" and only.version in Requirement(line).specifier
        assert f">={only.version}" == str(Requirement(line).specifier)


def test_some_of_the_oldest_versions_and_only_those_that_exist():
    command = [sys.executable, str(TOOL), "torch", "timm"]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert [line.partition("==")[0] for line in lines] == ["torch", "timm"]
    wrong = subprocess.run([*command[:2], "trch"], capture_output=True, text=True)
    assert wrong.returncode == 1
    assert "expected dependencies of pyproject.toml, got trch" in wrong.stderr


def test_a_dependency_without_a_lowest_version_is_refused():
    minimum_versions = runpy.run_path(str(TOOL))["minimum_versions"]
    with pytest.raises(ValueError, match="expected NAME>=VERSION, got 'torch'"):
        minimum_versions(["timm>=1.0", "torch"])
