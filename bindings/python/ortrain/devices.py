"""Devices and locations of memory, under onnxruntime's names. The CPU is the only device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ortrain import _ortrain
from ortrain._ortrain import OrtValue
from ortrain._support.generated.enums import (
    OrtAllocatorType,
    OrtDeviceMemoryType,
    OrtHardwareDeviceType,
    OrtMemoryInfoDeviceType,
    OrtMemType,
)
from ortrain.errors import InvalidArgumentError, OrtErrorCode


def _rejected(device: str, number: int) -> InvalidArgumentError:
    message = f"there is no device {device!r} number {number}, available: cpu number 0"
    return InvalidArgumentError(message, OrtErrorCode.ORT_INVALID_ARGUMENT)


def check_cpu(device: str | OrtDevice, number: int = 0) -> None:
    """Reject a device other than the CPU, given by its name or as an object."""
    if not isinstance(device, OrtDevice) and (device.lower() != "cpu" or number != 0):
        raise _rejected(device, number)


class OrtDevice:
    """A device: its kind, its number and its kind of memory, each a number of onnxruntime's."""

    def __init__(self, ort_device_name: str = "cpu", device_id: int = 0) -> None:
        check_cpu(ort_device_name, device_id)
        self._id = device_id

    @staticmethod
    def make(ort_device_name: str, device_id: int, vendor_id: int = -1) -> OrtDevice:
        """Create a device.

        Parameters
        ----------
        ort_device_name : str
            ``cpu``, the only one.
        device_id : int
            Its number, 0.
        vendor_id : int, default -1
            Accepted for compatibility; the CPU has none.

        Raises
        ------
        InvalidArgumentError
            If there is no such device.
        """
        return OrtDevice(ort_device_name, device_id)

    def device_id(self) -> int:
        """Return the number of the device."""
        return self._id

    def device_type(self) -> int:
        """Return the kind of the device, 0 for the CPU."""
        return 0

    def device_mem_type(self) -> int:
        """Return the kind of its memory, 0 for the default."""
        return 0

    def device_vendor_id(self) -> int:
        """Return the PCI vendor ID, 0 for the CPU."""
        return 0

    def __repr__(self) -> str:
        """Return the call that creates the object."""
        return f"OrtDevice.make('cpu', {self._id})"


@dataclass(frozen=True)
class OrtMemoryInfo:
    """A location of memory.

    Raises
    ------
    InvalidArgumentError
        If there is no such device.
    """

    name: str
    """Name of the device, ``Cpu``."""
    allocator_type: OrtAllocatorType
    """How memory is allocated."""
    device_id: int
    """Number of the device, 0."""
    mem_type: OrtMemType
    """What the memory is for."""

    def __post_init__(self) -> None:
        """Reject devices other than the CPU."""
        if self.name != "Cpu" or self.device_id != 0:
            raise _rejected(self.name, self.device_id)

    @classmethod
    def create_v2(
        cls,
        name: str,
        device_type: OrtMemoryInfoDeviceType,
        vendor_id: int,
        device_id: int,
        mem_type: OrtDeviceMemoryType,
        alignment: int,
        allocator_type: OrtAllocatorType,
    ) -> OrtMemoryInfo:
        """Create a location of memory.

        Parameters
        ----------
        name : str
            Name of the device.
        device_type : OrtMemoryInfoDeviceType
            Kind of device, the CPU.
        vendor_id : int
            Its vendor; the CPU has none.
        device_id : int
            Its number, 0.
        mem_type : OrtDeviceMemoryType
            Kind of its memory; the host can access both.
        alignment : int
            Alignment of the memory; 0 for the default.
        allocator_type : OrtAllocatorType
            How memory is allocated.

        Raises
        ------
        InvalidArgumentError
            If there is no such device.
        """
        if device_type != OrtMemoryInfoDeviceType.CPU:
            raise _rejected(name, device_id)
        OrtDeviceMemoryType(mem_type)
        return cls(name, OrtAllocatorType(allocator_type), device_id, OrtMemType.DEFAULT)

    @property
    def device_mem_type(self) -> OrtDeviceMemoryType:
        """Whether the host can access the memory; the default kind, which it can on the CPU."""
        return OrtDeviceMemoryType.DEFAULT

    @property
    def device_vendor_id(self) -> int:
        """PCI vendor ID of the device, 0 for the CPU."""
        return 0


@dataclass(frozen=True)
class OrtHardwareDevice:
    """A device of the machine."""

    type: OrtHardwareDeviceType = OrtHardwareDeviceType.CPU
    """Kind of device."""
    vendor_id: int = 0
    """PCI vendor ID; the CPU has none."""
    vendor: str = ""
    """Vendor of the device; not known."""
    device_id: int = 0
    """Number of the kind of device; not known."""
    metadata: Mapping[str, str] = field(default_factory=dict)
    """Further properties of the device."""


@dataclass(frozen=True)
class OrtEpDevice:
    """An execution provider on a device."""

    ep_name: str
    """Name of the provider."""
    ep_vendor: str = "ortrain"
    """Who made the provider."""
    device: OrtHardwareDevice = OrtHardwareDevice()
    """The device."""
    ep_metadata: Mapping[str, str] = field(default_factory=dict)
    """Further properties of the provider."""
    ep_options: Mapping[str, str] = field(default_factory=dict)
    """Options of the provider; the CPU has none."""

    def memory_info(self, memory_type: OrtDeviceMemoryType) -> OrtMemoryInfo | None:
        """Return where memory of a kind is; None if the device has none of that kind."""
        return CPU_MEMORY if memory_type == OrtDeviceMemoryType.DEFAULT else None


@dataclass(frozen=True)
class OrtEpAssignedNode:
    """A node of a model."""

    name: str
    """Its name."""
    domain: str
    """Domain of its operator."""
    op_type: str
    """Its operator."""


@dataclass(frozen=True)
class OrtEpAssignedSubgraph:
    """Nodes of a model that an execution provider runs."""

    ep_name: str
    """Name of the provider."""
    nodes: list[OrtEpAssignedNode]
    """The nodes."""

    def get_nodes(self) -> list[OrtEpAssignedNode]:
        """Return the nodes."""
        return self.nodes


CPU_MEMORY = OrtMemoryInfo("Cpu", OrtAllocatorType.ORT_DEVICE_ALLOCATOR, 0, OrtMemType.DEFAULT)
CPU_DEVICE = OrtEpDevice(_ortrain.available_providers()[0])


def get_ep_devices() -> list[OrtEpDevice]:
    """Return the execution providers with their devices: the CPU."""
    return [CPU_DEVICE]


def copy_tensors(src: Sequence[OrtValue], dst: Sequence[OrtValue], stream: None = None) -> None:
    """Copy the elements of tensors into others.

    Parameters
    ----------
    src, dst : sequences of OrtValue
        Tensors of the same types and shapes.
    stream : None
        The CPU has no streams.

    Raises
    ------
    ValueError
        If the numbers of tensors differ.
    InvalidArgumentError
        If two tensors differ in type or shape.
    """
    for source, target in zip(src, dst, strict=True):
        if source.shape() != target.shape():
            message = f"expected a tensor of shape {target.shape()}, found {source.shape()}"
            raise InvalidArgumentError(message, OrtErrorCode.ORT_INVALID_ARGUMENT)
        target.update_inplace(source)
