"""Edits that a user asks for before the artifacts are made: a new head."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import onnx

from ortrain.artifacts.choice.declaration import Wanted, wanted
from ortrain.artifacts.choice.fates import InitializerReport
from ortrain.artifacts.graph.head import Head, NewHead, freeze_body, replace_head, trained_with


@dataclass(frozen=True)
class Edited:
    """A model after the edits, and what is trained of it."""

    model: onnx.ModelProto
    wanted: Wanted
    head: NewHead | None = None

    @property
    def class_axis(self) -> int | None:
        """The dimension of the scores that is that of the classes; None if it is not known."""
        return self.head.class_axis if self.head else None

    def outputs(self, loss_inputs: Sequence[str]) -> list[str]:
        """Return what a step returns besides the loss, unless the caller says otherwise."""
        if self.head is None:
            return []
        return list(dict.fromkeys([*loss_inputs, *(output.name for output in self.model.graph.output)]))

    def explain(self, choices: dict[str, InitializerReport]) -> None:
        """Give the parameters that the edits added their reason."""
        for name in self.head.parameters if self.head else ():
            choices[name] = replace(choices[name], reason="the new head")


def edited(
    model: onnx.ModelProto,
    head: Head | None,
    output: str | None,
    activation: str | None,
    requires_grad: Sequence[str] | None,
    frozen_params: Sequence[str] | None,
    is_given: bool,
) -> Edited:
    """Return a model with a new head, or as it is without one.

    Parameters
    ----------
    model : onnx.ModelProto
        The model with the weights of the network.
    head : Head, optional
        The new classifier.
    output : str, optional
        The value that the classifier computes.
    activation : str, optional
        The operator that the loss applies to scores.
    requires_grad, frozen_params : list of str, optional
        What the caller names.
    is_given : bool
        Whether the caller gave this object, so that an edit needs a copy.

    Raises
    ------
    ValueError
        When the model has no classifier, or a pattern stands for nothing.
    """
    if head is None:
        return Edited(model, wanted(model, requires_grad, frozen_params))
    if requires_grad is not None:
        raise ValueError(
            "generate_artifacts: expected head or requires_grad; name what else is trained in Head(train=[...])"
        )
    if is_given:
        given, model = model, onnx.ModelProto()
        model.CopyFrom(given)
    new = replace_head(model, head, output, activation)
    trained = trained_with(model, head, new)
    freeze_body(model, trained, new)
    frozen = wanted(model, trained, frozen_params).frozen
    what = head.train if isinstance(head.train, str) else ", ".join(head.train)
    choice = Wanted(
        trained,
        frozen,
        reason=f"trained with the head: {what}",
        otherwise=f"not trained: {what} is",
        leaves_out_unreached=True,
    )
    return Edited(model, choice, new)
