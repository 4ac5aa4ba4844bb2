"""Predictions of a model with the trained parameters, batch by batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Any

import numpy as np
import numpy.typing as npt

from ortrain.inference_session import InferenceSession
from ortrain.trainer.checks import Form, is_frame, is_rows
from ortrain.trainer.data import Inputs, columns_of, prefetched, source_of

Array = npt.NDArray[Any]


class _PredictorInputs(Inputs):
    """The inputs of an exported model. They are also found in batches with all inputs of the training model."""

    def __init__(self, known: Sequence[str], names: Sequence[str], forms: Sequence[Form]) -> None:
        super().__init__(
            names, [form.dtype for form in forms], [form.shape for form in forms], has_target=False
        )
        self._known = list(known)

    def in_order(self, batch: Any) -> list[Any]:
        if isinstance(batch, (tuple, list)) and len(batch) == len(self._known) != len(self.names):
            batch = dict(zip(self._known, batch, strict=True))
        return super().in_order(batch)


def predict(session: InferenceSession, known: Inputs, data: Any, batch_size: int, seed: int) -> Any:
    """Return the outputs of a session for data; ``known`` are the inputs of the training model."""
    wanted = [argument.name for argument in session.get_inputs()]
    forms = {form.name: form for form in known.forms}
    inputs = _PredictorInputs(known.names, wanted, [forms.get(name, Form(name, None)) for name in wanted])
    inputs.columns = known.columns
    if hasattr(data, "__dlpack__") or is_frame(data) or is_rows(data, inputs.forms[0]):
        data = (data,)
    if isinstance(data, (tuple, Mapping)):
        data = tuple(columns_of(data, inputs))
    source = source_of(data, inputs, batch_size, False, seed)
    parts: list[list[Array]] = []
    with closing(prefetched(source.batches(0, 0), source.prefetch)) as batches:
        for batch in batches:
            parts.append(session.run(None, dict(zip(wanted, batch, strict=True))))
    if not parts:
        raise ValueError("data: expected at least one batch, found none")
    joined = tuple(
        np.concatenate(column) if column[0].ndim else np.stack(column) for column in zip(*parts, strict=True)
    )
    return joined[0] if len(joined) == 1 else joined
