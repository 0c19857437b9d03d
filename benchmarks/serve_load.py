"""Load on ``opentta serve``, on loopback alone: latency, throughput, share of groups stepped.

    python benchmarks/serve_load.py streams                    # 1, 16, 256, 2,000 streams
    python benchmarks/serve_load.py quarter                    # a quarter of the frozen's largest
    python benchmarks/serve_load.py memory                     # 100,000 requests
    python benchmarks/serve_load.py idle --group 4             # what 2,000 idle streams cost
    python benchmarks/serve_load.py sizes                      # bytes of a stream, of every method

Each but the last starts the services that it needs as processes of their own, with the embedded
model and its images as JPEG files, one per request, and ends them. ``--requests``, ``--streams``
and ``--seconds`` bound what is sent. A run says how many answers came, so that one that was cut
short cannot be taken for a whole one.

``streams``: several connections, each of which asks as soon as it was answered. ``quarter``: at a
steady rate, whatever the answers do; latency is from when a request was due. There the frozen
service (method ``source``) and the adapting one (``--budget 1.5``) take turns, and the median of
the ratios counts. ``sizes`` has a ``Host`` of its own and random weights where ``--model`` is
given: bytes do not depend on them.
"""

from __future__ import annotations

import argparse
import http.client
import io
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import numpy as np
from PIL import Image
from torch import Tensor

from opentta.datasets.embedded import embedded_set
from opentta.serve import Host
from opentta.serve.service import TIDY_SECONDS

ADDRESS = "127.0.0.1"
FILES = 200  # images that are sent again and again
START_SECONDS = 300.0
KEPT = 1024  # images that a host keeps for feedback, of all streams together
WARM_UP = 64  # requests at most before those that count


@dataclass
class Run:
    """What one run sent and saw."""

    seconds: float = 0.0
    milliseconds: list[float] = field(default_factory=list)  # of each answer
    refused: int = 0
    stepped: int = 0  # groups, until the last answer
    skipped: int = 0
    groups: int = 0  # whole groups that came

    def at(self, share: float) -> float:
        """A quantile of the latencies."""
        return float(np.quantile(self.milliseconds, share)) if self.milliseconds else float("nan")

    @property
    def throughput(self) -> float:
        """Answers per second."""
        return len(self.milliseconds) / self.seconds

    def words(self) -> str:
        """A row of the table."""
        share = f"{self.stepped / self.groups:.0%}" if self.groups else "-"
        return (
            f"{len(self.milliseconds):>8}{self.refused:>8}{self.at(0.5):>9.1f}{self.at(0.95):>9.1f}"
            f"{self.at(0.99):>9.1f}{self.throughput:>10.1f}{share:>9}{self.skipped:>9}"
        )


HEAD = (
    f"{'answers':>8}{'refused':>8}{'p50 ms':>9}{'p95 ms':>9}{'p99 ms':>9}{'answers/s':>10}"
    f"{'stepped':>9}{'skipped':>9}"
)


