"""Time of a report of 1,620 cells, each part in a process of its own, imports included.

    python benchmarks/report.py [--store DIR]

Without --store a store is made first: 9 methods, 4 OOD sets, 15 corruptions, 3 seeds, with samples
and thumbnails for one corruption of one seed. Bars: tables 3 s, everything 20 s, page 10 MB.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

BARS = {"tables": 3.0, "": 20.0}
PAGE = 10e6
RUN = """
import sys
from pathlib import Path
from opentta.cli.report import Report
Report(Path(sys.argv[1]), Path(sys.argv[2]), only=sys.argv[3] or "all").run()
"""


def seconds(store: Path, out: Path, part: str) -> tuple[float, float]:
    """Wall-clock and processor time of one report in a new process."""
    start, before = time.perf_counter(), os.times()
    command = [sys.executable, "-c", RUN, str(store), str(out), part]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    wall, after = time.perf_counter() - start, os.times()
    used = after.children_user - before.children_user
    return wall, used + after.children_system - before.children_system


def main() -> int:
    """Print the quickest of the repeats of each part; the exit status is 1 when a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", type=Path)
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    missed = False
    with tempfile.TemporaryDirectory() as folder:
        store = arguments.store or made(Path(folder) / "store")
        out = Path(folder) / "out"
        for part in ("tables", "figures", "page", ""):
            times = [seconds(store, out, part) for _ in range(arguments.repeats)]
            bar = BARS.get(part)
            verdict = "" if bar is None else f"  (bar {bar:.0f} s)"
            wall, used = min(times)
            print(f"{part or 'everything':10}  {wall:6.2f} s, {used:.2f} s of processor{verdict}")
            missed |= bar is not None and wall > bar
        size = (out / "report.html").stat().st_size
        print(f"page        {size / 1e6:6.2f} MB  (bar {PAGE / 1e6:.0f} MB)")
        missed |= size > PAGE
    return int(missed)


def made(path: Path) -> Path:
    """The store that the tests make, with 1,620 cells."""
    maker = Path(__file__).parents[1] / "tests" / "report"
    code = "import sys; sys.path.insert(0, sys.argv[1]); import stores; "
    code += "stores.big_store(sys.argv[2])"
    subprocess.run([sys.executable, "-c", code, str(maker), str(path)], check=True)
    return path


if __name__ == "__main__":
    sys.exit(main())
