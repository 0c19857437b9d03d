"""A tiny host, its service in a thread or in a process of its own, and images to send."""

import argparse
import contextlib
import io
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx
import numpy as np
from PIL import Image
from torchvision import transforms

from opentta.serve import Host
from opentta.serve.app import create_app
from opentta.serve.server import make_server, serve
from opentta.serve.settings import Settings
from opentta.testing import SIZE, tiny_vit

GROUP = 4


def preprocess():
    return transforms.Compose([transforms.Resize((SIZE, SIZE)), transforms.ToTensor()])


def tiny_host(method="tent", **fields):
    names = [f"class {number}" for number in range(10)]
    fields = {"group": GROUP, "names": names, "preprocess": preprocess(), **fields}
    return Host(tiny_vit(), method, **fields)


def image(seed=0, mode="RGB", size=(40, 36), kind="PNG"):
    """The bytes of a file with random pixels."""
    dice = np.random.default_rng(seed)
    if mode == "I;16":
        made = Image.fromarray(dice.integers(0, 2**16, size[::-1], dtype=np.uint16))
    else:
        made = Image.fromarray(dice.integers(0, 256, (*size[::-1], 3), dtype=np.uint8))
        made = made.convert(mode)
    file = io.BytesIO()
    made.save(file, kind)
    return file.getvalue()


def as_files(images, field="images"):
    return [(field, (f"{number}.png", one, "image/png")) for number, one in enumerate(images)]


@contextlib.contextmanager
def running(host, settings=None, port=0):
    """A real server in a thread of this process; gives its address."""
    app = create_app(host, settings or Settings())
    server = make_server(app, host="127.0.0.1", port=port)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        until = time.monotonic() + 30
        while not server.started:
            assert thread.is_alive() and time.monotonic() < until
            time.sleep(0.01)
        yield Address(server.servers[0].sockets[0].getsockname()[1], app)
    finally:
        app.state.service.drain()
        server.should_exit = True
        thread.join(60)
    assert not thread.is_alive()


class Address:
    """Where a service listens."""

    def __init__(self, port, app=None):
        self.port, self.app = port, app
        self.url = f"http://127.0.0.1:{port}"

    def client(self, **options):
        return httpx.Client(base_url=self.url, timeout=30, trust_env=False, **options)

    def raw(self, data=b""):
        """A bare connection on which ``data`` was sent."""
        sock = socket.create_connection(("127.0.0.1", self.port), timeout=30)
        sock.sendall(data)
        return sock


class Process:
    """The service in a process of its own, over a store."""

    def __init__(self, store: Path, *, save_every=8, step_seconds=0.0):
        command = [sys.executable, __file__, str(store), "--save-every", str(save_every)]
        command += ["--step-seconds", str(step_seconds)]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        self.lines = []
        self.address = Address(self._port())
        self._reader = threading.Thread(target=lambda: self.lines.extend(self.process.stderr))
        self._reader.start()

    def _port(self):
        for line in self.process.stderr:
            self.lines.append(line)
            found = re.search(r"running on http://127.0.0.1:(\d+)", line)
            if found:
                return int(found[1])
        raise AssertionError("".join(self.lines))

    @property
    def saves(self):
        """Of each save that began: stream, when it began and when its file was there, if ever."""
        begun, found = {}, []
        for line in self.lines:
            match line.split():
                case ["saving", name, seconds]:
                    begun[name] = float(seconds)
                case ["saved", name, seconds]:
                    found.append((name, begun.pop(name), float(seconds)))
        return found + [(name, seconds, None) for name, seconds in begun.items()]

    def stop(self, sig=signal.SIGTERM):
        """The exit status after a signal."""
        self.process.send_signal(sig)
        status = self.process.wait(120)
        self._reader.join()
        self.process.stderr.close()
        return status


def slow_down(host, seconds):
    """Every step takes so much longer."""
    stepped = host.network.stepped

    def slowly(*args):
        time.sleep(seconds)
        return stepped(*args)

    host.network.stepped = slowly


def tell_saves(host):
    """Print when each save of a stream begins and ends; the clock is the same in all processes."""
    save = host._places.save

    def told(stream):
        os.write(2, f"saving {stream.name} {time.monotonic()}\n".encode())
        save(stream)
        os.write(2, f"saved {stream.name} {time.monotonic()}\n".encode())

    host._places.save = told


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("store", type=Path)
    parser.add_argument("--save-every", type=int)
    parser.add_argument("--step-seconds", type=float)
    args = parser.parse_args()
    host = tiny_host(store=args.store, save_every=args.save_every, max_streams=8)
    slow_down(host, args.step_seconds)
    tell_saves(host)
    sys.exit(0 if serve(create_app(host), host="127.0.0.1", port=0) else 1)


if __name__ == "__main__":
    main()
