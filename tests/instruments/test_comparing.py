"""``compare`` and ``tune`` on objects of one's own."""

from pathlib import Path

import pytest
import torch

import plumbline as pl
from plumbline.experiments.recipe import RecipeError
from plumbline.instruments import Comparison, compare, tune
from tests.instruments.people import network, patients, tensors

BUDGET = pl.Budget(epsilon=5, delta=1e-4, steps=4, expected_batch_size=60)
METHODS = {"free": pl.methods.nonprivate(), "DP-SGD": pl.methods.dpsgd(), "BAM": pl.methods.bam()}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    return compare(
        data=tensors(),
        model=network,
        methods=METHODS,
        budget=BUDGET,
        optimizer=torch.optim.Adam,
        epsilon=[2, 5],
        seeds=2,
        trials=0,
        workers=1,
        folder=tmp_path_factory.mktemp("compared"),
        name="mine",
    )


def test_a_table_of_objects(made: Comparison) -> None:
    frame = made.to_pandas()
    assert list(frame.index) == ["free", "DP-SGD", "BAM", "DP-SGD, epsilon 2", "BAM, epsilon 2"]
    assert frame["epsilon"]["DP-SGD, epsilon 2"] <= 2
    assert (frame["runs"] == 2).all()
    assert frame["accuracy 0"].between(0, 1).all()
    assert made.to_markdown().startswith("| method | epsilon |")
    latex = made.to_latex()
    assert latex.startswith("\\begin{tabular}{l")
    assert r"$\pm$" in latex


def test_verdict_page_and_figures(made: Comparison, tmp_path: Path) -> None:
    assert "beats the accuracy of one class for all" in made.verdict[0]  # there is little to learn
    assert any("together" in sentence for sentence in made.verdict)
    page = made.page(tmp_path / "page.html").read_text()
    assert "Accuracy against epsilon" in page
    assert "epsilons-accuracy" in made.figures
    made.figure("epsilons-accuracy", tmp_path / "figure.html")
    assert "plotly" in (tmp_path / "figure.html").read_text().lower()
    runs = made.runs
    assert {title: len(own) for title, own in runs.items()}["BAM"] == 2
    assert runs["BAM"][0].predict(torch.zeros(1, 6)).shape == (1, 2)


def test_on_a_table_every_method_is_tuned_alike(tmp_path: Path) -> None:
    found = compare(
        data=patients(tmp_path / "patients.csv", 300),
        target="readmitted",
        sensitive="sex",
        from_data=True,
        epochs=1,
        batch=60,
        trials=2,
        seeds=1,
        workers=1,
        folder=tmp_path,
    )
    titles = [row.title for row in found.table.rows]
    assert titles == [
        "non-private (tuned)", "DP-SGD", "DP-SGD (tuned)", "Global-Adapt (tuned)",
        "DPSGD-F (tuned)", "BAM (tuned)", "linear model (tuned)",
    ]  # fmt: skip
    assert found.folder == tmp_path / "patients"
    assert (found.folder / "tuned.toml").is_file()
    assert found.table.recipe.noise == "secure"
    assert any("Tuning on private records costs privacy too" in s for s in found.verdict)
    # The trials are charged too: six methods, two trials each.
    said = " ".join(found.verdict)
    assert "Everything that was run on this table: 7 runs of comparisons and 12 trials." in said
    assert "3 of them had no privacy (non-private (tuned))" in said
    assert f"The other {5 * 2 + 6} cost a record together at most epsilon" in said


def test_private_selection_covers_the_choice(tmp_path: Path) -> None:
    found = compare(
        data=tensors(),
        model=network,
        methods=["nonprivate", "dpsgd"],
        budget=BUDGET,
        epsilon=30,
        trials=2,
        private_selection=True,
        noise="seeded",
        seeds=1,
        workers=1,
        folder=tmp_path,
        name="chosen",
    )
    row = next(row for row in found.table.rows if "selected" in row.title)
    assert row.epsilon <= 30
    (run,) = found.runs[row.title]
    assert "covers the training of every candidate" in run.statement().replace("\n", " ")


def test_tune(tmp_path: Path) -> None:
    found = tune(
        data=tensors(), model=network, methods=["dpsgd"], budget=BUDGET, trials=2, workers=1,
        folder=tmp_path, name="tuned",
    )  # fmt: skip
    assert len(found.trials["DP-SGD"]) == 2
    assert (tmp_path / "tuned" / "tuned.toml").is_file()


def test_two_methods_of_one_name_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="give each a label of its own"):
        compare(
            data=tensors(), model=network, methods=["dpsgd", "dpsgd"], budget=BUDGET,
            folder=tmp_path,
        )  # fmt: skip


def test_a_recipe_keeps_its_own_parts() -> None:
    with pytest.raises(RecipeError, match="'model' is given beside the recipe 'demo'"):
        compare("demo", model=network)
    with pytest.raises(RecipeError, match="neither a recipe nor data"):
        compare()


@pytest.mark.usefixtures("outside")
def test_parts_from_outside(tmp_path: Path) -> None:
    from outside_parts import networks, rules, tables, ways

    found = compare(
        data=tables.our_patients,
        model=networks.small_net,
        methods={"ours": rules.Soft, "both": ways.soft_bam(), "named": "outside_parts.rules:Soft"},
        measure=["outside_parts.looks:longest_gradient"],
        budget=BUDGET,
        seeds=1,
        trials=0,
        workers=1,
        folder=tmp_path,
        name="outside",
    )
    assert [row.title for row in found.table.rows] == ["ours", "both", "named"]
    (reading, *_) = found.study.runs["ours"][0].readings
    assert "longest_gradient" in str(reading)
    with pytest.raises(pl.auditing.NotAdmitted, match=r"SoftLiar.*moves by 1\.5, not 1"):
        compare(
            data=tables.our_patients, model=networks.small_net, methods={"liar": rules.SoftLiar()},
            budget=BUDGET, trials=0, workers=1, folder=tmp_path, name="liar",
        )  # fmt: skip
