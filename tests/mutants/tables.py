"""Bugs in what a table reveals before training: its categories, its ranges, its number of rows."""

from tests.mutants.base import Mutant

_FILE = "experiments/private_schema.py"
_TESTS = ("experiments/test_private_schema.py",)

MUTANTS = (
    Mutant(
        "number of rows for nothing",
        "a row changes one count more than the noise of all counts together covers",
        _FILE,
        "math.hypot(*weights.values(), records)",
        "math.hypot(*weights.values())",
        _TESTS,
    ),
    Mutant(
        "weights for nothing",
        "a column that weighs more gets less noise, and the noise of all is that of equal weights",
        _FILE,
        "math.hypot(*weights.values(), records)",
        "math.sqrt(len(asked) + records)",
        _TESTS,
    ),
    Mutant(
        "noise of the target for all",
        "every count gets the smaller noise of the column that weighs most",
        _FILE,
        "1.0 if column is None else self.weights[column]",
        "max(self.weights.values())",
        _TESTS,
    ),
    Mutant(
        "threshold without the record itself",
        "the name of a category that one record alone has shows more often than delta allows",
        _FILE,
        "math.nextafter(1 + self.std",
        "math.nextafter(0 + self.std",
        _TESTS,
    ),
    Mutant(
        "threshold of one column",
        "a record can be alone in a category of every column, and delta pays for one",
        _FILE,
        "special.ndtri(self.failing / categorical)",
        "special.ndtri(self.failing)",
        _TESTS,
    ),
    Mutant(
        "categories by exact counts",
        "which categories are kept is decided without noise",
        _FILE,
        'float(self._with_noise(_exactly(times), std, "category", name, value))',
        "float(times)",
        _TESTS,
    ),
    Mutant(
        "delta of a release not counted",
        "what thresholds add to delta is not in the stated guarantee",
        "mechanism/accountant.py",
        "sum(r.delta * n for r, n in steps)",
        "sum(0.0 * n for r, n in steps)",
        (*_TESTS, "mechanism/test_accountant.py"),
    ),
    Mutant(
        "range by exact counts",
        "a column's range is that of the bins that hold a row",
        _FILE,
        'noisy = self._with_noise(column.bins, std, "bins", name)',
        "noisy = column.bins",
        _TESTS,
    ),
    Mutant(
        "cluster that locks do not reach",
        "a machine that sees a copy of the folder charges a ledger that nobody else reads",
        "experiments/ray_pool.py",
        'return "file locks do not reach it"',
        "return None",
        ("experiments/test_ray_pool.py::test_a_machine_that_locks_do_not_reach_makes_nothing",),
    ),
    Mutant(
        "cluster with a table's ledger of its own",
        "a machine whose state folder is not ours charges the table there, and our total lacks it",
        "experiments/ray_pool.py",
        "return [root, state_folder().resolve(), config_folder().resolve()]",
        "return [root]",
        ("experiments/test_ray_pool.py::test_where_runs_share_a_ledger_its_folder_is_shared_too",),
    ),
    Mutant(
        "cluster's run made a second time",
        "a result that lags behind is taken for missing, and its steps are released again here",
        "experiments/ray_pool.py",
        'raise ClusterError(\n            f"The run in {folder} ended',
        'ClusterError(\n            f"The run in {folder} ended',
        ("experiments/test_ray_pool.py::test_a_run_that_ended_there_is_never_made_here",),
    ),
    Mutant(
        "counts in single precision",
        "beyond 2^24 rows one row more moves a count by two or more, and the noise is for one",
        _FILE,
        "torch.tensor([count], dtype=torch.float64)",
        "torch.tensor([float(count)]).double()",
        (f"{_TESTS[0]}::test_one_row_moves_large_counts_by_one",),
    ),
    Mutant(
        "cells looked up among other rows' cells",
        "a row with 3.0 changes what other rows with 3.0.0 are encoded as",
        "data/table_cells.py",
        "in (cell, *_spellings(cell)) if one in known",
        "in (cell, *(two for one in _spellings(cell) if one in cells for two in _spellings(one)))"
        " if one in known",
        ("data/test_table_cells.py::test_a_cell_has_no_say_about_another",),
    ),
    Mutant(
        "decimals that a missing cell adds",
        "one missing cell of a DataFrame changes the names of all categories of its column",
        "data/table_cells.py",
        "float(cell).is_integer()",
        "False",
        ("data/test_table_cells.py::test_a_missing_cell_changes_no_other_of_its_column",),
    ),
    Mutant(
        "exact number of rows in a centre",
        "the private mean is divided by the exact number of rows, which is hidden elsewhere",
        "experiments/centring.py",
        "part.known_records",
        "len(part)",
        ("experiments/test_centring.py::test_a_hidden_number_of_records_is_not_divided_by",),
    ),
    Mutant(
        "exact number of rows in a batch size",
        "of a run described on what another found, the sampling rate tells the hidden number",
        "instruments/describing.py",
        "splits.train.known_records",
        "len(splits.train)",
        (
            "instruments/test_describing.py"
            "::test_what_was_found_is_all_that_is_known_of_the_number_of_records",
        ),
    ),
    Mutant(
        "what is not covered lost with a part",
        "with rows set apart, the statement leaves out a file that was computed from the rows",
        "data/base.py",
        "dict.fromkeys([*self.not_covered, *self.train.not_covered])",
        "dict.fromkeys(self.not_covered)",
        (
            "experiments/test_loading.py"
            "::test_a_part_of_the_training_rows_lists_all_that_is_not_covered",
        ),
    ),
    Mutant(
        "rows set apart by their number among those used",
        "a row that lacks its target moves all later ones across the line of what is trained on",
        "experiments/loading.py",
        "torch.arange(count) if part.places is None else part.places",
        "torch.arange(count)",
        ("experiments/test_loading.py::test_a_row_without_a_target_changes_the_side_of_no_other",),
    ),
)
