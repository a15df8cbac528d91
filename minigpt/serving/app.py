"""The paths: OpenAI's under /v1, the page at / and its requests under /api, /health and /metrics."""

import asyncio
import contextlib
import json
import resource
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse, StreamingResponse
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from minigpt.config.commands import ServeConfig
from minigpt.faults import CONTROL_PICTURES, UserFault
from minigpt.serving.engine import Answer, Busy, Engine, Piece, Served
from minigpt.serving.guard import Guard, error_response, read_body
from minigpt.serving.page_of import SERVER, page_of
from minigpt.serving.protocol import ApiError, Order, Reply, read_order
from minigpt.serving.views import look, next_tokens, score

GONE = 499  # nginx's number for a client that went away
BUSY = "too many requests wait already: try again later"


class Server:
    """The state that the paths share.

    Args:
        engine: writes the texts.
        config: limits, and what is logged.
        say: takes a line for each request that is logged.
    """

    def __init__(self, engine: Engine, config: ServeConfig, say: Callable[[str], object]):
        self.engine, self.config, self.say = engine, config, say
        self.tokenizers = {name: served.loaded.tokenizer for name, served in engine.models.items()}
        self.contexts = {name: served.loaded.model.config.block_size for name, served in engine.models.items()}
        self.requests: Counter[tuple[str, int]] = Counter()
        self.seconds: dict[str, float] = {}

    def served(self, name: Any) -> Served:
        """Return a model by its name.

        Raises:
            ApiError: there is no such model.
        """
        if not isinstance(name, str):
            raise ApiError(400, "model must be text", param="model")
        if name not in self.engine.models:
            known = ", ".join(self.engine.models)
            raise ApiError(
                404, f"the model {str(name)[:100]!r} does not exist; there are: {known}", code="model_not_found"
            )
        return self.engine.models[name]

    async def write(self, request: Request, *, chat: bool) -> Response:
        """Answer a request for texts, streaming or not."""
        content = await read_body(request)
        limits = {"max_tokens": self.config.max_tokens, "max_texts": self.config.rows + self.config.queue}
        order = await asyncio.to_thread(
            read_order, content, self.tokenizers, contexts=self.contexts, chat=chat, **limits
        )
        try:
            self.engine.submit(order.answer)
        except Busy:
            raise ApiError(429, BUSY, code="queue_full") from None
        writing = self.pieces(request, order, self.watch(request, order.answer))
        reply = Reply(order, int(time.time()))
        if order.stream:
            return StreamingResponse(events(order, reply, writing), media_type="text/event-stream")
        wholes = [Piece(index) for index in range(len(order.answer.rows))]
        async for piece in writing:
            whole = wholes[piece.choice]
            whole.text, whole.ended = whole.text + piece.text, piece.ended
            whole.tokens += piece.tokens
        return StreamingResponse(reply.whole(wholes), media_type="application/json")  # made in a thread

    def watch(self, request: Request, answer: Answer) -> list[asyncio.Task[None] | asyncio.TimerHandle]:
        """End an answer if the client goes away or it takes too long, also while nobody reads the answer."""

        def end(why: Exception) -> None:
            self.engine.cancel(answer)
            answer.events.put_nowait(why)

        timer = asyncio.get_running_loop().call_later(self.config.seconds, end, TimeoutError())
        return [asyncio.create_task(disconnected(request, end)), timer]

    async def pieces(self, request: Request, order: Order, watches: Sequence[Any]) -> AsyncIterator[Piece]:
        """Yield the pieces of an answer until all its texts have ended.

        Raises:
            ApiError: it takes too long, or the model fails.
            ClientDisconnect: the client is gone.
        """
        answer, status, tokens = order.answer, 200, 0
        left = len(answer.rows)
        try:
            while left:
                event = await answer.events.get()
                if isinstance(event, Exception):
                    raise event
                tokens += len(event.tokens)
                left -= bool(event.ended)
                yield event
        except TimeoutError:
            status = 504
            raise ApiError(504, f"the answer took longer than {self.config.seconds:g} s") from None
        except Busy:
            status = 503
            raise ApiError(503, "the server is stopping") from None
        except (ClientDisconnect, GeneratorExit, asyncio.CancelledError):
            status = GONE
            raise
        except Exception as error:
            status = 500
            raise ApiError(500, str(error) if isinstance(error, UserFault) else "the model failed") from error
        finally:
            for each in watches:
                each.cancel()
            self.engine.cancel(answer)
            self.note(request, status, order, tokens)

    def note(self, request: Request, status: int, order: Order | None = None, tokens: int = 0) -> None:
        """Count a request, and log it."""
        path, seconds = request.url.path, time.monotonic() - request.scope["began"]
        known = path if path in PATHS else "other"
        self.requests[known, status] += 1
        self.seconds[known] = self.seconds.get(known, 0.0) + seconds
        if self.config.log == "none" or path in ("/health", "/metrics"):
            return
        words = f"{request.method} {path} {status} {seconds:.2f} s"
        if order is not None:
            words += f" {order.answer.model}: {sum(map(len, order.prompts))} tokens read, {tokens} written"
            words += f" {order.shown!r}" if self.config.log == "prompts" else ""
        self.say(words.translate(CONTROL_PICTURES))

    def metrics(self) -> Iterator[str]:
        """Yield the metrics as lines for Prometheus."""
        models = self.engine.models
        yield from family("requests_total", "counter", "Requests answered.", {
            f'path="{path}",status="{status}"': count for (path, status), count in self.requests.items()
        })  # fmt: skip
        yield from family("request_seconds_total", "counter", "Time spent on them.", {
            f'path="{path}"': round(seconds, 3) for path, seconds in self.seconds.items()
        })  # fmt: skip
        for name, kind, meaning, value in (
            ("tokens_read_total", "counter", "Tokens of prompts.", lambda served: served.tokens_read),
            ("tokens_written_total", "counter", "Tokens written.", lambda served: served.tokens_written),
            ("texts_writing", "gauge", "Texts written now.", lambda served: len(served.writing)),
            ("texts_waiting", "gauge", "Texts that wait.", lambda served: len(served.waiting)),
        ):
            values = {f"model={json.dumps(model)}": value(served) for model, served in models.items()}
            yield from family(name, kind, meaning, values)
        yield from family("memory_bytes", "gauge", "Memory that the process holds.", {"": memory_bytes()})


