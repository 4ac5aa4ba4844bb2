"""Gradients of a PyTorch model as an ONNX model, which any ONNX runtime with the operators can run."""

from __future__ import annotations

import inspect
import io
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ortrain.api.generated.gradient_graph_builder import GradientGraphBuilder

if TYPE_CHECKING:
    import torch  # type: ignore[import-not-found,unused-ignore]

__all__ = ["export_gradient_graph"]


def export_gradient_graph(
    model: torch.nn.Module,
    loss_fn: Callable[[Any, Any], Any],
    example_input: torch.Tensor,
    example_labels: torch.Tensor,
    gradient_graph_path: str | os.PathLike[str],
    opset_version: int = 12,
) -> None:
    """Write an ONNX model that computes a model's output, the loss and the gradients of the parameters.

    Its inputs are ``input``, ``labels`` and the parameters by name; its outputs ``output``, ``loss`` and
    ``<name>_grad`` for each parameter that requires a gradient. The batch size is left open.

    Parameters
    ----------
    model : torch.nn.Module
        The model, called with one tensor.
    loss_fn : callable
        Given the output of the model and the labels, returns the loss, a scalar.
    example_input, example_labels : torch.Tensor
        A batch, which the export to ONNX runs.
    gradient_graph_path : str or os.PathLike
        The file to write.
    opset_version : int, default: 12
        Opset of the ONNX domain.

    Raises
    ------
    ImportError
        Without PyTorch.
    OrtrainError
        When the gradient cannot be built.
    """
    try:
        import torch
    except ImportError as error:
        raise ImportError(
            "export_gradient_graph exports a model of PyTorch, which is not installed"
        ) from error

    names = [name for name, _ in model.named_parameters()]

    class WithParameters(torch.nn.Module):  # type: ignore[misc,name-defined,unused-ignore]
        """The model and its loss as a function of the parameters, so that the export turns parameters into inputs."""

        def forward(self, batch: Any, labels: Any, *parameters: Any) -> tuple[Any, Any]:
            given = dict(zip(names, parameters, strict=True))
            output = torch.func.functional_call(model, given, (batch,))
            return output, loss_fn(output, labels)

    options: dict[str, Any] = {}
    if "dynamo" in inspect.signature(torch.onnx.export).parameters:
        options["dynamo"] = False  # the older exporter keeps the names of the parameters
    exported = io.BytesIO()
    torch.onnx.export(
        WithParameters(),
        (example_input, example_labels, *model.parameters()),
        exported,
        opset_version=opset_version,
        do_constant_folding=False,
        training=torch.onnx.TrainingMode.TRAINING,
        input_names=["input", "labels", *names],
        output_names=["output", "loss"],
        dynamic_axes={name: {0: "batch_size"} for name in ("input", "labels", "output")},
        **options,
    )
    wanted = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    builder = GradientGraphBuilder(exported.getvalue(), {"loss"}, wanted, "loss")
    builder.build()
    builder.save(os.fspath(gradient_graph_path))
