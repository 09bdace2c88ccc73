"""Files, weights, data and versions against the claim.

Files are compared with the hashes that were recorded when the run ended; weights are loaded into
the network that the settings name; with the data at hand, records are counted and the model is
judged again. Nothing is unpickled: weights and checkpoints go through ``weights_only``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch

from plumbline.data import Splits
from plumbline.data.files import DataError
from plumbline.experiments.data_identity import changed
from plumbline.experiments.files import CHECKPOINT, MODEL, VERSIONS, FileError, read_json
from plumbline.experiments.loading import load_data, measure_splits
from plumbline.experiments.manifest import Manifest, changes
from plumbline.experiments.run_result import read_model
from plumbline.experiments.running import started
from plumbline.experiments.verification.checks import CONFIRMED, CONTRADICTED, UNKNOWN, Check
from plumbline.experiments.verification.claims import RunClaim
from plumbline.fairness import to_json
from plumbline.mechanism.ledger import Ledger, LedgerError, Position
from plumbline.registry import UnknownPart

_SAME_METRIC = 1e-3  # absolute: sums of another number of threads


def settings(claim: RunClaim) -> Iterator[Check]:
    """The settings are those that the run was made with."""
    what = "settings"
    named = claim.folder.name if claim.result is None else claim.result.get("folder")
    same = named == claim.spec.folder
    words = f"the folder's name {'is' if same else 'is not'} the digest of recipe.json"
    if not same and claim.result is None:
        yield Check(what, UNKNOWN, f"{words}: it was renamed, or recipe.json was changed")
    else:
        yield Check(what, CONFIRMED if same else CONTRADICTED, words)


def files(claim: RunClaim, manifest: Manifest | None) -> Iterator[Check]:
    """Every file has the hash that was recorded."""
    what = "files"
    if claim.result is None:
        return
    if manifest is None:
        words = "no hashes were recorded: the run was made before there were manifests"
        yield Check(what, UNKNOWN, words)
        return
    changed = changes(claim.folder, manifest)
    if changed:
        yield Check(what, CONTRADICTED, "; ".join(changed))
    else:
        words = f"{', '.join(manifest.files)} have the hashes recorded when the run ended"
        yield Check(what, CONFIRMED, words)


def weights(claim: RunClaim) -> Iterator[Check]:
    """The weights fit the network."""
    if claim.result is None:
        return
    what = "weights"
    try:
        model = read_model(claim.folder, claim.spec, claim.result)
    except UnknownPart as error:
        yield Check(what, UNKNOWN, str(error))
    except FileError as error:
        gone = not (claim.folder / MODEL).is_file()
        yield Check(what, UNKNOWN if gone else CONTRADICTED, str(error))
    except Exception as error:  # damage can look like anything
        words = f"{MODEL} does not load into the network: {type(error).__name__}"
        yield Check(what, CONTRADICTED, words)
    else:
        count = sum(p.numel() for p in model.parameters())
        yield Check(what, CONFIRMED, f"{MODEL} has the {count:,} parameters of the network named")


def checkpoint(claim: RunClaim, book: Ledger) -> Iterator[Check]:
    """That of an unfinished run belongs to the ledger."""
    path = claim.folder / CHECKPOINT
    if not path.is_file():
        return
    try:
        stored = torch.load(path, map_location="cpu", weights_only=True)
        position, steps = Position(**stored["ledger"]), stored["steps_done"]
    except Exception as error:  # damage can look like anything
        words = f"{CHECKPOINT} cannot be read: {type(error).__name__}"
        yield Check("checkpoint", CONTRADICTED, words)
        return
    try:
        book.verify_position(position)
    except LedgerError as error:
        yield Check("checkpoint", CONTRADICTED, str(error))
        return
    words = f"after step {steps:,}; the ledger has every line that it has seen"
    yield Check("checkpoint", CONFIRMED, words)


def without_data(claim: RunClaim) -> Check:
    """What is not known without the data."""
    title = claim.spec.data.title
    words = f"not loaded; --data counts the records of {title!r} and evaluates again"
    return Check("data", UNKNOWN, words)


def with_data(claim: RunClaim, book: Ledger | None) -> Iterator[Check]:
    """The data are those of the run, have the records that were sampled, and give its metrics."""
    try:
        splits = load_data(claim.spec)
        other = changed(claim.folder, claim.spec)
    except (DataError, FileError, ImportError, ValueError) as error:
        yield Check("data", UNKNOWN, f"it could not be loaded: {error}")
        return
    if other:
        yield Check("data", CONTRADICTED, "; ".join(other))
        return
    if book is not None:
        private = started(claim.spec, splits)
        asked = [one.to_dict() for one in claim.spec.before]
        steps = [release for release, _ in book.entries() if release not in asked]
        rates = {release["sampling"].get("rate", 1.0) for release in steps}
        wrong = rates - {private.plan.release.sampling.rate}
        rate = f"{private.plan.release.sampling.rate:g}"
        # A model card shows this: where only a stated or noisy number is public, not the exact one.
        public = splits.train.public_records
        number = f"{len(splits.train):,}" if public is None else f"about {public:,}"
        count = f"{number} training records"
        if wrong:
            words = f"{count} are sampled at {rate}, and not {min(wrong):g}"
            yield Check("data", CONTRADICTED, words)
        elif private.seeded and private.run not in book.runs():
            words = f"{count}, but the ledger's run has another seed or other settings"
            yield Check("data", CONTRADICTED, words)
        else:
            yield Check("data", CONFIRMED, f"{count}, sampled at {rate}, as was charged")
        private.close()
    if claim.result is not None:
        yield _judged_again(claim, splits)


def _judged_again(claim: RunClaim, splits: Splits) -> Check:
    what = "metrics"
    assert claim.result is not None
    try:
        model = read_model(claim.folder, claim.spec, claim.result)
    except Exception:  # which the check of the weights has said
        return Check(what, UNKNOWN, "the weights could not be read")
    found = to_json(measure_splits(model, splits, claim.result.get("threshold")).by_group)
    stated = claim.result["report"].get("by_group")
    different = [
        f"{name} of {group} is {value!r} and the result says {_in(stated, group, name)!r}"
        for group, values in found.items()
        for name, value in values.items()
        if not _alike(value, _in(stated, group, name))
    ]
    if different:
        return Check(what, CONTRADICTED, different[0])
    groups = ", ".join(found)
    return Check(what, CONFIRMED, f"the model judged again gives the result's numbers ({groups})")


def _in(report: Any, group: str, name: str) -> Any:
    return report.get(group, {}).get(name) if isinstance(report, dict) else None


def _alike(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, int | float):
        return math.isclose(one, other, rel_tol=_SAME_METRIC, abs_tol=_SAME_METRIC)
    return bool(one == other)


def versions(claim: RunClaim) -> Iterator[Check]:
    """What the run was made with."""
    path = claim.folder / VERSIONS
    if not path.is_file():
        yield Check("versions", UNKNOWN, "none were recorded")
        return
    try:
        found = read_json(path)
    except FileError as error:
        yield Check("versions", CONTRADICTED, str(error))
        return
    named = ", ".join(f"{name} {version}" for name, version in found.items())
    yield Check("versions", CONFIRMED, f"recorded: {named}")
