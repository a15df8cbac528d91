"""What a run does besides being exact: its limits, compiling, and what it leaves behind."""

import errno
import fcntl
import json
import os
import shutil
import subprocess
import sys
import threading
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from minigpt.faults import StorageFailure, UserFault
from minigpt.machine import compiling
from minigpt.machine.hardware import Hardware
from minigpt.ranks.group import Processes
from minigpt.rundir import run_directory
from minigpt.rundir.run_directory import RunDirectory
from minigpt.training import outputs, run_state
from minigpt.training.ending import StopRequests
from minigpt.training.run import like_everywhere, rank_zeros


@pytest.mark.report
def test_a_run_directory_holds_what_the_plan_of_the_house_says(run):
    path = run("samples.every_steps=3")
    names = {item.name for item in path.iterdir()}
    assert names >= {
        "config.yaml", "command.txt", "environment.json", "choices.json", "metrics.jsonl", "events.jsonl",
        "samples.jsonl", "report.html", "loss.png", "checkpoints",
    }  # fmt: skip
    (checkpoint,) = (path / "checkpoints").glob("step-000000006")
    assert {item.name for item in checkpoint.iterdir()} == {
        "model.safetensors", "optimizer.safetensors", "state.json", "config.json", "tokenizer.json", "MANIFEST.json",
    }  # fmt: skip
    assert set(run.rows()[-1]) >= {
        "step", "tokens", "train/loss", "train/grad_norm", "lr", "tokens_per_second", "val/loss", "val/bits_per_byte",
    }  # fmt: skip
    assert run.rows()[-1]["tokens"] == 6 * 64


def test_max_tokens_counts_whole_steps(run):
    run("trainer.max_tokens=200")
    assert run.rows()[-1]["step"] == 4


def test_patience_ends_a_run_that_does_not_get_better(run, capsys):
    settings = ["trainer.max_steps=60", "trainer.patience=2", "optimizer.lr=1e-12", "schedule=constant"]
    run(*settings)
    rows = run.rows()
    assert 6 <= rows[-1]["step"] < 60
    assert "patience" in capsys.readouterr().out
    run(*settings)  # finished for good
    assert run.rows() == rows


def test_a_run_that_ended_for_lack_of_patience_goes_on_with_more(run):
    settings = ["trainer.max_steps=20", "trainer.patience=2", "optimizer.lr=1e-12", "schedule=constant"]
    run(*settings)
    ended = run.rows()[-1]["step"]
    run(*settings, "trainer.patience=3")
    assert ended < run.rows()[-1]["step"] < 20


def test_more_frequent_validations_end_no_run_before_one_was_made(run):
    """10 steps after the best are fewer than 3 validations of one kind, and more than 3 of the other."""
    settings = ["trainer.patience=3", "optimizer.lr=1e-12", "schedule=constant", "checkpoint.every_steps=5"]
    run(*settings, "trainer.max_steps=10", "validate.every_steps=5")
    run(*settings, "trainer.max_steps=20", "validate.every_steps=1")
    assert run.rows()[-1]["step"] > 10


def test_patience_without_validations_is_refused(run):
    with pytest.raises(UserFault, match="patience=3 counts validations"):
        run("trainer.patience=3", "validate.every_steps=0")


def test_a_validation_that_is_not_finite_is_no_best_and_no_json_nan(run, monkeypatch):
    real = outputs.evaluate

    def evaluate(model, split, **options):
        score = real(model, split, **options)
        evaluate.calls += 1
        return replace(score, nats=float("nan")) if evaluate.calls == 1 else score

    evaluate.calls = 0
    monkeypatch.setattr(outputs, "evaluate", evaluate)
    run()
    first, second = [row for row in run.rows() if "val/loss" in row][:2]
    assert first["val/loss"] is None
    assert second["val/loss"] > 0
    assert "NaN" not in (run.path / "metrics.jsonl").read_text()
    states = [json.loads(path.read_text()) for path in run.path.glob("checkpoints/*/state.json")]
    assert all(state["best_loss"] > 0 for state in states)


