"""Blocks that extend an ONNX model: losses, arithmetic, optimizers, training models.

A block adds nodes to the model that the context manager :func:`base` (or :func:`empty_base`) registered, and
returns the names of the values that it produces. Blocks are composed by calling them with such names::

    class WeightedLoss(onnxblock.TrainingBlock):
        def __init__(self):
            super().__init__()
            self.mse, self.l1 = onnxblock.loss.MSELoss(), onnxblock.loss.L1Loss()
            self.add = onnxblock.blocks.Add()

        def build(self, prediction):
            return self.add(self.mse(prediction), self.l1(prediction))

    block = WeightedLoss()
    block.requires_grad("fc.weight")
    with onnxblock.base(model):
        block("prediction")
    training_model, eval_model = block.to_model_proto()

This package needs ``onnx``; training on a device does not.
"""

from ortrain.onnxblock import blocks, loss, optim
from ortrain.onnxblock._training import ForwardBlock, TrainingBlock
from ortrain.onnxblock.blocks import Block
from ortrain.onnxblock.checkpoint_utils import load_checkpoint_to_model, save_checkpoint
from ortrain.onnxblock.model_accessor import ModelAccessor, base, custom_op_library, empty_base

__all__ = [
    "Block",
    "ForwardBlock",
    "ModelAccessor",
    "TrainingBlock",
    "base",
    "blocks",
    "custom_op_library",
    "empty_base",
    "load_checkpoint_to_model",
    "loss",
    "optim",
    "save_checkpoint",
]
