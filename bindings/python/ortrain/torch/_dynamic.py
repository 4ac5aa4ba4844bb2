"""The dimensions of a network's inputs that may differ between runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import onnx
import torch

from ortrain._support.counts import counted
from ortrain.errors import OrtrainError
from ortrain.inference_session import InferenceSession
from ortrain.torch._call import Call, tensors_in
from ortrain.torch._state import array_of

DynamicShapes = list[Mapping[int, Any] | None]
"""For each tensor the dimensions that may differ: names, or dimensions of ``torch.export``."""


def dynamic_shapes(call: Call, dynamic: str | Mapping[str, Any] | Sequence[Any] | None) -> DynamicShapes:
    """Return the dynamic dimensions of each tensor. Dynamic dimensions of 1 are doubled, because exporters treat 1 as fixed."""
    shapes: DynamicShapes
    if dynamic is None:
        shapes = [None] * len(call.tensors)
    elif dynamic == "batch":
        first = next((tensor.shape[0] for tensor in call.tensors if tensor.ndim), None)
        shapes = [{0: "batch"} if t.ndim and t.shape[0] == first else None for t in call.tensors]
    elif isinstance(dynamic, str):
        raise ValueError(f'dynamic: expected "batch", None or dynamic shapes by argument, found {dynamic!r}')
    else:
        shapes = _given_shapes(call, dynamic)
    for number, shape in enumerate(shapes):
        for axis in shape or ():
            if call.tensors[number].shape[axis] == 1:
                call.tensors[number] = torch.cat([call.tensors[number]] * 2, dim=axis)
    return shapes


def _given_shapes(call: Call, dynamic: Mapping[str, Any] | Sequence[Any]) -> DynamicShapes:
    if not isinstance(dynamic, Mapping):
        if len(dynamic) > len(call.names):
            raise ValueError(
                f"dynamic: expected at most {counted(len(call.names), 'shape')}, found {len(dynamic)}"
            )
        dynamic = dict(zip(call.names, dynamic, strict=False))
    unknown = [name for name in dynamic if name not in call.names]
    if unknown:
        raise ValueError(
            f"dynamic: there is no tensor {', '.join(unknown)} among the arguments: {', '.join(call.names)}"
        )
    shapes: DynamicShapes = []
    for name, tensor in zip(call.names, call.tensors, strict=True):
        given = dynamic.get(name)
        entries = given.items() if isinstance(given, Mapping) else enumerate(given or ())
        shape = {axis: dim for axis, dim in entries if dim is not None}
        wrong = [axis for axis in shape if not isinstance(axis, int) or not 0 <= axis < tensor.ndim]
        if wrong:
            raise ValueError(f"dynamic: {name} has {counted(tensor.ndim, 'dimension')}, none is {wrong[0]!r}")
        shapes.append(shape or None)
    return shapes


def check_dynamic(model: onnx.ModelProto, module: Any, call: Call, shapes: DynamicShapes) -> None:
    """Check that a model takes other sizes in its dynamic dimensions, by running it with such sizes.

    The older exporter records the operations for the given arguments, and declares dimensions dynamic even if the network's
    code treats them as fixed.

    Raises
    ------
    ValueError
        When the network takes no other sizes, or takes sizes that the model does not take, or when the model returns other
        shapes.
    """
    tensors, expected = _other_sizes(module, call, shapes)
    session = InferenceSession(model.SerializeToString())
    sizes = _described(call, tensors)
    try:
        found = _run(session, call, tensors)
    except OrtrainError as error:
        raise ValueError(f"the network runs with {sizes}, the exported model does not: {error}") from None
    if found != expected:
        raise ValueError(f"with {sizes} the network returns shapes {expected}, the exported model {found}")


def _other_sizes(module: Any, call: Call, shapes: DynamicShapes) -> tuple[list[Any], list[list[int]]]:
    """Return arguments with other sizes in their dynamic dimensions, and the shapes of the network's results.

    The sizes are tried twice as large, for networks that need multiples of a number, and smaller by one, for arguments that
    have the maximum length.
    """
    changes: tuple[Callable[[Any, int], Any], ...] = (
        lambda tensor, axis: torch.cat([tensor] * 2, dim=axis),
        lambda tensor, axis: tensor.narrow(axis, 0, tensor.shape[axis] - 1),
    )
    reasons = []
    for changed in changes:
        tensors = list(call.tensors)
        for number, shape in enumerate(shapes):
            for axis in shape or ():
                tensors[number] = changed(tensors[number], axis)
        try:
            with torch.no_grad():
                results = tensors_in(call.apply(module, [tensor.clone() for tensor in tensors]))
        except Exception as error:  # networks may raise any exception
            reasons.append(f"{_described(call, tensors)}: {error}")
            continue
        return tensors, [list(result.shape) for result in results.values()]
    raise ValueError(f"the network does not run with other sizes; with {reasons[0]}")


def _described(call: Call, tensors: Sequence[Any]) -> str:
    return ", ".join(f"{n} of shape {list(t.shape)}" for n, t in zip(call.names, tensors, strict=True))


def _run(session: InferenceSession, call: Call, tensors: Sequence[Any]) -> list[list[int]]:
    """Return the shapes of a model's results."""
    inputs = {value.name for value in session.get_inputs()}
    feeds = {n: array_of(t) for n, t in zip(call.names, tensors, strict=True) if n in inputs}
    return [list(result.shape) for result in session.run(None, feeds)]