def memory_bytes() -> int:
    """Return the memory that this process holds; if the system does not say, the most that it has held."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # on macOS in bytes


PATHS = {"/", "/health", "/metrics", "/v1/models", "/v1/completions", "/v1/chat/completions"}
PATHS |= {"/api/next", "/api/look", "/api/score"}


def family(name: str, kind: str, meaning: str, values: dict[str, float]) -> Iterator[str]:
    """Yield one metric in Prometheus' text format."""
    yield from (f"# HELP minigpt_{name} {meaning}", f"# TYPE minigpt_{name} {kind}")
    yield from (
        f"minigpt_{name}{{{labels}}} {value}" if labels else f"minigpt_{name} {value}"
        for labels, value in values.items()
    )


async def events(order: Order, reply: Reply, writing: AsyncIterator[Piece]) -> AsyncIterator[str]:
    """Yield a stream of server-sent events."""
    begun: set[int] = set()
    tokens = 0
    try:
        async for piece in writing:
            tokens += len(piece.tokens)
            ended, piece.ended = piece.ended, ""
            if piece.text or (piece.tokens and (order.token_ids or order.answer.top is not None)):
                yield data(reply.chunk(piece, first=piece.choice not in begun))
                begun.add(piece.choice)
            if ended:
                last = Piece(piece.choice, ended=ended)
                yield data(reply.chunk(last, first=piece.choice not in begun))
        if order.usage:
            yield data(reply.last_chunk(tokens))
        yield "data: [DONE]\n\n"
    except ApiError as error:
        yield data(error.content)
    except ClientDisconnect:
        return


def data(content: dict[str, Any]) -> str:
    """Return a server-sent event."""
    return f"data: {json.dumps(content, ensure_ascii=False)}\n\n"


