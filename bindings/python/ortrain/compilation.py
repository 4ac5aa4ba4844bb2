"""Compiling models ahead of time: reading a model, and writing it for sessions to load."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ortrain import _ortrain
from ortrain._ortrain import OrtValue
from ortrain._support.generated.enums import GraphOptimizationLevel, OrtCompileApiFlags
from ortrain._support.values import StrPath
from ortrain.errors import InvalidArgumentError, OrtErrorCode
from ortrain.options import SessionOptions


@dataclass(frozen=True)
class OrtExternalInitializerInfo:
    """The location of an initializer's data in a file."""

    filepath: str
    """The file, relative to the folder of the model."""
    file_offset: int
    """The offset of the data in the file."""
    byte_size: int
    """The size of the data."""


LocateInitializer = Callable[
    [str, OrtValue, OrtExternalInitializerInfo | None], OrtExternalInitializerInfo | None
]


class ModelCompiler:
    """Writes a model for sessions to load.

    The CPU compiles no nodes, so the model is the same, with functions inlined and, from level ``ORT_ENABLE_BASIC``
    on, without redundant nodes.
    """

    def __init__(
        self,
        sess_options: SessionOptions,
        input_model_path_or_bytes: StrPath | bytes,
        embed_compiled_data_into_model: bool = False,
        external_initializers_file_path: StrPath | None = None,
        external_initializers_size_threshold: int = 1024,
        flags: int = OrtCompileApiFlags.NONE,
        graph_optimization_level: GraphOptimizationLevel = GraphOptimizationLevel.ORT_DISABLE_ALL,
        get_initializer_location_func: LocateInitializer | None = None,
    ) -> None:
        """Choose the model, and how it is compiled.

        Parameters
        ----------
        sess_options : SessionOptions
            Registered operators, limits, and values of initializers.
        input_model_path_or_bytes : path or bytes
            The model.
        embed_compiled_data_into_model : bool
            Accepted for compatibility: there are no compiled data.
        external_initializers_file_path : path, optional
            A file for large initializers, relative to the folder of the output.
        external_initializers_size_threshold : int
            Initializers with more bytes are stored in that file.
        flags : OrtCompileApiFlags
            Conditions that are treated as errors.
        graph_optimization_level : GraphOptimizationLevel
            How much the model is optimized.
        get_initializer_location_func : callable, optional
            Called with name, value and present place of each initializer. It returns where it stored the data, or None
            to have the data stored in the model.

        Raises
        ------
        FileNotFoundError
            If there is no such file.
        """
        if not isinstance(input_model_path_or_bytes, bytes) and not Path(input_model_path_or_bytes).exists():
            raise FileNotFoundError(f"there is no model {os.fspath(input_model_path_or_bytes)!r}")
        self._options = sess_options
        self._model = input_model_path_or_bytes
        self._weights = external_initializers_file_path
        self._threshold = external_initializers_size_threshold
        self._flags = int(flags)
        self._level = int(graph_optimization_level)
        self._locate = get_initializer_location_func

    def set_ep_context_binary_information(self, output_directory: StrPath, model_name: str) -> None:
        """Accept a location for files of compiled nodes. Has no effect: the CPU compiles no nodes.

        Parameters
        ----------
        output_directory : path
            Not used.
        model_name : str
            Not used.

        Raises
        ------
        InvalidArgumentError
            If either is empty.
        """
        if not isinstance(model_name, str):
            raise TypeError(f"expected a name of the model that is a str, found {type(model_name).__name__}")
        for what, text in (("directory", os.fspath(output_directory)), ("name of the model", model_name)):
            if not text:
                message = f"the {what} for files of compiled nodes is empty"
                raise InvalidArgumentError(message, OrtErrorCode.ORT_INVALID_ARGUMENT)

    def compile_to_file(self, output_model_path: StrPath | None = None) -> None:
        """Write the model to a file.

        Parameters
        ----------
        output_model_path : path, optional
            The file; by default that of the input with ``_ctx`` before ``.onnx``.

        Raises
        ------
        InvalidArgumentError
            If neither the output nor the input is a path.
        OrtrainError
            If the flags require compiled nodes, or forbid replacing a file that exists.
        """
        if output_model_path is None:
            if isinstance(self._model, bytes):
                raise ValueError("the path of the output is missing, which a model in memory needs")
            source = Path(self._model)
            output_model_path = source.with_name(f"{source.stem}_ctx.onnx")
        self._compile(output_model_path)

    def compile_to_bytes(self) -> bytes:
        """Return the model as the contents of a file.

        Raises
        ------
        OrtrainError
            If the flags require compiled nodes.
        """
        made = self._compile(None)
        assert made is not None
        return made

    def compile_to_stream(self, write_function: Callable[[bytes], None]) -> None:
        """Pass the model to a function.

        Parameters
        ----------
        write_function : callable
            Receives the contents of the file.

        Raises
        ------
        OrtrainError
            If the flags require compiled nodes.
        """
        write_function(self.compile_to_bytes())

    def _compile(self, output: StrPath | None) -> bytes | None:
        return _ortrain.compile_model(
            self._options._handle,
            self._model if isinstance(self._model, bytes) else os.fspath(self._model),
            output,
            self._weights,
            self._threshold,
            self._flags,
            self._level,
            self._locate,
        )
