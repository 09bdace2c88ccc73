"""Writes the folder of an export.

Guarantee: it has files of ``leaving.LEAVES`` and no others. What is in them is public, or covered
by the epsilon that was derived again from the ledger; what is neither (metrics, a chosen threshold,
an encoding of the rows as they are, tuned settings) is there only if somebody asked for it by name,
and then the card says so. The folder is there as a whole or not at all.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plumbline import durable
from plumbline.experiments.exporting.contents import (
    SCRIPT,
    manifest_of,
    require_same,
    settings_of,
    standalone,
    weights_of,
)
from plumbline.experiments.exporting.leaving import listed, staying
from plumbline.experiments.exporting.network import NoProgram, program_of
from plumbline.experiments.exporting.predict import MANIFEST, SETTINGS, WEIGHTS
from plumbline.experiments.exporting.safety import (
    NotExported,
    refuse_target,
    refuse_unconfirmed,
    unsafe,
)
from plumbline.experiments.exporting.use import how_to_use
from plumbline.experiments.files import (
    ENCODING,
    STATEMENT,
    in_words,
    json_text,
)
from plumbline.experiments.model_card import CARD, model_card
from plumbline.experiments.releasing import mark_released
from plumbline.experiments.run_result import read_model, read_table_encoding
from plumbline.experiments.verification import Verification, verify
from plumbline.mechanism.statement import GIVEN
from plumbline.results import to_json

PROGRAM = "model.pt2"


@dataclass(frozen=True)
class Export:
    """What was exported.

    Attributes:
        folder: Where it is.
        epsilon: Of the run, derived again from its ledger and rounded up.
        delta: At which.
        leaves: What is in it, and why that may leave.
        stays: What else is in the run's folder, and why it stays.
        unsafe: Why it is not safe to ship, in sentences; nothing if it is.
        asked: What is in it that epsilon does not cover, since it was asked for.
        notes: What else somebody who ships it should know, in sentences.
        spent: What all released models of this data cost together, and everything that was run.
    """

    folder: Path
    epsilon: float
    delta: float
    leaves: Mapping[str, str]
    stays: Mapping[str, str]
    unsafe: tuple[str, ...]
    asked: tuple[str, ...]
    notes: tuple[str, ...]
    spent: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return {**to_json(vars(self)), "folder": str(self.folder)}


def export(
    run: str | os.PathLike[str],
    to: str | os.PathLike[str] | None = None,
    *,
    with_metrics: bool = False,
    with_threshold: bool = False,
    not_private: bool = False,
    program: bool = True,
    ledger: str | os.PathLike[str] | None = None,
) -> Export:
    """Writes the model of a finished run as a folder that is safe to ship.

    The run is verified first, as ``plumbline verify`` does.

    Args:
        run: The folder of the run.
        to: The folder to write, which must not be there, or be empty; by default it is called after
            the experiment.
        with_metrics: Puts the metrics on the card, which epsilon does not cover.
        with_threshold: Keeps a threshold that was chosen on held-out rows, which epsilon does not
            cover. One that was given is public, and always kept.
        not_private: Exports a model that is not safe to ship as well: one without a guarantee,
            with noise from a seed, or with an encoding that was taken from the rows as they are.
        program: Whether to write a torch.export program too, which takes some seconds.
        ledger: The ledger that the run was charged to, if not in its folder.

    Raises:
        NotExported: If something about the run is contradicted or cannot be confirmed, it is not
            safe to ship, or there is something at ``to``.
        FileError: If it is no run's folder, a file is damaged, or the folder cannot be written.
    """
    folder = Path(run)
    found = verify(folder, ledger=None if ledger is None else Path(ledger))
    target = Path(to if to is not None else f"{found.claim.spec.recipe.name}-model")
    refuse_target(target)
    refuse_unconfirmed(found)
    encoding = read_table_encoding(folder)
    reasons, notes = tuple(unsafe(found, encoding)), []
    if reasons and not not_private:
        raise NotExported(
            f"Not exported: the model in {folder} is not safe to ship. {' '.join(reasons)} Make a "
            "run without that; or export it all the same, as a model that is not private "
            "(--not-private; in Python, not_private=True)."
        )
    result = found.claim.result
    assert result is not None
    model = read_model(folder, found.claim.spec, result)
    chosen = found.claim.spec.chosen_on > 0
    settings = settings_of(found, model, threshold=with_threshold or not chosen)
    width = result["model"]["options"].get("features")
    files = {
        STATEMENT: result["statement"].strip().encode() + b"\n",
        WEIGHTS: weights_of(model),
        SETTINGS: json_text(settings).encode(),
    }
    if encoding is not None:
        width = len(encoding.features)
        files[ENCODING] = json_text(encoding.to_json()).encode()
        files |= standalone()
    else:
        notes.append(f"There is no {SCRIPT}: the run was not made on a table.")
    require_same(model, settings["network"], width)
    if program:
        try:
            files[PROGRAM] = program_of(model, width)
        except NoProgram as error:
            notes.append(f"There is no {PROGRAM}: {error}.")
    use = how_to_use(settings, encoding, program=PROGRAM in files, chosen=chosen)
    files[CARD] = model_card(found, metrics=with_metrics, use=use).encode()
    files[MANIFEST] = json_text(manifest_of(files)).encode()
    leaves = listed(files)
    with in_words("write", target), durable.new_folder(target) as beside:
        for name, data in files.items():
            (beside / name).parent.mkdir(exist_ok=True)
            (beside / name).write_bytes(data)
        # With the end of this block the model is there for others: it is marked before.
        spent = mark_released(folder, ledger=ledger)
    notes += _notes(found, settings, left_out=chosen and not with_threshold, metrics=with_metrics)
    asked = {
        "metrics of held-out records": with_metrics,
        "a chosen threshold": with_threshold and chosen,
        "settings that were tuned on these records": found.claim.spec.method.origin == "tuned",
    }
    return Export(
        folder=target,
        epsilon=float(settings["epsilon"]),
        delta=settings["delta"],
        leaves=leaves,
        stays=staying(folder),
        unsafe=reasons,
        asked=tuple(what for what, there in asked.items() if there),
        notes=tuple(notes),
        spent=tuple(spent.sentences) if spent.shared else (),
    )


def _notes(
    found: Verification, settings: Mapping[str, Any], *, left_out: bool, metrics: bool
) -> Iterator[str]:
    if found.lost:
        yield (
            f"The run lost {found.lost:,} of the {found.charged:,} steps that were charged: "
            "epsilon covers them all, and the model is worse than it could be."
        )
    if reference := settings["network"].get("reference"):
        yield f"It needs the package of its network, {reference}: ship it too, or say so."
    statement = " ".join(found.claim.result["statement"].split()) if found.claim.result else ""
    if GIVEN in statement and found.claim.spec.data.name != "table":
        yield (
            "Something was taken from the data as they are before training; the statement says "
            "what, under what is not covered."
        )
    if left_out:
        yield (
            "The threshold was chosen on held-out rows as they are, and stays: the more probable "
            "class is predicted. --with-threshold ships it."
        )
    if not metrics:
        yield "Metrics are left out, since epsilon does not cover them; --with-metrics adds them."
