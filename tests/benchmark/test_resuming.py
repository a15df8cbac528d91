"""A run is put at a step that it never made, and goes on from there as any run does."""

from minigpt.benchmark import resuming, steps
from minigpt.checkpoint.load import load_checkpoint
from minigpt.checkpoint.store import latest_usable, list_checkpoints, verify
from minigpt.training.restoring import read_run_state


def test_a_checkpoint_far_on_verifies_and_is_continued_there(minute, tokens, tmp_path, rows):
    run = tmp_path / "run"
    common = ["schedule.warmup_steps=1", f"run.dir={run}", "logger.every_steps=1"]
    resuming.begin_at({"arguments": minute.arguments(tokens, *common, steps=3), "step": 1000})
    begun, far = list_checkpoints(run / "checkpoints")
    verify(far)
    assert latest_usable(run / "checkpoints") == far
    assert (read_run_state(begun).step, read_run_state(far).step) == (3, 1000)
    assert far.joinpath("model.safetensors").read_bytes() == begun.joinpath("model.safetensors").read_bytes()
    assert load_checkpoint(far).state["tokens"] == 1000 * 32
    found = steps.whole({"arguments": minute.arguments(tokens, *common, steps=1003), "warm_up": 1})
    assert found["steps"] == 1
    assert [(row["step"], row["tokens"]) for row in rows(run)][-3:] == [
        (1001, 1001 * 32),
        (1002, 1002 * 32),
        (1003, 1003 * 32),
    ]
