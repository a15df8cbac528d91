"""Peak memory and time of a training step with all logits at once and in chunks, and what the plan says beside it.

Usage: python tests/soak/measure_memory.py [batch=4] [precision=bf16] [rounds=1] [chunks=0,1280] [model=gpt2]

Each measurement is a process of its own, in turn: three steps of AdamW, random tokens, GPT-2's vocabulary, two threads.
Time is that of the fastest step. Memory is the most that was resident, less what torch takes by itself.
"""

import json
import resource
import statistics
import subprocess
import sys
import time

V = 50257


def measure(model: str, batch: int, precision: str, chunk: int) -> None:
    """Train three steps and print the memory and the time as JSON."""
    import torch

    from minigpt.config.compose import compose
    from minigpt.machine.allocator import keep_freed_memory
    from minigpt.model.gpt import GPT
    from minigpt.model.loss import autocast, next_token_loss
    from minigpt.training.optimizer import build_optimizer

    torch.set_num_threads(2)
    keep_freed_memory()
    config = compose("train", [f"model={model}"])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    gpt = GPT(config.model, V).train()
    optimizer = build_optimizer(config.optimizer, gpt, precision=precision)
    tokens, seconds = torch.randint(V, (batch, config.model.block_size + 1)), []
    for _ in range(3):
        began = time.perf_counter()
        with autocast("cpu", precision):
            loss = next_token_loss(gpt, tokens[:, :-1], tokens[:, 1:], chunk=chunk)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        seconds.append(time.perf_counter() - began)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(json.dumps({"GB": (after - before) * 1024 / 1e9, "s": min(seconds)}))


def main(words: list[str]) -> None:
    given = {"batch": "4", "precision": "bf16", "rounds": "1", "chunks": "0,1280", "model": "gpt2"}
    given |= dict(word.split("=") for word in words)
    found: dict[str, list[dict[str, float]]] = {chunk: [] for chunk in given["chunks"].split(",")}
    for _ in range(int(given["rounds"])):
        for chunk, results in found.items():
            task = [given["model"], given["batch"], given["precision"], chunk]
            done = subprocess.run(
                [sys.executable, __file__, "--one", *task], capture_output=True, text=True, check=True
            )
            results.append(json.loads(done.stdout.splitlines()[-1]))
    for chunk, results in found.items():
        figures = [f"{statistics.median(each[unit] for each in results):.2f} {unit}" for unit in ("GB", "s")]
        print(f"{given['model']} {given['precision']} batch {given['batch']}, chunk {chunk:>6}: {', '.join(figures)}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        measure(sys.argv[2], int(sys.argv[3]), sys.argv[4], int(sys.argv[5]))
    else:
        main(sys.argv[1:])
