"""The installation as ``opentta doctor`` sees it: packages, processors, GPUs, plugins, folders.

Nothing is changed.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

from packaging import requirements as standard
from packaging.version import Version

from opentta.bench.store.results import FREE, Store
from opentta.errors import OpenttaError
from opentta.registry import BUILT_IN, ENTRY_POINT_GROUP

State = Literal["ok", "note", "problem"]

_ONE_OF = {  # distributions that bring the same module
    "opencv-python-headless": (
        "opencv-python-headless",
        "opencv-python",
        "opencv-contrib-python-headless",
        "opencv-contrib-python",
    )
}
_USE = {"ray": "only for --engine ray", "transformers": "only for models of Hugging Face"}
_MAIN = ("torch", "torchvision", "timm", "numpy", "opencv-python-headless", "ray", "transformers")
_TOOLS = "dev"  # the extra of people who change the library
_SHOWN = "·±×→α█"  # what progress lines and tables print beside ASCII


@dataclass(frozen=True)
class Check:
    """One thing that was looked at."""

    topic: str
    state: State
    found: str
    advice: str = ""  # what to do; nothing where all is well


@dataclass(frozen=True)
class Requirement:
    """A package that the library needs, or that one of its extras does."""

    name: str
    minimum: str
    extra: str = ""


def check_software() -> list[Check]:
    """Python, the packages with their minimums, and whether torch and torchvision fit."""
    required = requirements() or [Requirement(name, "0") for name in _MAIN if installed(name)]
    checks = [_python(), *_packages(required)]
    checks += [_optional(each) for each in required if each.extra not in ("", _TOOLS)]
    return [*checks, _torch_fits_torchvision()]


def requirements() -> list[Requirement]:
    """What the installed library asks for, as its own metadata says; empty where it has none."""
    try:
        lines = metadata.requires("opentta") or []
    except metadata.PackageNotFoundError:
        return []
    out = []
    for each in map(standard.Requirement, lines):
        extra = re.search(r"extra == ['\"]([\w-]+)", str(each.marker or ""))
        minimums = [limit.version for limit in each.specifier if limit.operator == ">="]
        minimum = minimums[0] if minimums else "0"
        out.append(Requirement(each.name, minimum, extra[1] if extra else ""))
    return out


def installed(name: str) -> str | None:
    """Version of a distribution, or None where it is not installed."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def older(version: str, minimum: str) -> bool:
    """Whether a version is below a minimum; what follows the numbers is ignored.

    Example:
        >>> older("2.10.0+cu128", "2.6"), older("1.0.9", "1.0.15"), older("2.6", "2.6.0")
        (False, True, False)
    """
    return Version(Version(version).base_version) < Version(minimum)


def _python() -> Check:
    have = ".".join(str(part) for part in sys.version_info[:3])
    try:
        asked = metadata.metadata("opentta")["Requires-Python"]
    except metadata.PackageNotFoundError:
        return Check(
            "opentta",
            "note",
            f"Python {have}; opentta is not installed as a package, so minimums are not known",
            "pip install opentta (or pip install -e . in its folder)",
        )
    minimum = asked.removeprefix(">=")
    if older(have, minimum):
        return Check("Python", "problem", f"{have}; {minimum} is the oldest that works", "upgrade")
    return Check("Python", "ok", f"{have}; opentta {installed('opentta')}")


def _packages(required: Iterable[Requirement]) -> list[Check]:
    """One line for all that is well, and one for each that is not."""
    well, checks = [], []
    for each in required:
        if each.extra:
            continue
        have = {name: installed(name) for name in _ONE_OF.get(each.name, (each.name,))}
        there = {name: version for name, version in have.items() if version}
        fix = f'pip install "{each.name}>={each.minimum}"'
        if not there:
            checks.append(Check(each.name, "problem", "not installed", fix))
            continue
        name, version = next(iter(there.items()))
        if older(version, each.minimum):
            found = f"{version}; {each.minimum} is the oldest that works"
            checks.append(Check(each.name, "problem", found, fix))
        else:
            well.append(f"{name} {version}")
        if len(there) > 1:
            found = f"{' and '.join(there)} write the same files, so either may be broken"
            checks.append(Check("opencv", "note", found, "uninstall them all, install one again"))
    return [Check("packages", "ok", ", ".join(well)), *checks] if well else checks


def _optional(each: Requirement) -> Check:
    version = installed(each.name)
    use = _USE.get(each.name, f"only for the extra {each.extra}")
    fix = f"pip install 'opentta[{each.extra}]'"
    if version is None:
        return Check(each.name, "ok", f"not installed; needed {use}: {fix}")
    if older(version, each.minimum):
        found = f"{version}; {each.minimum} is the oldest that works; needed {use}"
        return Check(each.name, "note", found, fix)
    return Check(each.name, "ok", version)


def _torch_fits_torchvision() -> Check:
    """The usual mishap: one was upgraded without the other, or has another build (CPU, CUDA)."""
    topic = "torch, torchvision"
    versions = f"torch {installed('torch')} and torchvision {installed('torchvision')}"
    fix = "install both in one command: pip install -U torch torchvision"
    try:
        import torch
        import torchvision

        torchvision.ops.nms(torch.zeros(1, 4), torch.zeros(1), 0.5)  # in its compiled part
    except (ImportError, OSError, RuntimeError, AttributeError) as error:
        return Check(topic, "problem", f"{versions} do not work together: {_line(error)}", fix)
    return Check(topic, "ok", "work together (a compiled operator ran)")


