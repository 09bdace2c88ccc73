"""Bugs in what a run does after a crash: steps made again, noise used again, refunds too large."""

from tests.mutants.base import Mutant

_KEEPING = "training/test_keeping.py"

MUTANTS = (
    Mutant(
        "refund of one step too many",
        "the step in flight, whose answer may have been seen, is given back",
        "mechanism/ledger.py",
        "last.step + last.count - begun",
        "last.step + last.count + 1 - begun",
        (
            "mechanism/test_ledger.py::test_what_a_killed_run_never_began_is_given_back_once",
            "training/test_keeping.py::test_steps_charged_ahead_and_never_begun_are_given_back",
        ),
    ),
    Mutant(
        "refund without evidence",
        "steps are given back whichever journal shows that they were not begun",
        "mechanism/ledger.py",
        "if last is None or journal is None or last.journal != journal:",
        "if last is None:",
        (
            "mechanism/test_ledger.py::test_nothing_is_given_back_by_another_journal",
            "training/test_keeping.py::test_a_copied_folder_gets_nothing_back",
        ),
    ),
    Mutant(
        "refund twice",
        "one charge is given back as often as it is asked for",
        "mechanism/ledger_format.py",
        "last = self.last.pop(declaration.run, None)",
        "last = self.last.get(declaration.run)",
        (
            "mechanism/test_ledger.py::test_a_ledger_that_gives_back_more_than_was_charged_ahead_is_refused",
        ),
    ),
    Mutant(
        "refund of more than was charged",
        "a line may give back more steps than the last charge had",
        "mechanism/ledger_format.py",
        'or _count(line["count"]) > last.count:',
        "or False:",
        (
            "mechanism/test_ledger.py::test_a_ledger_that_gives_back_more_than_was_charged_ahead_is_refused",
        ),
    ),
    Mutant(
        "refund by a journal that was put back",
        "an older copy of the journal's content shows fewer steps than were made",
        "training/journal.py",
        "_evidence(status) if abs(status.st_ctime_ns - written) < _AT_ONCE else None",
        "_evidence(status)",
        ("training/test_journal.py::test_a_journal_that_was_copied_or_put_back_is_no_evidence",),
    ),
    Mutant(
        "refund by a copied folder",
        "the original run and its copy are both given the same steps",
        "training/journal.py",
        "{status.st_dev} {status.st_ino}",
        "",
        ("training/test_keeping.py::test_a_copied_folder_gets_nothing_back",),
    ),
    Mutant(
        "refund after a power cut",
        "marks that were not synced are lost, and their steps given back",
        "training/journal.py",
        "{boot} {status.st_dev}",
        "{status.st_dev}",
        ("training/test_journal.py::test_after_the_machine_was_started_anew_it_is_no_evidence",),
    ),
    Mutant(
        "step in flight not marked",
        "a step whose answer was drawn as the run was killed seems never begun",
        "training/private.py",
        "        self.keeper.begin(step)\n",
        "",
        (
            "training/test_keeping.py::test_a_step_that_fails_after_its_charge_is_lost_and_its_number_too",
            "training/test_keeping.py::test_a_step_in_flight_is_marked_before_its_answer_is_drawn",
        ),
    ),
    Mutant(
        "marks not counted",
        "the journal shows a step as begun only once its release is written",
        "training/journal.py",
        "        begun = max(begun, step + 1)\n        if kind == _RELEASE:\n",
        "        if kind == _RELEASE:\n            begun = max(begun, step + 1)\n",
        ("training/test_journal.py::test_what_was_written_is_found",),
    ),
    Mutant(
        "journal that forgets what was begun before it",
        "an older checkpoint that is put back is refunded steps that were made",
        "training/journal.py",
        "_sealed(_HEAD, self._generation, begun), _clock()",
        "_sealed(_HEAD, self._generation, 0), _clock()",
        ("training/test_journal.py::test_entries_of_an_earlier_generation_do_not_count",),
    ),
    Mutant(
        "steps charged ahead used through another journal",
        "the journal that the charge names does not show them, and they are given back",
        "mechanism/ledger.py",
        "last is not None and last.journal == journal\n            if noise_position",
        "last is not None\n            if noise_position",
        ("training/test_keeping.py::test_steps_marked_in_another_journal_are_not_given_back",),
    ),
    Mutant(
        "run that was taken over goes on",
        "two objects of a run write over each other's marks, and steps that were made are refunded",
        "training/journal.py",
        'if there != self._generation.to_bytes(8, "little"):',
        "if False:",
        ("training/test_keeping.py::test_of_two_objects_of_a_run_the_first_makes_no_step_more",),
    ),
    Mutant(
        "ledger put back and run on",
        "steps that the journal shows, and the ledger lacks, are counted nowhere",
        "training/session.py",
        "        require_begun(ledger, past.run, past.begun)\n",
        "",
        (
            "training/test_keeping.py::"
            "test_a_ledger_put_back_to_what_it_was_is_noticed_by_the_journal",
        ),
    ),
    Mutant(
        "number of a lost step used again",
        "its batch is drawn and its noise used a second time",
        "training/session.py",
        "begun = max(saved, found.begun)",
        "begun = max(saved, found.releases[-1][0] + 1 if found.releases else 0)",
        ("training/test_keeping.py::test_without_a_ledger_the_step_in_flight_counts",),
    ),
    Mutant(
        "steps after the checkpoint made again",
        "a run whose journal was lost uses the numbers of charged steps, and their noise, again",
        "training/session.py",
        "at = min(max(at, ledger.charged(past.run)), plan.steps)",
        "at = min(at, plan.steps)",
        ("training/test_keeping.py::test_a_run_whose_journal_was_lost_uses_no_number_again",),
    ),
    Mutant(
        "noise position repeated",
        "a seeded run resumed twice from one checkpoint uses its noise twice",
        "training/checkpoint.py",
        "return attempt + 1 + secrets.randbelow(1 << 30)",
        "return attempt",
        (
            "training/test_checkpoint.py::test_a_seed_alone_without_a_ledger_never_repeats_its_noise",
        ),
    ),
    Mutant(
        "batches of an attempt repeated",
        "a new attempt of a seeded run draws the batches of the one before",
        "training/session.py",
        'SeededSource(seed, f"attempt {attempt}" if attempt else "")',
        "SeededSource(seed)",
        ("training/test_checkpoint.py::test_a_new_attempt_draws_other_batches_and_other_noise",),
    ),
    Mutant(
        "attempts that meet",
        "the noise positions of two attempts are the same",
        "training/run_identity.py",
        "return (attempt << _ATTEMPT) + step",
        "return step",
        ("training/test_run_identity.py",),
    ),
    Mutant(
        "failed step made again",
        "a step that failed after its charge is made again on its batch, with its noise",
        "training/private.py",
        "        self.apply(summed)\n        if",
        "        try:\n            self.apply(summed)\n"
        "        except BaseException:\n            self.steps_done = batch.step\n"
        "            raise\n"
        "        if",
        ("training/test_accounting.py::test_a_step_that_fails_after_it_was_charged_is_spent",),
    ),
    Mutant(
        "ledger not compared with the checkpoint",
        "a ledger that lost its tail since the checkpoint is gone on with",
        "training/checkpoint.py",
        'setup.ledger.verify_position(Position(**stored["ledger"]))',
        "pass",
        ("training/test_checkpoint.py::test_a_ledger_that_lost_its_tail_is_refused",),
    ),
    Mutant(
        "checkpoint of another run",
        "a run goes on with settings that its plan does not account for",
        "training/checkpoint.py",
        "    if found:\n        raise CheckpointMismatch",
        "    if False:\n        raise CheckpointMismatch",
        ("training/test_checkpoint.py::test_a_change_is_refused_and_named",),
    ),
    Mutant(
        "run that two processes make",
        "the second is refunded steps that the first has charged ahead and then makes",
        "file_lock.py",
        "    try:\n        lock(descriptor)\n",
        "    try:\n        pass\n",
        (
            "training/test_keeping.py::"
            "test_while_one_process_makes_a_run_no_other_goes_on_with_it",
        ),
    ),
    Mutant(
        "run locked after its refund",
        "who finds it locked has refunded steps of the one who makes it",
        "training/session.py",
        "_keeper(setup, ranks) if there else None",
        "None",
        (
            "training/test_keeping.py::"
            "test_while_one_process_makes_a_run_no_other_goes_on_with_it",
        ),
    ),
    Mutant(
        "run that goes on in a fork",
        "parent and child make the same steps, and without a ledger they count once",
        "training/journal.py",
        "if self._lock.owner != os.getpid():",
        "if False:",
        ("training/test_keeping.py::test_a_fork_of_a_run_makes_no_step",),
    ),
)
