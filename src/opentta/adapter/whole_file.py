"""A safetensors file that is the old one or the new one, never a part, and says when it is damaged.

It is written under another name, waits for the disk, and is renamed. Its metadata hold a hash of
all that is in it.
"""

import errno
import glob
import hashlib
import json
import os
import secrets
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import safetensors.torch
from filelock import FileLock, Timeout
from safetensors import SafetensorError, safe_open
from torch import Tensor

from opentta.adapter.snapshot import hashed
from opentta.errors import StateError, StateFileError

DRAFT, LOCK = "opentta-draft", "opentta-lock"  # how the names of files in the making end
WAIT = 60  # seconds for another save of the same file
LONGEST = 100_000_000  # bytes of a header, by the format


def write_file(path: Path, words: Mapping[str, str], tensors: Mapping[str, Tensor]) -> None:
    """Put ``tensors``, described by ``words``, in the place of the file ``path``."""
    described = {**words, "hash": content_hash(words, tensors)}
    replace_file(path, bytes(safetensors.torch.save(dict(tensors), described)))


def read_file(
    path: Path, check: Callable[[Mapping[str, str]], None]
) -> tuple[dict[str, str], dict[str, Tensor]]:
    """The words and the tensors in a file, or why they are none; ``check`` looks at the words."""
    try:
        with path.open("rb"):  # what the system says of a file, safetensors does not
            pass
        with safe_open(path, "pt") as file:
            words = dict(file.metadata() or {})
            check(words)
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except FileNotFoundError:
        raise StateFileError(f"there is no file {path}") from None
    except IsADirectoryError:
        raise StateFileError(f"{path} is a folder; expected a file of opentta.save") from None
    except OSError as error:
        raise StateFileError(f"cannot read {path}: {error.strerror or error}") from error
    except SafetensorError as error:
        raise StateError(f"{path} {_damage(path)} ({error})") from error
    if words.pop("hash", None) != content_hash(words, tensors):
        raise StateError(f"{path} is damaged: its content is not what its hash says")
    return words, tensors


def content_hash(words: Mapping[str, str], tensors: Mapping[str, Tensor]) -> str:
    """Of all that is in a file: a damaged one must not pass for another adapter."""
    kinds = {name: f"{t.dtype} {tuple(t.shape)}" for name, t in tensors.items()}
    text = json.dumps([words, kinds, hashed(tensors)], sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


@contextmanager
def alone(path: Path) -> Iterator[None]:
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


def replace_file(path: Path, data: bytes) -> None:
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
