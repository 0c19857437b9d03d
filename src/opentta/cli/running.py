"""Where and how the cells of a command are run: what ``bench`` and ``tune`` share."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from opentta.cli.console import make_console, option
from opentta.errors import ConfigError

if TYPE_CHECKING:
    from opentta.bench.plan.cells import Cell
    from opentta.bench.run.engine import Engine, Where
    from opentta.bench.run.runner import Tally
    from opentta.bench.store.results import Store

RESULTS = Path("opentta-results")
"""Where results go when no folder is named."""
SOME_FAILED = 1  # exit status


@dataclass(frozen=True)
class Running:
    """How the cells of a command are run; shared by ``bench`` and ``tune``."""

    data_root: Annotated[Path | None, option("ROOT")] = None
    """Folder of the data sets, see `opentta data check`; the embedded benchmark needs none."""

    results: Annotated[Path, option("FOLDER")] = RESULTS
    """Folder of the store. What it holds already is not computed again."""

    weights: Annotated[Path | None, option("FILE")] = None
    """A safetensors file with timm's names, instead of the download of the backbone's tag."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to compute. auto: the GPU if there is one."""

    precision: Annotated[
        Literal["full", "tf32", "bfloat16"] | None, option("{full,tf32,bfloat16}")
    ] = None
    """Arithmetic. tf32: matrices on a GPU with 10 bits, 3 times as fast; bfloat16: forwards with 8,
    also on CPUs that have it (opentta doctor). Left out: the preset's, else full."""

    threads: Annotated[int | None, option("N")] = None
    """Threads per cell; another number is another cell, as sums round differently. Left out: 1."""

    processes: Annotated[int | None, option("N")] = None
    """Cells at once, on this machine. Left out: one per GPU, or as many as threads allow."""

    engine: Literal["local", "ray"] = "local"
    """Who runs the cells: this machine, or a Ray cluster (pip install 'opentta[ray]')."""

    address: Annotated[str | None, option("HOST:PORT")] = None
    """Address of the Ray cluster, host:port or auto. Left out: one is started here."""

    cache: Annotated[Path | None, option("FOLDER")] = None
    """Folder for prepared pixels; the next run reads them instead of images. Left out: none."""

    workers: Annotated[int, option("N")] = 0
    """Processes per cell that decode images."""

    graph: bool = True
    """On a GPU, record the library's methods as CUDA graphs: the same numbers, sooner."""

    compile: bool = False
    """Compile blocks first (torch.compile): seconds to a minute per kind of cell, then sooner."""

    def where(self) -> Where:
        """What the runner needs to find the data."""
        from opentta.bench.run.engine import Where

        root = "" if self.data_root is None else str(self.data_root)
        cache = None if self.cache is None else str(self.cache)
        return Where(root, cache, self.workers, self.graph, self.compile)

    def device_type(self) -> str:
        """``cpu`` or ``cuda``."""
        return device_type(self.device)

    def make_engine(self, cells: Sequence[Cell]) -> Engine:
        """The engine that the arguments ask for."""
        if self.engine == "ray":
            from opentta.bench.run.ray_engine import RayEngine

            return RayEngine(address=self.address)
        if self.address is not None:
            raise ConfigError("--address names a Ray cluster; add --engine ray")
        from opentta.bench.run.local import LocalEngine

        return LocalEngine(processes=self.count_processes(cells))

    def count_processes(self, cells: Sequence[Cell]) -> int:
        """Processes to run ``cells`` with: never more than there are cells."""
        if self.processes is not None:
            if self.processes < 1:
                raise ConfigError(f"expected at least one process, got {self.processes}")
            return min(self.processes, max(len(cells), 1))
        if any(cell.device == "cuda" for cell in cells):
            import torch

            return max(min(torch.cuda.device_count(), len(cells)), 1)
        from opentta.bench.doctor.installation import processors

        threads = max((cell.threads for cell in cells), default=1)
        return max(min(int(processors() // threads), len(cells)), 1)

    def run_all(self, cells: Sequence[Cell], store: Store, engine: Engine | None = None) -> Tally:
        """Run what is not stored yet, with a bar or with lines; ``cells`` may be empty."""
        from opentta.bench.run.progress import Display
        from opentta.bench.run.runner import run_cells

        engine = engine or self.make_engine(cells)
        with Display(cells, console=make_console(stderr=True)) as display:
            return run_cells(cells, store, engine, self.where(), display)


def device_type(asked: Literal["auto", "cpu", "cuda"]) -> str:
    """``cpu`` or ``cuda``; a GPU that is asked for and not there is an error."""
    if asked == "cpu":
        return "cpu"
    import torch

    if torch.cuda.is_available():
        return "cuda"
    if asked == "cuda":
        raise ConfigError(
            "expected a GPU, but torch sees none; leave --device out to use the processor, "
            "and see `opentta doctor`"
        )
    return "cpu"


def command_line() -> str:
    """What was typed, ready to be typed again."""
    return shlex.join(["opentta", *sys.argv[1:]])
