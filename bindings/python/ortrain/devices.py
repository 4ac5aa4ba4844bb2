"""Where memory is: devices and locations of memory, as onnxruntime names them. The CPU is the only device."""

from __future__ import annotations

from dataclasses import dataclass

from ortrain.api.generated.enums import OrtAllocatorType, OrtDeviceMemoryType, OrtMemType
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
        """Return the call that creates it."""
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

    @property
    def device_mem_type(self) -> OrtDeviceMemoryType:
        """Whether the host can access the memory; the default kind, which it can on the CPU."""
        return OrtDeviceMemoryType.DEFAULT

    @property
    def device_vendor_id(self) -> int:
        """PCI vendor ID of the device, 0 for the CPU."""
        return 0
