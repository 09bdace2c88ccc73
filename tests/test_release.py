"""What a release says of itself agrees: version, tag, change log, citation, workflows."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
CHANGES = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def script(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / ".ci" / name), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_change_log_has_the_version_on_top() -> None:
    titles = re.findall(r"^## \[([^\]]+)\](?: - (\d{4}-\d\d-\d\d))?$", CHANGES, re.MULTILINE)
    assert titles[0] == ("Unreleased", "")
    assert titles[1][0] == VERSION
    assert all(day for _, day in titles[1:])


def test_the_citation_is_of_this_version_and_names_five_papers() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == VERSION
    assert f"## [{VERSION}] - {citation['date-released']}" in CHANGES
    assert len(citation["references"]) == 5
    for paper in citation["references"]:
        assert {"type", "title", "year", "authors"} <= set(paper)


def test_a_tag_is_the_version() -> None:
    """Of this commit; a copy without git has no tags, and so has a shallow clone."""
    found = subprocess.run(
        ["git", "-C", str(ROOT), "tag", "--points-at", "HEAD", "v*"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.stdout.split() in ([], [f"v{VERSION}"])


def test_the_notes_of_a_release_are_those_of_the_change_log() -> None:
    notes = script("release-notes", f"v{VERSION}")
    assert notes.returncode == 0
    assert "### Added" in notes.stdout
    assert "\n## [" not in notes.stdout
    wrong = script("release-notes", "v99.0.0")
    assert wrong.returncode == 1
    assert f"it should be v{VERSION}" in wrong.stderr


def test_the_lowest_versions_are_those_of_pyproject() -> None:
    lowest = script("lowest").stdout.splitlines()
    kept = script("lowest", "torch").stdout.splitlines()
    assert all(re.fullmatch(r"[\w-]+==\d[\d.]*", line) for line in lowest)
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8").replace("[python]", "")
    assert [line for line in lowest if f'"{line.replace("==", ">=")}"' not in project] == []
    pinned = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    assert [line for line in kept if line not in lowest] == [
        line for line in pinned if line.startswith("torch==")
    ]
    unknown = script("lowest", "no-such-package")
    assert unknown.returncode == 1
    assert "no-such-package" in unknown.stderr


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_run_what_there_is(path: Path) -> None:
    """Every ``make`` target, with each value of the matrix, and every script of .ci."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.search(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)[1].split())  # type: ignore[index]
    jobs = yaml.safe_load(path.read_text(encoding="utf-8"))["jobs"]
    for job in jobs.values():
        matrix = job.get("strategy", {}).get("matrix", {}).get("target", [])
        for step in job.get("steps", []):
            match step.get("run", "").split():
                case ["make", "${{", "matrix.target", "}}"]:
                    assert set(matrix) <= targets
                case ["make", target, *_]:
                    assert target in targets
                case [program, *_] if program.startswith(".ci/"):
                    assert (ROOT / program).is_file()
        if "uses" in job:
            assert (ROOT / job["uses"]).is_file()


def test_ci_local_runs_what_the_workflows_do() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    rule = re.search(r"^ci-local:.*?(?=^\S|\Z)", makefile, re.MULTILINE | re.DOTALL)
    assert rule
    workflow = (ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8")
    hosted = set(re.findall(r"run: make ([a-z-]+)", workflow))
    assert hosted
    assert {target for target in hosted if not re.search(rf"\b{target}\b", rule[0])} == set()
