"""Bindings: inputs and outputs that a program binds to a session once and that runs then use without copies."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ortrain import _ortrain
from ortrain._ortrain import OrtValue
from ortrain._support.values import to_array
from ortrain.devices import OrtDevice, check_cpu


class OrtValueVector(list[OrtValue]):
    """A list of OrtValues, under onnxruntime's names."""

    def push_back(self, value: OrtValue) -> None:
        """Add a value at the end."""
        self.append(value)

    def reserve(self, size: int) -> None:
        """Do nothing; a list grows by itself."""

    def shrink_to_fit(self) -> None:
        """Do nothing; a list manages its memory itself."""

    def element_type_at(self, index: int) -> int:
        """Return the element type of a tensor, a number of ``ONNXTensorElementDataType``."""
        return self[index].element_type()

    def bool_tensor_indices(self) -> list[int]:
        """Return the indices of the tensors of booleans."""
        return [
            i for i, value in enumerate(self) if value.is_tensor() and value.data_type() == "tensor(bool)"
        ]

    def dlpack_at(self, index: int) -> Any:
        """Return a tensor as a DLPack capsule that shares its memory."""
        return self[index].__dlpack__()

    def to_dlpacks(self, to_tensor: Any) -> list[Any]:
        """Return every tensor as a DLPack capsule, or what a function makes of the capsule."""
        capsules = [value.__dlpack__() for value in self]
        return capsules if to_tensor is None else [to_tensor(capsule) for capsule in capsules]


class Bound(Protocol):
    """An object that holds bound values and runs a session on them."""

    def bind_input(self, name: str, value: OrtValue) -> None:
        """Bind a value to an input."""

    def bind_output(self, name: str, value: OrtValue | None = None) -> None:
        """Bind a value to an output; None for one that the run allocates."""

    def clear_inputs(self) -> None:
        """Remove all inputs."""

    def clear_outputs(self) -> None:
        """Remove all outputs."""

    def outputs(self) -> list[tuple[str, OrtValue]]:
        """Return names and values of the outputs."""


class Bindable(Protocol):
    """A session that can be bound to values, which :class:`ortrain.InferenceSession` is."""

    def _new_binding(self) -> Bound: ...


def _at_address(device: Any, element_type: Any, shape: Sequence[int], address: int) -> OrtValue:
    """Return a tensor over memory of the caller."""
    check_cpu(device)
    dtype = _ortrain.numpy_type(element_type) if isinstance(element_type, int) else np.dtype(element_type)
    size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    memory = (ctypes.c_byte * size).from_address(address)
    array: npt.NDArray[Any] = np.ndarray(tuple(shape), dtype, memoryview(memory))
    if isinstance(element_type, int):
        return OrtValue.ortvalue_from_numpy_with_onnx_type(array, element_type)
    return OrtValue.ortvalue_from_numpy(array)


class SessionIOBinding:
    """The bindings that an :class:`IOBinding` uses, with fewer conveniences."""

    def __init__(self, session: Bindable) -> None:
        self._bound = session._new_binding()

    def bind_input(self, name: str, *value: Any) -> None:
        """Bind an input to an array, or to memory given as device, element type, shape and address."""
        self._bound.bind_input(name, _bound_value(value))

    def bind_ortvalue_input(self, name: str, ortvalue: OrtValue) -> None:
        """Bind an input to an OrtValue."""
        self._bound.bind_input(name, ortvalue)

    def bind_output(self, name: str, *value: Any) -> None:
        """Bind an output to memory given as device, element type, shape and address, or to a device."""
        if len(value) <= 1:
            check_cpu(*value or ("cpu",))
            self._bound.bind_output(name)
        else:
            self._bound.bind_output(name, _at_address(*value))

    def bind_ortvalue_output(self, name: str, ortvalue: OrtValue) -> None:
        """Bind an output to an OrtValue."""
        self._bound.bind_output(name, ortvalue)

    def clear_binding_inputs(self) -> None:
        """Remove all inputs."""
        self._bound.clear_inputs()

    def clear_binding_outputs(self) -> None:
        """Remove all outputs."""
        self._bound.clear_outputs()

    def synchronize_inputs(self) -> None:
        """Do nothing; inputs are in memory of the CPU."""

    def synchronize_outputs(self) -> None:
        """Do nothing; a run has computed its outputs when it returns."""

    def get_outputs(self) -> OrtValueVector:
        """Return the outputs, in the order in which they were bound."""
        return OrtValueVector(value for _, value in self._bound.outputs())

    def copy_outputs_to_cpu(self) -> list[Any]:
        """Return copies of the outputs as arrays."""
        return [np.array(value.numpy()) for value in self.get_outputs()]


def _bound_value(value: tuple[Any, ...]) -> OrtValue:
    if len(value) == 1:
        return OrtValue.ortvalue_from_numpy(to_array(value[0]))
    return _at_address(*value)


