"""Patterns of methods that run a model, and of the mode that selects the model."""

from __future__ import annotations

from dataclasses import replace

from codegen.lower.arguments import bound, operands_of
from codegen.lower.operands import (
    CountDiffers,
    Length,
    Names,
    Operand,
    Out,
    OutputCount,
    Outputs,
    Passed,
    Receiver,
    ValueOf,
    Values,
)
from codegen.lower.pattern import pattern
from codegen.lower.running_steps import (
    CountElements,
    CountOutputs,
    MakeOutputs,
    ReturnOutputs,
    RunModel,
    RunStep,
    SetMode,
)
from codegen.lower.steps import Convert, Invoke, Step
from codegen.spec.model import Class, Method


def _step(m: Method, known: dict[str, Operand]) -> tuple[list[Step], Invoke]:
    """Return the conversions of a step's arguments, and the call with the known operands of its outputs."""
    call = m.calls["step"]
    given = bound(m, call)
    # The parameters with a known operand need no argument.
    others = [
        replace(p, nullable=True, length="", direction="in") if p.name in known else p
        for p in call.parameters
    ]
    operands = operands_of(replace(call, parameters=others), given, True)
    named = zip(call.parameters, operands, strict=True)
    return [Convert(g) for g in given], Invoke(call, [known.get(p.name) or o for p, o in named])


@pattern("step", "output_count", "output_name", parameters=("inputs",), fails=("step",))
def step(cls: Class, m: Method) -> list[Step]:
    """Lower a step of a training session that returns new outputs."""
    converted, invoke = _step(m, {"outputs": Outputs(), "outputs_len": OutputCount()})
    return [*converted, CountOutputs(m.calls["output_count"]), MakeOutputs(), invoke, ReturnOutputs()]


@pattern("step", parameters=("inputs", "outputs", "run_options"))
def step_into(cls: Class, m: Method) -> list[Step]:
    """Lower a step of a training session that writes into values of the caller."""
    outputs = next(g for g in bound(m, m.calls["step"]) if g.role == "outputs")
    converted, invoke = _step(m, {"outputs": Passed(outputs), "outputs_len": Length(outputs)})
    return [*converted, invoke]


def _run(m: Method, into: bool) -> list[Step]:
    call = m.call
    inputs = m.parameter("inputs")
    outputs = m.parameter("outputs") if into else None
    names = None if into else m.parameter("output_names")
    known: dict[str, Operand] = {
        "run_options": Passed(m.parameter("run_options")),
        "input_names": Names(inputs),
        "inputs": Values(inputs),
        "input_len": Length(inputs),
    }
    if outputs:
        known |= {
            "output_names": Names(outputs),
            "output_names_len": Length(outputs),
            "outputs": Values(outputs),
        }
    elif names:
        known |= {"output_names": Passed(names), "output_names_len": OutputCount(), "outputs": Outputs()}
    operands: list[Operand] = [Receiver(), *(known[p.name] for p in call.parameters[1:])]
    steps: list[Step] = [Convert(g) for g in bound(m, call)]
    if into:
        return [*steps, Invoke(call, operands)]
    return [*steps, MakeOutputs(names), Invoke(call, operands), ReturnOutputs(names)]


@pattern("call", parameters=("inputs", "output_names", "run_options"))
def run(cls: Class, m: Method) -> list[Step]:
    """Lower a run of a model on named values that returns new outputs."""
    return _run(m, into=False)


@pattern("call", parameters=("inputs", "outputs", "run_options"))
def run_into(cls: Class, m: Method) -> list[Step]:
    """Lower a run of a model on named values that writes into values of the caller."""
    return _run(m, into=True)


@pattern("call", parameters=("inputs", "output_names", "run_options", "outputs"))
def run_named(cls: Class, m: Method) -> list[Step]:
    """Lower a run of a model on inputs by name.

    The method takes inputs that convert to tensors, and returns arrays. With a parameter for the outputs, the method takes
    values, and writes some outputs into the caller's values.
    """
    inputs, wanted, options = (m.parameter(r) for r in ("inputs", "output_names", "run_options"))
    return [RunModel(m.call, inputs, wanted, options, m.parameter("outputs") if m.has("outputs") else None)]


@pattern("copy", "size", parameters=("parameters_buffer",))
def copy_in_buffer(cls: Class, m: Method) -> list[Step]:
    """Lower a copy of a tensor to all parameters; to the trainable ones if the tensor has as many elements as these."""
    buffer = bound(m, m.calls["copy"])[0]
    size = m.calls["size"]
    return [
        Convert(buffer),
        Invoke(size, [Receiver(), Out(size.results[0]), ValueOf("bool", "false")]),
        CountElements(buffer),
        Invoke(m.calls["copy"], [Receiver(), Passed(buffer), CountDiffers()]),
    ]


@pattern()
def mode(cls: Class, m: Method) -> list[Step]:
    """Lower the mode of the object, a plain attribute."""
    return []


@pattern(parameters=("mode",))
def set_mode(cls: Class, m: Method) -> list[Step]:
    """Lower setting the mode of the object."""
    return [SetMode(m.mode, m.parameters[0] if m.parameters else None)]


@pattern("train", "train_output_count", "eval", "eval_output_count", parameters=("inputs",))
def step_by_mode(cls: Class, m: Method) -> list[Step]:
    """Lower a train step or an eval step, depending on the mode of the object."""
    return [RunStep(m.calls["train"], m.calls["eval"], m.parameter("inputs"))]
