"""Tensors in several files: read by any number of processes; written by several, who succeed or fail together."""

import errno
import os
import threading

import pytest
import torch

from minigpt.checkpoint import parts, store
from minigpt.checkpoint.load import read_tensors
from minigpt.checkpoint.pack import DTYPES, MODEL, pack_tensors
from minigpt.checkpoint.parts import TensorFiles, part_name
from minigpt.checkpoint.store import list_checkpoints, read_manifest, verify, write_checkpoint
from minigpt.checkpoint.together import Writers
from minigpt.faults import StorageFailure, UserFault
from minigpt.model.parts import held_rows, local, rows_of

WHOLE = {
    "table": torch.arange(7 * 3, dtype=torch.float32).reshape(7, 3),
    "vector": torch.arange(5, dtype=torch.float64),
    "small": torch.ones(1, 2),
    "step": torch.tensor(12.0),
}


def cut(tensors, part, count):
    """What a process of `count` writes: no empty rows, and what has no rows only once."""
    rows = {name: tensor[slice(*rows_of(len(tensor), part, count))] for name, tensor in tensors.items() if tensor.dim()}
    rows |= {name: tensor for name, tensor in tensors.items() if not tensor.dim() and part == 0}
    return {name: tensor for name, tensor in rows.items() if tensor.numel()}


def write(folder, count):
    files = {part_name(MODEL, part, count): pack_tensors(cut(WHOLE, part, count)) for part in range(count)}
    return write_checkpoint(folder, 1, files, {})


class Mesh:
    ndim = 2

    def __init__(self, part, parts):
        self.part, self.parts = part, parts

    def get_local_rank(self, axis):
        assert axis == 1
        return self.part

    def size(self, axis):
        return self.parts


class Cut:
    """Stands for a DTensor: the shape of all, the rows of one."""

    def __init__(self, whole, part, parts):
        self.whole, self.device_mesh = whole, Mesh(part, parts)
        self.rows = torch.full_like(whole[slice(*rows_of(len(whole), part, parts))], -1)

    def __len__(self):
        return len(self.whole)

    def dim(self):
        return self.whole.dim()

    def to_local(self):
        return self.rows


@pytest.mark.parametrize("written", [1, 2, 4, 9])
def test_any_number_of_processes_reads_what_any_other_has_written(tmp_path, written):
    folder = write(tmp_path, written)
    files = TensorFiles(folder, MODEL)
    assert files.shapes == {name: tuple(tensor.shape) for name, tensor in WHOLE.items()}
    found = {name: torch.full_like(tensor, -1) for name, tensor in WHOLE.items()}
    files.fill(found)
    for name, tensor in WHOLE.items():
        assert torch.equal(found[name], tensor)
    again = read_tensors(folder, MODEL)
    assert all(again[name].equal(tensor) and again[name].dtype == tensor.dtype for name, tensor in WHOLE.items())
    for count in (1, 2, 3, 4):
        for part in range(count):
            mine = {name: Cut(tensor, part, count) for name, tensor in WHOLE.items() if tensor.dim()}
            files.fill(mine)
            for name, tensor in mine.items():
                assert torch.equal(tensor.rows, WHOLE[name][held_rows(tensor)])


@pytest.mark.parametrize("rows", [1, 5, 8])
@pytest.mark.parametrize("count", [1, 2, 3, 8])
def test_rows_are_dealt_out_as_torch_deals_them(rows, count):
    mine = [torch.arange(rows)[slice(*rows_of(rows, part, count))] for part in range(count)]
    theirs = torch.arange(rows).chunk(count)
    assert [part.tolist() for part in mine if len(part)] == [part.tolist() for part in theirs]
    whole = torch.ones(3)
    assert local(whole) is whole
    assert held_rows(whole) == slice(0, 3)


def damage_bytes(folder):
    file = folder / part_name(MODEL, 1, 2)
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)


def damage_by_removal(folder):
    (folder / part_name(MODEL, 1, 2)).unlink()


@pytest.mark.parametrize(
    ("damage", "words"), [(damage_bytes, "SHA-256 differs"), (damage_by_removal, "No such file or directory")]
)
def test_a_damaged_part_is_named(tmp_path, damage, words):
    folder = write(tmp_path, 2)
    damage(folder)
    with pytest.raises(UserFault, match=f"model-1-of-2.safetensors: {words}"):
        TensorFiles(folder, MODEL)


