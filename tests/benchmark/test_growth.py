"""Growth: one thing at a time, and what is drawn is what was measured."""

import pytest
from matplotlib.figure import Figure

from minigpt.benchmark import growth
from minigpt.benchmark.settings import read_plan
from minigpt.config.convert import flatten, to_dict
from minigpt.faults import StorageFailure
from minigpt.report.growth import Panel, draw_growth, draw_panel

CHANGES = {
    "Context length": {"model.block_size", "batch_tokens", "trainer.micro_batch"},
    "Width": {"model.n_embd", "model.n_head"},
    "Depth": {"model.n_layer"},
    "Batch": {"batch_tokens", "trainer.micro_batch"},
    "Data set": {"tokenizer.name"},
    "Checkpoint interval": {"checkpoint.every_steps"},
    "Continuing a run": set(),
}


@pytest.mark.parametrize("preset", ["c0", "c1", "124m"])
def test_curves_change_one_thing_at_a_time(preset):
    plan = read_plan([f"preset={preset}"])
    own = flatten(to_dict(plan.base))
    curves = growth.find_curves(plan)
    assert [title for title, _ in curves] == list(CHANGES)
    for (title, _), points in curves.items():
        assert len({point.label for point in points}) == len(points) >= 2
        for point in points:
            assert point.changes.keys() <= CHANGES[title]
            now = own | point.changes
            assert now["model.n_embd"] / now["model.n_head"] == own["model.n_embd"] / own["model.n_head"]
            assert now["trainer.micro_batch"] * now["model.block_size"] == now["batch_tokens"]
            if title == "Context length":
                assert now["batch_tokens"] == 4096


@pytest.mark.parametrize(("limit", "sizes"), [("0.001", ["1"]), ("10", ["1", "100", "1000", "10000"])])
def test_data_sets_grow_up_to_the_limit(limit, sizes):
    curves = growth.find_curves(read_plan(["preset=c0", f"size_limit_gb={limit}"]))
    assert [point.label for point in curves["Data set", "MB of shards"]] == sizes


def of(ms, flops=1e6):
    """A measurement with 1,000 tokens a step."""
    return {"ms": ms, "batch_tokens": 1000, "flops_per_token": flops, "began": 1.0, "first_step_at": 4.5}


@pytest.fixture
def measured(bench_of, tiny, monkeypatch):
    """A benchmark, and the tasks of its measurements, which take no time."""
    bench, tasks = bench_of(tiny), []

    def measure(job, *, config, **task):
        tasks.append((config, task))
        (bench.folder / "growth").mkdir(exist_ok=True)
        return of(5.0) | {"memory": [(0, 500.0), (10, 600.0), (20, 605.0), (30, 610.0)]}

    monkeypatch.setattr(bench, "measure", measure)
    return bench, tasks


def test_points_are_runs_of_as_many_steps_as_are_timed(measured):
    bench, tasks = measured
    for point, *_ in growth.find_curves(bench.plan).values():
        growth.measure_point(bench, point, {})
        config, task = tasks[-1]
        assert config["trainer"]["max_steps"] == point.start_at + task["warm_up"] + point.steps + 1
        assert config["validate"]["every_steps"] == 0


def test_a_point_that_several_curves_go_through_is_measured_once_a_round(measured):
    bench, tasks = measured
    known = {}
    for points in growth.find_curves(bench.plan).values():
        for point in points:
            growth.measure_point(bench, point, known)
    total = sum(map(len, growth.find_curves(bench.plan).values()))
    assert len(tasks) == total - 2  # the preset's own width, depth and batch are one


def test_a_run_is_continued_far_from_its_beginning_and_near(measured):
    bench, tasks = measured
    for point in growth.find_curves(bench.plan)["Continuing a run", "at step"]:
        growth.measure_point(bench, point, {})
    assert [task["start_at"] for _, task in tasks] == [3, 1_000_000]
    near, far = (config["trainer"]["max_steps"] for config, _ in tasks)
    assert far - near == 1_000_000 - 3


