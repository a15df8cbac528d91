"""verify-resume proves something: its runs save often, and a kill before the first checkpoint is no proof."""

import math
import shutil

import pytest

from minigpt import verify
from minigpt.config.compose import compose
from minigpt.faults import UserFault


def test_a_proof_needs_a_checkpoint_at_a_kill(run, monkeypatch):
    straight, commands = run("trainer.max_steps=2"), []

    def trained(command, path, kill_after=math.inf):
        commands.append(command)
        if kill_after == math.inf:
            shutil.copytree(straight, path)
        return kill_after < math.inf  # killed before its first checkpoint

    monkeypatch.setattr(verify, "_train", trained)
    config = compose("train", run.arguments("trainer.max_steps=30"))
    config.typed -= {"checkpoint.every_steps"}
    with pytest.raises(UserFault, match="never killed after its first checkpoint: nothing is proved"):
        verify.verify_resume(config, ["train"], kills=2, folder=run.folder / "proof")
    assert commands == 3 * [["train", f"checkpoint.every_steps={min(3, config.checkpoint.every_steps)}"]]
