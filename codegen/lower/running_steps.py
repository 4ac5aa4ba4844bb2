"""Steps that run a model."""

from __future__ import annotations

from dataclasses import dataclass

from codegen.lower.steps import Step
from codegen.spec.model import Call, Given


@dataclass
class CountOutputs(Step):
    """Gets the number of outputs."""

    call: Call


@dataclass
class MakeOutputs(Step):
    """Creates the array that receives the outputs: as many as were counted, or one per name."""

    names: Given | None = None


@dataclass
class ReturnOutputs(Step):
    """Returns the outputs, by name if there are names."""

    names: Given | None = None


@dataclass
class CountElements(Step):
    """Counts the elements of a tensor argument."""

    argument: Given


@dataclass
class RunStep(Step):
    """Takes the inputs in any form, makes one of two calls depending on the mode, and returns outputs in that form."""

    train: Call
    eval: Call
    inputs: Given


@dataclass
class RunModel(Step):
    """Takes the inputs by name, runs the model, and returns the outputs as arrays, or as values if ``outputs`` is set."""

    call: Call
    inputs: Given
    output_names: Given
    run_options: Given
    outputs: Given | None


@dataclass
class SetMode(Step):
    """Sets the mode of the object to an argument or a fixed value, and returns the object."""

    mode: bool | None
    argument: Given | None