def test_the_ideal_is_what_the_arithmetic_costs_at_the_fastest_points_rate():
    points = {"1": [of(10.0, 1e6)], "2": [of(10.0, 2e6)], "4": [of(10.0, 4e6)], "8": [of(5.0, 8e6)]}
    panel = growth.panel("Depth", "blocks", points)
    assert panel.values == {"1": [100_000], "2": [100_000], "4": [100_000], "8": [200_000]}
    assert panel.ideal == [1_600_000, 800_000, 400_000, 200_000]
    rows = growth.describe("Depth", "blocks", points).splitlines()[4:]
    assert [row.split("|")[7].strip() for row in rows] == ["6 %", "12 %", "25 %", "100 %"]


def test_tables_and_panels_show_the_same():
    points = {f"{n}": [of(10.0 + n + more) for more in (0, 1, 5)] for n in (1, 2, 4)}
    panel, table = growth.panel("Width", "n_embd", points), growth.describe("Width", "n_embd", points)
    rows = [[cell.strip() for cell in row.split("|")] for row in table.splitlines()[4:]]
    assert [row[1] for row in rows] == list(panel.values)
    for row, values, ideal in zip(rows, panel.values.values(), panel.ideal, strict=True):
        assert row[2:5] == [f"{value:,.0f}" for value in (sorted(values)[1], min(values), max(values))]
        assert ideal >= 0.999 * sorted(values)[1]


def test_growth_is_measured_told_and_drawn(plan_of, bench_of, tmp_path, monkeypatch, at_once):
    for name, value in {"SIZES": (10_000,), "STARTS": (3, 500), "CONTEXTS": (16,), "LONG": 2}.items():
        monkeypatch.setattr(growth, name, value)
    monkeypatch.setattr(growth, "STEP_TOKENS", 32)
    place = tmp_path / "deep" / "place"
    bench = bench_of(plan_of(f"write_to={place}", "model.n_embd=8", "batch_tokens=8", "trainer.micro_batch=1"))
    section = growth.growth(bench)
    text = (place / "growth.md").read_text()
    assert text.startswith("```\na machine\n```\n\n### Context length\n")
    assert text.removeprefix("```\na machine\n```\n\n").rstrip() in section.text
    assert (place / "growth.png").read_bytes().startswith(b"\x89PNG\r\n")
    titles = [line.removeprefix("### ") for line in text.splitlines() if line.startswith("### ")]
    assert titles == [*CHANGES, "Memory of a long run"]
    begins = [line.split("|")[1].strip() for line in text.splitlines() if line.startswith("| ")]
    assert {"16", "0.01", "500", "at the end"} <= set(begins)
    assert [path.name for path in tmp_path.glob("growth*")] == []  # runs are removed as they end
    assert "Peak memory over 3 steps" in text
    assert section.data["Depth"]["1"][0]["ms"] > 0


def test_a_folder_that_takes_no_file_is_named_before_anything_is_measured(measured, monkeypatch):
    bench, tasks = measured

    def full(path, content):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(growth, "write_file", full)
    with pytest.raises(
        StorageFailure, match=r"write_to=.* can't be written: Permission denied\. Give a folder of yours"
    ):
        growth.growth(bench)
    assert tasks == []


def test_a_panel_begins_at_zero_and_shows_every_value(tmp_path):
    values = {"1": [5.0], "2": [3.0, 4.0, 6.0], "4": [2.0]}
    panel = Panel("Title", "x", "y", values, [5, 4, 9])
    axes = Figure().subplots()
    draw_panel(axes, panel)
    assert axes.get_ylim() == (0, pytest.approx(1.15 * 9))
    assert [list(line.get_ydata()) for line in axes.lines] == [[5.0, 4.0, 2.0], [5, 4, 9]]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["1", "2", "4"]
    draw_growth([panel] * 5, tmp_path / "five.png")
    assert (tmp_path / "five.png").read_bytes().startswith(b"\x89PNG\r\n")
    assert [path.name for path in tmp_path.iterdir()] == ["five.png"]