@dataclass
class Server:
    """A running ``opentta serve``."""

    process: subprocess.Popen[bytes]
    port: int
    group: int
    sent: dict[str, int] = field(default_factory=dict)  # images, by stream

    def get(self, path: str) -> bytes:
        """The body of an answer."""
        connection = http.client.HTTPConnection(ADDRESS, self.port, timeout=60)
        connection.request("GET", path)
        body = connection.getresponse().read()
        connection.close()
        return body

    def groups(self) -> tuple[int, int]:
        """Groups that were learned from, and groups that were skipped."""
        found = {"stepped": 0, "skipped": 0}
        for line in self.get("/metrics").decode().splitlines():
            for name in found:
                if line.startswith(f"opentta_groups_{name}_total "):
                    found[name] = int(float(line.split()[1]))
        return found["stepped"], found["skipped"]

    def resident(self) -> int:
        """Bytes of memory that the process has now."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return next(
            1024 * int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS")
        )

    def whole_groups(self) -> int:
        """Whole groups that came, of all streams."""
        return sum(images // self.group for images in self.sent.values())


@contextmanager
def serving(method: str, *, streams: int, group: int, more: Sequence[str] = ()) -> Iterator[Server]:
    """A service on a free port of loopback, ended with the block."""
    with socket.socket() as free:
        free.bind((ADDRESS, 0))
        port = free.getsockname()[1]
    run = "import sys; from opentta.cli import main; sys.exit(main())"
    options = ["--method", method, "--port", str(port), "--group", str(group)]
    options += ["--max-streams", str(streams), *more]
    process = subprocess.Popen(
        [sys.executable, "-c", run, "serve", *options],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "OPENTTA_TOKEN": ""},
    )
    server = Server(process, port, group)
    try:
        _wait(server)
        yield server
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(120)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait(server: Server) -> None:
    end = time.monotonic() + START_SECONDS
    while True:
        if server.process.poll() is not None:
            sys.exit(f"opentta serve ended at once, with {server.process.returncode}")
        try:
            if json.loads(server.get("/readyz")).get("status") == "ready":
                return
        except OSError:
            pass
        if time.monotonic() > end:
            sys.exit(f"opentta serve was not ready within {START_SECONDS:.0f} s")
        time.sleep(0.2)


def files() -> list[bytes]:
    """Images of known and of unknown classes, as JPEG."""
    found = []
    for kind, number in (("known", 3 * FILES // 4), ("near", FILES // 4)):
        images = embedded_set("load", "benchmark", "known" if kind == "known" else "near")
        for row in np.linspace(0, len(images) - 1, number).astype(int):
            file = io.BytesIO()
            Image.fromarray(images.read(int(row))).save(file, "JPEG", quality=90)
            found.append(file.getvalue())
    return found


def load(
    server: Server,
    images: Sequence[bytes],
    *,
    requests: int,
    streams: int,
    seconds: float,
    connections: int,
    rate: float | None = None,
    watch: Callable[[int], None] | None = None,
) -> Run:
    """Send requests, one image each, to ``streams`` in turn; ``rate``: so many per second.

    Stops after ``seconds``. ``watch`` is called with the number of requests that were begun.
    """
    run, numbers, lock = Run(), count(), threading.Lock()
    _settled(server)  # or groups that came before the run would be stepped in it
    before = server.groups(), server.whole_groups()
    start = time.perf_counter()

    def ask() -> None:
        connection = http.client.HTTPConnection(ADDRESS, server.port, timeout=120)
        while (number := next(numbers)) < requests:
            due = time.perf_counter() if rate is None else start + number / rate
            if due - start > seconds or time.perf_counter() - start > seconds:
                break
            time.sleep(max(0.0, due - time.perf_counter()))
            name = f"stream-{number % streams}"
            connection.request(
                "POST",
                f"/v1/streams/{name}/images",
                images[number * 7 % len(images)],
                {"Content-Type": "image/jpeg"},
            )
            answer = connection.getresponse()
            answer.read()
            took = 1000 * (time.perf_counter() - due)
            with lock:
                if answer.status == 200:
                    run.milliseconds.append(took)
                    server.sent[name] = server.sent.get(name, 0) + 1
                else:
                    run.refused += 1
                if watch is not None:
                    watch(number)
        connection.close()

    threads = [threading.Thread(target=ask) for _ in range(connections)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    run.seconds = time.perf_counter() - start
    after = server.groups(), server.whole_groups()
    run.stepped, run.skipped = (a - b for a, b in zip(after[0], before[0], strict=True))
    run.groups = after[1] - before[1]
    return run


def _settled(server: Server) -> None:
    """Wait until no group has been learned from for a second."""
    end, last = time.monotonic() + START_SECONDS, None
    while (now := server.groups()) != last and time.monotonic() < end:
        last = now
        time.sleep(1)


def streams(args: argparse.Namespace) -> None:
    """A table: how many streams, adapting and frozen."""
    images = files()
    print(f"{'streams':>8} {'method':<10}{HEAD}")
    for number in args.streams:
        for method in ("source", args.method):
            with serving(method, streams=number, group=args.group, more=budget(args, method)) as it:
                bounds = {"streams": number, "seconds": args.seconds, "connections": args.at_once}
                load(it, images, requests=min(WARM_UP, args.requests), **bounds)
                run = load(it, images, requests=args.requests, **bounds)
                print(f"{number:>8} {method:<10}{run.words()}", flush=True)


def quarter(args: argparse.Namespace) -> None:
    """Adapting against frozen at a quarter of the frozen service's largest throughput."""
    images, number = files(), args.streams[0]
    bounds = {"streams": number, "seconds": args.seconds, "connections": args.at_once}
    with (
        serving("source", streams=number, group=args.group) as frozen,
        serving(
            args.method, streams=number, group=args.group, more=budget(args, args.method)
        ) as adapting,
    ):
        for server in (frozen, adapting):
            load(server, images, requests=min(WARM_UP, args.requests), **bounds)
        largest = load(frozen, images, requests=args.requests, **bounds).throughput
        print(f"frozen, {args.at_once} connections: {largest:.1f} answers/s; a quarter of it:")
        print(f"{'run':>4} {'method':<10}{HEAD}")
        ratios: list[tuple[float, float]] = []
        for i in range(args.runs):
            runs = {}
            for name, server in (("source", frozen), (args.method, adapting)):
                runs[name] = load(
                    server, images, requests=args.requests, rate=largest / 4, **bounds
                )
                print(f"{i + 1:>4} {name:<10}{runs[name].words()}", flush=True)
            ours, theirs = runs[args.method], runs["source"]
            ratios.append((ours.at(0.5) / theirs.at(0.5), ours.at(0.99) / theirs.at(0.99)))
        p50, p99 = (statistics.median(column) for column in zip(*ratios, strict=True))
        print(f"median ratio of {args.runs} runs: p50 {p50:.2f} x, p99 {p99:.2f} x")
        listed = json.loads(adapting.get("/v1/streams?limit=1000"))["streams"]
        whole = [s for s in listed if s["images"] >= args.group]
        idle = [s["name"] for s in whole if not s["stepped"]]
        print(f"{len(whole)} streams had a whole group, {len(idle)} of them never stepped")