def test_a_missing_part_is_not_taken_for_a_smaller_model(tmp_path):
    files = {part_name(MODEL, part, 3): pack_tensors(cut(WHOLE, part, 3)) for part in (0, 2)}
    with pytest.raises(UserFault, match=r"has no model\.safetensors, nor all parts of one"):
        TensorFiles(write_checkpoint(tmp_path, 1, files, {}), MODEL)


HEADERS = [
    b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}',
    b'{"a":{"dtype":"F32","shape":[1000000000],"data_offsets":[0,8]}}',
    b'{"a":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}}',
    b'{"a":{"dtype":"F32","shape":[true,2],"data_offsets":[0,8]}}',
    b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}',
    b'{"a":{"dtype":"I64","shape":[1],"data_offsets":[0,8]}}',
    b'{"a":{"shape":[2],"data_offsets":[0,8]}}',
    b'{"a":5}',
    b"[" * 100_000,
    b"[1, 2]",
    b"",
]


@pytest.mark.parametrize("header", HEADERS)
def test_what_a_strangers_part_claims_is_not_believed(tmp_path, header):
    content = len(header).to_bytes(8, "little") + header + bytes(8)
    folder = write_checkpoint(tmp_path, 1, {MODEL: [content]}, {})
    with pytest.raises(UserFault, match="can't be used"):
        TensorFiles(folder, MODEL)
    folder = write_checkpoint(tmp_path, 2, {MODEL: [(2**62).to_bytes(8, "little") + bytes(8)]}, {})
    with pytest.raises(UserFault, match="header is longer than the file"):
        TensorFiles(folder, MODEL)


def test_parts_that_do_not_fit_each_other_are_refused(tmp_path):
    files = {part_name(MODEL, part, 2): pack_tensors({"a": torch.ones(2, 3 + part)}) for part in (0, 1)}
    with pytest.raises(UserFault, match="parts of 'a' have other widths"):
        TensorFiles(write_checkpoint(tmp_path, 1, files, {}), MODEL)
    assert parts.files_of({MODEL: {}}, MODEL) == [MODEL]
    assert all(dtype in DTYPES for dtype in (torch.float32, torch.bfloat16))


class Threads:
    """Three that write a checkpoint together, as the processes of a run do."""

    def __init__(self, folder):
        self.folder = folder
        self.said = {}
        self.barrier = threading.Barrier(3, timeout=20)

    def write(self, step):
        """Return what each ended with: a path, or its failure."""
        ended = [None] * 3

        def one(rank):
            calls = iter(range(100))

            def gather(text):
                call = next(calls)
                self.said[step, call, rank] = text
                self.barrier.wait()
                return [self.said[step, call, each] for each in range(3)]

            files = {part_name(MODEL, rank, 3): pack_tensors(cut(WHOLE, rank, 3))}
            try:
                ended[rank] = write_checkpoint(self.folder, step, files, {}, writers=Writers(rank, gather))
            except Exception as error:
                ended[rank] = error

        threads = [threading.Thread(target=one, args=(rank,)) for rank in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        return ended


def test_three_write_one_checkpoint(tmp_path):
    ended = Threads(tmp_path).write(5)
    assert ended == [tmp_path / "step-000000005"] * 3
    assert sorted(verify(ended[0])["files"]) == [part_name(MODEL, part, 3) for part in range(3)]


@pytest.mark.parametrize("victim", [0, 1, 2])
@pytest.mark.parametrize("file", ["model", "MANIFEST"])
def test_a_full_disk_of_one_fails_the_save_for_all_and_is_named(tmp_path, monkeypatch, victim, file):
    three = Threads(tmp_path)
    assert three.write(1)[0] == tmp_path / "step-000000001"
    real = store._write_flushed

    def full(path, parts):
        if path.name.startswith(f"model-{victim}" if file == "model" else "MANIFEST"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(path, parts)

    monkeypatch.setattr(store, "_write_flushed", full)
    ended = three.write(2)
    broken = victim if file == "model" else 0
    for rank, failure in enumerate(ended):
        assert isinstance(failure, StorageFailure), failure
        assert "No space left on device" in str(failure)
        assert (f"(rank {broken})" in str(failure)) == (rank != broken)
    assert list_checkpoints(tmp_path) == [tmp_path / "step-000000001"]
    assert not list(tmp_path.glob(".step*"))
    assert read_manifest(tmp_path / "step-000000001")["step"] == 1
