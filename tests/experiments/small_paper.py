"""A reproduction of two small files, and measurements that are given instead of made."""

PLAN = """
title = "A small table"
study = "fake"
settings = { rows = { a = 1 }, seeds = [0, 1, 2] }
quick = { seeds = [0] }
minutes = { quick = 0.1, paper = 0.2 }
"""
HEAD = """
source = "A paper, Table 0"
notes = ["A note of the paper's."]
reference = "base"
tolerance = { accuracy = 1.0, loss = 0.1 }
"""

ROWS = """
[[rows]]
row = "base"
values = { "accuracy / a" = 70.0, loss = 0.8 }
[[rows]]
row = "new"
values = { "accuracy / a" = 80.0, loss = 0.4 }
"""
NEAR = {"base / accuracy / a": 70.9, "base / loss": 0.75}
NEAR_NEW = {"new / accuracy / a": 80.0, "new / loss": 0.4}

CLAIM = """
[[claims]]
says = "new beats base"
above = [["new / accuracy", "base / accuracy", 5.0], [1.0, "new / loss", 0.0]]
times = [["base / loss", "new / loss", 2.0]]
"""
HOLDS = {"new / accuracy": 80.0, "base / accuracy": 70.0, "new / loss": 0.3, "base / loss": 0.8}
SPREAD = (-0.02, 0.0, 0.02)
"""How three seeds lie about a mean that is given; each row in its own order, so that paired
differences spread too."""
