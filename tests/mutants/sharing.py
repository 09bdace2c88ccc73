"""Bugs in what all runs on a table cost together, and in how the table is recognised."""

from tests.mutants.base import Mutant

_CHARGING = "experiments/test_charging.py"
_RELEASING = "experiments/test_releasing.py"
_SHARED = "mechanism/test_shared_ledger.py"
_TOGETHER = "experiments/test_together.py"
_SKETCH = "data/test_table_sketch.py"

MUTANTS = (
    Mutant(
        "processes with records in different orders",
        "a record is in the shares of two processes, and moves the sum twice as far",
        "training/private.py",
        "if self.ranks.count > 1 and batch.step == self.first_step:",
        "if False:",
        ("training/test_distributed.py::test_records_in_another_order_are_noticed",),
    ),
    Mutant(
        "run not charged to its table",
        "the table's total leaves out a run",
        "experiments/charging.py",
        "paths = shared_ledgers(data) if shared else ()",
        "paths: tuple[Path, ...] = ()",
        (f"{_CHARGING}::test_a_run_is_charged_to_the_ledger_of_its_table",),
    ),
    Mutant(
        "table charged after the run",
        "a run that is killed between the two has released what its table's ledger lacks",
        "mechanism/run_ledger.py",
        "if not replay and (left is None or count <= left):",
        "if not replay and self.charged(run) and (left is None or count <= left):",
        (
            "mechanism/test_run_ledger.py::test_the_shared_one_is_charged_first",
            "mechanism/test_run_ledger.py::test_both_have_every_charge",
        ),
    ),
    Mutant(
        "lines of other processes not read",
        "of two processes that charge a table at once, one writes over the other's lines",
        "mechanism/shared_ledger.py",
        "            self._read_on(file)\n            yield",
        "            yield",
        (f"{_SHARED}::test_processes_that_write_at_once_lose_no_line",),
    ),
    Mutant(
        "torn line charged to another process",
        "a line that was half written is charged to whoever declared a release last",
        "mechanism/ledger.py",
        "if self._book.session != self._session or of is None:",
        "of = self._own.get(run, of)\n        if of is None:",
        (
            f"{_SHARED}::test_after_others_have_written_a_release_is_declared_anew",
            f"{_SHARED}::test_a_torn_line_is_charged_to_whoever_wrote_it",
        ),
    ),
    Mutant(
        "sketch in a run's folder",
        "digests of private rows are in what a run leaves behind, and may be exported with it",
        "experiments/charging.py",
        'write_json(folder / ACCOUNT, {"run": run, "ledgers": places})',
        'sketches = [path.with_name("table.PRIVATE") for path in ledgers]\n'
        "    known = [one.read_text() for one in sketches if one.is_file()]\n"
        '    write_json(folder / ACCOUNT, {"run": run, "ledgers": places, "tables": known})',
        (f"{_CHARGING}::test_nothing_private_of_the_table_is_in_a_runs_folder",),
    ),
    Mutant(
        "sketch in an export",
        "digests of private rows leave with a model",
        "experiments/exporting/writing.py",
        "        files |= standalone()\n",
        "        files |= standalone()\n"
        "        from plumbline.experiments.charging import read_account\n\n"
        "        for path in read_account(folder).ledgers:\n"
        '            files["rows/table"] = path.with_name("table.PRIVATE").read_bytes()\n',
        (f"{_RELEASING}::test_an_export_is_released_and_has_no_digest_of_a_row",),
    ),
    Mutant(
        "released total leaves out a run",
        "what the released models cost together is less than it is",
        "experiments/together.py",
        "released=total([one for one in found.runs if one.released]),",
        "released=total([one for one in found.runs if one.released][:1]),",
        (f"{_RELEASING}::test_released_models_count_together_and_the_others_do_not",),
    ),
    Mutant(
        "runs of a lost ledger forgotten",
        "a total leaves out the runs that only their own ledgers have",
        "experiments/charged_runs.py",
        "if any(name in self.charges for name in own):",
        "if True:",
        (
            f"{_CHARGING}::test_a_state_folder_that_is_lost_takes_nothing_from_the_totals_of_a_folder",
        ),
    ),
    Mutant(
        "run without privacy counted as free",
        "a total is a number though a run in it has no bound",
        "experiments/together.py",
        "return self.rest == self.runs and math.isfinite(self.epsilon)",
        "return self.rest == self.private and math.isfinite(self.epsilon)",
        (f"{_CHARGING}::test_a_comparison_in_several_processes_is_charged_as_a_whole",),
    ),
    Mutant(
        "seeded runs counted like others",
        "runs that share their batches are added up as if they did not",
        "experiments/together.py",
        "secure = [one for one in private if not one.seeded]",
        "secure = private",
        (f"{_CHARGING}::test_totals_of_a_ledger_name_what_has_no_bound",),
    ),
    Mutant(
        "seeded selection counted like others",
        "models chosen with noise from a seed are released within a limit",
        "experiments/selecting.py",
        '    if seed is None:\n        return f"selection-',
        '    if True:\n        return f"selection-',
        (f"{_CHARGING}::test_a_seeded_selection_has_no_bound",),
    ),
    Mutant(
        "questions without a run forgotten",
        "what was asked of a table whose run was then refused is said to be nothing",
        "experiments/charged_runs.py",
        "for name in sorted(self.charges.keys() - used):",
        "for name in ():",
        (f"{_TOGETHER}::test_a_question_that_no_run_has_used_is_said",),
    ),
    Mutant(
        "seeded questions counted like others",
        "a total has a number though the noise of what was asked comes from a seed",
        "experiments/charged_runs.py",
        "or any(map(_seeded, releases))",
        "",
        (f"{_TOGETHER}::test_a_seeded_question_that_no_run_has_used_has_no_bound",),
    ),
    Mutant(
        "private selection not charged to its table",
        "the table's total leaves out all candidates",
        "experiments/selecting.py",
        "    for path in shared:\n",
        "    for path in shared[:0]:\n",
        (f"{_CHARGING}::test_a_private_selection_is_charged_once_before_its_candidates",),
    ),
    Mutant(
        "candidates told to the table's ledger",
        "whoever reads it learns the secret number of candidates",
        "experiments/selecting.py",
        "run(tried, home, shared=False)",
        "run(tried, home, shared=True)",
        (f"{_CHARGING}::test_a_private_selection_is_charged_once_before_its_candidates",),
    ),
    Mutant(
        "released beyond the limit",
        "models leave whose cost together is above what the table may spend",
        "mechanism/shared_ledger.py",
        "                self.require_releasable(run)\n",
        "",
        (f"{_SHARED}::test_the_limit_is_on_what_is_released_and_set_once",),
    ),
    Mutant(
        "limit passed by naming another ledger",
        "an export that names another ledger is neither in its table's total nor held to its limit",
        "experiments/releasing.py",
        "there = [path.resolve() for path in shared if path.is_file()]",
        "there = list[Path]()",
        (f"{_RELEASING}::test_a_ledger_that_is_named_takes_the_place_of_none_that_is_there",),
    ),
    Mutant(
        "names of columns as they are written",
        "a table with its header in capitals begins a total of its own",
        "data/table_sketch.py",
        "_WORDS.findall(name.casefold())",
        "_WORDS.findall(name)",
        (f"{_SKETCH}::test_names_may_be_written_otherwise",),
    ),
    Mutant(
        "row digests without a key",
        "who has the sketch of a table can test whether a person is in it",
        "data/table_sketch.py",
        "digest_size=8, key=key",
        "digest_size=8",
        (f"{_SKETCH}::test_another_key_says_nothing",),
    ),
    Mutant(
        "common rows taken for a match",
        "runs on other people's tables are charged to one ledger",
        "data/table_sketch.py",
        "chance = 2 * math.sqrt(",
        "chance = 0 * math.sqrt(",
        (f"{_SKETCH}::test_common_rows_are_no_match_however_many_tables_share_them",),
    ),
    Mutant(
        "grown table not recognised",
        "a row more, and the total begins anew",
        "data/table_sketch.py",
        "return self.common >= self.needed",
        "return self.common == self.known == self.new",
        (f"{_SKETCH}::test_a_table_that_grew_and_a_part_of_one_match",),
    ),
)
