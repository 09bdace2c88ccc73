"""Makes the numbers and drawings of docs/clipping-or-noise.md, on Adult.

Runs the network of Gradient Misalignment without privacy, with DP-SGD at several learning rates,
and with Global-Adapt, and measures at the end of each run what clipping does to the gradient of
1,000 test records. Writes ``clipping_or_noise.json`` beside this file, the drawings in
``docs/images`` and the table in the page. About eight minutes on one core; finished runs are not
repeated.

    python docs/figures/clipping_or_noise.py [--only-draw]
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "clipping_or_noise.json"
PAGE = HERE.parent / "clipping-or-noise.md"
IMAGES = HERE.parent / "images"
BEGIN = "<!-- story:begin (made by python docs/figures/clipping_or_noise.py) -->"
END = "<!-- story:end -->"

SEEDS = (0, 1)
STEPS = 1840
RATES = (0.01, 0.05, 0.2, 0.5, 1.0, 2.0)
NONPRIVATE, CLIPPED, DPSGD, ADAPT = "non-private", "clipping only", "DP-SGD", "Global-Adapt"
PAPER = {NONPRIVATE: 0.01, DPSGD: 0.01, ADAPT: 0.2}  # its learning rates, App. B.2
# Other rates for the non-private run too, and DP-SGD without its noise: the controls of the story.
PLAN = [
    *((NONPRIVATE, rate) for rate in (0.01, 0.05, 0.2)),
    *((CLIPPED, rate) for rate in (0.01, 0.2)),
    *((DPSGD, rate) for rate in RATES),
    (ADAPT, 0.2),
]

Results = dict[str, dict[str, Any]]


def main() -> None:
    """Makes the runs that are missing, then draws."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only-draw", action="store_true")
    options = parser.parse_args()
    found: Results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for seed in SEEDS:
        for method, rate in PLAN:
            key = f"{method} {rate:g} seed {seed}"
            if key not in found and not options.only_draw:
                found[key] = run(method, rate, seed)
                RESULTS.write_text(json.dumps(found, indent=1) + "\n")
                print(key, found[key]["accuracy"])
    for name, drawing in drawings(found).items():
        (IMAGES / name).write_text(drawing, encoding="utf-8")
    if PAGE.exists():
        text = PAGE.read_text(encoding="utf-8")
        before, rest = text.split(BEGIN, 1)
        PAGE.write_text(
            f"{before}{BEGIN}\n\n{table(found)}\n\n{END}{rest.split(END, 1)[1]}", encoding="utf-8"
        )


def run(method: str, rate: float, seed: int) -> dict[str, Any]:
    """One training run and what was measured at its end."""
    import torch
    from torch import nn

    import plumbline as pl
    from plumbline import data, diagnostics, fairness, models

    adult = data.load("adult", seed=seed)
    makes = {
        NONPRIVATE: pl.methods.nonprivate(),
        CLIPPED: pl.methods.clipped_only(clip=0.5),
        DPSGD: pl.methods.dpsgd(clip=0.5),
        ADAPT: pl.methods.global_adapt(clip=0.5, initial=50.0),
    }
    torch.manual_seed(seed)
    model = models.build("adult-mlp")
    private = pl.make_private(
        model,
        torch.optim.SGD(model.parameters(), lr=rate),
        adult.train,
        loss=nn.CrossEntropyLoss(reduction="none"),
        method=makes[method],
        budget=pl.Budget(noise_multiplier=1.0, delta=1e-6, steps=STEPS, expected_batch_size=256),
        seed=seed,
        deterministic=True,
    )
    private.fit(progress=False)
    sample = diagnostics.Sample.take(  # none of these methods changes gradients before clipping
        model,
        lambda model, batch: nn.functional.cross_entropy(
            model(batch[0]), batch[1], reduction="none"
        ),
        adult.test.fetch(torch.arange(1000)),
        makes[method].clipping,
        noise_multiplier=private.plan.noise_multiplier,
        expected_size=private.plan.expected_batch_size,
    )
    x, y = adult.test.fetch(torch.arange(len(adult.test)))
    with torch.no_grad():
        outcomes = fairness.Outcomes.from_logits(model(x), y)
    report = fairness.evaluate(
        outcomes,
        sensitive_features=adult.test.sensitive_features,
        names=dict(enumerate(adult.groups)),
    )
    bias, errors = diagnostics.bias(sample), diagnostics.error_parts(sample)
    evidence = diagnostics.Evidence(bias=bias, errors=errors, steps=STEPS)
    guaranteed = private.method.unbounded_reason is None
    return {
        "accuracy": report.metric("accuracy"),
        "loss": report.metric("loss"),
        "overall": report.overall["loss"],
        "epsilon": private.epsilon() if guaranteed else None,
        "kept": bias.magnitude,
        "cosine": bias.cosine,
        "clipped": diagnostics.norms(sample).clipped,
        "scores": diagnostics.causes(evidence) if guaranteed else {},
    }


