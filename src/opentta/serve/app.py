"""The routes of the HTTP service, around a ``Host``."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict
from functools import partial
from importlib.resources import files
from mimetypes import guess_type
from typing import Annotated, Any, Literal

from fastapi import Depends, FastAPI, Header, Path, Query, Request, Response
from fastapi.responses import HTMLResponse, StreamingResponse
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.exceptions import HTTPException

from opentta.adapter.health import Health
from opentta.adapter.serving import Feedback
from opentta.errors import StreamError
from opentta.serve.bodies import read_images, read_json
from opentta.serve.demo import Demo
from opentta.serve.events import Events
from opentta.serve.gate import Gate
from opentta.serve.gather import Answer
from opentta.serve.host import Host
from opentta.serve.problems import Problem, add_handlers, worded
from opentta.serve.reference import reference_page
from opentta.serve.service import Service
from opentta.serve.settings import Settings
from opentta.serve.stream import checked_name
from opentta.version import __version__

IMAGE = {"type": "string", "format": "binary"}
FORM = {"type": "object", "properties": {"images": {"type": "array", "items": IMAGE}}}
CALIBRATION_FORM = {
    "type": "object",
    "properties": {
        "known": {"type": "array", "items": IMAGE},
        "rate": {"type": "number", "default": 0.05},
        "follow": {"type": "boolean", "default": False},
    },
}


PROBLEM = {
    "description": "What was expected, and what came",
    "content": {
        "application/problem+json": {
            "schema": {
                "type": "object",
                "properties": {
                    "title": {"type": "string"},
                    "status": {"type": "integer"},
                    "detail": {"type": "string"},
                },
            }
        }
    },
}


class ImagesAnswered(BaseModel):
    """What is said of the images of a request."""

    stream: str
    version: int = Field(description="of the weights that answered")
    images: list[Answer] = Field(description="one for each image, in their order")


class Labels(BaseModel):
    """Labels for images that were answered."""

    model_config = ConfigDict(strict=True, extra="forbid")
    tickets: list[Annotated[int, Field(ge=0, lt=2**63)]] = Field(max_length=10_000)
    labels: list[Annotated[int, Field(ge=-1, lt=2**31)] | Literal["unknown"]] = Field(
        max_length=10_000
    )


class NoImages(BaseModel):
    """Calibrate without known images, by the scores of each stream itself."""

    model_config = ConfigDict(strict=True, extra="forbid")
    known: None


class Listed(BaseModel):
    """Streams in memory, the latest used first."""

    in_memory: int
    stored: int = Field(description="streams that have a state file")
    streams: list[dict[str, Any]]
    stored_names: list[str] | None = Field(description="of all of them, with ``?stored=true``")


def create_app(host: Host, settings: Settings | None = None) -> FastAPI:
    """The service around ``host``, as an ASGI application; it closes the host when it ends.

    Its ``state`` has the ``service``, and ``demo``, which gives what the page shows of the demo.

    Example:
        >>> import timm
        >>> vit = timm.create_model("vit_tiny_patch16_224", num_classes=5, depth=4)
        >>> app = create_app(Host(vit, "tent"))
        >>> app.state.service.is_ready
        False
    """
    settings = settings or Settings()
    service = Service(host, settings)
    demo = Demo(service) if settings.demo else None

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        service.start()
        feeding = asyncio.create_task(demo.run()) if demo else None
        yield
        if feeding is not None:
            feeding.cancel()
            await asyncio.wait([feeding])
        await service.close()

    app = FastAPI(
        title="opentta",
        version=__version__,
        description="Many adapting streams over one frozen network.",
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        responses={"default": PROBLEM},
    )
    app.state.service, app.state.settings = service, settings
    app.state.demo = demo.shown if demo else lambda: None
    app.add_middleware(Gate, service=service)
    add_handlers(app)
    _add_streams(app, service)
    _add_calibration(app, service)
    _add_watching(app, service)
    _add_pages(app)
    return app


def stream_name(name: Annotated[str, Path(alias="id", description="name of a stream")]) -> str:
    """The stream of a path."""
    try:
        return checked_name(name)
    except StreamError as error:
        raise Problem(422, str(error)) from None


def _only(*known: str) -> Any:
    """A dependency: no other query parameters, so that a mistyped one is not left out silently."""

    def check(request: Request) -> None:
        odd = [name for name in request.query_params if name not in known]
        if odd:
            expected = " and ".join(known) or "none"
            raise Problem(422, f"expected as query parameters {expected}, got {odd[0][:40]!r}")

    return Depends(check)


Name = Annotated[str, Depends(stream_name)]
Id = Annotated[str | None, Header(description="of this request: a retry is not learned from twice")]


def _body(**kinds: Any) -> dict[str, Any]:
    """How OpenAPI describes a body that is read by hand."""
    content = {
        kind.replace("_", "/", 1).replace("_", "-"): {"schema": s} for kind, s in kinds.items()
    }
    return {"requestBody": {"required": True, "content": content}}


def _add_streams(app: FastAPI, service: Service) -> None:
    settings, host = service.settings, service.host

    @app.post(
        "/v1/streams/{id}/images",
        response_model=ImagesAnswered,
        dependencies=[_only("learn")],
        openapi_extra=_body(multipart_form_data=FORM, image_jpeg=IMAGE, image_png=IMAGE),
    )
    async def images(
        request: Request,
        name: Name,
        learn: Annotated[bool, Query(description="false: answer only")] = True,
        idempotency_key: Id = None,
        x_request_id: Id = None,
    ) -> Response:
        """Answer one or several images: files of a form, or one as the body itself."""
        start = time.perf_counter()
        request_id = x_request_id if idempotency_key is None else idempotency_key
        with service.room.taken() as take:
            form = await read_images(request, settings, take, most=settings.images)
            if not form.files:
                raise Problem(422, "expected an image as the body, or files in a multipart form")
            if form.fields:
                raise Problem(422, "expected files alone in the form; learn is a query parameter")
            body = await service.answer(name, form.files, learn=learn, request_id=request_id)
        service.measures.answered(len(form.files), time.perf_counter() - start)
        return Response(body, media_type="application/json")

    @app.post(
        "/v1/streams/{id}/feedback",
        openapi_extra=_body(application_json=Labels.model_json_schema()),
    )
    async def feedback(request: Request, name: Name) -> Feedback:
        """Labels for images by their tickets; they test the stream and never train it."""
        with service.room.taken() as take:
            given = _parsed(Labels, await read_json(request, settings, take))
            labels = [-1 if label == "unknown" else label for label in given.labels]
            return await service.call(host.feedback, name, given.tickets, labels)

    for action in ("reset", "freeze", "unfreeze", "resume", "flush"):
        run = getattr(host, action)
        said = (run.__doc__ or "").replace("``", "").partition(";")[0].partition(" See")[0]
        app.add_api_route(
            f"/v1/streams/{{id}}/{action}",
            _action(service, run),
            methods=["POST"],
            status_code=204,
            name=action,
            description=said.strip().rstrip(".") + ".",
        )

    @app.delete("/v1/streams/{id}", status_code=204)
    async def remove(name: Name) -> None:
        """Forget the stream, and its state file."""
        await service.call(host.remove, name)
        service.retries.forget(name)

    @app.get("/v1/streams/{id}/health")
    async def health(name: Name) -> Health:
        """How the stream is doing; docs/health.md explains the numbers."""
        return await service.call(host.health, name)

    @app.get("/v1/streams", dependencies=[_only("limit", "stored")])
    async def streams(
        limit: Annotated[int, Query(ge=1, le=1000)] = 100,
        stored: Annotated[bool, Query(description="true: names of those with a file")] = False,
    ) -> Listed:
        """Streams in memory, the latest used first."""
        found = await service.call(host.streams, limit)
        names = await service.call(host.stored)
        listed = [asdict(info) for info in reversed(found)]
        return Listed(
            in_memory=host.in_memory,
            stored=len(names),
            streams=listed,
            stored_names=names if stored else None,
        )


def _action(service: Service, run: Any) -> Any:
    async def act(name: Name) -> None:
        await service.call(run, name)

    return act


def _add_calibration(app: FastAPI, service: Service) -> None:
    body = _body(
        multipart_form_data=CALIBRATION_FORM, application_json=NoImages.model_json_schema()
    )

    async def calibrate(request: Request, name: str | None) -> None:
        kind = request.headers.get("content-type", "").lower()
        with service.room.taken() as take:
            if kind.startswith("application/json"):
                _parsed(NoImages, await read_json(request, service.settings, take))
                await service.calibrate(None, 0.05, follow=False, stream=name)
                return
            most = service.settings.known
            form = await read_images(request, service.settings, take, most=most)
            if not kind.startswith("multipart/form-data") or not form.files:
                raise Problem(422, 'expected known images in a multipart form, or {"known": null}')
            rate, follow = _rate(form.fields)
            await service.calibrate(form.files, rate, follow=follow, stream=name)

    options: dict[str, Any] = {
        "status_code": 204,
        "openapi_extra": body,
        "dependencies": [_only()],
    }

    @app.post("/v1/streams/{id}/calibrate", **options)
    async def calibrate_one(request: Request, name: Name) -> None:
        """Decide which images of this stream are rejected, by known images that are set aside."""
        await calibrate(request, name)

    @app.post("/v1/calibrate", **options)
    async def calibrate_all(request: Request) -> None:
        """The same for all streams, and for those to come."""
        await calibrate(request, None)


def _add_watching(app: FastAPI, service: Service) -> None:
    events = Events(service, lambda: app.state.demo())

    @app.head("/healthz", include_in_schema=False)
    @app.get("/healthz")
    async def healthz() -> dict[str, str]:
        """The process is alive."""
        return {"status": "alive"}

    @app.head("/readyz", include_in_schema=False)
    @app.get("/readyz")
    async def readyz() -> dict[str, str]:
        """The model is loaded, and the server is not about to stop."""
        if not service.is_ready:
            raise Problem(503, "not ready")
        return {"status": "ready"}

    @app.get("/metrics")
    async def metrics() -> Response:
        """Counts for Prometheus."""
        return Response(service.measures.text(), media_type="text/plain; version=0.0.4")

    @app.get("/v1/events")
    async def watch() -> StreamingResponse:
        """Server-sent events for the page, one per second."""
        return StreamingResponse(
            events.open(), media_type="text/event-stream", headers={"X-Accel-Buffering": "no"}
        )


def _add_pages(app: FastAPI) -> None:
    page = files("opentta.serve").joinpath("page")
    found = {file.name: file for file in page.iterdir()} if page.is_dir() else {}

    @app.get("/docs", include_in_schema=False)
    async def docs() -> HTMLResponse:
        return HTMLResponse(reference_page(app.openapi()))

    def read(name: str) -> Response:
        if name not in found:
            raise HTTPException(404, "there is no such file")
        kind = guess_type(name)[0] or "application/octet-stream"
        return Response(found[name].read_bytes(), media_type=kind)

    app.add_api_route("/", partial(read, "index.html"), include_in_schema=False)
    app.add_api_route("/page/{name}", read, include_in_schema=False)


def _parsed(kind: Any, body: bytes) -> Any:
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        found = error.errors(include_url=False, include_input=False, include_context=False)
        raise Problem(422, worded(found)) from None


def _rate(fields: dict[str, str]) -> tuple[float, bool]:
    """Rate and follow of a form."""
    odd = set(fields) - {"rate", "follow"}
    if odd:
        raise Problem(422, "expected the fields rate and follow beside the files, and no other")
    follow = fields.get("follow", "false").lower()
    try:
        rate = float(fields.get("rate", "0.05"))
    except ValueError:
        raise Problem(422, "expected rate as a number between 0 and 1") from None
    if follow not in ("true", "false"):
        raise Problem(422, "expected follow as true or false")
    return rate, follow == "true"
