"""50 clients for five minutes: memory stays flat, nobody starves, and the text is what it is alone.

SECONDS=20 makes it shorter.
"""

import json
import os
import random
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from tests.extras.serving import ServerProcess

pytestmark = pytest.mark.soak
pytest.importorskip("fastapi", reason="make test-extras installs fastapi and uvicorn")
pytest.importorskip("uvicorn", reason="make test-extras installs fastapi and uvicorn")
CLIENTS, SECONDS = 50, float(os.environ.get("SECONDS", "300"))


def ask(url, path, body=None, *, read=None):
    data = None if body is None else json.dumps(body).encode()
    head = {"Content-Type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(url + path, data, head), timeout=120) as reply:
        return reply.read(read).decode()


class Client(threading.Thread):
    """Asks again and again: streams, whole answers, and every tenth time it goes away in the middle."""

    def __init__(self, url, number, wanted, end):
        super().__init__()
        self.url, self.chance, self.wanted, self.end = url, random.Random(number), wanted, end
        self.answers, self.longest, self.faults = 0, 0.0, []

    def check(self, text, seed):
        if text != self.wanted[seed]:
            raise AssertionError(f"seed {seed}: {text!r} in company, {self.wanted[seed]!r} alone")

    def run(self):
        while time.monotonic() < self.end and len(self.faults) < 3:
            seed, started = self.chance.randrange(len(self.wanted)), time.monotonic()
            body = {"model": "run", "prompt": "how much", "max_tokens": 60, "seed": seed, "temperature": 0.9}
            try:
                kind = self.chance.randrange(10)
                if kind == 0:
                    ask(self.url, "/v1/completions", {**body, "max_tokens": 4000, "stream": True}, read=100)
                elif kind < 5:
                    events = ask(self.url, "/v1/completions", {**body, "stream": True}).split("\n\n")
                    text = "".join(json.loads(each[6:])["choices"][0]["text"] for each in events if each[6:7] == "{")
                    self.check(text, seed)
                else:
                    answer = json.loads(ask(self.url, "/v1/completions", body))
                    self.check(answer["choices"][0]["text"], seed)
            except (OSError, AssertionError) as fault:
                self.faults.append(f"{type(fault).__name__}: {fault}")
            self.answers += 1
            self.longest = max(self.longest, time.monotonic() - started)


def test_50_clients(new_run, tmp_path):
    run = new_run(tmp_path)("model.n_embd=64", "model.block_size=64", "trainer.max_steps=20")
    with ServerProcess(tmp_path, f"checkpoint={run}", "queue=100") as server:
        wanted = []
        for seed in range(20):
            body = {"model": "run", "prompt": "how much", "max_tokens": 60, "seed": seed, "temperature": 0.9}
            wanted.append(json.loads(ask(server.url, "/v1/completions", body))["choices"][0]["text"])
        clients = [Client(server.url, number, wanted, time.monotonic() + SECONDS) for number in range(CLIENTS)]
        for client in clients:
            client.start()
        memory = []
        while any(client.is_alive() for client in clients):
            time.sleep(min(5.0, SECONDS / 10))
            pages = int(Path(f"/proc/{server.process.pid}/statm").read_text().split()[1])
            memory.append(pages * os.sysconf("SC_PAGE_SIZE") / 1e6)
        answers = sorted(client.answers for client in clients)
        print(f"\n{sum(answers)} answers, from {answers[0]} to {answers[-1]} a client")
        print(f"longest wait {max(client.longest for client in clients):.2f} s; memory {memory[0]:.0f} MB at first, "
              f"{memory[len(memory) // 5]:.0f} after a fifth, {memory[-1]:.0f} at the end")  # fmt: skip
        assert [fault for client in clients for fault in client.faults] == []
        assert answers[0] > 0.5 * answers[-1]
        assert memory[-1] < memory[len(memory) // 5] * 1.05 + 5
        time.sleep(1)
        assert server.health() == {"status": "ok", "writing": 0, "waiting": 0}
