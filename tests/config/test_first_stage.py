"""What init.experiment names: composed from the same folders, of the same model, known before the first step."""

import pytest

from minigpt.config.compose import compose
from minigpt.config.first_stage import first_stage
from minigpt.faults import UserFault


def first_of(*words):
    return first_stage(compose("train", list(words)), words)


def test_folders_of_configs_are_of_both(tmp_path):
    (tmp_path / "experiment").mkdir()
    for name, before in (("mine", "my_base"), ("my_base", None), ("third", "mine")):
        words = f"# @package _global_\nexperiment: {name}\n" + f"init: {{experiment: {before}}}\n" * bool(before)
        (tmp_path / "experiment" / f"{name}.yaml").write_text(words)
    for folder in ([f"--config-dir={tmp_path}"], ["-cd", str(tmp_path)]):
        assert first_of("experiment=mine", *folder).experiment == "my_base"
    with pytest.raises(UserFault, match=r"starts from init\.experiment=my_base itself"):
        first_of("experiment=third", *folder)
