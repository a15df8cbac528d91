"""Fit the law of minigpt/sizing/law.py to law_runs.csv and law_texts.csv beside this file; add rows and run it again.

Prints the constants that law.py holds, how far each text comes from a law that was fitted on the others alone, and
how near the forecasts are with pilots of each length, each text left out again. Draws docs/law.png.
"""

import csv
import math
from dataclasses import fields, replace
from pathlib import Path

import numpy as np

from minigpt.report.curves import BASELINE, GRID, INK, TRAIN, VALIDATION, drawing, plain
from minigpt.sizing.law import (
    MOST_PASSES,
    OF_PILOT,
    Constants,
    Size,
    Text,
    bits_per_byte,
    copied,
    counted,
    far,
    heads_of,
    pace_share,
    terms,
)

HERE = Path(__file__).parent
FORETOLD = "foretold"  # trainings of texts that have pilots
PICTURE = HERE.parent / "docs" / "law.png"
TIMES = {"minute": BASELINE, "150s": VALIDATION, "300s": TRAIN}  # of one core: groups of equal time

Run = tuple[Text, Size, float, str]  # bits per byte without copying and a long context, and a group of equal FLOPs
FLOATS = {"lr", "matrix_lr", "beta2", "dropout", "weight_decay", "average_fraction", "bpe_dropout", "passes"}
ORDER = 2.0  # weight of the differences within such a group: they decide which size is chosen


def rows_of(name: str) -> list[dict[str, str]]:
    with open(HERE / name, newline="") as file:
        return list(csv.DictReader(file))


def size_of(row: dict[str, str]) -> Size:
    return Size(**{f.name: (float if f.name in FLOATS else int)(row[f.name]) for f in fields(Size) if f.name in row})


def text_of(row: dict[str, str]) -> Text:
    counted_bits = (float(row[name]) for name in ("kneser_ney", "xz", "kneser_ney_part"))
    repeats = float(row["repeats"]) if row["repeats"] else None
    return Text(int(row["bytes"]), *counted_bits, repeats=repeats)


def read(texts: dict[str, Text]) -> list[Run]:
    runs = []
    for row in rows_of("law_runs.csv"):
        if row["fitted"] == "yes" and float(row["passes"]) < 1.5 * MOST_PASSES:
            text, size = texts[row["text"]], size_of(row)
            saved = copied(text, size) if row["init"] == "induction" else 0.0
            bits = float(row["bits"]) / (1 - saved) / (1 - far(text, size))
            runs.append((text, size, bits, row["equal_flops"]))
    return runs


def fit(runs: list[Run], by: Constants) -> tuple[np.ndarray, np.ndarray]:
    """Return the three factors, and each run's relative error, for powers and a floor."""
    y = np.array([bits / counted(text, size) for text, size, bits, _ in runs])
    X = np.array([terms(text, size, by) for text, size, *_ in runs]) / y[:, None]
    z, groups = 1 - by.floor / y, np.array([group for *_, group in runs])
    weights = np.array([sum(text == other for other, *_ in runs) for text, *_ in runs]) ** -0.5  # all texts count alike
    rows, wanted, used = [X * weights[:, None]], [z * weights], list(range(3))
    for group in set(groups) - {""}:
        inside = groups == group
        rows.append(ORDER * (X[inside] - X[inside].mean(0)))
        wanted.append(ORDER * (z[inside] - z[inside].mean()))
    while True:
        solved = np.linalg.lstsq(np.concatenate(rows)[:, used], np.concatenate(wanted), rcond=None)[0]
        if min(solved) >= 0:
            break
        del used[int(np.argmin(solved))]
    factors = np.zeros(3)
    factors[used] = solved
    return factors, X @ factors - z


def judge_pilots(texts: dict[str, Text], by: Constants) -> None:
    """Fit the pace to pilots of each length; print how near trainings come to their forecasts, each text left out."""
    rows = [row for row in rows_of("law_runs.csv") if row["halfway"] or row["note"] == FORETOLD]

    def alone(row: dict[str, str]) -> float:  # logarithm of what the law says without a pilot
        text, size = texts[row["text"]], size_of(row)
        text = replace(text, density=size.passes * text.bytes / text.bytes_of(size.tokens, size.vocab_size))
        return math.log(bits_per_byte(text, size, by))

    for steps in (128, 256, 512, 1024):
        pilots = {row["text"]: row for row in rows if row["halfway"] and 0.9 < int(row["steps"]) / steps < 1.1}
        pairs = [(row, pilots[row["text"]]) for row in rows if not row["halfway"] and row["text"] in pilots]
        names, share = np.array([row["text"] for row, _ in pairs]), pace_share(steps * OF_PILOT["batch_tokens"])
        weights = np.array([1 / (names == name).sum() for name in names])
        gains = np.array([alone(row) - alone(pilot) for row, pilot in pairs])
        came = np.array([math.log(float(row["bits"]) / float(pilot["bits"])) for row, pilot in pairs])
        learned = np.array([math.log(float(pilot["halfway"]) / float(pilot["bits"])) for _, pilot in pairs])
        X = (weights**0.5 * share * gains * np.stack([np.ones(len(pairs)), learned])).T
        y = weights**0.5 * (came - gains)
        solved = {name: np.linalg.lstsq(X[names != name], y[names != name], rcond=None)[0] for name in {"", *names}}
        errors = np.array([abs(y[i] - X[i] @ solved[name]) for i, name in enumerate(names)]) / weights**0.5
        near = ", ".join(f"{weights[errors < part].sum():.0f} within {100 * part:g} %" for part in (0.03, 0.05, 0.07))
        error = 100 * np.sqrt(np.average(errors**2, weights=weights))
        pace = f"{1 + solved[''][0]:.2f} + {solved[''][1]:.2f} s" if share else "1"
        of = f"pilots of {steps} steps: pace {pace}; of {weights.sum():.0f} texts"
        print(f"{of} {near}; {error:.1f}% (root mean square)")