def check_machine() -> list[Check]:
    """Processors, threads and GPUs."""
    try:
        import torch
    except (ImportError, OSError) as error:
        return [Check("torch", "problem", f"cannot be imported: {_line(error)}", "reinstall it")]
    from opentta.adapter.place import multiplies_bfloat16

    return [_processors(torch.get_num_threads(), bf16=multiplies_bfloat16()), *_gpus(torch)]


def _processors(threads: int, *, bf16: bool) -> Check:
    usable = processors()
    omp = os.environ.get("OMP_NUM_THREADS")
    found = (
        f"{usable:g} usable of {os.cpu_count()}; torch uses {threads} thread{'s' * (threads != 1)}"
        + (f" (OMP_NUM_THREADS={omp})" if omp else "")
        + f", bfloat16 {'yes' if bf16 else 'no'}"
    )
    if threads > usable:
        advice = f"export OMP_NUM_THREADS={max(int(usable), 1)}: threads that wait slow each other"
        return Check("processors", "note", found, advice)
    return Check("processors", "ok", found)


def processors(quota: Path = Path("/sys/fs/cgroup/cpu.max")) -> float:
    """Processors that this process may use: its affinity, and a container's share of time.

    Example:
        >>> processors() > 0
        True
    """
    usable = float(
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    try:
        share, period = quota.read_text().split()[:2]
        return min(usable, float(share) / float(period))
    except (OSError, ValueError):  # no such limit: no file, or "max" in it
        return usable


def _gpus(torch: Any, driver: Path = Path("/proc/driver/nvidia/version")) -> list[Check]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        available = torch.cuda.is_available()
    if not available:
        built = f"torch {torch.__version__} is built for CUDA {torch.version.cuda}"
        if torch.version.cuda is None:
            built = f"torch {torch.__version__} is a build without CUDA"
        if not driver.exists():
            return [Check("GPU", "note", "none; cells run on the processor", "")]
        why = "; ".join(_line(each.message) for each in caught)
        found = f"the NVIDIA driver is loaded, but torch sees no GPU: {built}. {why}".strip()
        advice = "check CUDA_VISIBLE_DEVICES, or install a torch built for the driver's CUDA"
        return [Check("GPU", "problem", found, advice)]
    version = re.search(r"\b\d{3,}\.\d+(\.\d+)?", driver.read_text()) if driver.exists() else None
    checks = []
    for index in range(torch.cuda.device_count()):
        card = torch.cuda.get_device_properties(index)
        with torch.cuda.device(index):
            bf16 = torch.cuda.is_bf16_supported(including_emulation=False)
        found = (
            f"{card.name}, {card.total_memory / 2**30:.0f} GiB, CUDA {torch.version.cuda}, "
            f"driver {version[0] if version else 'not known'}, bfloat16 {'yes' if bf16 else 'no'}"
        )
        advice = "" if bf16 else "leave --precision at full: bfloat16 would be emulated, and slow"
        checks.append(Check(f"GPU {index}", "ok" if bf16 else "note", found, advice))
    return checks


def check_plugins() -> list[Check]:
    """Methods of other packages: whether each can be loaded."""
    from opentta import registry

    entries = metadata.entry_points(group=ENTRY_POINT_GROUP)
    if not entries:
        return [Check("methods", "ok", f"{len(BUILT_IN)} built in, none of other packages")]
    checks = []
    for entry in entries:
        topic = f"method {entry.name}"
        if entry.name in BUILT_IN:
            found = f"{entry.value} has the name of a built-in method, which hides it"
            checks.append(Check(topic, "problem", found, "give it another name"))
            continue
        try:
            registry.method(entry.name)
        except Exception as error:  # another's code may raise anything, and must not end this
            found = f"{entry.value} cannot be loaded: {_line(error.__cause__ or error)}"
            advice = "upgrade or uninstall that package"
            checks.append(Check(topic, "problem", found, advice))
        else:
            checks.append(Check(topic, "ok", f"from {entry.value}"))
    return checks


def check_output(results: Path) -> list[Check]:
    """The folder of results, and the terminal."""
    return [_results(results), _terminal()]


def _results(folder: Path) -> Check:
    """Tries a file in the folder, or where the folder would be made; leaves nothing behind."""
    there = folder.absolute()
    while not there.exists():
        there = there.parent
    try:
        with tempfile.TemporaryFile(dir=there) as file:
            file.write(b"\0" * 65536)
        store = Store(folder)
        cells = len(store.hashes()) if store.filled else 0
    except (OSError, OpenttaError) as error:
        return Check(
            "results", "problem", f"{folder}: {_line(error)}", "choose another folder: --results"
        )
    left = shutil.disk_usage(there).free
    found = f"{folder} can be written, {left / 2**30:.1f} GiB free"
    found += f"; it holds {cells:,} cells" if cells else "; it holds no cell yet"
    if left < FREE:
        return Check("results", "problem", found, "free some space, or choose another folder")
    return Check("results", "ok", found)


def _terminal() -> Check:
    encoding = getattr(sys.stdout, "encoding", None) or "ascii"
    kind = "a terminal" if sys.stdout.isatty() else "not a terminal: progress comes as plain lines"
    if shown(_SHOWN, encoding) != _SHOWN:
        found = f"{encoding}: tables and progress need characters that it does not have"
        return Check("output", "problem", found, "export PYTHONUTF8=1, and use a UTF-8 locale")
    return Check(
        "output", "ok", f"{encoding}, {kind}, {shutil.get_terminal_size().columns} columns"
    )


def shown(text: str, encoding: str) -> str:
    """The text as far as an encoding has its characters.

    Example:
        >>> shown("5 ± 1", "ascii")
        '5 ? 1'
    """
    return text.encode(encoding, "replace").decode(encoding)


def _line(error: object) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
