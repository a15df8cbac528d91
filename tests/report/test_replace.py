"""Files that are replaced whole."""

import pytest

from minigpt.report.replace import replace


def test_the_old_file_stays_until_the_new_one_is_whole_and_no_litter_is_left(tmp_path):
    path = tmp_path / "page.html"
    path.write_text("old")

    def torn(temporary):
        temporary.write_text("half")
        assert path.read_text() == "old"
        raise OSError("no space")

    with pytest.raises(OSError, match="no space"):
        replace(path, torn)
    assert path.read_text() == "old"
    replace(path, lambda temporary: temporary.write_text("new"))
    assert path.read_text() == "new"
    assert [file.name for file in tmp_path.iterdir()] == ["page.html"]
