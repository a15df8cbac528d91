"""Growth: one thing at a time, and what is drawn is what was measured."""

import itertools
from dataclasses import replace

import pytest
from matplotlib.figure import Figure

from minigpt.benchmark import growth, points
from minigpt.benchmark.growth_text import Growth, describe_growth, find_costs, find_panels, ideals
from minigpt.benchmark.points import arguments, find_points, size_text, warm_up
from minigpt.benchmark.settings import read_plan
from minigpt.config.compose import compose
from minigpt.config.convert import flatten, to_dict
from minigpt.report.growth import Panel, draw_growth, draw_panel

CHANGES = {
    "context": {"model.block_size", "batch_tokens", "trainer.micro_batch"},
    "width": {"model.n_embd", "model.n_head"},
    "depth": {"model.n_layer"},
    "batch": {"batch_tokens", "trainer.micro_batch"},
    "data": {"tokenizer"},
    "saves": {"checkpoint.every_steps"},
}


@pytest.mark.parametrize("preset", ["c0", "c1", "124m"])
def test_points_change_one_thing_at_a_time(preset):
    plan = read_plan([f"preset={preset}"])
    own = flatten(to_dict(plan.config))
    for section, several in itertools.groupby(find_points(plan), lambda point: point.section):
        curve = list(several)
        assert len({point.label for point in curve}) == len(curve) >= 3
        for point in curve:
            changed = dict(setting.split("=") for setting in point.setup.settings)
            assert changed.keys() <= CHANGES[section]
            now = own | {name: int(text) for name, text in changed.items() if text.isdigit()}
            assert now["model.n_embd"] / now["model.n_head"] == own["model.n_embd"] / own["model.n_head"]
            assert now["trainer.micro_batch"] * now["model.block_size"] == now["batch_tokens"]
            if section == "context":
                assert now["batch_tokens"] == 4096


def turn(ms, flops=1e6):
    """Of a run with 1,000 tokens a step."""
    return {"ms": ms, "batch_tokens": 1000, "flops_per_token": flops, "began": 1.0, "first_step_at": 4.5}


def test_points_are_runs_of_as_many_steps_as_are_timed(tmp_path):
    plan = read_plan(["preset=c0"])
    for point in {point.section: point for point in find_points(plan)}.values():
        config = compose("train", arguments(plan, point.setup, tmp_path, f"data.source={__file__}"))
        assert config.trainer.max_steps == warm_up(plan) + point.setup.steps + 1
        assert config.validate.every_steps == 0


def test_a_point_that_several_curves_go_through_is_measured_once():
    found = find_points(read_plan(["preset=c0"]))
    through = [point.section for point in found if point.setup.settings == ()]
    assert through == ["width", "depth", "batch"]
    assert len({point.setup for point in found}) == len(found) - 2


@pytest.mark.parametrize(("limit", "sizes"), [("0.001", ["1 MB"]), ("10", ["1 MB", "100 MB", "1 GB", "10 GB"])])
def test_data_sets_grow_up_to_the_limit(limit, sizes):
    found = find_points(read_plan(["preset=c0", f"size_limit_gb={limit}"]))
    assert [point.label for point in found if point.section == "data"] == sizes


def test_the_ideal_is_what_the_arithmetic_costs_at_the_fastest_points_rate():
    plan = read_plan(["preset=c0", "rounds=2"])
    found = [point for point in find_points(plan) if point.section == "depth"]
    grown = Growth(found, resumed={3: [turn(7.0)]}, memory=[(0, 500.0)])
    for point, flops in zip(found, (1e6, 2e6, 4e6, 8e6), strict=True):
        grown.turns[point.setup] = [turn(10.0, flops)] if flops < 8e6 else [turn(5.0, flops)]
    costs = find_costs(grown, "depth")
    assert [cost.speed.median for cost in costs] == [100_000, 100_000, 100_000, 200_000]
    assert ideals(costs) == [1_600_000, 800_000, 400_000, 200_000]
    shares = [row.split("|")[7].strip() for row in describe_growth(plan, grown).splitlines()[4:8]]
    assert shares == ["6 %", "12 %", "25 %", "100 %"]


@pytest.fixture
def few(monkeypatch):
    """A point of each kind, on data sets of no size."""
    monkeypatch.setattr(points, "SIZES", (10_000, 40_000))
    chosen = {"width": "8", "depth": "1", "batch": "4", "data": size_text(40_000), "saves": "2"}

    def find(plan):
        return [point for point in find_points(plan) if chosen.get(point.section) == point.label]

    monkeypatch.setattr(growth, "find_points", find)


