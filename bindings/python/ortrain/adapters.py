"""LoRA adapters: files of tensors that a run uses as inputs of a model or instead of its initializers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ortrain import _ortrain
from ortrain._ortrain import OrtValue
from ortrain._support.values import StrPath


class LoraAdapter:
    """An adapter for runs, which :meth:`ortrain.RunOptions.add_active_adapter` adds to their inputs."""

    def __init__(self) -> None:
        self._handle: _ortrain.LoraAdapterHandle | None = None

    def Load(self, path: StrPath) -> None:
        """Read the adapter from a file.

        Parameters
        ----------
        path : path
            The file, as :meth:`AdapterFormat.export_adapter` or onnxruntime writes it.

        Raises
        ------
        FileNotFoundError
            If there is no such file.
        OrtrainError
            If the file is not an adapter, truncated or damaged.
        """
        self._handle = _ortrain.create_lora_adapter(path)


class AdapterFormat:
    """The contents of an adapter's file: tensors by name, and two version numbers that the program chooses."""

    def __init__(self, adapter: Any = None) -> None:
        """Create an adapter without tensors, or with the contents of another one."""
        self._parameters: dict[str, OrtValue] = {} if adapter is None else dict(adapter._parameters)
        self._versions = (0, 0) if adapter is None else adapter._versions

    @staticmethod
    def read_adapter(file_path: StrPath) -> AdapterFormat:
        """Return the contents of a file.

        Raises
        ------
        FileNotFoundError
            If there is no such file.
        OrtrainError
            If the file is not an adapter, truncated or damaged.
        """
        handle = _ortrain.create_lora_adapter(file_path)
        read = AdapterFormat()
        read._versions = _ortrain.lora_adapter_get_versions(handle)
        read._parameters = {
            _ortrain.lora_adapter_get_parameter_name(handle, index): _ortrain.lora_adapter_get_parameter(
                handle, index
            )
            for index in range(_ortrain.lora_adapter_get_parameter_count(handle))
        }
        return read

    def export_adapter(self, file_path: StrPath) -> None:
        """Write the file; an existing file is replaced atomically.

        onnxruntime 1.20 and later read it too; newer versions reject Booleans and tensors without dimensions.
        """
        handle = _ortrain.create_lora_adapter_from_values(
            list(self._parameters), list(self._parameters.values()), *self._versions
        )
        _ortrain.save_lora_adapter(handle, file_path)

    def get_format_version(self) -> int:
        """Return the version of the format, 1."""
        return 1

    def get_adapter_version(self) -> int:
        """Return the version of the adapter."""
        return self._versions[0]

    def set_adapter_version(self, adapter_version: int) -> None:
        """Set the version of the adapter."""
        self._versions = (adapter_version, self._versions[1])

    def get_model_version(self) -> int:
        """Return the version of the model that the adapter is for."""
        return self._versions[1]

    def set_model_version(self, model_version: int) -> None:
        """Set the version of the model that the adapter is for."""
        self._versions = (self._versions[0], model_version)

    def get_parameters(self) -> dict[str, OrtValue]:
        """Return the tensors by name."""
        return dict(self._parameters)

    def set_parameters(self, params: Mapping[str, OrtValue]) -> None:
        """Set the tensors.

        Parameters
        ----------
        params : mapping of str to OrtValue
            The tensors by the names of a model's inputs or initializers, such as
            ``{name: OrtValue.ortvalue_from_numpy(p.data) for name, p in state.parameters if p.requires_grad}``
            for what was trained.
        """
        wrong = [name for name, value in params.items() if not isinstance(value, OrtValue)]
        if wrong:
            raise TypeError(
                f"params[{wrong[0]!r}]: expected an OrtValue, found {type(params[wrong[0]]).__name__}"
            )
        self._parameters = dict(params)