class IOBinding:
    """Inputs and outputs of a session that are bound once and used by every run.

    Nothing is copied: a run reads the contents of the bound memory when it starts, and writes an output into the memory
    that is bound to it. An output that is bound without memory is allocated by the first run; later runs write into the
    same memory if the shape is the same.
    """

    def __init__(self, session: Bindable) -> None:
        self._iobinding = SessionIOBinding(session)

    def bind_cpu_input(self, name: str, arr_on_cpu: npt.ArrayLike) -> None:
        """Bind an input to an array.

        Parameters
        ----------
        name : str
            Name of the input.
        arr_on_cpu : array
            The array, which the binding keeps alive. It is copied if it is not contiguous.

        Raises
        ------
        InvalidArgumentError
            If the model has no such input.
        """
        self._iobinding.bind_input(name, arr_on_cpu)

    def bind_input(
        self,
        name: str,
        device_type: str,
        device_id: int,
        element_type: Any,
        shape: Sequence[int],
        buffer_ptr: int,
    ) -> None:
        """Bind an input to memory of the caller, who keeps it alive.

        Parameters
        ----------
        name : str
            Name of the input.
        device_type : str
            ``cpu``.
        device_id : int
            0.
        element_type : dtype or int
            NumPy's type, or a number of ``ONNXTensorElementDataType``.
        shape : sequence of int
            The dimensions.
        buffer_ptr : int
            Address of the first element.

        Raises
        ------
        InvalidArgumentError
            If the model has no such input, or there is no such device.
        """
        self._iobinding.bind_input(name, OrtDevice(device_type, device_id), element_type, shape, buffer_ptr)

    def bind_ortvalue_input(self, name: str, ortvalue: OrtValue) -> None:
        """Bind an input to an OrtValue.

        Parameters
        ----------
        name : str
            Name of the input.
        ortvalue : OrtValue
            The value.

        Raises
        ------
        InvalidArgumentError
            If the model has no such input.
        """
        self._iobinding.bind_ortvalue_input(name, ortvalue)

    def bind_output(
        self,
        name: str,
        device_type: str = "cpu",
        device_id: int = 0,
        element_type: Any = None,
        shape: Sequence[int] | None = None,
        buffer_ptr: int | None = None,
    ) -> None:
        """Bind an output to memory of the caller, or to memory that the run allocates.

        Parameters
        ----------
        name : str
            Name of the output.
        device_type : str, default "cpu"
            ``cpu``.
        device_id : int, default 0
            0.
        element_type : dtype or int, optional
            NumPy's type, or a number of ``ONNXTensorElementDataType``; needed with `buffer_ptr`.
        shape : sequence of int, optional
            The dimensions; needed with `buffer_ptr`.
        buffer_ptr : int, optional
            Address of the memory, which the caller keeps alive. Without it, the run allocates memory.

        Raises
        ------
        ValueError
            If there is an address, but no type or shape.
        InvalidArgumentError
            If the model has no such output, or there is no such device.
        """
        device = OrtDevice(device_type, device_id)
        if buffer_ptr is None:
            self._iobinding.bind_output(name, device)
            return
        if element_type is None or shape is None:
            raise ValueError("expected element_type and shape along with buffer_ptr, found none")
        self._iobinding.bind_output(name, device, element_type, shape, buffer_ptr)

    def bind_ortvalue_output(self, name: str, ortvalue: OrtValue) -> None:
        """Bind an output to an OrtValue, into which runs write it.

        Parameters
        ----------
        name : str
            Name of the output.
        ortvalue : OrtValue
            A tensor with the type and shape of the output.

        Raises
        ------
        InvalidArgumentError
            If the model has no such output, or the value is not a tensor.
        """
        self._iobinding.bind_ortvalue_output(name, ortvalue)

    def synchronize_inputs(self) -> None:
        """Do nothing; inputs are in memory of the CPU."""

    def synchronize_outputs(self) -> None:
        """Do nothing; a run has computed its outputs when it returns."""

    def get_outputs(self) -> list[OrtValue]:
        """Return the outputs of the last run, in the order in which they were bound.

        Returns
        -------
        list of OrtValue
            Values that share the memory of the outputs, so that the next run changes them.
        """
        return list(self._iobinding.get_outputs())

    def get_outputs_as_ortvaluevector(self) -> OrtValueVector:
        """Return the same as :meth:`get_outputs`."""
        return self._iobinding.get_outputs()

    def copy_outputs_to_cpu(self) -> list[Any]:
        """Return copies of the outputs as arrays, in the order in which they were bound."""
        return self._iobinding.copy_outputs_to_cpu()

    def clear_binding_inputs(self) -> None:
        """Remove all inputs."""
        self._iobinding.clear_binding_inputs()

    def clear_binding_outputs(self) -> None:
        """Remove all outputs."""
        self._iobinding.clear_binding_outputs()
