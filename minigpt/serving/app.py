"""The paths: OpenAI's under /v1, the page at / and its requests under /api, and /health."""

import asyncio
import contextlib
import hmac
import json
import socket
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.middleware.cors import CORSMiddleware
from fastapi.middleware.trustedhost import TrustedHostMiddleware
from fastapi.responses import HTMLResponse, JSONResponse, StreamingResponse
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from minigpt.config.commands import ServeConfig
from minigpt.faults import CONTROL_PICTURES, UserFault
from minigpt.sampling.conversation import ConversationTooLong, has_conversations
from minigpt.serving.engine import Answer, Busy, Engine, Piece, Served
from minigpt.serving.look import SERVER, page_of
from minigpt.serving.protocol import ApiError, ChatRequest, CompletionRequest, Reply, read_request, sentence_of
from minigpt.serving.views import kinds, lens, look, next_tokens, score

MAX_BODY_BYTES = 1 << 20
GONE = 499  # nginx's number for a client that went away
HEADERS = {"X-Content-Type-Options": "nosniff", "Cross-Origin-Resource-Policy": "same-origin"}
HEADERS |= {"Cache-Control": "no-store", "Referrer-Policy": "no-referrer"}


def make_app(engine: Engine, config: ServeConfig, *, token: str | None, say: Callable[[str], object]) -> FastAPI:
    """Return the application.

    A page of another origin can make a browser send requests to this machine, and a name can be made to point to it
    (DNS rebinding): so the names in Host and Origin are checked, also where no token is needed.

    `token` is what clients must send; None: any key is accepted.
    """

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with engine:
            yield

    def admit(
        request: Request, given: Annotated[HTTPAuthorizationCredentials | None, Depends(HTTPBearer(auto_error=False))]
    ) -> None:
        host = request.headers.get("host", "").lower()
        for origin in request.headers.getlist("origin"):
            if origin not in config.origins and origin.partition("://")[2].lower() != host:
                remedy = "start the server with origins=ORIGIN"
                raise ApiError(403, f"pages of another origin may not use this server: {remedy}", code="wrong_origin")
        if token is not None and not (given and hmac.compare_digest(given.credentials.encode(), token.encode())):
            raise ApiError(401, "wrong or no token: send Authorization: Bearer TOKEN", code="invalid_api_key")

    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None, lifespan=lifespan, max_body_size=MAX_BODY_BYTES)
    app.include_router(paths(Server(engine, config)), dependencies=[Depends(admit)])
    add_open_paths(app, engine)
    for kind in (ApiError, RequestValidationError, HTTPException, Busy, UserFault, Exception):
        app.add_exception_handler(kind, answer_error)
    app.add_exception_handler(ClientDisconnect, lambda request, error: Response(status_code=GONE))
    how: Any = {"allow_methods": ["GET", "POST"], "allow_headers": ["*"], "allow_private_network": True}
    app.add_middleware(CORSMiddleware, allow_origins=config.origins, **how)
    names = ["localhost", "127.0.0.1", "::1", "[::1]", config.host, socket.gethostname(), *config.hosts]
    # With a token any name will do: a page whose name was made to point here does not know the token.
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=["*"] if token else names, www_redirect=False)
    app.add_middleware(Log, kind=config.log, say=say)
    return app


class Log:
    """Adds headers to each answer, a refusal too, and writes a line about it (by the setting log=) when it ends.

    The application may leave words for the line, a status and a prompt in scope["minigpt"].
    """

    def __init__(self, app: ASGIApp, kind: str, say: Callable[[str], object]):
        self.app, self.kind, self.say = app, kind, say

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began = time.monotonic()
        facts = scope["minigpt"] = {"status": 500, "words": "", "prompt": ""}

        async def send_on(message: Message) -> None:
            if message["type"] == "http.response.start":
                facts["status"] = message["status"]
                message["headers"] += [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]
            await send(message)

        try:
            await self.app(scope, receive, send_on)
        finally:
            if self.kind != "none" and scope["path"] != "/health":
                prompt = f" {facts['prompt']!r}" if self.kind == "prompts" and facts["prompt"] else ""
                status = facts.get("end", facts["status"])
                line = f"{scope['method']} {scope['path']} {status} {time.monotonic() - began:.2f} s"
                self.say(f"{line}{facts['words']}{prompt}".translate(CONTROL_PICTURES))