async def disconnected(request: Request, tell: Callable[[Exception], object]) -> None:
    """Wait until the client goes away, then call `tell`."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
    tell(ClientDisconnect())


def make_app(
    engine: Engine, config: ServeConfig, *, hosts: Collection[str], token: str | None, say: Callable[[str], object]
) -> FastAPI:
    """Return the application.

    Args:
        engine: writes the texts; it runs while the application does.
        config: limits, and what is logged.
        hosts: names of this server.
        token: that clients must send; None: any key is accepted.
        say: takes a line for each request that is logged.
    """

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with engine:
            yield

    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None, lifespan=lifespan)
    app.add_middleware(Guard, hosts=hosts, token=token)
    server = Server(engine, config, say)
    add_paths(app, server)
    add_errors(app, server)
    return app


def add_paths(app: FastAPI, server: Server) -> None:
    """Add the paths that the server answers."""
    page, policy = page_of(SERVER, title="minigpt")
    headers = {"Content-Security-Policy": f"{policy}; frame-ancestors 'none'"}
    models = server.engine.models

    def described(served: Served) -> dict[str, Any]:
        return {"id": served.name, "object": "model", "created": served.created, "owned_by": "minigpt"}

    @app.get("/")
    async def index() -> Response:
        return HTMLResponse(page, headers=headers)

    @app.get("/health")
    async def health() -> Response:
        alive = server.engine.thread.is_alive()
        return JSONResponse({"status": "ok" if alive else "failed"}, 200 if alive else 503)

    @app.get("/metrics")
    async def metrics() -> Response:
        return PlainTextResponse("\n".join([*server.metrics(), ""]), media_type="text/plain; version=0.0.4")

    @app.get("/v1/models")
    async def list_models() -> Response:
        return JSONResponse({"object": "list", "data": [described(served) for served in models.values()]})

    @app.get("/v1/models/{name:path}")
    async def one_model(name: str) -> Response:
        return JSONResponse(described(server.served(name)))

    app.post("/v1/completions")(writer_of(server, chat=False))
    app.post("/v1/chat/completions")(writer_of(server, chat=True))
    app.post("/api/next")(viewer_of(server, "tokens", lambda served, tokens: next_tokens(served.loaded, tokens)))
    app.post("/api/look")(viewer_of(server, "text", lambda served, text: look(served.name, served.loaded, text)))
    app.post("/api/score")(viewer_of(server, "text", lambda served, text: score(served.loaded, text)))


def writer_of(server: Server, *, chat: bool) -> Callable[..., Any]:
    """Return the function that answers requests for texts."""

    async def write(request: Request) -> Response:
        return await server.write(request, chat=chat)

    return write


def viewer_of(server: Server, key: str, view: Callable[[Served, Any], dict[str, Any]]) -> Callable[..., Any]:
    """Return the function that answers the page with a view of a model and of the request's `tokens` or `text`."""
    kind, words = (list, "a list of tokens") if key == "tokens" else (str, "text")

    async def answer(request: Request) -> Response:
        content = await read_body(request)
        served, about = server.served(content.get("model")), content.get(key)
        if not isinstance(about, kind):
            raise ApiError(400, f"{key} must be {words}", param=key)
        try:
            found = await server.engine.call(partial(view, served, about))
        except Busy:
            raise ApiError(429, BUSY) from None
        except UserFault as fault:
            raise ApiError(400, str(fault), param=key) from None
        server.note(request, 200)
        return JSONResponse(found)

    return answer


def add_errors(app: FastAPI, server: Server) -> None:
    """Answer every error in OpenAI's form."""

    def refuse(request: Request, error: ApiError) -> Response:
        if error.status not in (500, 503, 504):  # those are noted elsewhere
            server.note(request, error.status)
        return error_response(error)

    @app.exception_handler(ApiError)
    async def refused(request: Request, error: ApiError) -> Response:
        return refuse(request, error)

    @app.exception_handler(HTTPException)
    async def no_path(request: Request, error: HTTPException) -> Response:
        return refuse(request, ApiError(error.status_code, f"{request.method} {request.url.path}: {error.detail}"))

    @app.exception_handler(ClientDisconnect)
    async def gone(request: Request, error: ClientDisconnect) -> Response:
        return Response(status_code=GONE)

    @app.exception_handler(Exception)
    async def bug(request: Request, error: Exception) -> Response:
        server.note(request, 500)
        return error_response(ApiError(500, "an error of the server: its log has the rest"))
