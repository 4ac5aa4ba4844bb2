"""DataParallel: one module in several processes, each with its part of the batch."""

from __future__ import annotations

from typing import Any

import numpy as np

from ortrain import _ortrain
from ortrain._support.signatures import StepSignature
from ortrain._support.values import StrPath, give_back
from ortrain.api.generated.checkpoint_state import CheckpointState
from ortrain.api.generated.module import Module
from ortrain.api.generated.optimizer import Optimizer
from ortrain.api.generated.run_options import RunOptions
from ortrain.distributed.communicator import DEFAULT_TIMEOUT, Communicator
from ortrain.distributed.exchange import GradientExchange, GradientSource, Traffic, samples_of
from ortrain.errors import OrtrainError


class DataParallel:
    """Trains one module in several processes, each of which has a part of the batch.

    Gradients are averaged over the ranks before an optimizer step, in proportion to the numbers of samples, so that the
    step is that of one process with the joined batch. All ranks then hold the same bits. Clipping, and the handling of
    gradients that are not finite, apply to the averaged gradient and are the same on all ranks.
    """

    def __init__(
        self,
        module: Module,
        optimizer: Optimizer,
        comm: Any = None,
        *,
        accumulated: int | None = None,
        wire: str = "float32",
        chunk_bytes: int = 1 << 20,
        timeout: float = DEFAULT_TIMEOUT,
    ) -> None:
        """Join the other ranks. All ranks get the parameters of rank 0.

        Parameters
        ----------
        module : Module
            The module. All ranks have the same model.
        optimizer : Optimizer
            Its optimizer.
        comm : mpi4py.MPI.Comm or Communicator, optional
            The processes; all by default.
        accumulated : int, optional
            The number of train steps before each optimizer step. If it is given, the last of these steps sends gradients while
            its backward pass computes others. With None, :meth:`step` sends all gradients.
        wire : {"float32", "bfloat16"}
            The type in which gradients travel. With bfloat16 they take half the bytes and are rounded twice; they are
            added up in float32.
        chunk_bytes : int, default 1048576
            The minimum size of the parts in which gradients are sent. Whole gradients are not divided.
        timeout : float, default 300
            Seconds after which a rank that does not answer counts as lost.

        Raises
        ------
        OrtrainError
            If the ranks have different models, or another ``wire``, ``chunk_bytes`` or ``accumulated``.
        LostRankError
            If a rank does not answer.
        """
        self.module = module
        self.optimizer = optimizer
        self.ranks = comm if isinstance(comm, Communicator) else Communicator(comm, timeout)
        names = [
            (name, parameter.data.shape, parameter.data.dtype.str)
            for name, parameter in module._state.parameters
            if parameter.requires_grad
        ]
        self.ranks.expect_equal(names, "the list of trainable parameters")
        # With different values, a rank would wait for parts of gradients that the others do not send.
        for what, value in (("wire", wire), ("chunk_bytes", chunk_bytes), ("accumulated", accumulated)):
            self.ranks.expect_equal(value, what)
        values = module.get_contiguous_parameters(False).numpy()
        self.ranks.broadcast(values, "sending the parameters")
        module.copy_buffer_to_parameters(values, False)
        if accumulated is not None and accumulated < 1:
            raise ValueError(f"accumulated: expected 1 or more, found {accumulated}")
        self._accumulated = accumulated
        self._exchange = GradientExchange(
            self.ranks,
            GradientSource(module.copy_gradients_to_buffer, module.lazy_reset_grad),
            [int(np.prod(shape)) for _, shape, _ in names],
            np.float64 if any(dtype == "<f8" for _, _, dtype in names) else np.float32,
            wire,
            chunk_bytes,
        )
        self._signature: StepSignature | None = None

    @property
    def traffic(self) -> Traffic:
        """The cost of the exchange of gradients for this process so far."""
        return self._exchange.traffic

    def __call__(self, *user_inputs: Any, weight: float | None = None) -> Any:
        """Run a train step or an eval step on this rank's part of the batch.

        Parameters
        ----------
        *user_inputs
            The inputs of the module.
        weight : float, optional
            The number of samples of which the loss is the mean; the first dimension of the first input by default. A
            rank without samples passes any inputs with weight 0, so that all ranks run equally many steps.

        Returns
        -------
        object
            The outputs of the module, for this rank's part.

        Raises
        ------
        OrtrainError
            If as many train steps as were stated have run, so that :meth:`step` is due.
        """
        if not self.module.training:
            return self.ranks.guarded(self.module, *user_inputs)
        return self.ranks.guarded(self._train, user_inputs, weight)

    def _train(self, user_inputs: tuple[Any, ...], weight: float | None) -> Any:
        if weight is None:
            weight = samples_of(user_inputs[0]) if user_inputs else 1.0
        sends = self._exchange.runs + 1 == self._accumulated
        return self._exchange.run(lambda options: self._run(user_inputs, options), weight, sends)

    def _run(self, user_inputs: tuple[Any, ...], options: RunOptions | None) -> Any:
        if options is None:
            return self.module(*user_inputs)
        handle = self.module._handle
        if self._signature is None:
            names = self.module.input_names(), self.module.output_names()
            self._signature = StepSignature.of(handle, True, *names)
        step = self._signature
        outputs = _ortrain.train_step(handle, options._handle, step.take(user_inputs), step.output_count)
        return give_back(outputs, user_inputs)

    def step(self) -> None:
        """Average the gradients over all ranks and take an optimizer step.

        Raises
        ------
        LostRankError
            If another rank has ended, failed or does not answer.
        OrtrainError
            If no train step has run, or a gradient is not finite; then no rank takes the step.
        """
        self.ranks.guarded(self._step)

    def _step(self) -> None:
        if self._exchange.runs == 0:
            raise OrtrainError("optimizer step: there are no gradients; run a train step first")
        self.module.copy_buffer_to_gradients(self._exchange.average())
        self.optimizer.step()

    def lazy_reset_grad(self) -> None:
        """Make the next train step start from zero gradients."""
        self._exchange.discard()
        self.module.lazy_reset_grad()

    def mean(self, value: float, weight: float = 1.0) -> float:
        """Return the mean of a number over all ranks, weighted by samples, such as the loss.

        Parameters
        ----------
        value : float
            The number of this rank.
        weight : float, default 1
            Its number of samples.
        """
        pair = self.ranks.sum(np.array([float(value) * weight, weight]), "averaging a value")
        return float(pair[0] / pair[1])

    def save_checkpoint(self, checkpoint_uri: StrPath, include_optimizer_state: bool = False) -> None:
        """Write a checkpoint on rank 0. Every rank calls this, and no rank continues before the file is complete.

        Parameters
        ----------
        checkpoint_uri : path
            The file; an existing file is replaced atomically.
        include_optimizer_state : bool, default False
            Whether to add the state of the optimizer, which resuming needs.
        """
        if self.ranks.rank == 0:
            state = self.module._state
            self.ranks.guarded(
                CheckpointState.save_checkpoint, state, checkpoint_uri, include_optimizer_state
            )
        self.ranks.barrier("saving a checkpoint")
