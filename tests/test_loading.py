"""Libraries are loaded without a search for garbage, and what was so before is so afterwards."""

import gc

import pytest

from minigpt.loading import loading


@pytest.mark.parametrize("enabled", [True, False])
def test_no_garbage_is_looked_for_inside_and_what_came_is_passed_over_afterwards(enabled):
    was, frozen = gc.isenabled(), gc.get_freeze_count()
    try:
        gc.enable() if enabled else gc.disable()
        with loading():
            assert not gc.isenabled()
            kept = [[] for _ in range(1000)]
        assert gc.isenabled() == enabled
        assert gc.get_freeze_count() >= frozen + len(kept)
        with pytest.raises(ImportError), loading():
            import minigpt.no_such_module  # noqa: F401
        assert gc.isenabled() == enabled
    finally:
        gc.enable() if was else gc.disable()