def mean(found: Results, method: str, rate: float, *path: str) -> float:
    """The mean over seeds of a number of a run."""
    values = []
    for seed in SEEDS:
        value: Any = found[f"{method} {rate:g} seed {seed}"]
        for part in path:
            value = value[part]
        values.append(float(value))
    return fmean(values)


def groups(found: Results) -> list[str]:
    """The groups' names."""
    return list(next(iter(found.values()))["accuracy"])


def table(found: Results) -> str:
    """The page's table: means over seeds."""
    names = groups(found)
    both = " / ".join(names)
    head = ["run", "rate", f"accuracy, {both}", f"loss, {both}", "length kept", "cosine", "noise"]
    lines = [head, ["---"] * len(head)]
    for method, rate in PLAN:

        def of(*path: str, method: str = method, rate: float = rate) -> float:
            return mean(found, method, rate, *path)

        published = PAPER.get(method) == rate
        cells = [method + (" (the paper's)" if published else ""), f"{rate:g}"]
        cells.append(" / ".join(f"{100 * of('accuracy', name):.1f}" for name in names))
        cells.append(" / ".join(f"{of('loss', name):.2f}" for name in names))
        cells += ["", ""] if method == NONPRIVATE else [f"{of('kept'):.2f}", f"{of('cosine'):.2f}"]
        private = method in (DPSGD, ADAPT)
        cells.append(f"{math.sqrt(of('scores', 'noise')):.2f}" if private else "")
        lines.append(cells)
    epsilons = {
        method: max(
            one["epsilon"]
            for key, one in found.items()
            if key.startswith(method) and one["epsilon"]
        )
        for method in (DPSGD, ADAPT)
    }
    rows = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    spent = ", ".join(f"{method} {value:.2f}" for method, value in epsilons.items())
    return f"{rows}\n\nMeans over {len(SEEDS)} seeds. Epsilon at delta 1e-6, by PLD: {spent}."


def drawings(found: Results) -> dict[str, str]:
    """The page's drawings, by file name."""
    return {"learning-rates.svg": _rates(found), "turned.svg": _turned(found)}


# Drawing. Every drawing brings its own light background, so that it reads the same on any page.

INK, SOFT, BACK = "#22303c", "#5f6d79", "#fbfaf6"
COLOURS = ("#1f6f8b", "#c1572b")


def _svg(width: int, height: int, title: str, body: Sequence[str]) -> str:
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
            f'font-family="sans-serif" font-size="14" role="img" aria-label="{title}">',
            f"<title>{title}</title>",
            f'<rect width="{width}" height="{height}" rx="8" fill="{BACK}"/>',
            *body,
            "</svg>\n",
        ]
    )


def _text(x: float, y: float, text: str, colour: str = INK, anchor: str = "middle") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" fill="{colour}" text-anchor="{anchor}">{text}</text>'


def _line(
    x1: float, y1: float, x2: float, y2: float, colour: str, width: float = 1.5, dash: str = ""
) -> str:
    dashed = f' stroke-dasharray="{dash}"' if dash else ""
    return (
        f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}" '
        f'stroke-width="{width}"{dashed}/>'
    )


