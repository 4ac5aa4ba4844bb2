"""Parameters, properties and parameter groups are mappings, and iterate over pairs as those of onnxruntime-training."""

from collections.abc import Mapping

import numpy as np
import pytest
from ortrain import _ortrain
from ortrain.api import CheckpointState, Module, Optimizer
from recorded import DATA


@pytest.fixture
def state():
    state = CheckpointState.load_checkpoint(DATA / "mlp_adamw" / "checkpoint")
    state.properties["epoch"] = 3
    state.properties["note"] = "a"
    return state


@pytest.fixture
def groups(state):
    folder = DATA / "mlp_adamw"
    return Optimizer(
        folder / "optimizer_model.onnx", Module(folder / "training_model.onnx", state)
    ).param_groups


def test_they_have_the_methods_of_a_dictionary(state, groups):
    for mapping in (state.parameters, state.properties, groups):
        names = [name for name, _ in mapping]
        assert isinstance(mapping, Mapping)
        assert len(names) == len(mapping) > 0
        assert list(mapping.keys()) == names == list(dict(mapping)) == list({**mapping})
        assert [name for name, _ in mapping.items()] == names
        assert len(mapping.values()) == len(mapping)
        assert mapping.get("absent") is None
        assert mapping.get("absent", 7) == 7
        assert names[0] in mapping
        assert mapping.get(names[0]) is not None


def test_the_entries_are_those_that_the_names_give(state):
    for name, parameter in state.parameters.items():
        np.testing.assert_array_equal(parameter.data, state.parameters[name].data)
    assert dict(state.properties) == {"epoch": 3, "note": "a"}
    assert list(state.properties.values()) == [3, "a"]


@pytest.mark.parametrize("name", ["absent", "epoch\0", "\ud800", "", 3, None])
def test_what_is_no_name_is_not_in_them(state, groups, name):
    for mapping in (state.parameters, state.properties, groups):
        assert name not in mapping
        with pytest.raises(KeyError):
            mapping[name]


def test_an_entry_is_found_without_a_look_at_the_other_names(state, monkeypatch):
    first = next(iter(state.parameters))[0]

    def called(*_):
        raise AssertionError("the names were listed")

    monkeypatch.setattr(_ortrain, "checkpoint_get_parameter_name", called)
    monkeypatch.setattr(_ortrain, "checkpoint_get_property_name", called)
    assert first in state.parameters
    assert state.parameters[first].name == first
    assert state.properties["epoch"] == 3
