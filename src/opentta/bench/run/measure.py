"""What a cell costs and where it ran: seconds, memory, versions, commit, host, device."""

from __future__ import annotations

import gc
import os
import platform
import statistics
import subprocess
import sys
import time
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from opentta.adapter.recording import Replay
from opentta.models.backbone import Backbone
from opentta.version import __version__

LIBRARIES = ("torch", "timm", "torchvision", "numpy")
_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


class Stopwatch:
    """Seconds of many calls one after the other, without ever waiting for a GPU.

    Example:
        >>> watch = Stopwatch(torch.device("cpu"))
        >>> watch.start(); watch.stop()
        >>> len(watch.seconds())
        1
    """

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._marks: list[tuple[Any, Any]] = []
        self._begin: Any = None

    def start(self) -> None:
        """A call begins."""
        self._begin = self._mark()

    def stop(self) -> None:
        """The call has returned; on a GPU its work may still go on, and is counted."""
        self._marks.append((self._begin, self._mark()))

    def seconds(self) -> list[float]:
        """Seconds of each call. Waits for the GPU."""
        if not self._cuda:
            return [end - begin for begin, end in self._marks]
        torch.cuda.synchronize()
        return [float(begin.elapsed_time(end)) / 1000 for begin, end in self._marks]

    def _mark(self) -> Any:
        if not self._cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event


def forward_seconds(
    backbone: Backbone, images: Tensor, *, low: bool = False, graph: bool = False
) -> float:
    """Median seconds of a plain forward of ``images`` (B, 3, H, W), the unit of ``Record.cost``.

    ``low``: in bfloat16, ``graph``: recorded and played back, as the method runs. The first
    forwards warm up and do not count.
    """
    watch, replay = Stopwatch(images.device), Replay()
    warm, counted = (5, 10) if images.device.type == "cuda" else (1, 3)
    half = torch.autocast(images.device.type, torch.bfloat16, enabled=low, cache_enabled=False)
    with torch.no_grad(), half:
        for _ in range(warm + counted):
            watch.start()
            if graph:
                replay("forward", lambda x: [backbone(x)], images)
            else:
                backbone(images)
            watch.stop()
    return statistics.median(watch.seconds()[warm:])


class PeakMemory:
    """The most memory that was in use since this was made, in bytes.

    GPU: what torch had allocated. CPU: the resident memory of the whole process, Python and the
    libraries included, because nothing finer is counted; where the system cannot count afresh
    (other than Linux) it is the highest since the process began.

    Example:
        >>> PeakMemory(torch.device("cpu")).read() > 2**20
        True
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        elif _CLEAR.exists():
            try:
                _CLEAR.write_text("5")  # tells the kernel to forget the peak
            except OSError:  # not allowed in some containers: then since the process began
                return

    def read(self) -> int:
        """Bytes."""
        if self.device.type == "cuda":
            return int(torch.cuda.max_memory_allocated(self.device))
        if _STATUS.exists():  # getrusage would count the process that started this one, too
            lines = _STATUS.read_text().splitlines()
            peak = [line.split()[1] for line in lines if line.startswith("VmHWM")]
            if peak:
                return int(peak[0]) * 1024
        import resource  # not on every system

        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def release_memory(device: str, *, full: bool) -> None:
    """Give back what the last cell held, so that the next has room; ``full``: it ran out of it.

    Otherwise nothing is left, as no method keeps a cycle of references; to search for some takes
    longer than many a cell that fails.
    """
    if full or device == "cuda":
        gc.collect()
    if device == "cuda" and torch.cuda.is_available():
        torch.cuda.empty_cache()


def provenance(device: str) -> dict[str, Any]:
    """Fields of a ``Record`` that say with what and where a cell ran."""
    return {
        "versions": dict(versions()),
        "commit": commit(),
        "host": platform.node(),
        "device": device_name(device),
    }


@cache
def versions() -> dict[str, str]:
    """Versions of what decides numbers.

    Example:
        >>> list(versions())
        ['opentta', 'torch', 'timm', 'torchvision', 'numpy', 'python']
    """
    libraries = {name: version(name) for name in LIBRARIES}
    return {"opentta": __version__, **libraries, "python": platform.python_version()}


@cache
def commit() -> str:
    """The commit of the source tree that is running; empty for an installed package.

    ``-dirty`` at the end: there are changes that are not committed. The variable
    ``OPENTTA_COMMIT`` says it where the tree was copied to another machine without its history.
    """
    if told := os.environ.get("OPENTTA_COMMIT"):
        return told
    package = Path(__file__).parents[2]

    def git(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = ["git", "-C", str(package), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=20)

    try:
        # a package installed below somebody's repository is not part of it
        if git("ls-files", "--error-unmatch", "__init__.py").returncode:
            return ""
        head = git("rev-parse", "HEAD")
        clean = git("diff", "--quiet", "HEAD", "--", ".").returncode == 0
    except (OSError, subprocess.TimeoutExpired):  # no git here
        return ""
    if head.returncode:
        return ""
    return head.stdout.strip() + ("" if clean else "-dirty")


@cache
def device_name(device: str) -> str:
    """``cpu (its model)`` or ``cuda (its model)``."""
    if device == "cuda":
        return f"cuda ({torch.cuda.get_device_name()})" if torch.cuda.is_available() else "cuda"
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    models = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return f"cpu ({models[0] if models else platform.machine()})"
