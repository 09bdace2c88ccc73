"""Bugs in what a table reveals before training: its categories, its ranges, its number of rows."""

from tests.mutants.base import Mutant

_FILE = "experiments/private_schema.py"
_TESTS = ("experiments/test_private_schema.py",)

MUTANTS = (
    Mutant(
        "number of rows for nothing",
        "a row changes one count more than the noise of all counts together covers",
        _FILE,
        "math.sqrt(len(asked) + records)",
        "math.sqrt(max(1, len(asked)))",
        _TESTS,
    ),
    Mutant(
        "threshold without the record itself",
        "the name of a category that one record alone has shows more often than delta allows",
        _FILE,
        "math.nextafter(1 + std",
        "math.nextafter(0 + std",
        _TESTS,
    ),
    Mutant(
        "threshold of one column",
        "a record can be alone in a category of every column, and delta pays for one",
        _FILE,
        "special.ndtri(failing / categorical)",
        "special.ndtri(failing)",
        _TESTS,
    ),
    Mutant(
        "categories by exact counts",
        "which categories are kept is decided without noise",
        _FILE,
        'float(self._with_noise(torch.tensor([float(times)]), "category", name, value))',
        "float(times)",
        _TESTS,
    ),
    Mutant(
        "delta of a release not counted",
        "what thresholds add to delta is not in the stated guarantee",
        "mechanism/accountant.py",
        "sum(r.delta * n for r, n in releases)",
        "sum(0.0 * n for r, n in releases)",
        (*_TESTS, "mechanism/test_accountant.py"),
    ),
    Mutant(
        "range by exact counts",
        "a column's range is that of the bins that hold a row",
        _FILE,
        'noisy = self._with_noise(column.bins, "bins", name)',
        "noisy = column.bins",
        _TESTS,
    ),
)
