"""Trial W2: a sweep that is killed ends as one that was not; and W3+: the same settings are not tried twice."""

import json
import random
from collections import Counter

import pytest
import yaml

from minigpt.config.convert import values
from minigpt.config.schema import TrainConfig
from minigpt.faults import UserFault
from minigpt.sweep.driver import check_identity
from minigpt.sweep.settings import read_sweep
from minigpt.sweep.trial_store import TrialStore, cut_torn_line, is_finished

from .conftest import LR, kill, wait_until

pytestmark = pytest.mark.timeout(400)  # a crowded machine is no failure

SEARCH = [LR, "trials=9", "search.startup_trials=3", "search.pruner=median"]


def test_w2_killed_three_times_the_table_is_that_of_a_sweep_that_was_not(sweep, tmp_path):
    straight = sweep(tmp_path / "straight", *SEARCH)()
    assert {"complete", "pruned"} <= set(straight.states())
    killed = sweep(tmp_path / "killed", *SEARCH)
    chance = random.Random(7)
    starts_of_finished: Counter[str] = Counter()
    for goal in (1, 3, 6):
        process = killed.start(STUB_STEP_SECONDS="0.02", STUB_STOP_SECONDS="0.4")
        steps = chance.randrange(1, 12)
        metrics = killed.path / "trials" / f"{goal:04d}" / "metrics.jsonl"

        def reached(metrics=metrics, steps=steps):
            return metrics.exists() and metrics.read_bytes().count(b"\n") >= steps

        # A pruned trial may end before so many steps: the next one's beginning will do.
        wait_until(lambda goal=goal, go=reached: go() or f"start {goal + 1:04d}" in killed.log(), process)
        kill(process)
        finished = [f"{trial.number:04d}" for trial in killed.trials() if is_finished(trial)]
        counts = Counter(killed.log())
        assert all(counts[f"start {label}"] == starts_of_finished[label] for label in starts_of_finished)
        starts_of_finished = Counter({label: counts[f"start {label}"] for label in finished})
    killed()  # at once: the killed one's training is still on its way out, and must be waited for
    counts = Counter(killed.log())
    assert all(counts[f"start {label}"] == count for label, count in starts_of_finished.items())
    assert killed.table() == straight.table()
    assert killed.summary()["best"]["params"] == straight.summary()["best"]["params"]
    curves = [[trial.intermediate_values for trial in each.trials()] for each in (killed, straight)]
    assert curves[0] == curves[1]


def test_the_trainings_of_a_killed_sweep_end_with_it(sweep, tmp_path):
    """They stop with a checkpoint; the next sweep waits for them and goes on from there."""
    one = sweep(tmp_path / "one", LR, "search.sampler=random", "trials=2", "workers=2")
    one.hold.touch()
    process = one.start()
    metrics = [one.path / "trials" / name / "metrics.jsonl" for name in ("0000", "0001")]
    wait_until(lambda: all(file.exists() and file.read_text() for file in metrics), process)
    kill(process)
    one()  # at once: it has to wait for the trainings, which wait for the request to stop
    one.hold.unlink()
    assert one.states() == ["complete"] * 2
    log = one.log()
    for name in ("0000", "0001"):
        mine = [line.split()[0] for line in log if line.endswith(name)]
        assert mine == ["start", "stop", "start", "end"]


def test_a_torn_journal_is_mended(sweep, tmp_path, capsys):
    torn = sweep(tmp_path / "one", LR, "search.sampler=random")
    torn("trials=2")
    journal = torn.path / "journal.jsonl"
    whole = journal.read_bytes()
    with open(journal, "ab") as file:
        file.write(b'{"op_code":5,"worker_id":"cut he')
    torn("trials=3")
    assert torn.states() == ["complete"] * 3
    assert journal.read_bytes().startswith(whole)
    assert all(json.loads(line) for line in journal.read_text().splitlines())
    assert "the journal's last line was torn and is cut" in capsys.readouterr().out
    whole = journal.read_bytes()
    cut_torn_line(journal)
    assert journal.read_bytes() == whole


def test_a_journal_that_is_damaged_in_the_middle_is_named(sweep, tmp_path):
    bad = sweep(tmp_path / "one", LR, "search.sampler=random", "trials=1")()
    journal = bad.path / "journal.jsonl"
    lines = journal.read_bytes().split(b"\n")
    journal.write_bytes(b"\n".join([lines[0], b"garbage", *lines[1:]]))
    with pytest.raises(UserFault, match=r"journal.jsonl is damaged in line 2"):
        bad()


