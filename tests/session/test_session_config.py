"""Entries of a session's configuration: unknown ones are rejected, with the most similar known ones."""

from __future__ import annotations

import re

import pytest
from ortrain import SessionOptions
from ortrain.errors import InvalidArgumentError


def add(key: str, value: str) -> None:
    SessionOptions().add_session_config_entry(key, value)


def refusal(key: str, value: str) -> str:
    with pytest.raises(InvalidArgumentError) as refused:
        add(key, value)
    return str(refused.value)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("ortrain.mixed_precision", "none"),
        ("ortrain.mixed_precision", "bf16"),
        ("ortrain.bf16_products", "fp32"),
        ("ortrain.memory_budget", "64M"),
        ("ortrain.first_run", "0"),
        ("ortrain.first_run", "18446744073709551615"),
        ("ortrain.disable_pass.common_subexpression_elimination", "1"),
        ("ortrain.disable_pass.merge_twins", "1"),  # its former name
        ("ortrain.check_finite", "1"),
        ("ortrain.dump_graph", "graphs"),
        ("ortrain.disable_pass.fold_frozen_parameters", "0"),
        ("ortrain.disable_pass.keep_convolution_weights", "1"),
        ("session.set_denormal_as_zero", "1"),
        ("session.intra_op.allow_spinning", "0"),
        ("session.force_spinning_stop", "1"),
        ("session.inter_op.allow_spinning", "0"),  # onnxruntime's, without effect here
        ("a.key", "a value"),
    ],
)
def test_known_entries_and_those_of_others_are_kept(key: str, value: str) -> None:
    options = SessionOptions()
    options.add_session_config_entry(key, value)
    assert options.get_session_config_entry(key) == value


@pytest.mark.parametrize(
    ("mistyped", "meant"),
    [
        ("ortrain.mixed_precison", "ortrain.mixed_precision"),
        ("ortrain.bf16_product", "ortrain.bf16_products"),
        ("ortrain.memory_budgett", "ortrain.memory_budget"),
        ("ortrain.disable_pass.fold_transpos", "ortrain.disable_pass.fold_transpose"),
        ("ortrain.disable_pass.fold_frozen_parameter", "ortrain.disable_pass.fold_frozen_parameters"),
    ],
)
def test_a_mistyped_key_is_refused_with_the_nearest(mistyped: str, meant: str) -> None:
    message = refusal(mistyped, "1")
    assert f"unknown session config entry '{mistyped}'; did you mean \"{meant}\"" in message


def test_a_key_like_none_is_refused_with_all() -> None:
    message = refusal("ortrain.xyzzy", "1")
    for key in ("ortrain.mixed_precision", "ortrain.memory_budget", "ortrain.disable_pass.NAME"):
        assert key in message


def test_a_pass_of_artifacts_is_not_one_of_sessions() -> None:
    assert "disabled_passes" in refusal("ortrain.disable_pass.fuse_layer_normalization", "1")


@pytest.mark.parametrize(
    ("key", "value", "known"),
    [
        ("ortrain.mixed_precision", "bf17", "'none', 'bf16'"),
        ("ortrain.bf16_products", "", "'auto', 'bf16', 'fp32'"),
        ("ortrain.disable_pass.common_subexpression_elimination", "yes", "'0', '1'"),
    ],
)
def test_a_value_that_an_entry_does_not_take_is_refused(key: str, value: str, known: str) -> None:
    message = refusal(key, value)
    assert re.search(re.escape(f"{key}: expected one of {known}, found '{value}'"), message)


def test_a_refused_entry_is_not_set() -> None:
    options = SessionOptions()
    with pytest.raises(InvalidArgumentError):
        options.add_session_config_entry("ortrain.mixed_precision", "bf17")
    assert not options.has_session_config_entry("ortrain.mixed_precision")


@pytest.mark.parametrize("value", ["", "-1", "1.5", "1k", "18446744073709551616"])
def test_a_first_run_that_is_no_number_is_refused(value: str) -> None:
    assert f'ortrain.first_run: expected a number of 0 or more, found "{value}"' in refusal(
        "ortrain.first_run", value
    )