def test_max_minutes_ends_a_run_and_its_schedule(run):
    run("trainer.max_steps=null", "trainer.max_minutes=0.01", "schedule=linear", "schedule.final_lr_fraction=0.0")
    last = run.rows()[-1]
    assert last["seconds"] >= 0.6
    assert last["lr"] < 1e-4
    assert "val/loss" in last


@pytest.fixture
def order_restored():
    yield
    torch.use_deterministic_algorithms(False)
    torch.utils.deterministic.fill_uninitialized_memory = True


def test_compiled_code_for_a_cpu_adds_up_in_one_order(run, monkeypatch, order_restored):
    """Else its threads add to the embedding's gradient as they come: two equal runs parted at their second step."""
    asked = []

    def compile_nothing(function, **options):
        memory = torch.utils.deterministic.fill_uninitialized_memory
        asked.append((torch.are_deterministic_algorithms_enabled(), memory))
        return function

    monkeypatch.setattr(compiling.torch, "compile", compile_nothing)
    run("trainer.compile=on")
    assert asked == [(True, False)]
    assert torch.are_deterministic_algorithms_enabled()  # to the end: the compiler would make other code without


def test_a_compiler_that_fails_costs_one_sentence(run, monkeypatch, capsys, order_restored):
    def compile_badly(function, **options):
        def broken(*arguments):
            raise RuntimeError("no C++ compiler found\nlong traceback")

        return broken

    monkeypatch.setattr(compiling.torch, "compile", compile_badly)
    run("trainer.compile=on")
    assert "torch.compile does not work here (RuntimeError: no C++ compiler found); going on without it" in (
        capsys.readouterr().out
    )
    assert run.rows()[-1]["step"] == 6


def test_a_device_that_is_not_there_is_named(run):
    if torch.cuda.is_available():
        pytest.skip("this machine has CUDA")
    with pytest.raises(UserFault, match=r"trainer\.device=cuda"):
        run("trainer.device=cuda")


def test_a_run_on_the_cpu_leaves_a_gpu_alone(run, monkeypatch):
    """Finding 19: pinned memory, or a question about the GPU, would open a CUDA context of some hundred megabytes."""

    def opened(*_, **__):
        raise AssertionError("CUDA is set up")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "_lazy_init", opened)
    monkeypatch.setattr(torch.Tensor, "pin_memory", opened)
    run("trainer.device=cpu", "trainer.max_steps=3", "checkpoint.every_steps=1")
    assert json.loads((run.path / "environment.json").read_text())["gpus"] == []


