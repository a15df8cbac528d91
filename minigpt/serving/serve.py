"""minigpt serve: loads the models, opens the port, and answers until Ctrl-C."""

import asyncio
import contextlib
import logging
import os
import signal
import socket
import traceback
from pathlib import Path

import uvicorn

from minigpt.config.commands import ServeConfig
from minigpt.faults import FINISHED, INTERRUPTED, UserFault
from minigpt.sampling.conversation import form_of
from minigpt.screen import note
from minigpt.serving.app import make_app
from minigpt.serving.engine import Engine, load_models

MAX_CONNECTIONS = 500  # at a time; more are answered with 503
IDLE_SECONDS = 10  # until a connection without a request is closed
LEAVING_SECONDS = 5  # to finish sending answers when the server stops


def serve(config: ServeConfig) -> int:
    """Serve models until a signal comes; return the exit code."""
    token = read_token(config)
    listening = listen(config)  # before the models are loaded: a wrong port is known at once
    models = load_models(config)
    engine = Engine(models, queue=config.queue, on_error=lambda error: note("".join(traceback.format_exception(error))))
    app = make_app(engine, config, token=token, say=note)
    settings = uvicorn.Config(
        app, http="h11", ws="none", log_level="error", access_log=False, server_header=False, date_header=False,
        timeout_graceful_shutdown=LEAVING_SECONDS, proxy_headers=False, limit_concurrency=MAX_CONNECTIONS,
        timeout_keep_alive=IDLE_SECONDS,
    )  # fmt: skip
    logging.getLogger("asyncio").setLevel(logging.ERROR)  # it warns of each client that went away
    for served in models:
        kind, form = "native code" if served.native else "PyTorch", form_of(served.loaded.tokenizer)
        note(f"{served.name}: {kind}, {served.rows} texts at a time; of a conversation it reads {form}")
    return asyncio.run(until_told(uvicorn.Server(settings), engine, listening))


async def until_told(server: uvicorn.Server, engine: Engine, listening: socket.socket) -> int:
    """Serve until Ctrl-C or SIGTERM; a second one ends the process at once."""

    def stop() -> None:
        if server.should_exit:
            os._exit(INTERRUPTED)
        server.should_exit = True
        engine.stop()

    server.capture_signals = contextlib.nullcontext  # type: ignore  # they are handled here
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop)
    host, port = listening.getsockname()[:2]
    print(f"Serving at http://{f'[{host}]' if ':' in host else host}:{port} (Ctrl-C stops)", flush=True)
    await server.serve([listening])
    note("Stopped.")
    return FINISHED


def listen(config: ServeConfig) -> socket.socket:
    """Return a socket that listens at the config's address."""
    try:
        family, *_, address = socket.getaddrinfo(config.host, config.port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(address[:2], family=family, backlog=256)
    except (OSError, UnicodeError) as error:
        remedy = "Use another port=, or port=0 for any free one"
        raise UserFault(f"host={config.host} port={config.port} can't be listened at: {error}. {remedy}") from None


def read_token(config: ServeConfig) -> str | None:
    """Return the token that clients must send; None if any key will do, which config/rules allows on loopback only."""
    token = os.environ.get("MINIGPT_TOKEN", "")
    if config.token_file is not None:
        token = Path(os.path.expanduser(config.token_file)).read_text(errors="replace").strip()
    elif not token:
        return None
    if len(token) < 16 or not token.isascii() or not token.isprintable() or " " in token:
        raise UserFault("the token must be 16 ASCII characters or more, without blanks: openssl rand -hex 24")
    return token
