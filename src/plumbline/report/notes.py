"""How each section is read: a short note in the page itself, which works without a network.

``docs/report.md`` has a heading for each of them; a test keeps the two together.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Note:
    """A note.

    Attributes:
        title: Its heading, the same as in the documentation.
        text: What to know before drawing a conclusion.
        page: The page of the documentation that says more.
    """

    title: str
    text: str
    page: str = "docs/report.md"


NOTES: dict[str, Note] = {
    "verdict": Note(
        "The verdict",
        "Each sentence repeats the numbers it rests on. The cost of privacy is the accuracy of the "
        "non-private run minus that of the private one, seed by seed (paper 004, Eq. 1). The share "
        "that other settings win back compares two rows of the same method. What clipping did is "
        "the median over the readings; its causes and thresholds are those of "
        "plumbline.diagnostics.verdict.",
        "docs/clipping-or-noise.md",
    ),
    "statement": Note(
        "The guarantee",
        "Epsilon bounds how much anyone can learn about one record from what a run releases, up to "
        "a probability delta. It holds for one run. It does not cover what is marked so on this "
        "page, which was computed from the records as they are.",
        "docs/statement.md",
    ),
    "results": Note(
        "Accuracy and loss",
        "Marks are means over seeds, lines are 95% intervals by Student's t; with few seeds they "
        "are wide, as they should be. A seed splits the data, starts the weights, and draws "
        "batches and noise.",
    ),
    "epsilons": Note(
        "Accuracy against epsilon",
        "Every private method at every epsilon, with the settings found at the middle one. Bars "
        "are 95% intervals over seeds.",
    ),
    "cost": Note(
        "What it costs, and whom",
        "The privacy cost of a group is the accuracy it loses to private training (paper 004, Eq. "
        "1), its excessive risk the loss it gains (Eq. 2). Pairs of runs share a seed, so that the "
        "split of the data cancels. The gap is the largest difference between two groups.",
        "docs/fairness.md",
    ),
    "spending": Note(
        "Epsilon over training",
        "Each step asks noisy questions about a random batch, and each is charged before its "
        "answer is used. Methods that ask one question more pay for it here.",
    ),
    "curves": Note(
        "Learning curves",
        "Measured on the test records every few steps. A curve that still rises at the end says "
        "that the run was too short or its learning rate too small for it.",
    ),
    "bending": Note(
        "How clipping bends the gradient",
        "The true gradient g is the plain mean gradient of the probed records, which non-private "
        "SGD would take. The clipped mean is what the method would release before the noise: its "
        "own gradients (on views, at BAM's weights, averaged in buckets), clipped. It is a g + c, "
        "c at a right angle to g: a is what is left of the gradient, c points elsewhere (paper "
        "000, Theorem 1 and Fig. 7; paper 004, Fig. 1). A learning rate 1/a times as large undoes "
        "the first; nothing undoes the second. The bias is the difference of the two; read its "
        "norm together with the angle.",
        "docs/clipping-or-noise.md",
    ),
    "risk": Note(
        "Who pays for a step, and why",
        "The terms R_mag, R_dir and R_noise of paper 004 (Prop. 2): the change of a group's loss "
        "in one step, to second order, split into what the shorter gradient does, what its wrong "
        "direction does, and what noise does. Negative is a gain.",
        "docs/clipping-or-noise.md",
    ),
    "progress": Note(
        "What training sees of each group",
        "The loss and the length of the mean gradient on the probed training records, as in paper "
        "004, Figs. 3 and 8 to 10.",
        "docs/clipping-or-noise.md",
    ),
    "norms": Note(
        "Gradient lengths and the clip line",
        "The gradients are those that the method clips. Histograms count the probed records by "
        "their norm; no record's own norm is stored. A record is clipped if it is scaled down "
        "further than a short one would be: under Global-Adapt, records within its bound are all "
        "scaled alike, and none of these is. Where a method moves its bound, the dashed line moves "
        "with it.",
        "docs/clipping-or-noise.md",
    ),
    "symmetry": Note(
        "Are the gradients symmetric?",
        "If the gradients' noise is symmetric, clipping keeps the direction of their mean (paper "
        "001, Theorem 2). The plane is random, the same at every reading; the counts on it are "
        "stored, not the records.",
        "docs/clipping-or-noise.md",
    ),
    "curvature": Note(
        "How sharp the loss is",
        "Eigenvalues come from Lanczos runs on the probed records; the plane of the landscape is "
        "random and filter-normalised, so that planes of different models can be compared (paper "
        "002, Figs. 5, 8 and 9).",
        "docs/clipping-or-noise.md",
    ),
    "others": Note(
        "Other measurements",
        "Every diagnostic that a recipe can name is on this page; those without a section of their "
        "own are here, number by number: curves are means over seeds, with their range.",
        "docs/clipping-or-noise.md",
    ),
    "sensitivity": Note(
        "Sensitivity to the learning rate",
        "Trials were judged on records held out of the training part. Unless the trials were "
        "charged too, tuning is outside the guarantee.",
    ),
    "settings": Note(
        "Settings, and how to repeat this",
        "The recipe names everything that decides the result. Finished runs are read, not "
        "repeated, when the command runs again in the same folder.",
    ),
}