def test_a_second_process_is_kept_out(run, tmp_path):
    holder = (
        "import sys, fcntl; f = open(sys.argv[1], 'a+'); fcntl.flock(f, fcntl.LOCK_EX); "
        "f.write('process 77'); f.flush(); print('held', flush=True); sys.stdin.read()"
    )
    (tmp_path / "run").mkdir()
    process = subprocess.Popen(
        [sys.executable, "-c", holder, str(tmp_path / "run" / "run.lock")],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout.readline() == b"held\n"
    with pytest.raises(UserFault, match="in use by process 77"):
        run()
    process.communicate()
    run()


def test_a_run_that_another_process_began_meanwhile_is_not_continued_with_another_config(run, monkeypatch):
    """Both found no run; the first made one and ended while the second still prepared its tokens."""
    real = run_state.prepare_tokens

    def prepare(config, path):
        monkeypatch.setattr(run_state, "prepare_tokens", real)
        run("seed=7", "trainer.max_steps=4")
        return real(config, path)

    monkeypatch.setattr(run_state, "prepare_tokens", prepare)
    with pytest.raises(UserFault, match="begun with another config"):
        run("seed=9")
    assert run.rows()[-1]["step"] == 4


def test_a_run_whose_checkpoints_are_gone_says_that_it_begins_again(run, capsys):
    shutil.rmtree(run() / "checkpoints")
    assert "begins again" not in capsys.readouterr().out
    run()
    assert "holds no checkpoint: the run begins again, at step 1, without its rows" in capsys.readouterr().out


def test_a_file_system_without_locks_trains_with_a_sentence(run, monkeypatch, capsys):
    def flock(file, flags):
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(fcntl, "flock", flock)
    run()
    assert "have no locks: nothing keeps a second process out of this run" in capsys.readouterr().out


def test_rows_of_a_run_whose_checkpoints_are_away_are_kept(run, capsys):
    run("checkpoint.every_steps=2", "samples.every_steps=3", "samples.max_new_tokens=4")
    before = {name: (run.path / name).read_bytes() for name in ("metrics.jsonl", "samples.jsonl")}
    for number in ("", "-2"):
        (run.path / "checkpoints").rename(run.folder / f"moved{number}")
        run("checkpoint.every_steps=2", "samples.every_steps=3", "samples.max_new_tokens=4")
        assert "without its rows, kept as metrics.jsonl.before" in capsys.readouterr().out
        for name, content in before.items():
            if not number:
                assert (run.path / f"{name}.before").read_bytes() == content
            assert (run.path / f"{name}.before{number}").exists()


def test_a_run_that_was_killed_before_its_first_checkpoint_keeps_no_copy(run):
    run("validate.every_steps=0", "trainer.max_steps=3")
    shutil.rmtree(run.path / "checkpoints")
    lines = (run.path / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run.path / "metrics.jsonl").write_text("".join(line for line in lines if '"val/loss"' not in line))
    run("validate.every_steps=0", "trainer.max_steps=3")
    assert not list(run.path.glob("*.before*"))


@pytest.mark.parametrize("name", ["metrics.jsonl", "samples.jsonl", "environment.json"])
def test_another_programs_files_are_left_alone(run, name):
    run.path.mkdir()
    (run.path / name).write_text('{"step": 5, "reward": 1}\n')
    with pytest.raises(UserFault, match=rf"holds {name}, but no config\.yaml.*Choose another run\.dir"):
        run()
    assert [file.name for file in run.path.iterdir()] == [name]
    assert (run.path / name).read_text() == '{"step": 5, "reward": 1}\n'


def test_checkpoints_without_the_settings_they_were_trained_with_are_not_gone_on_from(run):
    run("trainer.max_steps=2")
    for entry in run.path.iterdir():
        if entry.name != "checkpoints":
            entry.unlink()
    with pytest.raises(UserFault, match=r"holds checkpoints, but no config\.yaml"):
        run("seed=5")


def test_a_disk_of_its_own_for_checkpoints_is_no_run_of_others(run):
    (run.path / "checkpoints" / "lost+found").mkdir(parents=True)
    run("trainer.max_steps=2")


def test_a_file_in_the_place_of_the_checkpoints_is_named(run):
    run.path.mkdir()
    (run.path / "checkpoints").write_text("")
    with pytest.raises(StorageFailure, match="can't be written"):
        run("trainer.max_steps=2")


def test_a_row_that_is_no_validation_spoils_no_end(run, capsys):
    run("trainer.max_steps=2")
    with open(run.path / "metrics.jsonl", "a") as rows:
        rows.write('{"step": 2, "val/loss": "x"}\n')
    run("trainer.max_steps=2")
    assert "Validation (final and best, step 2)" in capsys.readouterr().out


def test_an_empty_folder_of_mine_outlives_a_command_that_is_refused(run, monkeypatch):
    def refuse(*_):
        raise UserFault("no")

    monkeypatch.setattr(run_state, "check_fingerprint", refuse)
    run.path = run.path / "deep" / "run"
    with pytest.raises(UserFault, match="no"):
        run()
    assert not run.path.parents[1].exists()  # what the command made goes
    run.path.mkdir(parents=True, mode=0o770)
    with pytest.raises(UserFault, match="no"):
        run()
    assert list(run.path.iterdir()) == []


def test_the_folders_around_a_new_run_are_on_the_disk_before_it(run, monkeypatch):
    flushed = []
    monkeypatch.setattr("minigpt.rundir.run_directory.flush", flushed.append)
    run.path = run.folder / "deep" / "run"
    run("trainer.max_steps=1")
    assert flushed == [run.path, run.path.parent, run.folder]


def test_a_look_at_the_lock_keeps_no_training_out(run):
    """`minigpt runs` takes it for a moment."""
    run("trainer.max_steps=2")
    with open(run.path / "run.lock") as looking:
        fcntl.flock(looking, fcntl.LOCK_SH)
        timer = threading.Timer(0.3, fcntl.flock, (looking, fcntl.LOCK_UN))
        timer.start()
        run("trainer.max_steps=4")
        timer.join()
    assert run.rows()[-1]["step"] == 4


def test_a_lock_on_a_file_that_was_removed_meanwhile_is_none(run, monkeypatch):
    """A command that is refused removes the lock file of a folder that it made."""
    run.path.mkdir()
    real, removed = fcntl.flock, []

    def flock(file, flags):
        real(file, flags)
        if not removed:
            removed.append((run.path / "run.lock").unlink())

    monkeypatch.setattr(fcntl, "flock", flock)
    with RunDirectory(run.path, writes=True):
        monkeypatch.setattr(fcntl, "flock", real)
        monkeypatch.setattr(run_directory, "LOCK_SECONDS", 0.0)
        with pytest.raises(UserFault, match="is in use by process"), RunDirectory(run.path, writes=True):
            pass


@pytest.mark.skipif(os.getuid() == 0, reason="permissions don't hold root back")
def test_checkpoints_that_can_not_be_written_are_named_before_the_first_step(run):
    (run.path / "checkpoints").mkdir(parents=True, mode=0o500)
    with pytest.raises(StorageFailure, match="checkpoints: Permission denied"):
        run("trainer.max_steps=2")


def test_a_run_that_another_ranks_clock_ended_is_finished(run, monkeypatch, capsys):
    real = StopRequests.now
    late = lambda self, seconds: replace(real(self, seconds), out_of_time=True)  # noqa: E731
    monkeypatch.setattr(StopRequests, "now", late)
    run("trainer.max_minutes=60")
    step = run.rows()[-1]["step"]
    monkeypatch.setattr(StopRequests, "now", real)
    run("trainer.max_minutes=60")
    assert "This run is finished" in capsys.readouterr().out
    assert run.rows()[-1]["step"] == step


def test_other_ranks_take_rank_zeros_word_for_what_the_run_directory_holds():
    """Theirs may be a view of NFS in which a file is not there yet."""
    said = []
    for writes in (True, False):
        processes = SimpleNamespace(gather=lambda text: said.append(text) or [said[0], "null"])
        job = SimpleNamespace(run=SimpleNamespace(writes=writes), processes=processes)
        assert rank_zeros(job, lambda writes=writes: [[1, 2]] if writes else [[9, 9]]) == [[1, 2]]
    assert said == ["[[1, 2]]", "null"]


def two_ranks(**theirs):
    """Rank 0 of two, the other of which says what is given where this one says the name."""

    class Two(Processes):
        def gather(self, text):
            return [text, theirs.get(text, text)]

    return Two()


def test_hosts_of_unlike_memory_choose_alike_and_unlike_processors_are_refused():
    """A few kB between two hosts of one kind gave them other micro-batches, which was refused."""
    mine, less = Hardware("cpu", "Xeon", 2, False, 25 << 30), (25 << 30) - 4096
    assert like_everywhere(mine, two_ranks(**{str(25 << 30): str(less)})) == replace(mine, memory_bytes=less)
    with pytest.raises(UserFault, match=r"rank 1 has hardware other than rank 0: name: 'EPYC'.* hosts of one kind"):
        like_everywhere(mine, two_ranks(**{"name: 'Xeon'": "name: 'EPYC'"}))
