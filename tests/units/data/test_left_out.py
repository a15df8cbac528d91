"""Files of a folder of notes or code that are text, but that nobody wants to train on."""

import base64
import random

import pytest

from minigpt.config.schema import DataConfig
from minigpt.data.sources.corpus import find_corpus, look_inside

PICTURE = base64.encodebytes(random.Random(0).randbytes(30_000)).decode()
FILES = {
    "note.md": "What I thought of today.\n" * 400,
    "drawing.md": f"# Text elements\nqueue -> worker\n\n{PICTURE}",
    "scan.md": f"![](data:image/png;base64,{PICTURE.replace(chr(10), '')})\n\nAs the board showed.\n",
    "pictured.md": "What the picture shows, at length.\n" * 1_500 + PICTURE,
    "genome.txt": "".join(
        "ACGT"[random.Random(place).randrange(4)] + "\n" * (place % 70 == 69) for place in range(20_000)
    ),
    "site/icon.svg": '<svg><path d="M3 4l10.5 0z"/></svg>\n' * 500,
    "site/package-lock.json": '{"lockfileVersion": 3}\n' * 500,
    "site/uv.lock": "version = 1\n" * 500,
    "site/app.min.js": "var a=1;" * 500,
    "site/app.js": "let answer = 42\n" * 500,
}


@pytest.fixture
def folder(tmp_path):
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def read(source, **options):
    corpus = look_inside(find_corpus(DataConfig(name="text", source=str(source), **options)))
    return {file.label for file in corpus.files}, corpus.notes


def test_pictures_in_base64_and_files_that_programs_write_are_left_out_of_a_folder(folder):
    names, notes = read(folder)
    assert names == {"note.md", "pictured.md", "genome.txt", "site/app.js"}
    assert notes == [
        "left out 2 (mostly base64: a picture or a drawing in a text): drawing.md, scan.md",
        "left out 4 (drawn or written by a program; 'data.include=*' reads all): "
        "site/app.min.js, site/icon.svg, site/package-lock.json ...",
    ]


def test_they_are_read_when_they_are_meant(folder):
    assert read(folder, include="*.svg,uv.lock")[0] == {"site/icon.svg", "site/uv.lock"}
    assert read(folder / "drawing.md")[0] == {"drawing.md"}
    assert len(read(f"{folder},{folder / 'drawing.md'}")[0]) == len(read(f"{folder / 'drawing.md'},{folder}")[0]) == 5
    assert read(folder / "site" / "icon.svg")[0] == {"icon.svg"}
