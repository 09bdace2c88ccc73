"""Bugs in what leaves the house with a model."""

from tests.mutants.base import Mutant

_WRITING = "experiments/exporting/writing.py"
_CONTENTS = "experiments/exporting/contents.py"
_SAFETY = "experiments/exporting/safety.py"
_TEST = "experiments/exporting/test_writing.py"

MUTANTS = (
    Mutant(
        "references within layers are followed",
        "an exported folder makes whoever loads it call whatever it names",
        "experiments/exporting/predict.py",
        "parts = [(name, _layers(part))",
        "parts = [(name, build(part))",
        ("instruments/test_loading.py::test_a_network_that_is_something_else_is_not_called",),
    ),
    Mutant(
        "metrics leave unasked",
        "exact figures of held-out records are on the card of every exported model",
        _WRITING,
        "model_card(found, metrics=with_metrics, use=use)",
        "model_card(found, metrics=True, use=use)",
        (f"{_TEST}::test_nothing_of_this_machine_or_of_held_out_rows_is_in_it",),
    ),
    Mutant(
        "chosen threshold leaves unasked",
        "a number chosen on held-out rows as they are is shipped with the model",
        _WRITING,
        "threshold=with_threshold or not chosen",
        "threshold=True",
        (f"{_TEST}::test_a_chosen_threshold_stays_unless_asked_for",),
    ),
    Mutant(
        "tuned settings leave without a word",
        "settings chosen by exact figures of private records are said to be covered",
        _WRITING,
        'found.claim.spec.method.origin == "tuned",',
        "False,",
        (f"{_TEST}::test_settings_that_were_tuned_are_said_not_to_be_covered",),
    ),
    Mutant(
        "encoding of the rows as they are leaves",
        "the smallest and largest values of private columns are shipped with the model",
        _SAFETY,
        "if encoding is not None and encoding.not_covered:",
        "if encoding is None and encoding:",
        (f"{_TEST}::test_a_model_that_is_not_safe_to_ship",),
    ),
    Mutant(
        "seeded model leaves",
        "a model is shipped as private whose noise can be computed and subtracted",
        _SAFETY,
        "elif found.claim.spec.random_seed is not None:",
        "elif found.claim.spec.random_seed == ():",
        (f"{_TEST}::test_a_model_that_is_not_safe_to_ship",),
    ),
    Mutant(
        "model without a guarantee leaves",
        "a model that no epsilon covers is shipped without a word",
        _SAFETY,
        "if found.epsilon is None or math.isinf(found.epsilon):",
        "if found.epsilon is None or math.isnan(found.epsilon):",
        (f"{_TEST}::test_a_model_that_is_not_safe_to_ship",),
    ),
    Mutant(
        "contradicted run leaves",
        "a model is shipped whose weights or epsilon are not those of the run",
        _SAFETY,
        "if wrong := found.of(CONTRADICTED):",
        "if wrong := found.of(CONTRADICTED)[:0]:",
        (f"{_TEST}::test_a_run_that_is_not_confirmed",),
    ),
    Mutant(
        "unconfirmed run leaves",
        "a model is shipped with an epsilon that no ledger confirms",
        _SAFETY,
        "if check.what in _NEEDED and check.what not in confirmed:",
        "if check.what not in _NEEDED and check.what in confirmed:",
        (f"{_TEST}::test_a_run_that_is_not_confirmed",),
    ),
    Mutant(
        "exported epsilon rounded down",
        "whoever gets the model is told less than was spent",
        _CONTENTS,
        'float(rounded_up(found.epsilon).replace(",", ""))',
        "found.epsilon - 0.005",
        (f"{_TEST}::test_epsilon_is_rounded_up",),
    ),
    Mutant(
        "storage around the weights leaves",
        "what else lies in the memory of which the weights are a part is in their file",
        _CONTENTS,
        "one.detach().cpu().clone()",
        "one.detach().cpu()",
        (f"{_TEST}::test_a_tensor_of_a_larger_storage_leaves_alone",),
    ),
    Mutant(
        "folders of the machine leave",
        "the exported program names folders and users of the machine that trained it",
        "experiments/exporting/network.py",
        'node.meta.pop("stack_trace", None)',
        'node.meta.get("stack_trace")',
        (f"{_TEST}::test_nothing_of_this_machine_or_of_held_out_rows_is_in_it",),
    ),
    Mutant(
        "seed on the card",
        "the card of an exported model has the seed, and with it the noise of a seeded run",
        "experiments/model_card.py",
        'recipe.toml(without=("seeds",))',
        "recipe.toml()",
        (f"{_TEST}::test_a_model_that_is_not_safe_to_ship",),
    ),
)
