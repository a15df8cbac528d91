"""`minigpt serve` and llama.cpp's server with the same model, in turn: tokens per second of 50 clients.

    python benchmarks/serving.py RUN [SECONDS] [ROUNDS]

Needs gguf, xllamacpp, fastapi and uvicorn, and a quiet machine. Weights are fp32 in both; otherwise llama.cpp has its
own defaults, 16 slots like ours, and a thread per core.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from minigpt.machine.hardware import usable_cores

CLIENTS, TOKENS, SLOTS = 50, 64, 16
LLAMA = """
import sys, time, xllamacpp
options = xllamacpp.CommonParams()
options.model.path, options.port = sys.argv[1], 0
options.n_parallel, options.n_ctx, options.verbosity = int(sys.argv[2]), int(sys.argv[2]) * int(sys.argv[3]), -1
options.cpuparams.n_threads = options.cpuparams_batch.n_threads = int(sys.argv[4])
server = xllamacpp.Server(options)
print("Serving at", server.listening_address, flush=True)
time.sleep(10**6)
"""


def tokens_per_second(url: str, name: str, seconds: float) -> float:
    """What 50 clients get that ask again as soon as they are answered."""
    body = {"model": name, "prompt": "The", "max_tokens": TOKENS, "temperature": 0.8, "logit_bias": {}}
    started = time.monotonic()

    def ask(number: int) -> int:
        written = 0
        while time.monotonic() < started + seconds:
            data = json.dumps({**body, "seed": number}).encode()
            request = urllib.request.Request(f"{url}/v1/completions", data, {"Content-Type": "application/json"})
            with urllib.request.urlopen(request, timeout=300) as reply:
                written += json.load(reply)["usage"]["completion_tokens"]
        return written

    with ThreadPoolExecutor(CLIENTS) as clients:
        return sum(clients.map(ask, range(CLIENTS))) / (time.monotonic() - started)


def speed_of(command: list[str], seconds: float) -> float:
    """Start a server, warm it up and measure it."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen([sys.executable, *command], env=environment, **pipes) as process:
        url = next(line for line in process.stdout or () if line.startswith("Serving at")).split()[2]
        with urllib.request.urlopen(f"{url}/v1/models", timeout=60) as reply:
            model = json.load(reply)["data"][0]["id"]
        tokens_per_second(url, model, 2.0)
        speed = tokens_per_second(url, model, seconds)
        process.kill()
    return speed


def main(run: str, seconds: float = 30.0, rounds: int = 3) -> None:
    """Print the speed of both, round by round."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "gguf"
        export = ["export", f"checkpoint={run}", "format=gguf", "type=f32", f"dir={folder}"]
        if code := subprocess.run([sys.executable, "-m", "minigpt", *export]).returncode:
            raise SystemExit(code)  # the export has said why
        model = json.loads((next(Path(run).glob("checkpoints/step-*")) / "config.json").read_text())["model"]
        sizes = [str(SLOTS), str(model["block_size"]), str(usable_cores())]
        minigpt = ["-m", "minigpt", "serve", f"checkpoint={run}", f"rows={SLOTS}", "port=0", "log=none"]
        llama = ["-c", LLAMA, str(next(folder.glob("*.gguf"))), *sizes]
        for turn in range(rounds):
            ours, others = speed_of(minigpt, seconds), speed_of(llama, seconds)
            speeds = f"minigpt {ours:,.0f} tokens/s, llama.cpp {others:,.0f} tokens/s"
            print(f"round {turn + 1}: {speeds}, ratio {ours / others:.2f}")


if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1] == "--help":
        raise SystemExit(__doc__)
    main(sys.argv[1], *map(float, sys.argv[2:3]), *map(int, sys.argv[3:4]))
