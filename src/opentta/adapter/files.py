"""An adapter in one file: tensors as safetensors, and in its metadata how to build it again.

A file is the old one or the new one, never a part: it is written under another name, waits for the
disk, and is renamed. docs/state-files.md says what is in it.
"""

import dataclasses
import errno
import glob
import hashlib
import json
import os
import secrets
import stat
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from filelock import FileLock, Timeout
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from opentta import registry
from opentta.adapter.adapt import adapt
from opentta.adapter.base import Adapter
from opentta.adapter.calibration import Calibration
from opentta.adapter.place import refuse_gpu_options
from opentta.adapter.snapshot import FORMAT, hashed
from opentta.config import Execution, make_config
from opentta.errors import (
    ConfigError,
    NothingToAdaptError,
    StateError,
    StateFileError,
    UnknownNameError,
)
from opentta.version import __version__

DRAFT, LOCK = "opentta-draft", "opentta-lock"  # how the names of files in the making end
WAIT = 60  # seconds for another save of the same file
LONGEST = 100_000_000  # bytes of a header, by the format
BY_LOAD = (
    "graph",
    "precision",
    "compile",
)  # execution options that belong to a device: ``load`` is told


def save(adapter: Adapter, path: str | os.PathLike[str]) -> None:
    """Write all that ``adapter`` has learned and was told to the file ``path``.

    A file that is there is replaced, all at once: a process that is killed at any moment leaves the
    old file or the new one. Where it cannot be written (no room, no such folder, no permission),
    ``StateFileError`` says why, and the old file stays. So it does where the state has NaN, which
    ``load`` would refuse. Images that wait for ``feedback`` are not saved.

    Example:
        >>> import tempfile, timm, torch, opentta
        >>> vit = timm.create_model("vit_tiny_patch16_224", num_classes=5, depth=2)
        >>> adapter, images = opentta.adapt(vit, "tent"), torch.rand(4, 3, 224, 224)
        >>> _ = adapter(images)
        >>> path = tempfile.mkdtemp() + "/tent.safetensors"
        >>> opentta.save(adapter, path)
        >>> opentta.load(path, vit)(images).logits.equal(adapter(images).logits)
        True
    """
    if not isinstance(adapter, Adapter):
        raise ConfigError(f"expected an adapter to save, got {type(adapter).__name__}")
    try:
        target = Path(path).resolve()  # a link stays one
        if target.is_dir():
            raise IsADirectoryError(errno.EISDIR, "it is a folder; name a file in it")
        if not target.parent.is_dir():
            raise FileNotFoundError(errno.ENOENT, f"there is no folder {target.parent}")
        with _alone(target):
            _replace(target, _packed(adapter))
    except (StateError, OSError) as error:
        kind = StateFileError if isinstance(error, OSError) else StateError
        reason = getattr(error, "strerror", None) or error
        raise kind(f"{path} is not written, and is as it was before: {reason}") from error


def load(
    path: str | os.PathLike[str],
    model: nn.Module,
    *,
    device: torch.device | str | int | None = None,
    graph: bool = False,
    precision: str = "full",
    compile: bool = False,
    preprocess: Callable[[Any], Any] | None = None,
) -> Adapter:
    """The adapter that ``save`` wrote to ``path``, around ``model``, to go on where it was.

    ``model`` is the source model of then; it is not changed. The adapter lies where it lies, or on
    ``device``. ``graph``, ``precision``, ``compile`` and ``preprocess`` as in ``adapt``: they are
    not in the file. On the same kind of device the next answers have the same bits. Random numbers
    are other ones on another kind: there they start from the seed, and a warning says so.

    Another model, another version of the method, a damaged file and one of something else are
    refused by ``StateError``; a file that is not there by ``StateFileError``, which is also an
    ``OSError``. Nothing in a file is ever executed.

    Example:
        >>> import tempfile, timm, opentta
        >>> vit = timm.create_model("vit_tiny_patch16_224", num_classes=5, depth=4)
        >>> path = tempfile.mkdtemp() + "/steady.safetensors"
        >>> opentta.save(opentta.adapt(vit, group=16, names=["a", "b", "c", "d", "e"]), path)
        >>> opentta.load(path, vit)
        steady(group=16) around timm VisionTransformer, 4 blocks of 192, 5 classes, on cpu: ...
    """
    told, state = _read(Path(path))
    method = registry.method(told["method"])
    if told["version"] != method.version:
        raise StateError(
            f"{path} is of version {told['version']} of {told['method']}, and this is version "
            f"{method.version}, which computes something else. Go on with opentta "
            f"{told['opentta']}, which saved it, or start again with opentta.adapt"
        )
    given = {"graph": graph, "precision": precision, "compile": compile}
    execution = make_config(Execution, {**told["execution"], **given}, what="execution")
    with _telling(path):
        adapter = adapt(
            model,
            told["method"],
            normalization=told["normalization"],
            classes=told["classes"],
            names=told["names"],
            preprocess=preprocess,
            seed=told["seed"],
            **{**told["config"], **told["policy"], **told["execution"]},
        )
    if device is not None:
        adapter.to(device)
    here = adapter.backbone.device
    refuse_gpu_options(execution, here)
    with torch.inference_mode(False):
        adapter._run_by(execution)  # only now: a model is moved before it may have these
    moved = here.type != told["device"]
    with _telling(path):
        adapter.load_state_dict(state, reseed=moved)
    if moved:
        warnings.warn(
            f"{path} was saved on {told['device']} and is loaded on {here.type}, where random "
            "numbers are other ones: they start from the seed",
            stacklevel=2,
        )
    return adapter


