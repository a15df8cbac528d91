"""sweep.html: a sweep on one page that needs nothing else. Optuna draws the charts, as SVG inside the page."""

import html
import io
import re
import statistics
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import optuna

from minigpt.config.convert import values
from minigpt.files import write_file
from minigpt.redact import redact
from minigpt.report.frame import page_of, table
from minigpt.screen import duration, short_number
from minigpt.sweep.results import rerun_command, rows_of, value_text
from minigpt.sweep.settings import Sweep
from minigpt.sweep.trial_store import COMPLETE, PRUNED, Trial, best_trial, is_finished, state_of

SIZE = (4.6, 3.1)  # inches: as wide as a phone, so that the text has the same size there and on a desktop
MIN_COMPLETE = 8  # fewer trials tell nothing about the settings' importance
CHART_STYLE: dict[Any, Any] = {"axes.facecolor": "#f5f7fa", "axes.labelsize": 10, "font.size": 10,
    "svg.fonttype": "none", "text.parse_math": False}  # a setting's text is text, dollar signs and all  # fmt: skip
SWEEP_STYLE = """
figure { margin: 0; } figcaption { font-size: 13px; color: var(--soft); }
.charts { display: grid; grid-template-columns: repeat(auto-fill, minmax(320px, 1fr)); gap: 16px; align-items: start; }
.charts svg { background: white; border-radius: 8px; } .charts .broad { grid-column: 1 / -1; overflow-x: auto; }
.charts svg text { font-size: inherit; fill: inherit; } .charts .broad svg { min-width: 640px; }
.board td, .board th { white-space: nowrap; padding: 3px 12px 3px 0; text-align: right; width: auto; }
.board td:last-child, .board th:last-child { text-align: left; }
"""


def write_page(sweep: Sweep, study: optuna.Study) -> None:
    """Draw the page anew."""
    write_file(sweep.folder / "sweep.html", page(sweep, study))


def page(sweep: Sweep, study: optuna.Study) -> str:
    """Return the sweep as one HTML page."""
    trials = study.get_trials(deepcopy=False)
    commands = [f"# continue this sweep, or join it from another machine\n{sweep.command_line}"]
    if best_trial(trials) is not None:
        commands.append(f"# train the best settings again\n{rerun_command(sweep)}")
    search = {key: value for key, value in values(sweep.config).items() if key.startswith("search.")}
    sections = {
        "Charts": charts(sweep, study),
        "Leaderboard": board(sweep, trials),
        "Commands": f"<pre>{html.escape(redact(chr(10).join(commands)))}</pre>",
        "The search": table(search.items()),
    }
    summary = f"{sweep.config.search.sampler} search of {', '.join(sweep.space)}; experiment {sweep.config.experiment}"
    return page_of(sweep.name, summary, cards(sweep, trials), sections, SWEEP_STYLE)


def charts(sweep: Sweep, study: optuna.Study) -> str:
    """Return the charts for which there are enough trials."""
    import optuna.visualization.matplotlib as plots  # here, not above: it takes a second

    name, parts = sweep.config.sweep.metric, []
    complete = [trial for trial in study.trials if trial.state == COMPLETE]
    if complete:
        parts.append(_chart(f"{name} of each trial", plots.plot_optimization_history, study, target_name=name))
    if any(trial.intermediate_values for trial in study.trials):
        parts.append(_chart("Learning curves", _learning_curves, study, target_name=name))
    for key in sweep.space if complete else ():
        caption = f"{name} over {key} (darker: later trials)"
        parts.append(_chart(caption, plots.plot_slice, study, params=[key], target_name=name))
    if len(complete) > 1 and len(sweep.space) > 1:
        caption = f"From the settings to {name} (darker: better)"
        parts.append(_chart(caption, plots.plot_parallel_coordinate, study, broad=True, target_name=name))
    if len(complete) >= MIN_COMPLETE and len({trial.value for trial in complete}) > 1 and len(sweep.space) > 1:
        caption = "Importance: what sets the better trials apart (PED-ANOVA)"
        evaluator = optuna.importance.PedAnovaImportanceEvaluator()
        parts.append(_chart(caption, plots.plot_param_importances, study, evaluator=evaluator, target_name=name))
    return f'<div class="charts">{"".join(parts)}</div>' if parts else ""


