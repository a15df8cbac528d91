"""What is served, and what is too large to be."""

from dataclasses import replace
from pathlib import Path

import pytest

from minigpt.config.commands import ServeConfig
from minigpt.faults import UserFault
from minigpt.serving import models
from minigpt.serving.models import name_of, refuse_too_large, unlike


def test_a_model_goes_by_its_runs_name(tmp_path):
    assert name_of(tmp_path / "demo-1" / "checkpoints" / "step-000000010") == "demo-1"
    assert name_of(Path("/models/llama/")) == "llama"
    assert unlike("a", []) == "a"
    assert unlike("a", ["a", "b", "a-2"]) == "a-3"


def test_a_cache_that_memory_can_not_hold_is_refused_with_what_fits(loaded, monkeypatch):
    a_row = 2 * 2 * 2 * 16 * 24 * 4  # keys and values, layers, heads, their width, columns, bytes
    cache = loaded.model.new_cache(3)
    assert cache.keys.nbytes + cache.values.nbytes == 3 * a_row
    hardware = models.probe("cpu")
    monkeypatch.setattr(models, "probe", lambda device: replace(hardware, memory_bytes=20 * a_row))
    refuse_too_large(loaded.model, ServeConfig(rows=10))
    with pytest.raises(UserFault, match=r"rows=11 texts of up to 24 tokens .* Use rows=10"):
        refuse_too_large(loaded.model, ServeConfig(rows=11))
    monkeypatch.setattr(models, "probe", lambda device: replace(hardware, memory_bytes=a_row))
    with pytest.raises(UserFault, match="another program"):
        refuse_too_large(loaded.model, ServeConfig(rows=1))