class Server:
    """Answers requests with the engine's texts."""

    def __init__(self, engine: Engine, config: ServeConfig):
        self.engine, self.config = engine, config

    def served(self, name: str) -> Served:
        """Return a model by its name."""
        if name not in self.engine.models:
            known = f"there are: {', '.join(self.engine.models)}"
            raise ApiError(404, f"the model {ascii(name)[:100]} does not exist; {known}", code="model_not_found")
        return self.engine.models[name]

    async def write(self, request: Request, body: CompletionRequest | ChatRequest) -> Response:
        """Answer a request for texts, streaming or not."""
        reply = await asyncio.to_thread(read_request, body, self.served(body.model), self.config)
        request.scope["minigpt"]["prompt"] = str(body.messages if isinstance(body, ChatRequest) else body.prompt)
        self.engine.submit(reply.answer)
        pieces = self.pieces(request, reply, self.watch(request, reply.answer))
        if body.stream:
            return StreamingResponse(events(reply, pieces), media_type="text/event-stream")
        wholes = [Piece(index) for index in range(len(reply.answer.texts))]
        async for piece in pieces:
            whole = wholes[piece.choice]
            whole.text, whole.ended = whole.text + piece.text, piece.ended
            whole.tokens += piece.tokens
        content = await asyncio.to_thread(lambda: json.dumps(reply.whole(wholes)))  # it may be long
        return Response(content, media_type="application/json")

    def watch(self, request: Request, answer: Answer) -> list[asyncio.Task[None] | asyncio.TimerHandle]:
        """End an answer if the client goes away or it takes too long, also while nobody reads the answer."""

        def end(why: Exception) -> None:
            answer.cancelled = True  # its rows become free
            answer.events.put_nowait(why)

        async def wait_for_disconnect() -> None:
            while (await request.receive())["type"] != "http.disconnect":
                pass
            end(ClientDisconnect())

        late = ApiError(504, f"the answer took longer than {self.config.seconds:g} s")
        timer = asyncio.get_running_loop().call_later(self.config.seconds, end, late)
        return [asyncio.create_task(wait_for_disconnect()), timer]

    async def pieces(self, request: Request, reply: Reply, watches: Sequence[Any]) -> AsyncIterator[Piece]:
        """Yield the pieces of an answer until all its texts have ended."""
        answer, facts, tokens = reply.answer, request.scope["minigpt"], 0
        left = len(answer.texts)
        try:
            while left:
                event = await answer.events.get()
                if isinstance(event, Exception):
                    raise event
                tokens += len(event.tokens)
                left -= bool(event.ended)
                yield event
        except (ClientDisconnect, GeneratorExit, asyncio.CancelledError):
            facts["end"] = GONE
            raise
        except Exception as error:
            failure = error if isinstance(error, ApiError) else ApiError(500, f"the model failed: {error}")
            if isinstance(error, Busy):
                failure = ApiError(503, "the server is stopping")
            facts["end"] = failure.status
            raise failure from error
        finally:
            for watch in watches:
                watch.cancel()
            answer.cancelled = True
            facts["words"] = f" {answer.model}: {sum(map(len, reply.prompts))} tokens read, {tokens} written"


