"""InferenceSession: the generated class, with further members of onnxruntime's class."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Mapping, MutableSequence, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from ortrain import _ortrain
from ortrain._ortrain import OrtValue
from ortrain._support.checks import check_providers
from ortrain._support.values import StrPath
from ortrain.api.generated import inference_session
from ortrain.devices import (
    CPU_DEVICE,
    CPU_MEMORY,
    OrtDevice,
    OrtEpAssignedNode,
    OrtEpAssignedSubgraph,
    OrtEpDevice,
    OrtMemoryInfo,
    check_cpu,
)
from ortrain.errors import InvalidArgumentError, OrtErrorCode
from ortrain.io_binding import Bound, IOBinding
from ortrain.options import RunOptions, SessionOptions


@dataclass(frozen=True)
class ModelMetadata:
    """The metadata of a model."""

    producer_name: str
    """Name of the program that wrote the model."""
    graph_name: str
    """Name of its graph."""
    graph_description: str
    """Description of its graph."""
    domain: str
    """Domain of the model."""
    description: str
    """Description of the model."""
    version: int
    """Version of the model."""
    custom_metadata_map: dict[str, str]
    """The entries of ``metadata_props``."""


class InferenceSession(inference_session.InferenceSession):
    """Runs a model forward.

    The members have the same names and meanings as those of onnxruntime's class. The model is compiled once per set of
    input shapes; later runs with the same shapes need no compilation. Runs of one session are serialized; runs of
    different sessions may overlap.
    """

    def __init__(
        self,
        path_or_bytes: StrPath | bytes,
        sess_options: SessionOptions | None = None,
        providers: Sequence[str | tuple[str, Mapping[str, Any]]] | None = None,
        provider_options: Sequence[Mapping[str, Any]] | None = None,
        **kwargs: Any,
    ) -> None:
        """Create a session from a model.

        Parameters
        ----------
        path_or_bytes : path or bytes
            Path of an ONNX file or of a file in ORT format, or its contents. External data is looked up next to the file.
        sess_options : SessionOptions, optional
            Settings, copied.
        providers : sequence, optional
            Where to run: names, or pairs of a name and options, in order of preference. Only CPUExecutionProvider
            exists; others are ignored with a warning.
        provider_options : sequence of mappings, optional
            Options of the providers, one mapping per provider. The CPU has none.
        **kwargs
            Further arguments of onnxruntime: ``enable_fallback``, ``disabled_optimizers`` and
            ``read_config_from_model``. They have no effect: there is one provider, and the passes of the library have
            other names.

        Raises
        ------
        TypeError
            If the model is neither a path nor bytes, or a keyword is unknown.
        FileNotFoundError
            If there is no such file.
        InvalidModelError
            If the file or the bytes are not a valid ONNX model.
        NotImplementedInOrtrainError
            If the model has operators without a kernel; the message names all of them.
        """
        if not isinstance(path_or_bytes, (str, bytes, os.PathLike)):
            raise TypeError(
                f"expected the path of a model or its bytes, found {type(path_or_bytes).__name__}"
            )
        known = {"enable_fallback", "disabled_optimizers", "read_config_from_model"}
        if unknown := sorted(set(kwargs) - known):
            raise TypeError(f"unknown keyword {unknown[0]!r}, expected one of {', '.join(sorted(known))}")
        check_providers(providers, provider_options)
        self._set_up(sess_options)
        super().__init__(path_or_bytes, self._sess_options)

    def _set_up(self, sess_options: SessionOptions | None) -> None:
        """Set the attributes of a session besides its handle."""
        self._sess_options = sess_options if sess_options is not None else SessionOptions()
        self._kept = list(self._sess_options._kept)
        self._worker: ThreadPoolExecutor | None = None

    def get_session_options(self) -> SessionOptions:
        """Return the settings that the session was created with. Changing them has no effect on it."""
        return self._sess_options

    def get_modelmeta(self) -> ModelMetadata:
        """Return the metadata of the model."""
        return ModelMetadata(**_ortrain.model_metadata(self._handle))

    # ---- providers ----

    def get_providers(self) -> list[str]:
        """Return the names of the execution providers that the session runs on."""
        return _ortrain.available_providers()

    def get_provider_options(self) -> dict[str, dict[str, str]]:
        """Return the options of each of these providers. The CPU has none."""
        return {name: {} for name in self.get_providers()}

    def set_providers(
        self,
        providers: Sequence[str | tuple[str, Mapping[str, Any]]] | None = None,
        provider_options: Sequence[Mapping[str, Any]] | None = None,
    ) -> None:
        """Choose where to run.

        Parameters
        ----------
        providers : sequence, optional
            Names, or pairs of a name and options. Only CPUExecutionProvider exists, so the session does not change;
            others are ignored with a warning.
        provider_options : sequence of mappings, optional
            Options of the providers, one mapping per provider.

        Raises
        ------
        InvalidArgumentError
            If there are not as many options as providers.
        """
        check_providers(providers, provider_options)

    def enable_fallback(self) -> None:
        """Do nothing: there is no other provider that could run what one rejects."""

    def disable_fallback(self) -> None:
        """Do nothing: there is no other provider that could run what one rejects."""

    def get_provider_graph_assignment_info(self) -> list[OrtEpAssignedSubgraph]:
        """Return which execution provider runs which nodes.

        Raises
        ------
        OrtrainError
            If the session was created without the config entry ``session.record_ep_graph_assignment_info`` = ``1``.
        """
        return [
            OrtEpAssignedSubgraph(provider, [OrtEpAssignedNode(*node) for node in nodes])
            for provider, nodes in _ortrain.graph_assignment(self._handle)
        ]

    def set_ep_dynamic_options(self, options: Mapping[str, str]) -> None:
        """Change options of execution providers between runs. The CPU has none.

        Parameters
        ----------
        options : mapping
            The options.

        Raises
        ------
        InvalidArgumentError
            If there are none.
        """
        if not options:
            message = "expected at least one option, found none"
            raise InvalidArgumentError(message, OrtErrorCode.ORT_INVALID_ARGUMENT)

    def release_captured_graph(self, graph_annotation_id: int = 0) -> None:
        """Do nothing: the CPU captures no graphs."""

    # ---- devices ----

    def get_input_memory_infos(self) -> list[OrtMemoryInfo]:
        """Return where each input is expected: in the memory of the CPU."""
        return [CPU_MEMORY for _ in self.get_inputs()]

    def get_output_memory_infos(self) -> list[OrtMemoryInfo]:
        """Return where each output will be: in the memory of the CPU."""
        return [CPU_MEMORY for _ in self.get_outputs()]

    def get_input_epdevices(self) -> list[OrtEpDevice]:
        """Return the device of each input, which is the CPU."""
        return [CPU_DEVICE for _ in self.get_inputs()]

    def create_ortvalue_from_shape_and_type(
        self,
        shape: Sequence[int],
        element_type: Any,
        device_type: str,
        device_id: int = 0,
        vendor_id: int = -1,
    ) -> OrtValue:
        """Return a tensor that owns its memory; the elements are uninitialized.

        Parameters
        ----------
        shape : sequence of int
            Its dimensions.
        element_type : type or int
            A NumPy type, or a value of ONNX's TensorProto.DataType.
        device_type, device_id, vendor_id
            The CPU.

        Raises
        ------
        InvalidArgumentError
            If there is no such device.
        """
        return OrtValue.ortvalue_from_shape_and_type(shape, element_type, device_type, device_id, vendor_id)

    # ---- bindings ----

    def _new_binding(self) -> Bound:
        """Return a new binding for this session. Subclasses return another class."""
        return _ortrain.Binding(self._handle)

    def io_binding(self) -> IOBinding:
        """Return a binding, to which inputs and outputs are bound before :meth:`run_with_iobinding`."""
        return IOBinding(self)

    def run_with_iobinding(self, iobinding: IOBinding, run_options: RunOptions | None = None) -> None:
        """Run the model on bound inputs for bound outputs.

        Parameters
        ----------
        iobinding : IOBinding
            A binding of this session.
        run_options : RunOptions, optional
            Settings for this run.

        Raises
        ------
        InvalidArgumentError
            If no output is bound, an input that the outputs need is not bound, or a type or shape is wrong.
        OrtrainError
            If a node fails or the run was terminated.
        """
        self._run_bound(iobinding._iobinding._bound, run_options)

    def _run_bound(self, bound: Any, run_options: RunOptions | None) -> None:
        bound.run(self._handle, run_options._handle if run_options is not None else None)

    def run_with_ortvaluevector(
        self,
        run_options: RunOptions | None,
        feed_names: Sequence[str],
        feeds: Sequence[OrtValue],
        fetch_names: Sequence[str],
        fetches: MutableSequence[OrtValue],
        fetch_devices: Sequence[OrtDevice],
    ) -> None:
        """Run the model on lists of values.

        Parameters
        ----------
        run_options : RunOptions or None
            Settings for this run.
        feed_names, feeds : sequences
            Names and values of the inputs.
        fetch_names : sequence of str
            Names of the requested outputs.
        fetches : list of OrtValue
            Receives the outputs. They are appended to an empty list, or written into the tensors of the list, one per
            name.
        fetch_devices : sequence of OrtDevice
            Where the outputs are to be; the CPU for each.

        Raises
        ------
        ValueError
            If names and values differ in number.
        """
        for device in fetch_devices:
            check_cpu(device)
        outputs = dict(zip(fetch_names, fetches, strict=True)) if fetches else {}
        values = dict(zip(feed_names, feeds, strict=True))
        made = self.run_with_ort_values(fetch_names, values, run_options, outputs)
        fetches[:] = made

    # ---- runs in the background ----

    def run_async(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        callback: Callable[[list[Any], Any, str], None],
        user_data: Any,
        run_options: RunOptions | None = None,
    ) -> None:
        """Start a run and return at once; a function receives the outputs.

        A thread of the session executes the runs one after another. Python waits for them before it exits.

        Parameters
        ----------
        output_names : sequence of str or None
            Names of the requested outputs; None for all of them.
        input_feed : mapping
            A value for each input, by name. Arrays are read when the run starts, so they must not change before.
        callback : callable
            Called as ``callback(outputs, user_data, error)``. On failure the list of outputs is empty and `error` says
            why; on success `error` is empty. An exception that it raises is reported like an exception of a thread.
        user_data : object
            Passed to the function.
        run_options : RunOptions, optional
            Settings for this run.
        """
        if self._worker is None:
            self._worker = ThreadPoolExecutor(1, "ortrain-run")
        self._worker.submit(self._run_for, callback, user_data, output_names, dict(input_feed), run_options)

    def _run_for(
        self,
        callback: Callable[[list[Any], Any, str], None],
        user_data: Any,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        run_options: RunOptions | None,
    ) -> None:
        """Run the model and hand the outputs to a function."""
        try:
            outputs, error = self.run(output_names, input_feed, run_options), ""
        except Exception as failure:  # the function gets the error as an argument
            outputs, error = [], str(failure)
        try:
            callback(outputs, user_data, error)
        except Exception:
            threading.excepthook(threading.ExceptHookArgs((*sys.exc_info(), threading.current_thread())))
