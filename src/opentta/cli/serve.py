"""``opentta serve``: many adapting streams over HTTP."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from opentta.cli.console import PLAIN, Names, make_console, option
from opentta.cli.running import device_type
from opentta.errors import ConfigError

if TYPE_CHECKING:
    from opentta.serve import Host

DEMO_GROUP = 16  # a step comes sooner
NOT_SAVED = 1  # exit status
MOST_PORT = 65_535
TOKEN = "OPENTTA_TOKEN"  # in the environment


@dataclass(frozen=True)
class Serve:
    """Serve a model to many streams over HTTP, each with its own adaptation.

    Without arguments: the embedded model, which knows 25 breeds of pets, on this machine alone.
    POST an image to /v1/streams/NAME/images; /docs has all calls, and / a page with the streams.
    SIGTERM lets running requests end, saves every stream and ends with status 0.
    """

    model: Annotated[str | None, option("NAME")] = None
    """timm's name of the model. Left out: the embedded one."""

    weights: Annotated[Path | None, option("FILE")] = None
    """A safetensors file with timm's names, instead of the download of the model's tag."""

    method: Annotated[str, option("METHOD")] = "steady"
    """How streams adapt; source: not at all."""

    group: Annotated[int | None, option("N")] = None
    """Images per step. Left out: the method's own, else 32."""

    every: Annotated[int | None, option("N")] = None
    """Learn from every so many groups. Left out: the method's own, else from each."""

    budget: Annotated[float | None, option("X")] = None
    """Learn as often as so many forwards per image pay for, such as 1.5. Left out: the method's."""

    guard: bool = True
    """Let the source model watch, where the method can be watched."""

    store: Annotated[Path | None, option("DIR")] = None
    """Folder of state files, from which streams go on. Left out: they end with the process."""

    max_streams: Annotated[int, option("N")] = 256
    """Streams in memory; beyond, the one used longest ago leaves for its file."""

    save_every: Annotated[int, option("N")] = 256
    """Save a stream every so many images, with --store; all are saved at the end."""

    host: Annotated[str, option("ADDRESS")] = "127.0.0.1"
    """Address to listen at; another than loopback lets others in."""

    port: Annotated[int, option("N")] = 8080
    """Port to listen at; 0: one that is free."""

    token: Annotated[str | None, option("TOKEN")] = None
    """Bearer token that every request must carry. Left out: OPENTTA_TOKEN, if it is set."""

    allow_host: Annotated[Names, option("NAME [NAME ...]")] = ()
    """Names by which others ask for this server, at loopback without a token: those of a proxy."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to compute. auto: the GPU if there is one."""

    precision: Literal["full", "bfloat16"] = "full"
    """Arithmetic. bfloat16: frozen weights and forwards with 8 bits of precision, sooner on a GPU
    and on CPUs that have it (opentta doctor)."""

    compile: bool = False
    """On a GPU, compile the blocks for streams that learn alone: a slower start, then sooner."""

    threads: Annotated[int, option("N")] = 1
    """Threads per forward and per step; answering and learning run at the same time."""

    demo: bool = False
    """Feed the embedded images under changing corruption, and show it on the page."""

    def run(self) -> int:
        """Load, then serve until a signal comes."""
        try:
            from opentta.serve.app import create_app
            from opentta.serve.gate import is_loopback
            from opentta.serve.server import serve
            from opentta.serve.settings import Settings
        except ModuleNotFoundError as error:
            raise ConfigError(
                f"the HTTP service needs {error.name}: pip install 'opentta[serve]'"
            ) from error
        for name, least in {"save_every": 1, "threads": 1, "port": 0}.items():
            if getattr(self, name) < least:
                flag = name.replace("_", "-")
                raise ConfigError(f"expected --{flag} of at least {least}: {getattr(self, name)}")
        if self.port > MOST_PORT:
            raise ConfigError(f"expected --port of at most {MOST_PORT}: {self.port}")
        if self.demo and self.model is not None:
            raise ConfigError("--demo sends what the embedded model knows: leave out --model")
        token = self.token or os.environ.get(TOKEN) or None
        settings = Settings(token=token, allow_hosts=self.allow_host, demo=self.demo)
        console = make_console(stderr=True)
        app = create_app(self.make_host(), settings)
        if settings.token is None and not is_loopback(self.host):
            console.print(
                f"WARNING: {self.host} can be reached from other machines, and there is no token: "
                f"whoever connects can use, reset and delete every stream. Set {TOKEN}.",
                style="bold red",
                **PLAIN,
            )
        console.print(app.state.service.host.capacity, **PLAIN)
        saved = serve(app, host=self.host, port=self.port, threads=self.threads)
        return 0 if saved else NOT_SAVED

    def make_host(self) -> Host:
        """The model with its streams, those of the store included."""
        from opentta.serve import Host

        device = device_type(self.device)
        model, fields = self._model()
        fields |= {"graph": device == "cuda", "precision": self.precision, "compile": self.compile}
        policy = {"group": self.group, "every": self.every, "budget": self.budget}
        if self.demo:
            fields["group"] = DEMO_GROUP
        fields |= {name: value for name, value in policy.items() if value is not None}
        if not self.guard:
            fields["guard"] = False
        host = Host(
            model.to(device),
            self.method,
            store=self.store,
            max_streams=self.max_streams,
            save_every=None if self.store is None else self.save_every,
            **fields,
        )
        if host.adapter.needs_source:
            raise ConfigError(
                f"{self.method} needs source images, which this command does not take: serve it "
                "from Python, with host.fit_source(loader) and opentta.serve.app.create_app(host), "
                "or take another --method"
            )
        return host

    def _model(self) -> tuple[Any, dict[str, Any]]:
        """The model, and the classes to answer with where they are not all of its own."""
        if self.model is not None:
            from opentta.bench.plan.weights import find_weights, load_model

            return load_model(find_weights(self.model, self.weights)), {}
        if self.weights is not None:
            raise ConfigError("--weights is a file of a model: say which, --model NAME")
        from opentta import assets
        from opentta.datasets.embedded import embedded_set

        pets = embedded_set("pets", "benchmark", "known")
        return assets.model(), {"classes": pets.class_indices, "names": pets.classes}
