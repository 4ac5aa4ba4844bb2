"""Edits that a user asks for before the artifacts are made: adapters and a new head."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace

import onnx

from ortrain.artifacts.choice.declaration import Wanted, wanted
from ortrain.artifacts.choice.fates import InitializerReport
from ortrain.artifacts.graph.adapters import BASE, Adapters, LoRA, adapters_in, add_adapters
from ortrain.artifacts.graph.head import Head, NewHead, freeze_body, replace_head, trained_with


@dataclass(frozen=True)
class Edited:
    """A model after the edits, and what is trained of it."""

    model: onnx.ModelProto
    wanted: Wanted
    head: NewHead | None = None
    adapters: Adapters | None = None

    @property
    def class_axis(self) -> int | None:
        """The dimension of the scores that is that of the classes; None if it is not known."""
        return self.head.class_axis if self.head else None

    def outputs(self, loss_inputs: Sequence[str]) -> list[str]:
        """Return what a step returns besides the loss, unless the caller says otherwise."""
        if self.head is None and self.adapters is None:
            return []
        return list(dict.fromkeys([*loss_inputs, *(output.name for output in self.model.graph.output)]))

    def explain(self, choices: dict[str, InitializerReport]) -> None:
        """Give the parameters that the edits added their reason."""
        for edit, reason in ((self.head, "the new head"), (self.adapters, "of an adapter")):
            for name in edit.parameters if edit is not None else ():
                choices[name] = replace(choices[name], reason=reason)


def edited(
    model: onnx.ModelProto,
    head: Head | None,
    lora: LoRA | None,
    output: str | None,
    activation: str | None,
    requires_grad: Sequence[str] | None,
    frozen_params: Sequence[str] | None,
    path: str | None,
) -> Edited:
    """Return a model with adapters and a new head; without both, the given model.

    Parameters
    ----------
    model : onnx.ModelProto
        The model with the weights of the network.
    head : Head, optional
        The new classifier.
    lora : LoRA, optional
        The adapters.
    output : str, optional
        The value that the classifier computes.
    activation : str, optional
        The operator that the loss applies to scores.
    requires_grad, frozen_params : list of str, optional
        What the caller names.
    path : str, optional
        The file of the model; None if the caller gave this object, so that an edit needs a copy.

    Raises
    ------
    TypeError
        When `head` or `lora` has another type.
    ValueError
        When the model has no classifier, or has adapters and should get others, or a pattern stands for nothing.
    """
    for argument, value, expected in (("head", head, Head), ("adapter", lora, LoRA)):
        if value is not None and not isinstance(value, expected):
            raise TypeError(f"{argument}: expected {expected.__name__}(...) or None, found {value!r}")
    model = _without_base(model, lora, path)
    if head is None and lora is None:
        return Edited(model, wanted(model, requires_grad, frozen_params))
    if requires_grad is not None:
        raise ValueError(
            "generate_artifacts: expected head, adapter or requires_grad; name what else is trained in Head(train=[...])"
        )
    if path is None:
        given, model = model, onnx.ModelProto()
        model.CopyFrom(given)
    name = model.graph.name if path is None else os.path.basename(path)
    adapters = add_adapters(model, lora, name) if lora is not None else None
    new = replace_head(model, head, output, activation) if head is not None else None
    trained = list(adapters.parameters) if adapters is not None else []
    if head is not None and new is not None:
        trained = list(dict.fromkeys([*trained, *trained_with(model, head, new)]))
    freeze_body(model, trained, new)
    frozen = wanted(model, trained, frozen_params).frozen
    what = (
        "the adapters"
        if head is None
        else head.train
        if isinstance(head.train, str)
        else ", ".join(head.train)
    )
    choice = Wanted(
        trained,
        frozen,
        reason=f"trained: {what}",
        otherwise=f"not trained, as train is {what}" if head is not None else "of the base of the adapters",
        leaves_out_unreached=True,
    )
    return Edited(model, choice, new, adapters)


def _without_base(model: onnx.ModelProto, lora: LoRA | None, path: str | None) -> onnx.ModelProto:
    """Return a model whose adapters are layers like others, because the checkpoint will have no adapters of its base.

    The record of the adapters stays, with which `ortrain.artifacts.merged` adds them to the weights.
    """
    found = adapters_in(model)
    if found is None:
        return model
    if lora is not None:
        modules = [layer.module for layer in found.layers]
        raise ValueError(
            f"adapter: expected a model without adapters, found adapters of {', '.join(modules[:4])}"
            f"{', ...' if len(modules) > 4 else ''}; train them further from their own artifacts, or add them to the weights "
            "first with ortrain.artifacts.merged (`ortrain export --adapters merged`)"
        )
    if path is None:
        given, model = model, onnx.ModelProto()
        model.CopyFrom(given)
    entries = [entry for entry in model.metadata_props if entry.key != BASE]
    del model.metadata_props[:]
    model.metadata_props.extend(entries)
    return model