def _rates(found: Results) -> str:
    """Accuracy by learning rate, for each group."""
    names = groups(found)
    left, right, top, bottom = 60, 560, 40, 300
    values = [
        100 * mean(found, method, rate, "accuracy", name) for method, rate in PLAN for name in names
    ]
    low, high = 5 * math.floor(min(values) / 5), 5 * math.ceil(max(values) / 5)
    first, last = math.log10(min(RATES)), math.log10(max(RATES))

    def across(rate: float) -> float:
        return left + (math.log10(rate) - first) / (last - first) * (right - left)

    def up(accuracy: float) -> float:
        return bottom - (accuracy - low) / (high - low) * (bottom - top)

    body = [_text(left - 40, 24, "test accuracy of DP-SGD, %", anchor="start")]
    for mark in range(low, high + 1, 5):
        body.append(_line(left, up(mark), right, up(mark), "#e2ddd2", 1))
        body.append(_text(left - 10, up(mark) + 5, str(mark), SOFT, "end"))
    for rate in RATES:
        body.append(_text(across(rate), bottom + 22, f"{rate:g}", SOFT))
    body.append(_text((left + right) / 2, bottom + 44, "learning rate"))
    for place, name in enumerate(names):
        colour = COLOURS[place % len(COLOURS)]
        points = [
            (across(rate), up(100 * mean(found, DPSGD, rate, "accuracy", name))) for rate in RATES
        ]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        body.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2.5"/>')
        body += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{colour}"/>' for x, y in points]
        free = up(100 * mean(found, NONPRIVATE, PAPER[NONPRIVATE], "accuracy", name))
        body.append(_line(left, free, right, free, colour, 1.5, "6 5"))
        adapted = up(100 * mean(found, ADAPT, PAPER[ADAPT], "accuracy", name))
        x = across(PAPER[ADAPT])
        body.append(
            f'<rect x="{x - 5:.1f}" y="{adapted - 5:.1f}" width="10" height="10" fill="{BACK}" '
            f'stroke="{colour}" stroke-width="2.5"/>'
        )
        body.append(_text(right + 12, points[-1][1] + 5, name, colour, "start"))
    y = bottom + 72
    body.append(_line(left, y - 5, left + 34, y - 5, INK, 1.5, "6 5"))
    body.append(_text(left + 42, y, "without privacy (paper's rate)", anchor="start"))
    body.append(
        f'<rect x="{left + 270}" y="{y - 10}" width="10" height="10" fill="{BACK}" stroke="{INK}" '
        'stroke-width="2.5"/>'
    )
    body.append(_text(left + 290, y, "Global-Adapt (paper's rate)", anchor="start"))
    return _svg(660, 392, "Test accuracy of DP-SGD on Adult by learning rate and group", body)


def _turned(found: Results) -> str:
    """The true gradient as a plumb line, and how far the clipped one leans from it."""
    best = max(
        RATES,
        key=lambda rate: fmean(mean(found, DPSGD, rate, "accuracy", g) for g in groups(found)),
    )
    runs = [(DPSGD, PAPER[DPSGD]), (DPSGD, best), (ADAPT, PAPER[ADAPT])]
    body = []
    for place, (method, rate) in enumerate(runs):
        x, top, length = 120 + 210 * place, 70, 150
        angle = math.acos(max(-1.0, min(1.0, mean(found, method, rate, "cosine"))))
        body.append(_text(x, 36, f"{method}, rate {rate:g}"))
        body.append(_line(x, top, x, top + length, SOFT, 2, "3 4"))
        body.append(f'<circle cx="{x}" cy="{top + length}" r="5" fill="{SOFT}"/>')
        end_x, end_y = x + length * math.sin(angle), top + length * math.cos(angle)
        body.append(_line(x, top, end_x, end_y, COLOURS[1], 3))
        body.append(f'<circle cx="{end_x:.1f}" cy="{end_y:.1f}" r="7" fill="{COLOURS[1]}"/>')
        kept = mean(found, method, rate, "kept")
        body.append(_text(x, 262, f"turned by {math.degrees(angle):.0f}°"))
        body.append(_text(x, 284, f"{100 * kept:.2g} % of the length", SOFT))
    return _svg(660, 304, "How far clipping turns the gradient from its true direction", body)


if __name__ == "__main__":
    main()
