"""An adapter in one file: tensors as safetensors, and in its metadata how to build it again.

docs/state-files.md says what is in it, whole_file.py how it is written.
"""

import dataclasses
import errno
import json
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from opentta import registry
from opentta.adapter.adapt import adapt
from opentta.adapter.base import Adapter
from opentta.adapter.calibration import Calibration
from opentta.adapter.place import refuse_options
from opentta.adapter.snapshot import FORMAT
from opentta.adapter.whole_file import alone, read_file, write_file
from opentta.config import Execution, make_config
from opentta.errors import (
    ConfigError,
    OpenttaError,
    StateError,
    StateFileError,
    UnknownNameError,
)
from opentta.version import __version__

BY_LOAD = ("graph", "precision", "compile")  # belong to a device: ``load`` is told


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
    target = Path(os.path.realpath(_checked_path(path)))  # a link stays one
    try:
        if target.is_symlink():
            raise OSError(errno.ELOOP, "its links lead in a circle")
        if target.is_dir():
            raise IsADirectoryError(errno.EISDIR, "it is a folder; name a file in it")
        if not target.parent.is_dir():
            raise FileNotFoundError(errno.ENOENT, f"there is no folder {target.parent}")
        words, state = _packed(adapter)
        with alone(target):
            write_file(target, words, state)
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

    Another model, another version of the method, a method that is not here, a damaged file and one
    of something else are refused by ``StateError``; a file that is not there by ``StateFileError``,
    which is also an ``OSError``. Nothing in a file is ever executed.

    Example:
        >>> import tempfile, timm, opentta
        >>> vit = timm.create_model("vit_tiny_patch16_224", num_classes=5, depth=4)
        >>> path = tempfile.mkdtemp() + "/steady.safetensors"
        >>> opentta.save(opentta.adapt(vit, group=16, names=["a", "b", "c", "d", "e"]), path)
        >>> opentta.load(path, vit)
        steady(group=16) around timm VisionTransformer, 4 blocks of 192, 5 classes, on cpu: ...
    """
    file = _checked_path(path)
    words, state = read_file(file, partial(_check_format, file))
    told = {name: json.loads(text) for name, text in words.items()}
    try:
        method = registry.method(told["method"])
    except UnknownNameError as error:
        raise StateError(
            f"{path} is of a method that is not here: {error}. Import or install the package that "
            "has it"
        ) from error
    if told["version"] != method.version:
        raise StateError(
            f"{path} is of version {told['version']} of {told['method']}, and this is version "
            f"{method.version}, which computes something else. Go on with opentta "
            f"{told['opentta']}, which saved it, or start again with opentta.adapt"
        )
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
    given = {"graph": graph, "precision": precision, "compile": compile}
    execution = make_config(Execution, {**told["execution"], **given}, what="execution")
    if device is not None:
        adapter.to(device)
    here = adapter.backbone.device
    refuse_options(execution, here)
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


def _packed(adapter: Adapter) -> tuple[dict[str, str], dict[str, Tensor]]:
    """What is written, of one version of the adapter."""
    with adapter._lock:
        state = {name: t.cpu() for name, t in adapter.state_dict().items()}
        adapter._snapshot.check(adapter, state)
        return _described(adapter), state


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


def _checked_path(path: object) -> Path:
    """The path of a state file, or why it is none."""
    if not isinstance(path, (str, os.PathLike)):
        raise ConfigError(
            f"expected the path of a state file, got {type(path).__name__}; the order is "
            "opentta.save(adapter, path) and opentta.load(path, model)"
        )
    try:
        name = os.fsencode(path)
    except UnicodeEncodeError:
        name = b"\0"
    if b"\0" in name:
        raise StateFileError(f"{path!r} can be no file's name; expected the path of a state file")
    return Path(os.fsdecode(name))


# What is read ---------------------------------------------------------------------------------


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


@contextmanager
def _telling(path: str | os.PathLike[str]) -> Iterator[None]:
    """What does not fit inside is told with the name of the file."""
    try:
        yield
    except OpenttaError as error:
        raise StateError(f"cannot load {path} around this model: {error}") from error
