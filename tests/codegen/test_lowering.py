"""A method becomes the steps that its calls need, whichever language prints them."""

from __future__ import annotations

import pytest
from spec_copy import ROOT

from codegen.lower import PATTERNS, Absent, Invoke, Receiver, function_of, lower, with_run_options
from codegen.spec.check import load
from codegen.spec.model import Call, Class, Method, Parameter, Spec
from codegen.spec.source import SpecError


@pytest.fixture(scope="module")
def spec() -> Spec:
    return load(ROOT / "spec")


def method(spec: Spec, cls: str, name: str) -> tuple[Class, Method]:
    found = spec.class_named(cls)
    return found, next(m for m in found.methods if m.name == name)


def kinds(spec: Spec, cls: str, name: str) -> list[str]:
    return [step.kind for step in lower(*method(spec, cls, name))]


@pytest.mark.parametrize(
    ("cls", "name", "expected"),
    [
        ("training_session", "lazy_reset_grad", ["invoke"]),
        ("training_session", "get_learning_rate", ["invoke", "return"]),
        ("training_session", "export_model_for_inferencing", ["convert", "convert", "invoke"]),
        ("session_options", "get_session_config_entry", ["convert", "fill_room"]),
        ("checkpoint_state", "parameter_names", ["read_names"]),
        ("checkpoint_state", "load_checkpoint", ["convert", "make"]),
        ("training_session", "input_names", ["choose"]),
        ("training_session", "from_buffer", ["convert", "invoke", "count_elements", "invoke"]),
        (
            "training_session",
            "train_step",
            ["convert", "count_outputs", "make_outputs", "invoke", "return_outputs"],
        ),
        ("tensor_type_and_shape_info", "get_shape", ["read_numbers"]),
    ],
)
def test_steps(spec: Spec, cls: str, name: str, expected: list[str]) -> None:
    assert kinds(spec, cls, name) == expected


def operands(spec: Spec, cls: str, name: str) -> list[str]:
    (invoke,) = (s for s in lower(*method(spec, cls, name)) if isinstance(s, Invoke))
    return [o.kind for o in invoke.operands]


@pytest.mark.parametrize(
    ("cls", "name", "expected"),
    [
        ("training_session", "optimizer_step", ["receiver", "absent"]),
        ("training_session", "export_model_for_inferencing", ["receiver", "passed", "length", "passed"]),
        ("checkpoint_state", "get_parameter", ["receiver", "passed", "allocator", "out"]),
        ("checkpoint_state", "add_int_property", ["receiver", "passed", "value_of", "address_of"]),
        (
            "training_session",
            "train_step",
            ["receiver", "absent", "length", "passed", "output_count", "outputs"],
        ),
        ("gradient_graph_builder", "get_model", ["receiver", "allocator", "out", "out"]),
    ],
)
def test_operands_come_in_the_order_of_the_call(spec: Spec, cls: str, name: str, expected: list[str]) -> None:
    assert operands(spec, cls, name) == expected


def test_a_method_without_run_options_has_a_form_with_them(spec: Spec) -> None:
    cls, plain = method(spec, "training_session", "optimizer_step")
    form = with_run_options(plain)
    assert form is not None
    assert [p.type for p in form.parameters] == ["run_options"]
    (invoke,) = (s for s in lower(cls, form) if isinstance(s, Invoke))
    assert not any(isinstance(o, Absent) for o in invoke.operands)
    assert with_run_options(method(spec, "training_session", "scheduler_step")[1]) is None


def test_two_arrays_with_one_length_are_compared(spec: Spec) -> None:
    steps = function_of(spec.calls["create_checkpoint"])
    compared = [(s.first.name, s.other.name) for s in steps if s.kind == "same_length"]
    assert compared == [("names", "values"), ("names", "trainable")]


def test_a_call_without_an_operand_for_a_parameter_is_rejected(spec: Spec) -> None:
    call = Call("f", "training", 0, "g", "A call.", "body", parameters=[Parameter("x", "float", "A number.")])
    cls = Class("c", "A class.", [])
    with pytest.raises(SpecError, match="in the role x, which the call f needs"):
        lower(cls, Method("m", "static", "A method.", calls={"call": call}))


def test_every_method_of_the_spec_is_of_a_pattern_with_its_roles(spec: Spec) -> None:
    used = set()
    for cls in spec.classes:
        for m in cls.methods:
            pattern = PATTERNS[m.pattern]
            assert set(pattern.calls) <= set(m.calls) <= {*pattern.calls, *pattern.optional}
            used.add(m.pattern)
    assert used == set(PATTERNS), "a pattern that no method uses"


def test_the_object_is_the_first_operand_of_its_methods(spec: Spec) -> None:
    for cls in spec.classes:
        for m in cls.methods:
            if m.pattern == "direct":
                found = [s for s in lower(cls, m) if hasattr(s, "operands")]
                assert all(s.operands[0] == Receiver() for s in found), m.name
