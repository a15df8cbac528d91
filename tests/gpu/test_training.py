"""A training on a GPU, as far as fake tensors show it: every path ends, and the host waits only where it must."""

import collections
import functools
import tempfile
from pathlib import Path

import pytest

from tests.gpu.rehearsal import ROOT, in_a_process

pytestmark = pytest.mark.gpu
FOLDER = tempfile.TemporaryDirectory(prefix="minigpt-rehearsal-")
RUNS = Path(FOLDER.name)
TEXT = f"data=text data.source={RUNS}/text.txt tokenizer=byte"
PLAIN = "trainer.compile=off trainer.device=cuda validate.every_steps=0 samples.every_steps=0 logger.every_steps=100"
SMALL = f"{TEXT} {PLAIN} model=qwen3-nano batch_tokens=2048 trainer.max_steps=4"
LARGE = f"{TEXT} {PLAIN} batch_tokens=8192 trainer.micro_batch=4 trainer.max_steps=2"
CHAT = f"{PLAIN} trainer.max_steps=2 data.val_fraction=0.01"
SHORT = f"{PLAIN} trainer.max_steps=2 batch_tokens=8192"
# Beside those with settings of their own below.
EXPERIMENTS = ["demo", "text", "chat_tiny_base", *(f"shakespeare_char_{size}" for size in ("fast", "cpu", "cpu_large"))]
EIGHT = "trainer.devices=8 batch_tokens=16384"

# By cards, the commands of one process, in order: name, words.
COMMANDS = {
    "h100": {
        "first": f"{SMALL} samples.every_steps=2",
        "continued": f"{SMALL} trainer.max_steps=6 run.dir={RUNS}/h100/first",
        "sample": f"sample checkpoint={RUNS}/h100/first device=cuda prompt=Once max_new_tokens=3",
        "evaluate": f"evaluate checkpoint={RUNS}/h100/first device=cuda file={RUNS}/text.txt",
        "serve": f"serve checkpoint={RUNS}/h100/first device=cuda precision=bf16",
        "export": f"export checkpoint={RUNS}/h100/first format=hf dir={RUNS}/h100/exported",
        "gone back": f"{SMALL} numbers=nan,1,1,1,0 guard.max_skips=1 guard.max_rollbacks=2",
        "overflow": f"{SMALL} trainer.precision=fp16 numbers=3,inf,1,65536,0",
        "chat": f"experiment=chat_tiny init.from={RUNS}/h100/first init.experiment=null {CHAT}",
        "grpo": f"experiment=chat_grpo init.from={RUNS}/h100/chat {CHAT} objective.answers=4 batch_tokens=1024",
        "lora": f"{SMALL} adapter=lora init.from={RUNS}/h100/first",
        "medium": f"{LARGE} model=gpt2-medium trainer.loss_chunk=1024",
        "xl": f"{LARGE} model=gpt2-xl",
        "350m": f"{LARGE} model=qwen3-350m optimizer=muon data.mask_documents=true",
        "linear": f"{SMALL} model=gpt-nano model.attention=linear",
        # The waits: each differs from "first" or "plain" in one thing.
        "plain": SMALL,
        "twice as long": f"{SMALL} trainer.max_steps=8",
        "rows": f"{SMALL} trainer.max_steps=8 logger.every_steps=1",
        "validated": f"{SMALL} trainer.max_steps=8 validate.every_steps=4",
        "saved": f"{SMALL} trainer.max_steps=8 checkpoint.every_steps=2",
        "masked": f"{SMALL} trainer.max_steps=8 data.mask_documents=true",
        "masked, short": f"{SMALL} data.mask_documents=true",
        **{name: f"experiment={name} {SHORT} {TEXT}" for name in EXPERIMENTS},
        "benchmark": "benchmark preset=c0 trainer.device=cuda trainer.compile=off steps=4 rounds=1 new_tokens=2",
        "124m": f"experiment=gpt2_124m {PLAIN} {TEXT} trainer.max_steps=1 batch_tokens=65536",
    },
    "8-h100": {
        "ddp": f"{SMALL} {EIGHT} trainer=ddp optimizer=muon validate.every_steps=2 samples.every_steps=2",
        "ddp, continued": f"{SMALL} {EIGHT} trainer=ddp optimizer=muon trainer.max_steps=6 run.dir={RUNS}/8-h100/ddp",
        "ddp, plain": f"{SMALL} {EIGHT} trainer=ddp",
        "ddp, longer": f"{SMALL} {EIGHT} trainer=ddp trainer.max_steps=8",
        "ddp, accumulated": f"{SMALL} {EIGHT} trainer=ddp trainer.micro_batch=4 data.mask_documents=true",
        "lora": f"{SMALL} {EIGHT} trainer=ddp adapter=lora init.from={RUNS}/8-h100/ddp",
        "fsdp": f"{SMALL} {EIGHT} trainer=fsdp optimizer=muon validate.every_steps=2 samples.every_steps=2",
        "fsdp, plain": f"{SMALL} {EIGHT} trainer=fsdp",
        "fsdp, longer": f"{SMALL} {EIGHT} trainer=fsdp trainer.max_steps=8",
        "xl": f"{LARGE} trainer=fsdp trainer.devices=8 model=gpt2-xl batch_tokens=65536",
        "350m": f"{LARGE} trainer=fsdp trainer.devices=8 model=qwen3-350m batch_tokens=65536 trainer.gather=bf16",
        "hsdp": f"{SMALL} {EIGHT} trainer=hsdp trainer.shards=4 trainer.micro_batch=8",
    },
    **{
        f"8-{card}": {layout: f"{SMALL} {EIGHT} trainer={layout}" for layout in ("ddp", "fsdp")}
        for card in ("h200", "a100", "rtx4090", "v100", "t4")
    },
    "h200": {"124m": f"{LARGE} model=qwen3-124m optimizer=muon data.mask_documents=true"},
    "a100": {
        "shakespeare": f"experiment=shakespeare_char {PLAIN} {TEXT} trainer.max_steps=2",
        "rotary": f"{LARGE} model=gpt2 model.attention=rotary trainer.precision=fp32 optimizer=muon",
    },
    "rtx4090": {"large": f"{LARGE} model=gpt2-large model.dropout=0.1 model.checkpoint_activations=true"},
    "v100": {"fp16": f"{LARGE} model=gpt2"},
    "t4": {"fp16": f"{LARGE} model=gpt2 trainer.loss_chunk=1024"},
}
CONTINUED = {"continued", "ddp, continued"}  # they name the run that they continue
ENDS = {"gone back": 5}  # all its losses are NaN


