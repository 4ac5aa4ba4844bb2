"""Options of sessions and runs: the generated classes, and the other members of onnxruntime's classes."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from enum import IntEnum

from ortrain import _ortrain
from ortrain._ortrain import OrtValue
from ortrain._support.generated.enums import OrtExecutionProviderDevicePolicy
from ortrain._support.values import StrPath
from ortrain.adapters import LoraAdapter
from ortrain.api.generated import run_options, session_options
from ortrain.devices import OrtEpDevice
from ortrain.errors import InvalidArgumentError, OrtErrorCode

if sys.version_info >= (3, 12):
    from collections.abc import Buffer
else:
    Buffer = bytes | bytearray | memoryview


class ExecutionOrder(IntEnum):
    """The order in which nodes run. It has no effect here: they run in an order that needs little memory."""

    DEFAULT = 0
    PRIORITY_BASED = 1
    MEMORY_EFFICIENT = 2


class SessionOptions(session_options.SessionOptions):
    """Settings that a session copies when it is created."""

    def __init__(self) -> None:
        super().__init__()
        self._profiling = False
        self._profile_file_prefix = "onnxruntime_profile_"
        self._kept: list[OrtValue] = []
        """The initializers whose memory sessions share."""
        self._providers: list[tuple[str, Mapping[str, str]]] = []
        self._files: list[object] = []
        """The contents of files that sessions read when they are created."""

    @property
    def enable_profiling(self) -> bool:
        """Whether a session records how long each kernel of each run takes; its ``end_profiling`` writes a file."""
        return self._profiling

    @enable_profiling.setter
    def enable_profiling(self, value: bool) -> None:
        self._profiling = bool(value)
        self._set_profiling()

    @property
    def profile_file_prefix(self) -> str:
        """Prefix of the path of that file; the time and ``.json`` are appended."""
        return self._profile_file_prefix

    @profile_file_prefix.setter
    def profile_file_prefix(self, value: str) -> None:
        self._profile_file_prefix = value
        self._set_profiling()

    def _set_profiling(self) -> None:
        _ortrain.set_profiling(self._handle, self._profile_file_prefix if self._profiling else None)

    def add_initializer(self, name: str, ortvalue: OrtValue) -> None:  # noqa: D102
        super().add_initializer(name, ortvalue)
        self._kept.append(ortvalue)

    def add_external_initializers(self, names: list[str], ortvalues: list[OrtValue]) -> None:  # noqa: D102
        super().add_external_initializers(names, ortvalues)
        self._kept += ortvalues

    def add_external_initializers_from_files_in_memory(
        self, names: Sequence[StrPath], buffers: Sequence[Buffer], lengths: Sequence[int]
    ) -> None:
        """Supply the contents of files with initializers. Sessions then do not open these files.

        Parameters
        ----------
        names : sequence of path
            The files, as the model names them.
        buffers : sequence of bytes-like
            Their contents.
        lengths : sequence of int
            Their sizes in bytes.

        Raises
        ------
        ValueError
            If the numbers of entries differ.
        InvalidArgumentError
            If a size is more than the buffer has, or a file was given before.
        """
        _ortrain.add_external_files(self._handle, names, buffers, lengths)
        self._files += buffers

    def add_provider_for_devices(
        self, ep_devices: Sequence[OrtEpDevice], provider_options: Mapping[str, str]
    ) -> None:
        """Request the execution provider of devices.

        Parameters
        ----------
        ep_devices : sequence of OrtEpDevice
            Devices of one provider, from :func:`ortrain.get_ep_devices`.
        provider_options : mapping
            Its options; the CPU has none.

        Raises
        ------
        InvalidArgumentError
            If there is no device.
        """
        if not ep_devices:
            message = "expected at least one device, found none"
            raise InvalidArgumentError(message, OrtErrorCode.ORT_INVALID_ARGUMENT)
        self.add_provider(ep_devices[0].ep_name, provider_options)

    def set_provider_selection_policy(self, policy: OrtExecutionProviderDevicePolicy) -> None:
        """Choose how a provider is selected. Has no effect: there is one provider.

        Parameters
        ----------
        policy : OrtExecutionProviderDevicePolicy
            The policy.
        """
        OrtExecutionProviderDevicePolicy(policy)

    def add_provider(self, name: str, options: Mapping[str, str]) -> None:
        """Request an execution provider for sessions that are created without a list of providers.

        Parameters
        ----------
        name : str
            CPUExecutionProvider, the only one.
        options : mapping
            Its options; the CPU has none.

        Raises
        ------
        InvalidArgumentError
            If there is no such provider.
        """
        available = _ortrain.available_providers()
        if name not in available:
            message = f"there is no provider {name!r}, available: {', '.join(available)}"
            raise InvalidArgumentError(message, OrtErrorCode.ORT_INVALID_ARGUMENT)
        self._providers.append((name, dict(options)))

    def has_providers(self) -> bool:
        """Return whether a provider was requested."""
        return bool(self._providers)

    def set_load_cancellation_flag(self, value: bool) -> None:
        """Make the creation of sessions with these options fail, or allow it again."""
        _ortrain.set_load_cancellation_flag(self._handle, bool(value))


class RunOptions(run_options.RunOptions):
    """Settings for one run."""

    def get_run_config_entry(self, key: str) -> str:
        """Return the value of an entry of the run configuration.

        Raises
        ------
        InvalidArgumentError
            If it is not set.
        """
        value = _ortrain.run_config_entry(self._handle, key)
        if value is None:
            message = f"the run configuration has no entry {key!r}"
            raise InvalidArgumentError(message, OrtErrorCode.ORT_INVALID_ARGUMENT)
        return value

    def add_active_adapter(self, adapter: LoraAdapter) -> None:
        """Add an adapter, whose tensors runs take by name, in addition to their inputs.

        Parameters
        ----------
        adapter : LoraAdapter
            The adapter. Each tensor must have the name of an input of the model, or of an initializer that is also an
            input of the graph, which a run may replace.
        """
        if adapter._handle is None:
            raise ValueError("the adapter is empty; call Load first")
        _ortrain.run_options_add_active_lora_adapter(self._handle, adapter._handle)
