"""Patterns of methods that return lists. C has a call for the count and a call for an element by index."""

from __future__ import annotations

from codegen.lower.entry_steps import ReadNamesOfEntry
from codegen.lower.pattern import pattern
from codegen.lower.reading_steps import ReadInfos, ReadInfosOfMode, ReadNames, ReadNumbers
from codegen.lower.steps import Choose, Step
from codegen.spec.model import Class, Method


@pattern("count", "name", fails=("count",))
def names(cls: Class, m: Method) -> list[Step]:
    """Lower names, of which one call returns the count and another one each name by index.

    If the object is an entry of a mapping, both calls take its name too.
    """
    read = ReadNamesOfEntry if cls.keyed else ReadNames
    return [read(m.calls["count"], m.calls["name"])]


@pattern("count", "fill")
def numbers(cls: Class, m: Method) -> list[Step]:
    """Lower numbers: one call returns the count, another one fills an array."""
    return [ReadNumbers(m.calls["count"], m.calls["fill"])]


@pattern(
    "train_count",
    "train_name",
    "eval_count",
    "eval_name",
    parameters=("training",),
    fails=("train_count", "eval_count"),
)
def names_of_models(cls: Class, m: Method) -> list[Step]:
    """Lower the names of the training or the eval model. An argument or the mode of the object selects the model."""
    by = m.parameter("training") if m.has("training") else None
    train, evaluation = (
        ReadNames(m.calls[f"{mode}_count"], m.calls[f"{mode}_name"]) for mode in ("train", "eval")
    )
    return [Choose(by, [train], [evaluation])]


@pattern("count", "name", "type", fails=("count",))
def value_infos(cls: Class, m: Method) -> list[Step]:
    """Lower name, type and shape of inputs or outputs."""
    return [ReadInfos(m.calls["count"], m.calls["name"], m.calls["type"])]


@pattern("train_count", "train_name", "eval_count", "eval_name", "type")
def value_infos_by_mode(cls: Class, m: Method) -> list[Step]:
    """Lower name, type and shape of the inputs, depending on the mode of the object."""
    return [ReadInfosOfMode(m.calls["type"])]
