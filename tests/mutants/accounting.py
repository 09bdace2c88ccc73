"""Bugs in what epsilon is computed to be."""

from tests.mutants.base import Mutant

_ACCOUNTANT = "mechanism/test_accountant.py"

MUTANTS = (
    Mutant(
        "PLD without its rounding allowance",
        "epsilon is that of a delta which the rounding of the composition may exceed",
        "mechanism/privacy_loss.py",
        "get_epsilon_for_delta(delta - allowance)",
        "get_epsilon_for_delta(delta)",
        (
            "mechanism/test_privacy_loss.py::test_the_mass_that_a_composition_may_lose_is_part_of_delta",
        ),
    ),
    Mutant(
        "PLD of additions only",
        "removing a record costs more than adding one, and only the latter is looked at",
        "mechanism/privacy_loss.py",
        "_connect(remove, _delta_if_removed(np.multiply(interval, remove), rate, sigma), interval)",
        "_connect(add, _delta_if_added(np.multiply(interval, add), rate, sigma), interval)",
        ("mechanism/test_privacy_loss.py::test_epsilon_is_dp_accountings_at_the_same_interval",),
    ),
    Mutant(
        "replacing as cheap as adding",
        "a replaced record moves a sum twice as far, and is charged as one that is added",
        "mechanism/accountant.py",
        'replace_one = relation == "replace_one"',
        "replace_one = False",
        (
            "mechanism/test_accountant.py::test_replacing_costs_more_than_adding_and_at_most_group_privacy",
        ),
    ),
    Mutant(
        "RDP of a replacement with all of the noise",
        "full batches: a replaced record moves a sum twice as far as the noise is charged for",
        "mechanism/accountant.py",
        "(rate, sigma / 2, count)",
        "(rate, sigma, count)",
        (
            "mechanism/test_accountant.py::test_replacing_costs_more_than_adding_and_at_most_group_privacy",
            "mechanism/test_accountant.py::test_the_plain_gaussian_has_its_closed_form",
        ),
    ),
    Mutant(
        "group privacy at the whole delta",
        "the delta of two records is (1 + e^epsilon) times that of one",
        "mechanism/accountant.py",
        "cost = log_d + float(np.logaddexp(0.0, epsilon_at(math.exp(log_d))))",
        "cost = log_d",
        ("mechanism/test_accountant.py::test_group_privacy_is_solved_for_the_delta_asked_for",),
    ),
    Mutant(
        "RDP of one step",
        "equal steps are counted once",
        "mechanism/accountant.py",
        "sum(count * _one_step(rate, sigma, few)",
        "sum(_one_step(rate, sigma, few)",
        (
            "mechanism/test_accountant.py::test_divergences_added_up_are_those_of_dp_accounting_composed",
            "mechanism/test_accountant.py::test_rdp_gives_the_epsilons_of_paper_004",
        ),
    ),
    Mutant(
        "curve from the point before",
        "epsilon along a run is that of fewer steps",
        "mechanism/accountant.py",
        "bisect.bisect_left(self._grid, step)",
        "bisect.bisect_right(self._grid, step) - 1",
        ("mechanism/test_accountant.py::test_the_curve_never_understates_and_ends_exactly",),
    ),
    Mutant(
        "curve without what came before",
        "epsilon along a run leaves out what was asked before training",
        "mechanism/accountant.py",
        "(*self._before, (self._release, counted)),",
        "((self._release, counted),),",
        ("mechanism/test_accountant.py::test_the_curve_counts_what_came_before",),
    ),
    Mutant(
        "counts for nothing",
        "a step's further questions are not part of its cost",
        "mechanism/release.py",
        "return 1 / math.hypot(*(1 / sigma for sigma in sigmas))",
        "return min(sigmas)",
        ("mechanism/test_release.py",),
    ),
    Mutant(
        "basic composition without the joint cost",
        "the sum of what queries cost alone is no bound, and is stated as one",
        "mechanism/accountant.py",
        "return max(joint, sum(",
        "return max(0.0, sum(",
        (
            "mechanism/test_accountant.py::test_the_sum_of_what_queries_cost_alone_is_no_bound",
            "mechanism/test_accountant.py::test_basic_composition_costs_no_less_than_joint",
        ),
    ),
    Mutant(
        "methods without a guarantee",
        "a method that the noise does not cover gets a finite epsilon",
        "mechanism/release.py",
        "if self.unbounded_reason is not None or min(sigmas) == 0:",
        "if min(sigmas) == 0:",
        ("mechanism/test_release.py",),
    ),
    Mutant(
        "calibration above the budget",
        "the noise found costs more than the epsilon asked for",
        "mechanism/calibration.py",
        "if spent(guess) > epsilon else (low, guess)\n    return high",
        "if spent(guess) > epsilon else (low, guess)\n    return low",
        ("mechanism/test_calibration.py::test_the_noise_meets_the_budget_and_not_much_more",),
    ),
    Mutant(
        "calibration without what came before",
        "the noise pays for training, and not for what was asked before it",
        "mechanism/calibration.py",
        "[*_once(before), (release_at(noise_multiplier), steps)]",
        "[(release_at(noise_multiplier), steps)]",
        ("training/test_moments.py::test_a_budget_pays_for_both",),
    ),
    Mutant(
        "selection as one run",
        "choosing the best of many runs is charged as a single one",
        "mechanism/accountant.py",
        "compose(chosen)._rdp",
        "compose(candidate)._rdp",
        ("mechanism/test_selection.py",),
    ),
    Mutant(
        "scores of a selection for nothing",
        "the noisy scores by which the best run is chosen are not accounted",
        "experiments/selecting.py",
        "[*trained_at(noise), (_score_release(blur), 1)]",
        "trained_at(noise)",
        ("experiments/test_selecting.py::test_what_is_stated_is_what_the_candidates_released",),
    ),
    Mutant(
        "epsilon rounded down",
        "a bound is shown smaller than it is",
        "mechanism/rounding.py",
        "return _rounded(value, digits, infinite, ROUND_CEILING)",
        "return _rounded(value, digits, infinite, ROUND_FLOOR)",
        ("mechanism/test_rounding.py",),
    ),
)
