"""The house in numbers: files, lines, import depth and cycles by box; what a batch and a run touch.

    python benchmarks/house.py              # counts by box
    python benchmarks/house.py --run        # also functions and files of one batch and of one run

Import depth is the number of modules in the longest chain of imports inside a box, counted on
grimp's graph with cycles taken as one; imports inside functions count. A run is ``opentta bench
mini`` with source and tent on one corruption and 64 images; a batch is what happens between two
calls of TENT's adapter. Functions are distinct code objects of the package.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "opentta"


def boxes() -> list[str]:
    """Sub-packages of the package."""
    return sorted(p.parent.name for p in PACKAGE.glob("*/__init__.py"))


def chains(box: str) -> tuple[int, int]:
    """(import depth, modules in cycles) of a box."""
    import grimp

    graph = _graph(grimp)
    prefix = f"opentta.{box}"
    inside = {m for m in graph.modules if m == prefix or m.startswith(prefix + ".")}
    edges = {
        m: {d for d in graph.find_modules_directly_imported_by(m) if d in inside} for m in inside
    }
    reach: dict[str, set[str]] = {}
    for start in inside:
        seen, todo = set(), [start]
        while todo:
            for following in edges[todo.pop()]:
                if following not in seen:
                    seen.add(following)
                    todo.append(following)
        reach[start] = seen
    component = {m: frozenset({m} | {d for d in reach[m] if m in reach[d]}) for m in inside}

    @cache
    def depth(part: frozenset[str]) -> int:
        below = {component[d] for m in part for d in edges[m]} - {part}
        return len(part) + max((depth(each) for each in below), default=0)

    cyclic = sum(len(part) for part in set(component.values()) if len(part) > 1)
    return max(depth(part) for part in component.values()), cyclic


@cache
def _graph(grimp: Any) -> Any:
    return grimp.build_graph("opentta")


def files_and_lines(folder: Path) -> tuple[int, int]:
    """Python files below a folder, and their lines."""
    files = sorted(folder.rglob("*.py"))
    return len(files), sum(len(f.read_text().splitlines()) for f in files)


class Touched:
    """Functions of the package that were called, in order of their first call."""

    def __init__(self) -> None:
        self.run: dict[Any, None] = {}
        self.batch: dict[Any, None] = {}
        self.before_first: int | None = None
        self.calls = 0  # of TENT's adapter

    def __call__(self, frame: Any, event: str, argument: Any) -> None:
        """Called by the interpreter for every call."""
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(str(PACKAGE)):
            return
        if code.co_name.startswith("<"):  # modules, lambdas and comprehensions
            return
        if code.co_qualname == "Adapter.__call__":
            if self.before_first is None:
                self.before_first = len(self.run)
            if getattr(frame.f_locals.get("self"), "name", "") == "tent":
                self.calls += 1
        self.run[code] = None
        if self.calls == 2:
            self.batch[code] = None


def touched() -> Iterator[str]:
    """A small benchmark, watched."""
    from opentta.cli import main

    watch = Touched()
    with tempfile.TemporaryDirectory() as folder:
        words = ["bench", "mini", "--methods", "source", "tent", "--corruptions", "fog"]
        words += ["--limit", "128", "--results", folder, "--processes", "1"]
        sys.argv = ["opentta", *words]
        sys.setprofile(watch)
        try:
            main()
        except SystemExit:
            pass
        finally:
            sys.setprofile(None)
    for what, codes in (("one batch", watch.batch), ("one run", watch.run)):
        files = {code.co_filename for code in codes}
        yield f"{what}: {len(codes)} functions in {len(files)} files"
    yield f"before the first batch: {watch.before_first} functions"


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", action="store_true", help="also watch a run")
    args = parser.parse_args()
    print(f"{'box':<12}{'files':>6}{'lines':>8}{'depth':>7}{'in cycles':>11}")
    for box in boxes():
        files, lines = files_and_lines(PACKAGE / box)
        depth, cyclic = chains(box)
        print(f"{box:<12}{files:>6}{lines:>8}{depth:>7}{cyclic:>11}")
    for folder in ("src", "experiments", "tools"):
        files, lines = files_and_lines(ROOT / folder)
        print(f"{folder:<12}{files:>6}{lines:>8}")
    if args.run:
        for line in touched():
            print(line)


if __name__ == "__main__":
    main()