@functools.cache
def results(card: str) -> dict[str, dict]:
    """Run the commands of one or several cards, in one process; return what each ended with."""
    count, _, key = card.rpartition("-")
    text = ROOT.joinpath("docs/GUIDE.md").read_text()[:20_000]
    (RUNS / "text.txt").write_text(text)
    commands = []
    for name, words in COMMANDS[card].items():
        run = [] if name in CONTINUED else [f"run.dir={RUNS}/{card}/{name.replace(' ', '-').replace(',', '')}"]
        given = [*run, f"data.dir={RUNS}/data"] if "=" in words.split()[0] else []
        commands.append(" ".join([*given, words]))
    done = in_a_process("rehearsal.py", " -- ".join(commands), REHEARSED_GPU=key, REHEARSED_GPUS=count or "1")
    return dict(zip(COMMANDS[card], done, strict=True))


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("card", "name"), [(card, name) for card, names in COMMANDS.items() for name in names])
def test_a_command_ends_with_its_exit_code(card, name):
    result = results(card)[name]
    assert result["code"] == ENDS.get(name, 0), result["error"]


def more_waits(name, than, card="h100"):
    """Return the waits of a training that another did not have, by kind; those at its start and end are equal."""
    longer, shorter = ({(kind, place): n for kind, place, n in results(card)[run]["waits"]} for run in (name, than))
    difference = collections.Counter()
    for key in longer.keys() | shorter.keys():
        difference[key[0]] += longer.get(key, 0) - shorter.get(key, 0)
    return {kind: count for kind, count in difference.items() if count}


@pytest.mark.parametrize(
    ("name", "than", "waits"),
    [
        ("twice as long", "plain", {"a wait for an event": 4}),  # each is for the step before the newest
        ("masked", "masked, short", {"a wait for an event": 4}),
        ("rows", "twice as long", {}),
        # The score of the first validation, and a save of the better one.
        ("validated", "twice as long", {"a number read": 1, "a wait for an event": 1}),
        ("saved", "twice as long", {"a wait for an event": 3}),  # in the thread that writes
    ],
)
def test_the_host_waits_once_a_validation_and_a_save_and_never_within_a_step(name, than, waits):
    assert more_waits(name, than) == waits


@pytest.mark.parametrize("layout", ["ddp", "fsdp"])
def test_with_eight_ranks_a_step_waits_as_with_one(layout):
    # DDP itself copies the order of its buckets to the host once a run.
    waits = more_waits(f"{layout}, longer", f"{layout}, plain", card="8-h100")
    assert waits == {"a wait for an event": 4}


def test_no_training_waits_where_a_step_is_made():
    places = {place for result in results("h100").values() for _, place, _ in result["waits"]}
    places -= {"training/step.py:save"}  # the scale of fp16
    assert not [place for place in places if place.startswith(("training/step", "training/optimizer", "model/gpt"))]