def draw(texts: dict[str, Text], by: Constants) -> None:
    """Draw what the law predicts, and what was measured: of all trainings, and of sizes in equal time."""
    rows = [row for row in rows_of("law_runs.csv") if row["init"] == "induction" and row["note"] != "pilot"]
    came = np.array([float(row["bits"]) for row in rows])
    sizes = [size_of(row) for row in rows]
    expected = np.array([bits_per_byte(texts[row["text"]], size, by) for row, size in zip(rows, sizes, strict=True)])
    with drawing(size=(9.6, 3.4), font_size=8, dpi=150) as figure:
        whole, *groups = figure.subplots(1, 3)
        ends = np.array([0.5, 2.5])  # one text, at 3.9, is left out
        whole.fill_between(ends, ends / 1.1, ends / 0.9, color=GRID)
        whole.plot(ends, ends, color=INK, linewidth=0.8)
        whole.plot(expected, came, "o", color=TRAIN, markersize=3, alpha=0.6)
        whole.set(
            xlabel="law alone, bits per byte",
            ylabel="measured",
            title="All trainings; grey: 10 %",
            xlim=ends,
            ylim=ends,
        )
        for axes, (text, title) in zip(
            groups, {"ruby": "Ruby's library", "gnuplot": "gnuplot's pages"}.items(), strict=True
        ):
            for time, color in TIMES.items():
                wide = [size.n_head == heads_of(size.n_embd) for size in sizes]
                is_in = [
                    row["equal_flops"] == f"{time} {text}" and is_wide for row, is_wide in zip(rows, wide, strict=True)
                ]
                best = {}  # of each shape
                for index in sorted(np.flatnonzero(is_in), key=lambda index: came[index]):
                    best.setdefault((sizes[index].n_layer, sizes[index].n_embd), index)
                order = sorted(best.values(), key=lambda index: sizes[index].multiplied)
                numbers = [sizes[index].multiplied / 1e6 for index in order]
                level = np.mean(came[order] / expected[order])
                label = f"{time.replace('minute', '60s')[:-1]} s of one core"
                axes.plot(numbers, level * expected[order], ":", color=color)
                axes.plot(numbers, came[order], "o", color=color, markersize=4, label=label)
                for index, number in zip(order, numbers, strict=True):
                    name = f"{sizes[index].n_layer}x{sizes[index].n_embd}"
                    axes.annotate(name, (number, came[index]), (3, 3), textcoords="offset points", fontsize=6)
            axes.set(xlabel="parameters of matrices, millions", title=f"{title}; dotted: the law")
            axes.legend(frameon=False, fontsize=7)
        for axes in (whole, *groups):
            plain(axes)
        figure.savefig(PICTURE)


if __name__ == "__main__":
    texts = {row["text"]: text_of(row) for row in rows_of("law_texts.csv")}
    runs, by, left_out = read(texts), Constants(), []
    factors, errors = fit(runs, by)
    print(f"factors {tuple(round(float(factor), 4) for factor in factors)} for the powers and the floor of {by}")
    for name, text in texts.items():
        of_text, others = [run for run in runs if run[0] == text], [run for run in runs if run[0] != text]
        if of_text:
            factors = fit(others, by)[0]
            expected = [counted(t, s) * (by.floor + factors @ terms(t, s, by)) / bits - 1 for t, s, bits, _ in of_text]
            left_out += [abs(float(error)) for error in expected]
            print(f"{name:12} left out: {', '.join(f'{100 * error:+.1f}%' for error in expected)}")
    print(f"fitted: {100 * np.sqrt(np.mean(errors**2)):.1f}% (root mean square)")
    print(f"left out: {100 * np.median(left_out):.1f}% (median), {100 * np.quantile(left_out, 0.9):.1f}% (nine of ten)")
    by = replace(by, factors=tuple(map(float, fit(runs, by)[0])))
    judge_pilots(texts, by)
    draw(texts, by)
