"""Freshly initialized networks train in ortrain as in PyTorch, all parameters, under their names."""

from __future__ import annotations

import pathlib

import pytest
import table
from comparison import compare, is_right
from networks import CASES

OTHER_OPTIMIZER = ["BERT", "Llama", "T5", "ResNet", "LSTM"]


@pytest.mark.parametrize("name", CASES)
def test_a_network_trains_as_in_pytorch(
    name: str, tmp_path: pathlib.Path, request: pytest.FixtureRequest
) -> None:
    found = compare(CASES[name], tmp_path, "sgd")
    wrong = is_right(found)
    if request.config.getoption(table.OPTION):
        table.write_row(name, CASES[name], None if wrong else found)
    assert wrong == [], found


@pytest.mark.parametrize("name", OTHER_OPTIMIZER)
def test_a_network_trains_with_adamw_as_in_pytorch(name: str, tmp_path: pathlib.Path) -> None:
    found = compare(CASES[name], tmp_path, "adamw")
    assert is_right(found) == [], found


def test_the_page_lists_all_networks() -> None:
    found = table.rows(table.PAGE.read_text("utf-8"))
    assert list(found) == list(CASES), f"the page is out of date: run {table.COMMAND}"