def memory(args: argparse.Namespace) -> None:
    """Memory of the adapting service over many requests."""
    images, number = files(), args.streams[0]
    every = max(1, args.requests // 20)
    with serving(
        args.method, streams=number, group=args.group, more=budget(args, args.method)
    ) as server:
        seen: list[tuple[int, int]] = []

        def watch(request: int) -> None:
            if request % every == 0:
                seen.append((request, server.resident()))
                print(f"{request:>8} requests {server.resident() / 2**20:>9.1f} MiB", flush=True)

        run = load(
            server,
            images,
            requests=args.requests,
            streams=number,
            seconds=args.seconds,
            connections=args.at_once,
            watch=watch,
        )
        print(f"{HEAD}\n{run.words()}")
        late = [entry for entry in seen if entry[0] >= args.requests // 5]
        if len(late) > 1:
            grown = (late[-1][1] - late[0][1]) / 2**20
            print(f"from request {late[0][0]:,} to {late[-1][0]:,}: {grown:+.1f} MiB")


def idle(args: argparse.Namespace) -> None:
    """What streams cost that have learned once and wait, against the sizes that they state."""
    images, number = files(), args.streams[0]
    with serving(args.method, streams=number + 1, group=args.group) as server:
        bounds = {"seconds": args.seconds, "connections": args.at_once}
        load(server, images, requests=KEPT + args.group, streams=1, **bounds)
        _settled(server)
        time.sleep(TIDY_SECONDS + 2)  # free memory is given back
        before, one = server.resident(), json.loads(server.get("/v1/streams"))["in_memory"]
        rate = args.rate  # by default slow enough for no line of images to wait
        load(server, images, requests=number * args.group, streams=number, rate=rate, **bounds)
        end = time.monotonic() + args.seconds
        while sum(server.groups()) < server.whole_groups() and time.monotonic() < end:
            time.sleep(1)
        time.sleep(TIDY_SECONDS + 2)
        listed = json.loads(server.get("/v1/streams?limit=1000"))
        grown, made = server.resident() - before, listed["in_memory"] - one
        stated = statistics.mean(s["nbytes"] for s in listed["streams"])
        learned = sum(s["stepped"] > 0 for s in listed["streams"])
        print(f"{made} more streams, {learned} of {len(listed['streams'])} listed have learned")
        print(f"memory: {grown / 1024:,.0f} KiB, {grown / max(made, 1) / 1024:.1f} KiB per stream")
        print(f"stated: {stated / 1024:.1f} KiB per stream")


@dataclass(frozen=True)
class Sizes:
    """Bytes that are a stream's own."""

    first: int  # after its first step
    file: int  # its state file then
    full: int  # with a full buffer of decoded images
    last: int  # after all images, of which none waits


def sizes_of(host: Host, images: Tensor, folder: Path) -> Sizes:
    """Sizes of a stream that is sent ``images`` (n, 3, H, W); ``folder``: the host's store."""
    group, name = host.adapter.policy.group, "stream"
    host.answer({name: images[:group]})
    host.work()
    host.save(name)
    first, file = host.info(name).nbytes, (folder / "streams" / f"{name}.safetensors").stat()
    for part in (images[:group], images[1:group]):
        host.answer({name: part})
    full = host.info(name).nbytes
    for start in range(0, len(images), group):
        host.work()
        host.answer({name: images[start : start + group]})
    host.flush(name)
    return Sizes(first, file.st_size, full, host.info(name).nbytes)


def sizes(args: argparse.Namespace) -> None:
    """A table: what is a stream's own, in memory and in its file."""
    import timm
    import torch

    import opentta
    from opentta import assets

    jpegs = [Image.open(io.BytesIO(file)) for file in files()]
    print(f"{'method':<14}{'first step':>12}{'its file':>12}{'full buffer':>12}{'last':>12}  kB")
    for method in [args.method] if args.method else opentta.methods():
        model = timm.create_model(args.model, num_classes=1000) if args.model else assets.model()
        with tempfile.TemporaryDirectory() as folder:
            host = Host(model, method, store=folder, group=args.group)
            images = torch.stack([host.adapter.preprocess(image) for image in jpegs])
            images = images.repeat(-(-args.requests // len(images)), 1, 1, 1)[: args.requests]
            if host.adapter.needs_source:
                host.fit_source([images[: args.group]])
            found = sizes_of(host, images, Path(folder))
        columns = (found.first, found.file, found.full, found.last)
        print(f"{method:<14}" + "".join(f"{n / 1000:>12,.1f}" for n in columns), flush=True)


def budget(args: argparse.Namespace, method: str) -> list[str]:
    """Options of the adapting service."""
    return [] if method == "source" or args.budget is None else ["--budget", str(args.budget)]


MODES = {"streams": streams, "quarter": quarter, "memory": memory, "idle": idle, "sizes": sizes}
DEFAULTS = {  # streams, requests
    "streams": ([1, 16, 256, 2000], 2000),
    "quarter": ([16], 2000),
    "memory": ([16], 100_000),
    "idle": ([2000], 0),
    "sizes": ([1], 200),
}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("mode", choices=sorted(MODES))
    parser.add_argument("--method", help="steady; sizes: all")
    parser.add_argument("--model", metavar="TIMM_NAME", help="sizes: the embedded one")
    parser.add_argument("--streams", type=int, nargs="+", metavar="N")
    parser.add_argument("--requests", type=int, help="per run, beside the warm-up")
    parser.add_argument("--runs", type=int, default=5, help="of each service, for quarter")
    parser.add_argument("--seconds", type=float, default=1800.0, help="at most, per run")
    parser.add_argument("--at-once", type=int, default=16, help="connections")
    parser.add_argument("--group", type=int, default=32, help="images per step; idle: 4 do")
    parser.add_argument("--rate", type=float, default=20.0, help="idle: requests per second")
    parser.add_argument("--budget", type=float, help="quarter: 1.5 unless given")
    args = parser.parse_args()
    usual = DEFAULTS[args.mode]
    args.streams = args.streams or usual[0]
    args.requests = args.requests or usual[1]
    if args.mode != "sizes":
        args.method = args.method or "steady"
    if args.mode == "quarter" and args.budget is None:
        args.budget = 1.5
    if min(args.streams) < 1 or args.runs < 1 or args.group < 1 or args.at_once < 1:
        sys.exit("expected --streams, --runs, --group and --at-once of at least 1")
    print(f"two processes and this one on {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    MODES[args.mode](args)


if __name__ == "__main__":
    main()
