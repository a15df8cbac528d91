"""A text to prepare, and folders that needn't survive a power cut."""

import os
from pathlib import Path

import pytest

from tests.data.poem import POEM


@pytest.fixture(autouse=True)
def no_sync(monkeypatch):
    """A disk takes its time."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@pytest.fixture
def source(tmp_path) -> Path:
    path = tmp_path / "poem.txt"
    path.write_bytes(POEM)
    return path
