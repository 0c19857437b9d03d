"""The state files of a host: one per stream, of one model and one method.

A file has one writer. It carries a version number that every save raises; who finds another number
than the one he read has been overtaken, and does not write. Images that are set aside are in files
of their own, once, however many streams use them.
"""

from __future__ import annotations

import json
from collections.abc import Container, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from opentta.adapter.base import Adapter
from opentta.adapter.calibration import Calibration, StreamThreshold, restored
from opentta.adapter.serving import Serving
from opentta.adapter.whole_file import alone, read_file, replace_file, write_file
from opentta.errors import CalibrationError, StaleStreamError, StateError, StateFileError
from opentta.serve.stream import Stream, fresh_generator
from opentta.version import __version__

FORMAT = 1  # of files and folder; ``format`` in host.json is that of an adapter's state
FIRST = 1  # the first stores did not say theirs
IMAGES = "calibration.images"
MOST_KNOWN = 64  # sets of set-aside images


class Store:
    """A folder of state files; a folder of another model or method is refused.

    Example:
        >>> import tempfile, timm, opentta
        >>> vit = timm.create_model("vit_tiny_patch16_224", num_classes=5, depth=4)
        >>> Store(Path(tempfile.mkdtemp()), opentta.adapt(vit, "tent")).names()
        frozenset()
    """

    def __init__(self, folder: Path, adapter: Adapter) -> None:
        self.folder, self._adapter = folder, adapter
        self.identity = json.loads(json.dumps(adapter._snapshot.identity(adapter)))
        try:
            (folder / "streams").mkdir(parents=True, exist_ok=True)
            (folder / "known").mkdir(exist_ok=True)
        except OSError as error:
            raise StateFileError(f"cannot use {folder} as a store: {error.strerror}") from error
        self._words = self._described()
        self._names = {path.stem for path in (folder / "streams").glob("*.safetensors")}
        self._prune()

    def _described(self) -> dict[str, Any]:
        """What the store says of itself; written when it is new."""
        path = self.folder / "host.json"
        if not path.exists():
            words = {"opentta": __version__, "store_format": FORMAT, **self.identity}
            words |= {"calibration": None, "serial": 0}
            self._write_words(words)
            return words
        try:
            words = dict(json.loads(path.read_text()))
        except (OSError, ValueError) as error:
            raise StateError(f"{path} cannot be read: {error}") from error
        _check_format(path, words, words.get("store_format", FIRST))
        for name, ours in self.identity.items():
            theirs = words.get(name)
            if theirs != ours:
                if isinstance(theirs, dict) and isinstance(ours, dict):
                    theirs, ours = _apart(theirs, ours), _apart(ours, theirs)
                raise StateError(
                    f"the store {self.folder} is of another {name}: {_short(theirs)} there, "
                    f"{_short(ours)} here. Serve what it was made with, or give another folder"
                )
        return words

    def _write_words(self, words: Mapping[str, Any]) -> None:
        path = self.folder / "host.json"
        with alone(path):
            replace_file(path, json.dumps(words, indent=1).encode())

    # Streams ------------------------------------------------------------------------------

    def names(self) -> frozenset[str]:
        """Streams that have a file."""
        return frozenset(self._names)

    def packed(self, stream: Stream) -> tuple[dict[str, str], dict[str, Tensor]]:
        """What is written of ``stream``, of this moment."""
        tensors = {f"value.{name}": t.detach().cpu() for name, t in stream.values.items()}
        for name, tensor in stream.serving.tensors().items():
            if name != IMAGES:
                tensors[f"serving.{name}"] = tensor.cpu()
        tensors["generator"] = stream.generator.cpu()
        waiting = [*stream.ready, *stream.waiting]
        for place, image in enumerate(waiting):
            if isinstance(image, bytes):
                tensors[f"waiting.{place}.file"] = torch.frombuffer(
                    bytearray(image), dtype=torch.uint8
                )
            else:
                tensors[f"waiting.{place}.pixels"] = image.cpu().contiguous()
        words = {
            "opentta": __version__,
            "format": str(FORMAT),
            "stream": stream.name,
            "known": stream.known or "",
            "ready": str(len(stream.ready)),
            "counts": json.dumps([stream.stepped, stream.skipped, stream.serial]),
            "identity": json.dumps(self.identity, sort_keys=True),
        }
        return words, {name: t.contiguous().clone() for name, t in tensors.items()}

    def write(
        self, name: str, words: Mapping[str, str], tensors: Mapping[str, Tensor], *, version: int
    ) -> int:
        """Write the file of a stream whose file had ``version``; the new version comes back."""
        path = self._path(name)
        with telling(path), alone(path):
            found = self._version(path)
            if found != version:
                raise StaleStreamError(
                    f"the stream {name!r} is not saved: its file has version {found}, and this "
                    f"process knew version {version}. Another process serves this store; let one "
                    "alone do so"
                )
            write_file(path, {**words, "version": str(version + 1)}, tensors)
        self._names.add(name)
        return version + 1

    def read(self, name: str, serving: Serving, known: dict[str, Tensor]) -> Stream | None:
        """The stream as it was saved, or None where it has no file; ``known`` is added to."""
        if name not in self._names:
            return None
        path = self._path(name)
        words, tensors = read_file(path, partial(self._check, path, name))
        device = self._adapter.backbone.device
        counts = {
            n.removeprefix("serving."): t for n, t in tensors.items() if n.startswith("serving.")
        }
        if words["known"]:
            if words["known"] not in known:
                known[words["known"]] = self._images(words["known"], device)
            counts[IMAGES] = known[words["known"]]
        values = {
            n.removeprefix("value."): t.to(device)
            for n, t in tensors.items()
            if n.startswith("value.")
        }
        self._check_values(path, values)
        places = sorted(
            (n for n in tensors if n.startswith("waiting.")), key=lambda n: int(n.split(".")[1])
        )
        waiting = [
            tensors[n].numpy().tobytes() if n.endswith(".file") else tensors[n].to(device)
            for n in places
        ]
        stepped, skipped, serial = json.loads(words["counts"])
        ready = int(words["ready"])
        stream = Stream(
            name,
            values,
            self._draws(tensors["generator"]),
            serving.restored(counts),
            waiting=waiting[ready:],
            ready=waiting[:ready],
            stepped=stepped,
            skipped=skipped,
            saved=int(words["version"]),
            known=words["known"] or None,
            serial=serial,
        )
        calibration = stream.serving.calibration
        if isinstance(calibration, Calibration):
            calibration.images = counts[IMAGES]  # one copy for all
        return stream

    def _draws(self, saved: Tensor) -> Tensor:
        """The state of random numbers; of another kind of device: from the seed."""
        fresh = fresh_generator(self._adapter)
        return saved if saved.shape == fresh.shape else fresh

    def remove(self, name: str) -> bool:
        """Its file goes, if there is one."""
        if name not in self._names:
            return False
        path = self._path(name)
        with telling(path), alone(path):
            path.unlink(missing_ok=True)
        self._names.discard(name)
        return True

    # Set-aside images ---------------------------------------------------------------------

    def calibrate(
        self, made: Calibration | StreamThreshold, known: str | None, *, serial: int
    ) -> None:
        """Remember what all streams are calibrated with, also new ones: all of it or nothing."""
        described: Any = "stream"
        if isinstance(made, Calibration):
            described = {"known": known, "rate": made.rate, "follow": made.recent is not None}
            tensors = {n: t.cpu() for n, t in made.tensors().items() if n != "images"}
            path = self._calibration_file(serial)
            with telling(path), alone(path):
                write_file(path, {"known": known or ""}, tensors)
        words = {**self._words, "calibration": described, "serial": serial}
        with telling(self.folder / "host.json"):
            self._write_words(words)  # from now on it is so
        self._words = words
        for old in self.folder.glob("calibration-*.safetensors"):
            if old != self._calibration_file(serial):
                old.unlink(missing_ok=True)

    def _calibration_file(self, serial: int) -> Path:
        return self.folder / f"calibration-{serial}.safetensors"

    def _prune(self, used: Container[str | None] = ()) -> None:
        """Set-aside images that no stream has go, unless it cannot be told which those are."""
        described = self._words.get("calibration")
        stored = {described["known"]} if isinstance(described, dict) else set()
        for path in (self.folder / "streams").glob("*.safetensors"):
            try:
                with safe_open(path, "pt") as file:
                    stored.add((file.metadata() or {}).get("known"))
            except (SafetensorError, OSError):
                return
        for path in (self.folder / "known").glob("*.safetensors"):
            if path.stem not in stored and path.stem not in used:
                path.unlink(missing_ok=True)

    def keep_images(
        self, made: Calibration | StreamThreshold, known: str | None, used: Container[str | None]
    ) -> None:
        """Write the set-aside images, where they are not there yet; streams in memory have used."""
        if known is None or not isinstance(made, Calibration):
            return
        path = self.folder / "known" / f"{known}.safetensors"
        if path.exists():
            return
        if self._is_full():
            self._prune(used)
        if self._is_full():
            raise CalibrationError(
                f"streams have {MOST_KNOWN} different sets of known images, the most that a store "
                "keeps: calibrate streams with the same images, or all at once"
            )
        with telling(path), alone(path):
            write_file(path, {}, {"images": made.images.cpu()})

    def _is_full(self) -> bool:
        return len(list((self.folder / "known").glob("*.safetensors"))) >= MOST_KNOWN

    def calibration(
        self, device: torch.device
    ) -> tuple[Calibration | StreamThreshold | None, dict[str, Tensor], int]:
        """What new streams are calibrated with, its images by name, and its serial number."""
        described, serial = self._words.get("calibration"), int(self._words.get("serial", 0))
        if described is None:
            return None, {}, serial
        if described == "stream":
            return StreamThreshold(device), {}, serial
        images = self._images(described["known"], device)
        path = self._calibration_file(serial)
        words, tensors = read_file(path, lambda words: None)
        if words.get("known") != described["known"]:
            raise StateError(f"{path} has scores of other images than {self.folder}/host.json says")
        made = restored({**tensors, "images": images}, device)
        if isinstance(made, Calibration):
            made.images, made.source_scores = images, made.scores.clone()
        return made, {described["known"]: images}, serial

    def _images(self, known: str, device: torch.device) -> Tensor:
        path = self.folder / "known" / f"{known}.safetensors"
        return read_file(path, lambda words: None)[1]["images"].to(device)

    # Checks -------------------------------------------------------------------------------

    def _path(self, name: str) -> Path:
        return self.folder / "streams" / f"{name}.safetensors"

    def _version(self, path: Path) -> int:
        """The version of a file; 0: there is none."""
        if not path.exists():
            return 0
        with safe_open(path, "pt") as file:
            return int((file.metadata() or {}).get("version", "0"))

    def _check(self, path: Path, name: str, words: Mapping[str, str]) -> None:
        _check_format(path, words, words.get("format"))
        if words.get("stream") != name:
            what = repr(words["stream"]) if "stream" in words else "none"
            raise StateError(
                f"{path} holds the stream {what}, expected {name!r}: put it back under its name"
            )
        if json.loads(words["identity"]) != self.identity:
            raise StateError(f"{path} is a stream of another model or method than its store's")

    def _check_values(self, path: Path, values: Mapping[str, Tensor]) -> None:
        try:
            self._adapter._snapshot.check(self._adapter, values)
        except StateError as error:
            raise StateError(f"{path} does not fit: {error}") from error


@contextmanager
def telling(path: Path) -> Iterator[None]:
    """What the system or a damaged file says inside is told with the name of the file."""
    try:
        yield
    except StateError:
        raise
    except OSError as error:
        raise StateFileError(
            f"{path} is not written, and is as it was before: {error.strerror or error}"
        ) from error
    except SafetensorError as error:
        raise StateError(f"{path} is damaged, and is left as it is: {error}") from error


def _check_format(path: Path, words: Mapping[str, Any], found: Any) -> None:
    if str(found) != str(FORMAT):
        raise StateError(
            f"{path} has format {found}, and this version of opentta reads format {FORMAT}: serve "
            f"it with opentta {words.get('opentta')}, which wrote it, or give another folder"
        )


def _apart(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """What ``one`` has that ``other`` has not, or not so."""
    return {name: value for name, value in one.items() if other.get(name, ...) != value}


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) < 200 else f"{text[:200]}..."
