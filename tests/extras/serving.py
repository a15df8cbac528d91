"""A server as a process of its own, and raw connections to it."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path


class ServerProcess:
    """`minigpt serve` with these words; `with` ends it as Ctrl-C does."""

    def __init__(self, folder: Path, *words: str, **environment: str):
        self.log = open(folder / "server.log", "w+")  # noqa: SIM115 (it is open as long as the server)
        environment = {**os.environ, "PYTHONUNBUFFERED": "1", **environment}
        environment.pop("MINIGPT_TOKEN", None) if "MINIGPT_TOKEN" not in environment else None
        command = [sys.executable, "-m", "minigpt", "serve", *words, "port=0"]
        self.process = subprocess.Popen(
            command, cwd=folder, stdout=subprocess.PIPE, stderr=self.log, text=True, env=environment
        )

    def __enter__(self) -> "ServerProcess":
        line = self.process.stdout.readline()
        match = re.fullmatch(r"Serving at (http://\S+:(\d+)) \(Ctrl-C stops\)\n", line)
        assert match, line + self.said()
        self.url, self.port = match[1], int(match[2])
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        try:
            self.process.wait(20)
        finally:
            self.process.kill()
            self.process.stdout.close()
            self.log.close()

    def said(self) -> str:
        """What it wrote to stderr."""
        self.log.flush()
        return Path(self.log.name).read_text()

    def connect(self) -> socket.socket:
        """A raw connection."""
        return socket.create_connection(("127.0.0.1", self.port), timeout=30)

    def health(self) -> dict:
        """What the server tells about itself: status, texts writing and waiting."""
        with urllib.request.urlopen(f"{self.url}/health", timeout=30) as reply:
            return json.load(reply)
