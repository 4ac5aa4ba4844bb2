"""A loss that weights rows, as a block. It needs onnx."""

from __future__ import annotations

import onnx

from ortrain import _graph, onnxblock
from ortrain.trainer.weighting import WEIGHTS


class WeightedLoss(onnxblock.Block):
    """The weighted mean of the rows' losses, ``sum(w · mean(loss)) / sum(w)``, with the weights as an input of each step.

    Parameters
    ----------
    loss : onnxblock.Block
        A loss without a reduction, so that it has values of shape ``[batch, ...]``.
    """

    def __init__(self, loss: onnxblock.Block) -> None:
        super().__init__()
        self._loss = loss
        self._mean = onnxblock.blocks.ReduceMean(keepdims=False)
        self._multiply, self._divide = onnxblock.blocks.Mul(), onnxblock.blocks.Div()

    def build(self, output_name: str) -> str:
        """Add the loss, and before its target the input ``sample_weight``, ``[batch]``."""
        info = _graph.find_value_info(self.base, output_name)
        if info is None:
            raise LookupError(
                f"sample_weight: the model does not declare the type and shape of {output_name!r}"
            )
        batch = info.type.tensor_type.shape.dim[:1]
        dims = [dim.dim_param or (dim.dim_value if dim.HasField("dim_value") else None) for dim in batch] or [
            None
        ]
        kind = _graph.element_type(self.base, output_name)
        self.base.graph.input.append(onnx.helper.make_tensor_value_info(WEIGHTS, kind, dims))
        rows = self._add("Flatten", [self._loss(output_name)], axis=1)
        weights = self._add("Flatten", [WEIGHTS], axis=1)
        # Both means are over all elements, so their quotient is the weighted mean of the rows' means.
        return str(self._divide(self._mean(self._multiply(rows, weights)), self._mean(weights)))
