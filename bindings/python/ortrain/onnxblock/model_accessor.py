"""The model that blocks work on, and the context managers that register it."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import onnx

from ortrain import _graph
from ortrain.options import SessionOptions


class ModelAccessor:
    """Holds the model that blocks extend while a :func:`base` or :func:`empty_base` context is open.

    Parameters
    ----------
    model : onnx.ModelProto
        The model; blocks change it in place.
    model_path : str or None
        The file it was read from, if any.
    """

    def __init__(self, model: onnx.ModelProto, model_path: str | None = None) -> None:
        self._model = model
        self._path = model_path
        self._names_given = 0
        self.depth = 0  # nesting depth of the blocks being built

    @property
    def model(self) -> onnx.ModelProto:
        """The model with everything that blocks have added so far."""
        return self._model

    @property
    def path(self) -> str:
        """The path that the model was read from.

        Raises
        ------
        RuntimeError
            When the model was not registered with a path.
        """
        if self._path is None:
            raise RuntimeError(
                "the base model was registered without a path; "
                "give it as the second argument of onnxblock.base"
            )
        return self._path

    @property
    def has_path(self) -> bool:
        """Whether the model was registered with a path."""
        return self._path is not None

    def replace(self, model: onnx.ModelProto) -> None:
        """Replace the contents of the registered model by ``model``; the object that users hold stays the same."""
        if model is not self._model:
            self._model.CopyFrom(model)

    def new_name(self, token: str) -> str:
        """Return a name that is new to the model; the same blocks in the same order get the same names."""
        taken = _graph.names_in_use(self._model)
        while True:
            self._names_given += 1
            name = f"onnx::{token}::{self._names_given}"
            if name not in taken:
                return name


_current: ContextVar[ModelAccessor | None] = ContextVar("ortrain_base_model", default=None)


def __getattr__(name: str) -> ModelAccessor | None:
    """Return the registered model under the name that blocks written for onnxruntime use."""
    if name == "_GLOBAL_ACCESSOR":
        return _current.get()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def current() -> ModelAccessor:
    """Return the registered model.

    Raises
    ------
    RuntimeError
        Outside :func:`base` and :func:`empty_base`.
    """
    accessor = _current.get()
    if accessor is None:
        raise RuntimeError(
            "no base model is registered; build blocks inside 'with onnxblock.base(model):' "
            "or 'with onnxblock.empty_base():'"
        )
    return accessor


@contextmanager
def _registered(accessor: ModelAccessor) -> Iterator[ModelAccessor]:
    if _current.get() is not None:
        raise RuntimeError("a base model is already registered; contexts cannot be nested")
    token = _current.set(accessor)
    try:
        yield accessor
    finally:
        _current.reset(token)


@contextmanager
def base(model: onnx.ModelProto, model_path: str | os.PathLike[str] | None = None) -> Iterator[ModelAccessor]:
    """Register a copy of a model as the one that blocks extend.

    Parameters
    ----------
    model : onnx.ModelProto
        The model to start from. It is not changed.
    model_path : str or os.PathLike, optional
        The file it was read from.

    Yields
    ------
    ModelAccessor
        Its ``model`` is the copy, with everything that blocks add.

    Raises
    ------
    TypeError
        When ``model`` is not a ``ModelProto``.
    RuntimeError
        Inside another such context.
    """
    if not isinstance(model, onnx.ModelProto):
        raise TypeError(
            f"the base model must be an onnx.ModelProto, not {type(model).__name__}; "
            "onnxblock.empty_base starts from nothing"
        )
    path = None if model_path is None else os.fspath(model_path)
    with _registered(ModelAccessor(copy.deepcopy(model), path)) as accessor:
        yield accessor


@contextmanager
def empty_base(opset_version: int | None = None, ir_version: int | None = None) -> Iterator[ModelAccessor]:
    """Register an empty model as the one that blocks extend.

    Parameters
    ----------
    opset_version : int, optional
        Opset of the ONNX domain. By default, the newest that the installed ``onnx`` knows.
    ir_version : int, optional
        IR version of the model. By default, the lowest that the opset allows, so that old readers can read it.

    Yields
    ------
    ModelAccessor
        Its ``model`` is the new model.

    Raises
    ------
    RuntimeError
        Inside another such context.
    """
    version = opset_version if opset_version is not None else onnx.defs.onnx_opset_version()
    opsets = [onnx.helper.make_opsetid("com.microsoft", 1), onnx.helper.make_opsetid("", version)]
    model = onnx.ModelProto()
    model.ir_version = ir_version or onnx.helper.find_min_ir_version_for(opsets[1:], ignore_unknown=True)
    model.producer_name = "ortrain"
    model.graph.name = "graph"
    model.opset_import.extend(opsets)
    with _registered(ModelAccessor(model)) as accessor:
        yield accessor


def load_custom_op_library(path: str | os.PathLike[str] | None) -> None:
    """Load a library of custom operators, so that a library that sessions cannot load is rejected now.

    Raises
    ------
    OrtrainError
        When it cannot be loaded.
    """
    if path is not None:
        SessionOptions().register_custom_ops_library(os.fspath(path))


_library: ContextVar[str | None] = ContextVar("ortrain_custom_op_library", default=None)


@contextmanager
def custom_op_library(custom_op_library_path: str | os.PathLike[str]) -> Iterator[str]:
    """Register a library of custom operators that the models of blocks use.

    The gradients of its operators are those that were given to :func:`ortrain.register_gradient`.

    Parameters
    ----------
    custom_op_library_path : str or os.PathLike
        The library.

    Yields
    ------
    str
        Its path.

    Raises
    ------
    RuntimeError
        Inside another such context.
    OrtrainError
        When the library cannot be loaded.
    """
    path = os.fspath(custom_op_library_path)
    if _library.get() is not None:
        raise RuntimeError(
            f"the library {path!r} cannot be registered inside the context of {_library.get()!r}"
        )
    load_custom_op_library(path)
    token = _library.set(path)
    try:
        yield path
    finally:
        _library.reset(token)
