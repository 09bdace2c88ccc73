"""Bugs in what is charged and when, in what the ledger keeps, and in what is stated of it."""

from tests.mutants.base import Mutant

_LEDGER = "mechanism/test_ledger.py"
_ANSWER = "answer = self._answering().answer(query, declared, batch.step, place, mark)"

MUTANTS = (
    Mutant(
        "charged after the answer",
        "who kills the run after an answer has it for nothing",
        "training/private.py",
        "                if place == 0:\n"
        "                    self._charge(batch.step, query)\n"
        "                mark = self._charges.mark\n"
        f"                {_ANSWER}\n",
        "                mark = self._charges.mark\n"
        f"                {_ANSWER}\n"
        "                if place == 0:\n"
        "                    self._charge(batch.step, query)\n",
        ("training/test_accounting.py::test_a_step_is_charged_before_its_first_answer_is_drawn",),
    ),
    Mutant(
        "moments not charged",
        "what is asked before training is not in the ledger",
        "training/full_batch_queries.py",
        "if ledger is not None:",
        "if False:",
        ("training/test_moments.py::test_a_ledger_has_both",),
    ),
    Mutant(
        "one step more than was charged ahead",
        "every charge ahead pays for a step that is not in the file",
        "mechanism/ledger.py",
        "self._reserved[run] = size - count",
        "self._reserved[run] = size",
        (
            "mechanism/test_ledger.py::test_reserving_writes_one_line_for_many_steps_and_gives_back_the_rest",
            "mechanism/test_ledger.py::test_what_a_run_has_charged_and_used_can_be_asked",
        ),
    ),
    Mutant(
        "steps beyond the plan charged",
        "two runs from one checkpoint spend more than was planned",
        "mechanism/ledger.py",
        "if most is not None and self.charged(run) + count > most:",
        "if False:",
        ("mechanism/test_ledger.py::test_a_run_charges_at_most_what_it_may",),
    ),
    Mutant(
        "one step beyond the plan",
        "a run without a ledger makes one step more than its epsilon pays for",
        "training/session.py",
        "stop, charged = plan.steps, past.charged",
        "stop, charged = plan.steps + 1, past.charged",
        ("training/test_accounting.py::test_no_step_is_made_beyond_the_budget",),
    ),
    Mutant(
        "budget of the data set not kept",
        "charges go past the epsilon that the data set may spend",
        "mechanism/ledger_limit.py",
        "if not epsilon <= self.limit[0]:",
        "if False:",
        (
            "mechanism/test_ledger.py::test_a_data_set_budget_is_kept_by_every_later_opening",
            "mechanism/test_ledger.py::test_the_budget_guard_decides_as_if_it_asked_every_time",
        ),
    ),
    Mutant(
        "budget forgotten by later openings",
        "a budget holds only where it is given again",
        "mechanism/ledger.py",
        "if ledger.limit is not None:",
        "if limit is not None:",
        ("mechanism/test_ledger.py::test_a_data_set_budget_is_kept_by_every_later_opening",),
    ),
    Mutant(
        "charge not synced",
        "a power cut takes charges whose answers were seen",
        "mechanism/ledger.py",
        "        file.sync()\n",
        "",
        ("mechanism/test_ledger.py::test_each_charge_is_synced_before_it_returns",),
    ),
    Mutant(
        "torn line not charged",
        "a charge that was half written is taken as none",
        "mechanism/ledger_format.py",
        "return [[of, self.declarations[of].most] for of in self.current.values()]",
        "return []",
        (
            "mechanism/test_ledger.py::test_cut_at_any_byte_it_never_counts_too_little",
            "mechanism/test_ledger.py::test_a_torn_line_costs_the_most_it_can_have_cost",
        ),
    ),
    Mutant(
        "checksums not compared",
        "a line of the ledger can be changed afterwards",
        "mechanism/ledger_format.py",
        "if tail[9:25].decode() != _digest(previous, body):",
        "if False:",
        (
            "mechanism/test_ledger.py::test_a_flipped_bit_is_refused_with_its_line_or_counted_as_torn",
            "mechanism/test_ledger.py::test_damage_is_refused_with_the_line_and_the_reason",
        ),
    ),
    Mutant(
        "two writers of a ledger",
        "two processes charge past each other",
        "mechanism/ledger_file.py",
        "            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)\n",
        "            pass\n",
        (
            "mechanism/test_ledger.py::test_a_second_opening_in_the_same_process_is_locked_out",
            "mechanism/test_ledger.py::test_a_second_process_is_locked_out_and_told_by_whom",
        ),
    ),
    Mutant(
        "lost tail not noticed",
        "a ledger from which the last charges were cut is taken for whole",
        "mechanism/ledger.py",
        "if count > have:",
        "if False:",
        ("mechanism/test_ledger.py::test_a_checkpoints_position_finds_a_lost_tail",),
    ),
    Mutant(
        "noise used with other inputs",
        "a seeded step is repeated with other data and the same noise, and not charged",
        "mechanism/ledger.py",
        "if used is None or used == (digest, key):",
        "if True:",
        ("mechanism/test_ledger.py::test_used_noise_with_anything_else_is_refused",),
    ),
    Mutant(
        "seed shared between runs",
        "two runs on one ledger draw the same batches",
        "training/run_identity.py",
        "    if others:\n",
        "    if False:\n",
        ("training/test_accounting.py::test_a_seed_serves_one_run_on_a_ledger",),
    ),
    Mutant(
        "noise of a seed shared between settings",
        "two runs of one seed and another noise scale reveal their sum",
        "training/session.py",
        'context = f"run {decided.run} attempt {attempt}"',
        'context = f"attempt {attempt}"',
        ("training/test_accounting.py::test_runs_of_one_seed_and_other_settings_share_no_noise",),
    ),
    Mutant(
        "digest of values without a key",
        "the ledger of a seeded run lets anyone test a guess of an exact value",
        "training/run_identity.py",
        "hmac.new(key, digestmod=hashlib.sha256)",
        'hmac.new(b"", digestmod=hashlib.sha256)',
        (
            "training/test_run_identity.py::test_the_digest_of_inputs_knows_everything_that_decides_an_answer",
        ),
    ),
    Mutant(
        "seed in the run's id",
        "ledger and checkpoint show the seed, with which the noise can be removed",
        "training/run_identity.py",
        'return f"{_seed_mark(seed)}-{whole[:16]}"',
        'return f"{seed}-{whole[:16]}"',
        ("training/test_checkpoint.py::test_no_key_and_no_seed_is_stored",),
    ),
    Mutant(
        "earlier charge not asked for",
        "a ledger that lacks what was asked before training states too little",
        "training/run_identity.py",
        "if charged.get(lines.canonical(release.to_dict()), 0) < count:",
        "if False:",
        ("training/test_moments.py::test_a_ledger_without_the_earlier_charge_is_refused",),
    ),
    Mutant(
        "lost steps not stated",
        "steps that were charged and whose results were lost do not count",
        "training/private.py",
        "return max(self._charges.count, self.steps_done)",
        "return self.made",
        (
            "training/test_keeping.py::test_without_a_ledger_the_step_in_flight_counts",
            "training/test_accounting.py::test_epsilon_counts_what_the_ledger_has_and_not_less",
        ),
    ),
    Mutant(
        "statement without what came before",
        "what was asked before training is not in the stated epsilon",
        "mechanism/calibration.py",
        "return [*_once(self.before), (self.release, steps)]",
        "return [(self.release, steps)]",
        (
            "training/test_moments.py::test_the_two_releases_of_a_run_are_both_counted",
            "training/test_moments.py::test_the_statement_has_it",
        ),
    ),
    Mutant(
        "seeded run stated as secure",
        "a run whose noise can be recomputed claims that nobody can",
        "training/stating.py",
        "seeded=private.seeded,\n        isolation",
        "seeded=False,\n        isolation",
        ("training/test_private.py::TestTheStatement::test_says_that_a_seed_was_used",),
    ),
    Mutant(
        "statement of one step fewer",
        "the stated epsilon is that of the steps before the last one charged",
        "mechanism/statement.py",
        "else plan.releases(steps_done)",
        "else plan.releases(max(0, steps_done - 1))",
        ("mechanism/test_statement.py",),
    ),
    Mutant(
        "verification that believes epsilon",
        "a stated epsilon is confirmed whatever the ledger says",
        "experiments/verification/charges.py",
        "if found == stated or math.isclose(found, stated, rel_tol=_SAME):",
        "if True:",
        ("experiments/verification/test_verifying.py::test_an_understated_epsilon",),
    ),
    Mutant(
        "verification of any charges",
        "charges with less noise than the recipe asks for are confirmed",
        "experiments/verification/charges.py",
        "if release == plan.release:",
        "if True:",
        (
            "experiments/verification/test_verifying.py::test_other_settings_than_those_of_the_run",
            "experiments/verification/test_verifying.py::test_a_charge_that_the_recipe_does_not_ask_for",
        ),
    ),
    Mutant(
        "losses that are not cut off",
        "one record of a great loss moves a private selection's score by more than noise covers",
        "experiments/private_score.py",
        "np.clip(kept, 0.0, self.most)",
        "np.maximum(kept, 0.0)",
        ("experiments/test_private_score.py",),
    ),
)