def _chart(caption: str, draw: Callable[..., Any], study: optuna.Study, *, broad: bool = False, **options: Any) -> str:
    """Return a chart of Optuna's as an SVG element with its caption."""
    import matplotlib
    from matplotlib import pyplot

    style = CHART_STYLE | {"figure.figsize": (2 * SIZE[0], SIZE[1]) if broad else SIZE, "svg.hashsalt": caption}
    with matplotlib.rc_context(style), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # these functions are experimental, and trials may have equal values
        figure = draw(study, **options).figure
        matplotlib.rcParams.update(style)  # Optuna has replaced our style
        for axes in figure.axes:
            _simplify(axes)
        text = io.StringIO()
        figure.savefig(text, format="svg", bbox_inches="tight")
        pyplot.close(figure)
    svg = text.getvalue()[text.getvalue().index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>| xmlns(:\w+)?=\"[^\"]*\"", "", svg, flags=re.DOTALL)
    kind = "broad" if broad else "narrow"
    return f'<figure class="{kind}"><figcaption>{html.escape(caption)}</figcaption>{svg}</figure>'


def _simplify(axes: Any) -> None:
    """Remove titles, which the caption repeats, legend and colour bar; write numbers of logarithmic axes as text."""
    from matplotlib.ticker import LogFormatter

    if axes.get_label() == "<colorbar>":
        axes.remove()
        return
    axes.set_title("")
    axes.set_title("", loc="left")
    if axes.get_legend() is not None:
        axes.get_legend().remove()
    for axis in (axes.xaxis, axes.yaxis):
        if axis.get_scale() == "log":
            axis.set_major_formatter("{x:g}")
            axis.set_minor_formatter(LogFormatter())


def _learning_curves(study: optuna.Study, target_name: str) -> Any:
    """Draw all learning curves, without the fall of the first steps, which would flatten the rest."""
    from optuna.visualization.matplotlib import plot_intermediate_values

    axes = plot_intermediate_values(study)
    axes.set(xlabel="tokens", ylabel=f"best {target_name} so far")
    axes.xaxis.set_major_formatter(lambda tokens, _: short_number(tokens))
    seen = sorted(value for trial in study.trials for value in trial.intermediate_values.values())
    axes.set_ylim(top=1.001 * seen[int(0.9 * (len(seen) - 1))])
    return axes


def cards(sweep: Sweep, trials: Sequence[Trial]) -> list[tuple[str, str, str]]:
    """Return the headline figures: value, what it is, note."""
    best, saved, counts = best_trial(trials), saved_share(trials), Counter(map(state_of, trials))
    tokens, seconds = (sum(trial.user_attrs.get(name, 0) for trial in trials) for name in ("tokens", "seconds"))
    note = ", ".join(f"{counts[state]} {state}" for state in ("pruned", "failed") if counts[state])
    found = [
        (f"{sum(map(is_finished, trials))} of {sweep.trials}", "trials", note),
        (short_number(tokens), "tokens trained on", f"pruning saved {saved:.0%}" if saved else ""),
        (duration(seconds), "of training", "all trials together"),
    ]
    if best is not None:
        found.insert(0, (value_text(best, best.value), f"best {sweep.config.sweep.metric}", f"trial {best.number}"))
    return found


def saved_share(trials: Sequence[Trial]) -> float:
    """Return the tokens that pruning saved, as a share of those that all trials without it would have taken."""
    own = [trial for trial in trials if "same_as" not in trial.user_attrs and "tokens" in trial.user_attrs]
    whole = [trial.user_attrs["tokens"] for trial in own if trial.state == COMPLETE]
    pruned = [trial.user_attrs["tokens"] for trial in own if trial.state == PRUNED]
    if not whole or not pruned:
        return 0.0
    return max(0.0, 1 - sum(whole + pruned) / (sum(whole) + statistics.median(whole) * len(pruned)))


def board(sweep: Sweep, trials: Sequence[Trial]) -> str:
    """Return the table of all trials."""
    lines = ["".join(f"<td>{html.escape(cell)}</td>" for cell in row) for row in rows_of(sweep, trials)]
    lines[0] = lines[0].replace("td>", "th>")
    rows = "".join(f"<tr>{line}</tr>" for line in lines)
    return f'<div class="wide"><table class="board">{rows}</table></div>' if trials else ""
