"""Bugs in what other libraries' trainers could do beside a private step, or forget of it."""

from tests.mutants.base import Mutant

_TRAINER = "integrations/test_transformers_trainer.py"
_LIGHTNING = "integrations/test_lightning.py"

MUTANTS = (
    Mutant(
        "a second run in a trainer's folder",
        "train() called again begins a new run on the same records, and the first is forgotten",
        "integrations/transformers_trainer.py",
        "            if known:\n",
        "            if False:\n",
        (f"{_TRAINER}::test_a_run_is_neither_forgotten_nor_taken_back",),
    ),
    Mutant(
        "an earlier folder resumed",
        "a trainer goes back, and what was spent since is spent a second time",
        "integrations/transformers_trainer.py",
        "        if given is not True and (",
        "        if False and (",
        (f"{_TRAINER}::test_a_run_is_neither_forgotten_nor_taken_back",),
    ),
    Mutant(
        "a trainer that keeps no run",
        "a resumed trainer begins anew, with the whole budget",
        "integrations/transformers_trainer.py",
        "checkpoint=None if args.save_strategy == SaveStrategy.NO else self._file,",
        "checkpoint=None,",
        (f"{_TRAINER}::test_a_run_is_neither_forgotten_nor_taken_back",),
    ),
    Mutant(
        "arguments of a trainer not looked at",
        "gradients are clipped again, batches sorted by length, or uploads made while training",
        "integrations/transformers_refusals.py",
        "    yield from refused(args, _ALLOWED)\n",
        "    yield from ()\n",
        (
            f"{_TRAINER}::test_a_setting_that_does_not_go_with_the_accounting_is_refused_before_any_charge",
        ),
    ),
    Mutant(
        "a trainer's run made longer",
        "a run called again for more steps, or on other records, has the epsilon of the first",
        "integrations/transformers_trainer.py",
        "        if (steps, expected) != planned or",
        "        if False and",
        (f"{_TRAINER}::test_a_run_that_goes_on_is_the_one_that_was_planned",),
    ),
    Mutant(
        "a fit that goes on with another's weights",
        "an estimator whose network is built once says the cost of its last fit for all of them",
        "integrations/sklearn_training.py",
        "        return copy.deepcopy(self.model(**options))\n",
        "        return self.model(**options)\n",
        (
            "integrations/test_sklearn.py::test_a_fit_begins_anew_though_it_is_given_the_same_network",
        ),
    ),
    Mutant(
        "records that a sampler leaves out",
        "a loader's sampler of the first records is taken for one of all, and the others train",
        "training/loaders.py",
        "        and len(sampler) == len(sampler.data_source) == len(loader.dataset)",
        "        and len(sampler) == len(sampler.data_source)",
        ("training/test_loaders.py::test_what_decides_about_batches_in_another_way_is_refused",),
    ),
    Mutant(
        "a step's loss written as covered",
        "the exact loss that private.step returns is marked in a log as one that costs nothing",
        "training/loggers.py",
        "{NOT_COVERED if isinstance(value, NotCovered) else mark}/",
        "{mark}/",
        ("training/test_loggers.py::test_the_loss_of_a_step_is_never_written_as_covered",),
    ),
    Mutant(
        "records that a Subset repeats",
        "oversampled records are taken for several people, each with a bound of its own",
        "repeated_records.py",
        "    if any(len(np.unique(numbers)) < len(numbers) for numbers in numbered):\n",
        "    if False:\n",
        ("test_repeated_records.py::test_a_record_that_is_named_several_times",),
    ),
    Mutant(
        "rows that a Hugging Face data set repeats",
        "rows that select or repeat names several times are taken for several people",
        "repeated_records.py",
        '    return "datasets.arrow_dataset.Dataset" in kinds\n',
        "    return False\n",
        ("test_repeated_records.py::test_a_hugging_face_data_set_says_which_rows_it_names",),
    ),
    Mutant(
        "Lightning's own update beside the private one",
        "Lightning's loop runs around the step as if it were its own, with its optimizer",
        "integrations/lightning.py",
        "            self._module.automatic_optimization = False\n",
        "            self._module.automatic_optimization = True\n",
        (f"{_LIGHTNING}::test_a_step_knows_where_the_training_stands",),
    ),
    Mutant(
        "steps made again after a restart of Lightning",
        "a resumed fit makes as many steps as its loops count, not as many as are left",
        "integrations/lightning.py",
        "        if counts[0].total.completed >= self.private.steps_done:\n",
        "        if True:\n",
        (
            f"{_LIGHTNING}::test_a_killed_run_goes_on_with_the_step_after_the_last_and_is_charged_once",
        ),
    ),
    Mutant(
        "a checkpoint of Lightning without the run",
        "weights of a run that nobody knows the cost of are trained on, as if it were free",
        "integrations/lightning.py",
        "if trainer.ckpt_path is not None and (file is None or not Path(file).exists()):",
        "if False:",
        (f"{_LIGHTNING}::test_what_was_spent_cannot_be_forgotten",),
    ),
    Mutant(
        "settings of Lightning not looked at",
        "batches are limited or repeated, and the accounting is for others",
        "integrations/lightning_refusals.py",
        "    yield from refused(trainer, _ALLOWED)\n",
        "    yield from ()\n",
        (
            f"{_LIGHTNING}::test_a_setting_of_the_trainer_that_does_not_go_with_the_accounting_is_refused",
        ),
    ),
    Mutant(
        "an optimizer beside the run, unsaid",
        "a hook trains on the records without noise, and the statement has the run's epsilon alone",
        "training/private.py",
        "            self.own_weights.times += 1\n",
        "            pass\n",
        (
            "training/test_own_weights.py",
            f"{_LIGHTNING}::test_an_optimizer_in_a_hook_is_warned_of_and_stated",
        ),
    ),
    Mutant(
        "an optimizer after the last step, unsaid",
        "a hook at the end trains on the records without noise, and no step follows to notice it",
        "training/private.py",
        "return self.own_weights.times + self.own_weights.moved\n",
        "return self.own_weights.times\n",
        (
            "training/test_own_weights.py::test_an_optimizer_beside_the_run_is_warned_of_once_and_stated",
            "training/test_own_weights.py::test_a_change_before_a_save_is_remembered_and_counted_once",
        ),
    ),
    Mutant(
        "an optimizer that writes through .data, unseen",
        "an old optimizer in a hook trains without noise, and no counter of torch's tells",
        "training/parameters.py",
        "for w, i in self._places]",
        "for w, i in []]",
        (
            "training/test_own_weights.py::test_a_change_through_data_is_noticed_and_one_that_is_undone_is_not",
        ),
    ),
    Mutant(
        "a bad record that stops the run",
        "anomaly detection stops at a record whose gradient is not finite, and shows it",
        "gradients/opaque.py",
        "    if torch.is_anomaly_enabled():\n",
        "    if False:\n",
        (
            "gradients/test_opaque.py::test_anomaly_detection_which_would_stop_at_a_bad_record_is_refused_before_the_charge",
        ),
    ),
    Mutant(
        "weights divided by their sum",
        "AdaBoost's weights, which depend on all records, are taken for those of a public rule",
        "training/setup.py",
        "    if divided and float(values.max()) < 1:\n",
        "    if False:\n",
        ("integrations/test_sklearn.py::test_weights_count_after_clipping_and_are_said",),
    ),
    Mutant(
        "an optimizer beside the run, forgotten",
        "a run that goes on no longer says that its weights were changed beside it",
        "training/checkpoint.py",
        '"moved": private.moved,',
        '"moved": 0,',
        ("training/test_own_weights.py::test_a_run_that_goes_on_remembers",),
    ),
)
