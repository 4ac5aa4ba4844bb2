"""Sparse tensors: the stored elements and their positions; all other elements are zero."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ortrain import _ortrain
from ortrain._ortrain import OrtValue
from ortrain._support.generated.enums import OrtSparseFormat
from ortrain.devices import OrtDevice, check_cpu

_COO, _INNER, _OUTER, _BLOCKS = range(4)  # of OrtSparseIndicesFormat

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True)
class SparseCooView:
    """The coordinates of the values of a sparse tensor."""

    _value: OrtValue

    def indices(self) -> Indices:
        """Return an array over the coordinates: ``[n]`` that counts elements, or ``[n, 2]`` of rows and columns."""
        return _ortrain.sparse_tensor_indices(self._value, _COO)


@dataclass(frozen=True)
class SparseCsrView:
    """The positions of the values of a sparse matrix, as compressed rows."""

    _value: OrtValue

    def inner(self) -> Indices:
        """Return an array over the column of each value."""
        return _ortrain.sparse_tensor_indices(self._value, _INNER)

    def outer(self) -> Indices:
        """Return an array with the index of the first value of each row, followed by the number of values."""
        return _ortrain.sparse_tensor_indices(self._value, _OUTER)


@dataclass(frozen=True)
class SparseBlockSparseView:
    """The positions of the blocks of a sparse tensor."""

    _value: OrtValue

    def indices(self) -> npt.NDArray[np.int32]:
        """Return an array over the positions, of shape ``[2, blocks]``."""
        return _ortrain.sparse_tensor_indices(self._value, _BLOCKS)


class SparseTensor:
    """A sparse tensor over the memory of arrays; strings are copied.

    Inputs of models take it as ``OrtValue.ort_value_from_sparse_tensor(tensor)``.
    """

    def __init__(self, sparse_tensor: OrtValue) -> None:
        if not isinstance(sparse_tensor, OrtValue) or not sparse_tensor.is_sparse_tensor():
            raise ValueError(f"expected an OrtValue that is sparse, found {sparse_tensor!r}")
        self._tensor = sparse_tensor

    def _get_c_tensor(self) -> OrtValue:
        return self._tensor

    @classmethod
    def sparse_coo_from_numpy(
        cls,
        dense_shape: Sequence[int] | npt.NDArray[np.int64],
        values: npt.NDArray[Any],
        coo_indices: npt.NDArray[np.int64],
        ort_device: OrtDevice,
    ) -> SparseTensor:
        """Create a sparse tensor of values and their coordinates.

        Parameters
        ----------
        dense_shape : sequence of int
            The dimensions of the tensor with all its elements.
        values : numpy.ndarray
            The values, ``[n]``.
        coo_indices : numpy.ndarray of int64
            Their positions: ``[n]`` indices of elements in row-major order, or ``[n, 2]`` pairs of row and column. An
            input of a model must have pairs.
        ort_device : OrtDevice
            The CPU.

        Raises
        ------
        InvalidArgumentError
            When the number of indices does not match the values, or an index is out of range.
        """
        check_cpu(ort_device)
        return cls(_ortrain.make_sparse_tensor(list(dense_shape), values, coo_indices))

    @classmethod
    def sparse_csr_from_numpy(
        cls,
        dense_shape: Sequence[int] | npt.NDArray[np.int64],
        values: npt.NDArray[Any],
        inner_indices: npt.NDArray[np.int64],
        outer_indices: npt.NDArray[np.int64],
        ort_device: OrtDevice,
    ) -> SparseTensor:
        """Create a sparse matrix of values that are stored row by row.

        Parameters
        ----------
        dense_shape : sequence of int
            Rows and columns.
        values : numpy.ndarray
            The values, ``[n]``.
        inner_indices : numpy.ndarray of int64
            The column of each value, ``[n]``.
        outer_indices : numpy.ndarray of int64
            The index of the first value of each row, then n, ``[rows + 1]``.
        ort_device : OrtDevice
            The CPU.

        Raises
        ------
        InvalidArgumentError
            When the number of columns differs from the number of values, or an index is out of range.
        OrtrainError
            When the tensor is not a matrix, or the number of rows does not match.
        """
        check_cpu(ort_device)
        return cls(_ortrain.make_sparse_tensor(list(dense_shape), values, inner_indices, outer_indices))

    def values(self) -> npt.NDArray[Any]:
        """Return an array over the values; a copy of strings."""
        return _ortrain.sparse_tensor_values(self._tensor)

    def as_coo_view(self) -> SparseCooView:
        """Return the coordinates of the values.

        Raises
        ------
        RuntimeError
            When the tensor has another format.
        """
        self._expect(OrtSparseFormat.ORT_SPARSE_COO)
        return SparseCooView(self._tensor)

    def as_csrc_view(self) -> SparseCsrView:
        """Return the positions of the values as compressed rows.

        Raises
        ------
        RuntimeError
            When the tensor has another format.
        """
        self._expect(OrtSparseFormat.ORT_SPARSE_CSRC)
        return SparseCsrView(self._tensor)

    def as_blocksparse_view(self) -> SparseBlockSparseView:
        """Return the positions of the blocks.

        Raises
        ------
        RuntimeError
            When the tensor has another format.
        """
        self._expect(OrtSparseFormat.ORT_SPARSE_BLOCK_SPARSE)
        return SparseBlockSparseView(self._tensor)

    def _expect(self, wanted: OrtSparseFormat) -> None:
        if self.format() != wanted:
            raise RuntimeError(
                f"the sparse tensor has the format {self.format().name}, expected {wanted.name}"
            )

    def to_cuda(self, ort_device: OrtDevice) -> SparseTensor:
        """Copy the tensor to a GPU. There is none.

        Raises
        ------
        RuntimeError
            Always.
        """
        raise RuntimeError(f"a sparse tensor cannot be copied to {ort_device!r} as a GPU, available: cpu")

    def format(self) -> OrtSparseFormat:
        """Return how the tensor stores the positions of its values."""
        return OrtSparseFormat(_ortrain.sparse_tensor_format(self._tensor))

    def dense_shape(self) -> list[int]:
        """Return the dimensions of the tensor with all its elements."""
        return self._tensor.shape()

    def data_type(self) -> str:
        """Return the type in ONNX notation, such as ``sparse_tensor(float)``."""
        return self._tensor.data_type()

    def device_name(self) -> str:
        """Return ``cpu``, the name of the device that holds the values."""
        return self._tensor.device_name()