async def events(reply: Reply, pieces: AsyncIterator[Piece]) -> AsyncIterator[str]:
    """Yield a stream of server-sent events. Their JSON is ASCII: some clients divide lines at U+2028 and the like."""
    tokens = 0
    try:
        async for piece in pieces:
            tokens += len(piece.tokens)
            if piece.text or piece.ended or reply.body.return_token_ids or reply.answer.top is not None:
                yield f"data: {json.dumps(reply.chunk(piece))}\n\n"
        if reply.body.stream_options.get("include_usage"):
            yield f"data: {json.dumps(reply.chunk(usage=reply.usage(tokens)))}\n\n"
        yield "data: [DONE]\n\n"
    except ApiError as error:
        yield f"data: {json.dumps(error.content)}\n\n"
    except ClientDisconnect:
        return


class ViewRequest(BaseModel):
    """The page's request for a view of a text, or of what follows some tokens."""

    model: str
    text: str = ""
    tokens: list[int] = []


def paths(server: Server) -> APIRouter:
    """Return the paths that need the token, if there is one."""
    router, models = APIRouter(), server.engine.models

    def described(served: Served) -> dict[str, Any]:
        about = {"id": served.name, "object": "model", "created": served.created, "owned_by": "minigpt"}
        loaded = served.loaded  # the page begins with the run's own prompt, and a conversation where one was learned
        return about | {"prompt": loaded.config.samples.prompt, "conversations": has_conversations(loaded.tokenizer)}

    @router.get("/v1/models")
    async def list_models() -> dict[str, Any]:
        return {"object": "list", "data": [described(served) for served in models.values()]}

    @router.get("/v1/models/{name:path}")
    async def one_model(name: str) -> dict[str, Any]:
        return described(server.served(name))

    @router.post("/v1/completions")
    async def completions(request: Request, body: CompletionRequest) -> Response:
        return await server.write(request, body)

    @router.post("/v1/chat/completions")
    async def chat_completions(request: Request, body: ChatRequest) -> Response:
        return await server.write(request, body)

    @router.post("/api/{view}")
    async def view(view: Literal["next", "look", "kinds", "lens", "score"], body: ViewRequest) -> Response:
        served = server.served(body.model)
        views = {
            "next": lambda: next_tokens(served.loaded, body.tokens),
            "look": lambda: look(served.name, served.loaded, body.text),
            "kinds": lambda: kinds(served.loaded, body.text),
            "lens": lambda: lens(served.loaded, body.text),
            "score": lambda: score(served.loaded, body.text),
        }
        return JSONResponse(await server.engine.call(views[view]))

    return router


def add_open_paths(app: FastAPI, engine: Engine) -> None:
    """Add the paths that need no token."""
    page, policy = page_of(SERVER, title="minigpt")
    headers = {"Content-Security-Policy": f"{policy}; frame-ancestors 'none'"}

    @app.get("/")
    async def index() -> Response:
        return HTMLResponse(page, headers=headers)

    @app.get("/health")
    async def health() -> Response:
        alive, models = not engine.work.done(), engine.models.values()
        counts = {name: sum(len(getattr(served, name)) for served in models) for name in ("writing", "waiting")}
        return JSONResponse({"status": "ok" if alive else "failed", **counts}, 200 if alive else 503)


async def answer_error(request: Request, error: Exception) -> Response:
    """Answer an error in OpenAI's form."""
    failure = error if isinstance(error, ApiError) else ApiError(500, "an error of the server: its log has the rest")
    if isinstance(error, RequestValidationError):
        message, param = sentence_of(error.errors())
        failure = ApiError(400, message, param=param)
    elif isinstance(error, HTTPException):
        hint = "; the paths are /v1/chat/completions, /v1/completions and /v1/models" * (error.status_code == 404)
        failure = ApiError(error.status_code, f"{request.method} {request.url.path}: {error.detail}{hint}")
    elif isinstance(error, Busy):
        failure = ApiError(429, "too many requests wait already: try again later", code="queue_full")
    elif isinstance(error, UserFault):
        code = "context_length_exceeded" if isinstance(error, ConversationTooLong) else None
        failure = ApiError(400, str(error), code=code)
    return JSONResponse(failure.content, failure.status)
