"""Networks exported by PyTorch train on stock onnxruntime as they do in ortrain: the step as one model of ONNX."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator

import numpy as np
import pytest
import step_record
from step_exports import Exported, exported, train

MODELS = {model.name: model for model in exported()}
#: One of each kind; the others are thorough.
QUICK = [
    "resnet/torchscript_20", "gpt2/dynamo_20", "lstm/dynamo_18", "mobilenet_v2_dropout/torchscript_18",
    "hf_segformer/dyn18d", "fresh/mha_dyn", "recorded/lenet_adamw", "control flow/recurrent",
]  # fmt: skip


def cases() -> list[object]:
    return [pytest.param(name, marks=() if name in QUICK else pytest.mark.thorough) for name in MODELS]


@pytest.fixture(scope="module")
def recording(request: pytest.FixtureRequest) -> Iterator[dict[str, step_record.Entry]]:
    """What the tests find, which becomes the record if that is asked for."""
    entries: dict[str, step_record.Entry] = {}
    yield entries
    if request.config.getoption("record_step_models", default=False):
        step_record.write(entries)


def entry_of(model: Exported, folder: pathlib.Path) -> step_record.Entry:
    """Train on both runtimes and compare."""
    try:
        expected, found, entry = train(model, folder)
    except ValueError as error:
        if "standard form" not in str(error):
            raise
        return step_record.Entry(model.made_by, refused=str(error).split("\n")[1].split(": ", 1)[-1])
    assert min(expected) < expected[0]
    np.testing.assert_allclose(found, expected, 1e-5)
    return entry


@pytest.mark.parametrize("name", cases())
def test_twenty_steps_on_onnxruntime_are_those_of_ortrain(
    name: str, tmp_path: pathlib.Path, recording: dict[str, step_record.Entry], request: pytest.FixtureRequest
) -> None:
    recording[name] = found = entry_of(MODELS[name], tmp_path)
    if not request.config.getoption("record_step_models", default=False):
        recorded = step_record.read()[name]
        assert (found.refused, found.opset, found.trained, found.step_nodes) == (
            recorded.refused, recorded.opset, recorded.trained, recorded.step_nodes,
        ), f"{step_record.RECORD} is of other step models; record it again"  # fmt: skip


def test_the_record_is_of_these_exports(request: pytest.FixtureRequest) -> None:
    if request.config.getoption("record_step_models", default=False):
        pytest.skip("recording")
    assert set(step_record.read()) == set(MODELS)
    assert set(QUICK) <= set(MODELS)