def test_growth_is_measured_told_and_drawn(few, minute, tokens, tmp_path, monkeypatch, at_once):
    monkeypatch.setattr(growth, "run_turn", at_once)
    monkeypatch.setattr(growth, "FAR", 500)
    monkeypatch.setattr(growth, "LONG", 2)
    said, place = [], tmp_path / "deep" / "place"
    plan = replace(minute, write_to=place)
    text = growth.measure_growth(plan, tmp_path, tokens, threads=1, say=said.append, about="a machine")
    assert (place / "growth.md").read_text() == f"```\na machine\n```\n\n{text}\n"
    assert (place / "growth.png").read_bytes().startswith(b"\x89PNG\r\n")
    assert [line for line in text.splitlines() if line.startswith("### ")] == [
        "### Width", "### Depth", "### Batch", "### Data set", "### Checkpoint interval", "### Continuing a run",
        "### Memory of a long run",
    ]  # fmt: skip
    begins = [line.split("|")[1].strip() for line in text.splitlines() if line.startswith("| ")]
    assert [label for label in begins if label[0].isdigit()] == ["8", "1", "4", "0.04 MB", "2", "3", "500"]
    assert len([line for line in said if line.startswith("Round 1/1")]) == 6  # depth and batch share a turn
    assert [path.name for path in tmp_path.glob("growth*")] == []  # runs are removed as they end
    assert "Resident memory over 3 steps" in text


def test_the_far_step_is_where_the_run_goes_on(minute, tokens, tmp_path, monkeypatch):
    tasks = []

    def run_turn(folder, job, *, threads, arguments, **task):
        config = compose("train", arguments)
        tasks.append((job, task.get("step"), config.trainer.max_steps))
        (folder / config.run.dir).mkdir(exist_ok=True)
        return turn(1.0)

    monkeypatch.setattr(growth, "run_turn", run_turn)
    found = growth.measure_resuming(minute, tmp_path, tokens, byte=False, threads=1, say=lambda _: None)
    steps = warm_up(minute) + points.few_steps(minute) + 1
    assert list(found) == [3, 1_000_000]
    assert tasks == [
        ("begin_at", 3, 3),
        ("begin_at", 1_000_000, 3),
        ("whole", None, 3 + steps),
        ("whole", None, 1_000_000 + steps),
    ]


def test_tables_and_panels_show_the_same():
    plan = read_plan(["preset=c0", "rounds=3"])
    grown = Growth(find_points(plan))
    for number, point in enumerate(grown.points):
        grown.turns[point.setup] = [turn(10.0 + number + more) for more in (0, 1, 5)]
    grown.resumed = {3: [turn(7.0)]}
    grown.memory = [(0, 500.0), (10, 600.0), (20, 610.0), (30, 605.0)]
    text, drawn = describe_growth(plan, grown), find_panels(grown)
    assert [panel.title for panel in drawn][-2:] == ["Continuing a run", "Memory of a long run"]
    assert "600 MB after a quarter of them, 605 MB at the end, 610 MB at most" in text
    for panel in drawn[:-2]:
        table = text.split(f"### {panel.title}\n\n")[1].split("\n\n")[0].splitlines()[2:]
        assert [row.split("|")[1].strip() for row in table] == list(panel.labels)
        for column, values in ((2, panel.values), (3, panel.low), (4, panel.high)):
            assert [row.split("|")[column].strip() for row in table] == [f"{value:,.0f}" for value in values]
        assert all(ideal >= value * 0.999 for ideal, value in zip(panel.ideal, panel.values, strict=True))


def test_a_panel_begins_at_zero_and_shows_every_value(tmp_path):
    panel = Panel("Title", "x", "y", ["1", "2", "4"], [5.0, 4.0, 2.0], [5.0, 3.0, 2.0], [6.0, 4.0, 2.0], [5, 4, 9])
    axes = Figure().subplots()
    draw_panel(axes, panel)
    assert axes.get_ylim() == (0, pytest.approx(1.15 * 9))
    assert [list(line.get_ydata()) for line in axes.lines] == [[5.0, 4.0, 2.0], [5, 4, 9]]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["1", "2", "4"]
    draw_growth([panel] * 5, tmp_path / "five.png")
    assert (tmp_path / "five.png").read_bytes().startswith(b"\x89PNG\r\n")
    assert [path.name for path in tmp_path.iterdir()] == ["five.png"]
