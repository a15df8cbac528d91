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
import threading
import time
import urllib.request
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
    written, end = [0] * CLIENTS, time.monotonic() + seconds

    def ask(number: int) -> None:
        while time.monotonic() < end:
            data = json.dumps({**body, "seed": number}).encode()
            request = urllib.request.Request(f"{url}/v1/completions", data, {"Content-Type": "application/json"})
            with urllib.request.urlopen(request, timeout=300) as reply:
                written[number] += json.load(reply)["usage"]["completion_tokens"]

    started = time.monotonic()
    clients = [threading.Thread(target=ask, args=(number,)) for number in range(CLIENTS)]
    for client in clients:
        client.start()
    for client in clients:
        client.join()
    return sum(written) / (time.monotonic() - started)


def main(run: str, seconds: float = 30.0, rounds: int = 3) -> None:
    """Print the speed of both, round by round."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "gguf"
        export = ["export", f"checkpoint={run}", "format=gguf", "type=f32", f"dir={folder}"]
        subprocess.run([sys.executable, "-m", "minigpt", *export], check=True)
        block_size = json.loads((next(Path(run).glob("checkpoints/step-*")) / "config.json").read_text())["model"]
        sizes = [str(SLOTS), str(block_size["block_size"]), str(usable_cores())]
        commands = {
            "minigpt": ["-m", "minigpt", "serve", f"checkpoint={run}", f"rows={SLOTS}", "port=0", "log=none"],
            "llama.cpp": ["-c", LLAMA, str(next(folder.glob("*.gguf"))), *sizes],
        }
        for turn in range(rounds):
            speeds = {}
            for name, command in commands.items():
                environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
                with subprocess.Popen(
                    [sys.executable, *command],
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    text=True,
                    env=environment,
                ) as process:
                    assert process.stdout is not None
                    line = next(line for line in process.stdout if line.startswith("Serving at"))
                    url = line.split()[2]
                    with urllib.request.urlopen(f"{url}/v1/models", timeout=60) as reply:
                        model = json.load(reply)["data"][0]["id"]
                    tokens_per_second(url, model, 2.0)
                    speeds[name] = tokens_per_second(url, model, seconds)
                    process.kill()
            ratio = speeds["minigpt"] / speeds["llama.cpp"]
            print(
                f"round {turn + 1}: "
                + ", ".join(f"{name} {each:,.0f} tokens/s" for name, each in speeds.items())
                + f", ratio {ratio:.2f}"
            )


if __name__ == "__main__":
    main(sys.argv[1], *map(float, sys.argv[2:3]), *map(int, sys.argv[3:4]))