# What is written ------------------------------------------------------------------------------


def _packed(adapter: Adapter) -> bytes:
    """The whole file, of one version of the adapter."""
    with adapter._lock:
        state = {name: t.cpu() for name, t in adapter.state_dict().items()}
        adapter._snapshot.check(adapter, state)
        words = _described(adapter)
    return bytes(safetensors.torch.save(state, {**words, "hash": _hash(words, state)}))


def _described(adapter: Adapter) -> dict[str, str]:
    """How to build the adapter again, each value as JSON."""
    backbone, calibration = adapter.backbone, adapter.serving.calibration
    index = backbone.class_index
    if isinstance(calibration, Calibration):
        decides: Any = {"rate": calibration.rate, "images": len(calibration.images)}
    else:
        decides = None if calibration is None else "stream"
    execution = dataclasses.asdict(adapter.execution)
    told = {
        **adapter._snapshot.identity(adapter),  # format, method, version, seed, config, ...
        "opentta": __version__,
        "classes": None if index is None else index.tolist(),
        "normalization": [t.flatten().tolist() for t in (backbone.mean, backbone.std)],
        "names": adapter.class_names,
        "calibration": decides,
        "execution": {name: v for name, v in execution.items() if name not in BY_LOAD},
        "device": backbone.device.type,
    }
    return {name: json.dumps(value) for name, value in told.items()}


def _hash(words: Mapping[str, str], state: Mapping[str, Tensor]) -> str:
    """Of all that is in a file: a damaged one must not pass for another adapter."""
    kinds = {name: f"{t.dtype} {tuple(t.shape)}" for name, t in state.items()}
    text = json.dumps([words, kinds, hashed(state)], sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Nobody else saves ``path`` inside; so drafts that lie there were left by killed processes."""
    name = path.with_name(f".{path.name}.{LOCK}")
    lock = FileLock(name, timeout=WAIT, thread_local=False)
    try:
        lock.acquire()
    except Timeout:
        what = f"another save of it has not ended for {WAIT} s"
        raise TimeoutError(errno.ETIMEDOUT, what) from None
    try:
        for draft in path.parent.glob(f".{glob.escape(path.name)}.*.{DRAFT}"):
            with suppress(OSError):
                draft.unlink()
        yield
    finally:
        with suppress(OSError):
            name.unlink()  # while it is locked: who waits for it makes a new one
        lock.release()


def _replace(path: Path, data: bytes) -> None:
    """Put ``data`` in the place of the file ``path``; when that fails, nothing is left behind."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}.{DRAFT}")
    try:
        with draft.open("xb") as file:
            with suppress(FileNotFoundError):  # who may read the old file may read the new one
                draft.chmod(stat.S_IMODE(path.stat().st_mode))
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    with suppress(OSError, AttributeError):  # not every system can; old or new it is anyhow
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


# What is read ---------------------------------------------------------------------------------


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The description in a file and its tensors, or why they are none."""
    try:
        with path.open("rb"):  # what the system says of a file, safetensors does not
            pass
        with safe_open(path, "pt") as file:
            words = dict(file.metadata() or {})
            _check_format(path, words)
            state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except FileNotFoundError:
        raise StateFileError(f"there is no file {path}") from None
    except IsADirectoryError:
        raise StateFileError(f"{path} is a folder; expected a file of opentta.save") from None
    except OSError as error:
        raise StateFileError(f"cannot read {path}: {error.strerror or error}") from error
    except SafetensorError as error:
        raise StateError(f"{path} {_damage(path)} ({error})") from error
    if words.pop("hash", None) != _hash(words, state):
        raise StateError(f"{path} is damaged: its content is not what its hash says")
    return {name: json.loads(text) for name, text in words.items()}, state


def _check_format(path: Path, words: Mapping[str, str]) -> None:
    if "opentta" not in words:
        raise StateError(
            f"{path} is a safetensors file, but no adapter state; expected a file of opentta.save"
        )
    found = words.get("format", "")
    if found.isdecimal() and int(found) > FORMAT:
        raise StateError(
            f"{path} has format {found}, of opentta {words['opentta']}, and this opentta "
            f"{__version__} knows format {FORMAT}: update opentta"
        )


def _damage(path: Path) -> str:
    """What is wrong with a file that safetensors refused."""
    size = path.stat().st_size
    with path.open("rb") as file:
        data = 8 + int.from_bytes(file.read(8), "little")  # where it begins
        header = file.read(min(data - 8, LONGEST))
    if data > LONGEST or (size > 8 and header[:1] != b"{"):
        return "is no safetensors file"
    try:
        entries = {} if size < data else json.loads(header)
        ends = [entry["data_offsets"][1] for n, entry in entries.items() if n != "__metadata__"]
        needed = data + max(ends, default=0)
    except (AttributeError, KeyError, IndexError, TypeError, ValueError):
        return "is damaged in its header"
    if size < needed:
        least = "at least " if size < data else ""
        return f"ends too soon: it has {size:,} bytes and needs {least}{needed:,}"
    return "is damaged"


@contextmanager
def _telling(path: str | os.PathLike[str]) -> Iterator[None]:
    """What does not fit inside is told with the name of the file."""
    try:
        yield
    except (ConfigError, NothingToAdaptError, StateError, UnknownNameError) as error:
        raise StateError(f"cannot load {path} around this model: {error}") from error
