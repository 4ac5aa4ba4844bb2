"""A session over the artifacts in a folder, for tests that train."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from ortrain import SessionOptions
from ortrain.api import CheckpointState, Module, Optimizer

Array = np.ndarray[Any, Any]


def options_of(config: Mapping[str, str]) -> SessionOptions:
    """Return session options with these configuration entries."""
    options = SessionOptions()
    for key, value in config.items():
        options.add_session_config_entry(key, value)
    return options


class Training:
    """State, module and optimizer.

    Parameters
    ----------
    config : configuration entries of the session. state : the state to train; by default that of the file `checkpoint`
    in the folder.
    """

    def __init__(
        self,
        folder: pathlib.Path,
        config: Mapping[str, str] | None = None,
        state: CheckpointState | None = None,
        checkpoint: str | pathlib.Path = "checkpoint",
    ) -> None:
        self.state = state or CheckpointState.load_checkpoint(folder / checkpoint)
        files = (folder / "training_model.onnx", self.state, folder / "eval_model.onnx")
        self.module = Module(*files, session_options=options_of(config or {}))
        self.optimizer = Optimizer(folder / "optimizer_model.onnx", self.module)
        self.module.train()

    def loss(self, *inputs: Any) -> float:
        """Return the first output of a step in the module's mode."""
        result = self.module(*inputs)
        return float(np.asarray(result[0] if isinstance(result, (tuple, list)) else result).ravel()[0])

    def step(self, *inputs: Any) -> float:
        """Take one step of training and return its loss."""
        self.module.train()
        loss = self.loss(*inputs)
        self.optimizer.step()
        self.module.lazy_reset_grad()
        return loss

    def evaluate(self, *inputs: Any) -> float:
        """Return the loss of the eval model."""
        self.module.eval()
        return self.loss(*inputs)

    def parameters(self) -> dict[str, Array]:
        return {name: p.data.copy() for name, p in self.state.parameters}

    def gradients(self) -> dict[str, Array]:
        return {name: p.grad.copy() for name, p in self.state.parameters if p.requires_grad}
