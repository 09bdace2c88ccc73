"""Bugs in noise that is correlated between steps, and in the sampling that it needs."""

from tests.mutants.base import Mutant

MUTANTS = (
    Mutant(
        "columns of norm 1.1",
        "one record moves the rows of the mixed sums by more than the noise covers",
        "noise.py",
        "return tuple(float(one) for one in scaled)",
        "return tuple(1.1 * float(one) for one in scaled)",
        (
            "test_noise.py::test_no_column_is_longer_than_one_in_exact_arithmetic",
            "auditing/test_bands.py",
        ),
    ),
    Mutant(
        "parts that depend on the other records",
        "one record more moves others to another part, and all of them change the sums",
        "sampling.py",
        'return self.source.stream("parts").uint64(records) %',
        'return self.source.stream("parts").uint64(records)[::-1] %',
        ("test_sampling.py::test_one_more_record_leaves_the_parts_of_the_others_as_they_were",),
    ),
    Mutant(
        "taking part out of turn",
        "a record takes part twice within the bands, and its columns overlap",
        "sampling.py",
        "members = members[self._part[members] == step % self.parts]",
        "members = members[self._part[members] == step // 2 % self.parts]",
        (
            "test_sampling.py::test_a_record_takes_part_in_steps_of_its_part_alone",
            "training/test_correlated_noise.py::test_no_unit_takes_part_twice_within_the_bands",
            "auditing/test_bands.py",
        ),
    ),
    Mutant(
        "a begun cycle not counted",
        "the last participation of the parts that had their turn is free",
        "mechanism/release.py",
        "return -(-steps // parts)",
        "return max(1, steps // parts)",
        ("mechanism/test_cyclic.py::test_a_cycle_that_was_begun_counts_as_a_whole",),
    ),
    Mutant(
        "cycles of two runs counted together",
        "a record in part 0 of one run and part 1 of another takes part twice and is counted once",
        "mechanism/release.py",
        "sampling=dataclasses.replace(self.sampling, cycle=run)",
        'sampling=dataclasses.replace(self.sampling, cycle="")',
        ("mechanism/test_cyclic.py::test_runs_of_equal_settings_are_rounded_up_each",),
    ),
    Mutant(
        "steps out of order counted in order",
        "a step that a copy of the run makes again is of the same part and counted as of another",
        "mechanism/ledger_format.py",
        "declaration.apart += declaration.parts - 1",
        "declaration.apart += 0",
        ("mechanism/test_cyclic.py::test_a_step_that_is_made_twice_counts_by_itself",),
    ),
    Mutant(
        "a copy's steps counted as others by the run itself",
        "the ledger counts a part that took part twice, and the run's statement once",
        "training/charging.py",
        "self._ledger.counted(self.run)",
        "self._ledger.charged(self.run)",
        (
            "training/test_correlated_noise.py"
            "::test_a_step_that_two_copies_of_a_run_make_is_paid_for_by_its_budget",
        ),
    ),
    Mutant(
        "bands of any norm",
        "a strategy of the user's own moves its rows by more than the noise covers",
        "mechanism/correlated.py",
        "if not coefficients[0] > 0 or sum(",
        "if not coefficients[0] > 0 and sum(",
        (
            "mechanism/test_correlated.py"
            "::test_bands_that_move_a_record_further_than_the_noise_covers_are_refused",
        ),
    ),
    Mutant(
        "noise recognised without its bands",
        "a seeded run adds its noise to rows that other bands have mixed, and exact sums show",
        "training/private.py",
        "beside: list[Any] = [self.bands] if len(self.bands) > 1 else []",
        "beside: list[Any] = []",
        (
            "training/test_correlated_noise.py"
            "::test_a_seeded_run_with_other_bands_does_not_use_its_noise_again",
        ),
    ),
    Mutant(
        "records resumed in any order",
        "a record gets another number, and by it another part: it has its turn twice",
        "training/checkpoint.py",
        "if known != mark:",
        "if False:",
        ("training/test_correlated_noise.py::test_records_in_another_order_do_not_go_on",),
    ),
    Mutant(
        "no new block after a gap",
        "a column reaches over the next participation of its record",
        "mechanism/correlated.py",
        "return self._last is not None and step == self._last + 1",
        "return self._last is not None",
        ("mechanism/test_correlated.py::test_a_step_that_is_passed_over_begins_a_new_block",),
    ),
    Mutant(
        "sums of different scale mixed",
        "a bound grows along the run, and the noise of earlier rows did not cover it",
        "mechanism/correlated.py",
        "if std != self._std:",
        "if False:",
        ("mechanism/test_correlated.py::test_a_bound_that_changes_is_refused",),
    ),
    Mutant(
        "bounds that change are taken",
        "a run whose bound adapts is charged, and fails in its second step",
        "methods/base.py",
        "if not self.clipping.constant:",
        "if False:",
        ("training/test_correlated_noise.py::test_what_does_not_fit_is_refused",),
    ),
    Mutant(
        "one rounded row counted",
        "a record moves the rounding of all rows of its column",
        "training/answering.py",
        "shares_rounding_sensitivity(std, bands * numel, ranks.count)",
        "shares_rounding_sensitivity(std, numel, ranks.count)",
        ("training/test_correlated_noise.py::test_the_noise_covers_the_rounding_of_all_rows",),
    ),
    Mutant(
        "seeded noise on another row",
        "a run that is made again after a gap adds the same noise to another mixture of sums",
        "training/charging.py",
        "chain = (self._mark,) if follows else ()",
        "chain = ()",
        (
            "training/test_correlated_noise.py"
            "::test_a_seeded_run_is_recognised_but_not_made_again_from_the_middle",
        ),
    ),
    Mutant(
        "correlated steps made again",
        "the exact sums are gone after a crash: the same noise is added to another row",
        "training/setup.py",
        "return self.seed is not None and self.deterministic and self.correlated is None",
        "return self.seed is not None and self.deterministic",
        (
            "training/test_correlated_noise.py"
            "::test_a_seeded_run_is_recognised_but_not_made_again_from_the_middle",
        ),
    ),
    Mutant(
        "new parts in every session",
        "a record that took part in its turn is in the part that has the next one",
        "training/session.py",
        "parts=past.parts or secrets.token_bytes(32),",
        "parts=secrets.token_bytes(32),",
        (
            "training/test_correlated_noise.py"
            "::test_a_secure_run_goes_on_with_its_parts_and_a_new_block",
        ),
    ),
    Mutant(
        "bands beyond the parts",
        "two columns of one record overlap",
        "training/session.py",
        "if len(setup.bands(plan.steps)) > sampler.parts:",
        "if False:",
        ("training/test_correlated_noise.py::test_bands_beyond_the_parts_are_refused",),
    ),
)
