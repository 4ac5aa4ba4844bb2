"""`pytest --quick` runs each value of each parameter at least once, and leaves out what is marked for that."""

from __future__ import annotations

import pathlib
import subprocess
import sys

import pytest

TESTS = pathlib.Path(__file__).resolve().parents[1]
CASES = """
import pytest

@pytest.fixture(params=["u", "v"])
def fixed(request):
    return request.param

@pytest.mark.parametrize("letter", "abcde")
@pytest.mark.parametrize("number", range(3))
def test_product(letter, number):
    pass

@pytest.mark.parametrize(("x", "y"), [(0, 0), (0, 1), (1, 0), (1, 1)])
def test_listed_pairs(x, y):
    pass

@pytest.mark.parametrize("letter", "ab")
def test_with_a_fixture(fixed, letter):
    pass

@pytest.mark.first_case
@pytest.mark.parametrize("data", [10, 20])
def test_slow(data):
    pass

def test_plain():
    pass

@pytest.mark.thorough
def test_again():
    pass
"""


def selected(folder: pathlib.Path, *options: str) -> tuple[list[str], str]:
    (folder / "test_cases.py").write_text(CASES)
    (folder / "pytest.ini").write_text(
        f"[pytest]\npythonpath = {TESTS}\nmarkers =\n  thorough: more of the same\n  first_case: slow\n"
    )
    (folder / "conftest.py").write_text("pytest_plugins = ['quick']\n")
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-vv", *options, str(folder)]
    run = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    lines = [line.split(" ")[0] for line in run.stdout.splitlines() if " PASSED" in line]
    return [line.partition("::")[2] for line in lines], run.stdout


def test_each_value_of_each_parameter_occurs(tmp_path: pathlib.Path) -> None:
    names, output = selected(tmp_path, "--quick")
    products = [
        name[len("test_product[") : -1].split("-") for name in names if name.startswith("test_product[")
    ]
    assert len(products) == 5
    assert {number for number, _ in products} == set("012")
    assert {letter for _, letter in products} == set("abcde")
    assert sum(name.startswith("test_listed_pairs") for name in names) == 4
    with_a_fixture = [name[-4:-1].split("-") for name in names if name.startswith("test_with_a_fixture")]
    assert {value for pair in with_a_fixture for value in pair} == set("abuv")
    assert len(with_a_fixture) == 2
    assert [name for name in names if name.startswith("test_slow")] == ["test_slow[10]"]
    assert "test_plain" in names
    assert "test_again" not in names
    assert "LEFT OUT 13 combinations of parameters and 1 thorough tests; make test-all runs them" in output


@pytest.mark.thorough
def test_all_run_without_the_option(tmp_path: pathlib.Path) -> None:
    names, output = selected(tmp_path)
    assert len(names) == 15 + 4 + 4 + 2 + 1 + 1
    assert "LEFT OUT" not in output