def test_the_same_settings_run_once(sweep, tmp_path):
    few = sweep(
        tmp_path / "one", """search.space={"optimizer.lr": {"choices": [0.1, 0.01]}}""", "search.sampler=random"
    )
    few("trials=8")
    assert few.states() == ["complete"] * 8
    assert sum(line.startswith("start") for line in few.log()) == 2
    copies = [trial for trial in few.trials() if "same_as" in trial.user_attrs]
    assert len(copies) == 6
    assert len({row["value"] for row in few.table()}) == 2


def test_more_trials_go_on_where_the_sweep_ended(sweep, tmp_path):
    grown = sweep(tmp_path / "one", *SEARCH[:1], "search.startup_trials=3")
    grown("trials=4")
    grown("trials=6")
    assert sum(line.startswith("start") for line in grown.log()) == 6
    assert grown.table() == sweep(tmp_path / "two", *SEARCH[:1], "search.startup_trials=3")("trials=6").table()


def test_a_sweep_killed_between_the_values_and_the_result_of_a_trial(sweep, tmp_path):
    one = sweep(tmp_path / "one", LR, "search.sampler=random", "trials=2", "seeds=2")
    plan = one.plan()
    (plan.folder / "trials").mkdir(parents=True)
    store = TrialStore(plan.folder, plan.name, plan.space)
    store.note(store.begin({"optimizer.lr": 0.01}), values=[1.0, 2.0])
    one()
    assert one.trials()[0].value == 1.5
    assert sum(line.startswith("start") for line in one.log()) == 2  # those of the other trial


def test_several_seeds_are_one_trial(sweep, tmp_path):
    three = sweep(tmp_path / "one", LR, "search.sampler=random", "trials=2", "seeds=3", "seed=10")()
    for trial in three.trials():
        first, second, third = trial.user_attrs["values"]
        assert (round(second - first, 9), round(third - first, 9)) == (0.01, 0.02)
        assert trial.value == pytest.approx(second)
    assert [row["standard_error"][:8] for row in three.table()] == ["0.005773"] * 2
    assert {folder.name for folder in (three.path / "trials").glob("0*")} == {
        f"{number:04d}-{place}" for number in range(2) for place in range(3)
    }


OLD_SPACE = {"optimizer.lr": {"low": 0.0002, "high": 0.02, "log": True}, "model.n_layer": {"choices": [2, 4]}}
OLD_SWEEP = [
    f"search.space={json.dumps(OLD_SPACE)}", "trials=12", "seeds=2", "search.sampler=random", "optimizer.beta2=0.95",
    "tokenizer=byte", "model.n_layer=3",
]  # fmt: skip
OLD_NAME = "default-own-1b51d1e6"  # what commit 25310c3 called the directory of OLD_SWEEP


def test_a_sweep_begun_by_an_older_version_is_found_and_goes_on(tmp_path, monkeypatch):
    """Finding 5: its name covered all settings, and its sweep.yaml lacks those that are new."""
    monkeypatch.chdir(tmp_path)
    found = read_sweep(OLD_SWEEP, ["train"])
    assert found.name != OLD_NAME
    (tmp_path / "sweeps" / OLD_NAME).mkdir(parents=True)
    stored = {key: value for key, value in values(TrainConfig()).items() if key.startswith(("model.", "optimizer."))}
    stored |= {"optimizer.beta2": 0.95, "model.n_layer": 3, "tokenizer.name": "byte", "seeds": 2, "data.workers": 4}
    stored |= {f"search.space {key}": words for key, words in OLD_SPACE.items()} | {"search.sampler": "random"}
    for new in ("model.qk_norm", "optimizer.eps"):  # as if the older version had not known them
        stored.pop(new, None)
    (tmp_path / "sweeps" / OLD_NAME / "sweep.yaml").write_text(yaml.safe_dump(stored))
    found = read_sweep(OLD_SWEEP, ["train"])
    assert found.name == OLD_NAME
    assert read_sweep([*OLD_SWEEP, "optimizer.eps=1e-5"], ["train"]).name != OLD_NAME
    check_identity(found)
    with pytest.raises(UserFault, match=r"optimizer\.eps: 1e-08 -> 1e-05\n(.|\n)*sweep\.dir=NEW_DIR"):
        check_identity(read_sweep([*OLD_SWEEP, "optimizer.eps=1e-5", f"sweep.dir={found.folder}"], ["train"]))
    other = [each.replace("0.02", "0.01") for each in OLD_SWEEP]
    with pytest.raises(UserFault, match=r"search\.space"):
        check_identity(read_sweep([*other, f"sweep.dir={found.folder}"], ["train"]))


def test_what_hangs_on_the_machine_may_change(sweep, tmp_path):
    moved = sweep(tmp_path / "one", LR, "trials=1")()
    moved("trainer.threads=1", "trainer.micro_batch=5", "samples.every_steps=7", "workers=2", "trials=1")
    assert moved.states() == ["complete"]
