"""Samplers that balance the work of several processes.

In each step, the processes get samples that cost about the same, so that no process waits for the others. The
order is that of ``onnxruntime.training.utils.data``: the same seed gives the same indices, up to the order of
samples of equal cost. PyTorch is not needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt


class Dataset(Protocol):
    """Samples by number."""

    def __getitem__(self, index: int, /) -> Any: ...

    def __len__(self) -> int: ...


class _Generator:
    """The random integers and permutations that PyTorch draws on the CPU from the same seed.

    Both take the 32-bit numbers of a Mersenne Twister modulo a bound; see M. Matsumoto and T. Nishimura, "Mersenne
    Twister", 1998.
    """

    def __init__(self, seed: int) -> None:
        bits = np.random.MT19937()
        bits._legacy_seeding(seed & 0xFFFFFFFF)
        self._bits = bits

    def integers(self, bound: int, count: int) -> npt.NDArray[np.int64]:
        """Return ``count`` integers below ``bound``."""
        raw: npt.NDArray[np.uint64] = self._bits.random_raw(count)
        return (raw % bound).astype(np.int64)

    def permutation(self, count: int) -> list[int]:
        """Return the integers below ``count`` in random order."""
        order = list(range(count))
        for i in range(count - 1):
            j = i + int(self._bits.random_raw()) % (count - i)
            order[i], order[j] = order[j], order[i]
        return order


def shard_wrapped_indices_for_worker(
    dataset_index_list: Sequence[int], shard_id: int, num_shards: int
) -> list[int]:
    """Return every ``num_shards``-th index from number ``shard_id`` on.

    Parameters
    ----------
    dataset_index_list : sequence of int
        The indices. If they cannot be divided evenly, the first ones follow the last.
    shard_id : int
        Which process, from 0.
    num_shards : int
        The number of processes.

    Returns
    -------
    list of int
        The indices of the process, as many as every other gets.
    """
    return [chunk[shard_id] for chunk in _chunks(dataset_index_list, num_shards, None)]


def _chunks(indices: Sequence[int], size: int, count: int | None) -> list[list[int]]:
    """Return ``count`` lists of ``size`` consecutive indices. After the last index, the first one follows."""
    if not indices:
        raise ValueError("cannot divide the indices of a dataset without samples")
    count = max(1, -(-len(indices) // size) if count is None else count)
    return [[indices[(i * size + j) % len(indices)] for j in range(size)] for i in range(count)]


def _of_process(what: str) -> int:
    """Return the index of this process in PyTorch's default group, or the number of processes in it."""
    try:
        import torch.distributed as distributed  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        raise RuntimeError(
            f"{what} must be given: it was left out, and there is no torch.distributed to ask"
        ) from None
    return int(distributed.get_world_size() if what == "world_size" else distributed.get_rank())


class LoadBalancingDistributedSampler:
    """The indices of one process, sorted by cost, so that at each time all processes have samples of one cost.

    Parameters
    ----------
    dataset : Dataset
        Has ``__len__`` and ``__getitem__``.
    complexity_fn : callable
        Given a sample, returns its cost as an integer, such as the length of a sentence.
    world_size, rank : int, optional
        The number of processes, and which one this is. By default, those of PyTorch's default process group.
    shuffle : bool, default: True
        Whether the order is random: that of the groups with ``group_size``, otherwise that of the times.
    group_size : int, optional
        Sort within consecutive groups of this size instead of in the whole dataset.
    seed : int, default: 0
        Must be the same in all processes.
    drop_last : bool, default: False
        Whether a number of samples that is not a multiple of ``world_size`` is rounded down, instead of up with
        repeated samples.
    random_level : float, default: 0
        How far costs are changed at random before sorting, as a fraction of their range: 0 gives the best balance.

    Raises
    ------
    ValueError
        When ``rank`` or ``random_level`` is out of range.
    RuntimeError
        When ``world_size`` or ``rank`` is left out and there is no PyTorch.
    """

    def __init__(
        self,
        dataset: Dataset,
        complexity_fn: Callable[..., int],
        world_size: int | None = None,
        rank: int | None = None,
        shuffle: bool = True,
        group_size: int | None = None,
        seed: int = 0,
        drop_last: bool = False,
        random_level: float = 0,
    ) -> None:
        self.world_size = _of_process("world_size") if world_size is None else world_size
        self.rank = _of_process("rank") if rank is None else rank
        if not 0 <= self.rank < self.world_size:
            raise ValueError(
                f"Invalid rank {self.rank}: expected one in the interval [0, {self.world_size - 1}]"
            )
        if not 0.0 <= random_level <= 1.0:
            raise ValueError(f"Invalid random level {random_level}: expected one in the interval [0, 1]")
        if group_size is not None and group_size < 1:
            raise ValueError(f"group_size must be at least 1, found {group_size}")
        self.dataset = dataset
        self.complexity_fn = complexity_fn
        self.shuffle = shuffle
        self.group_size = group_size
        self.seed = seed
        self.drop_last = drop_last
        self.random_level = random_level
        self.epoch = 0
        per_process = len(dataset) / self.world_size
        self.num_samples = int(per_process) if drop_last else int(np.ceil(per_process))
        self.total_size = self.num_samples * self.world_size
        self._costs: npt.NDArray[np.int64] | None = None

    def _draw(self) -> list[list[int]]:
        """Return, for each step, the index that each process gets."""
        if self._costs is None:
            self._costs = np.array(
                [self.complexity_fn(self.dataset[i]) for i in range(len(self.dataset))], np.int64
            )
        generator = _Generator(self.seed + self.epoch)
        costs = self._costs
        bound = int((costs.max() - costs.min()) * self.random_level + 1) if len(costs) else 1
        if bound > 1:
            costs = costs + generator.integers(bound, len(costs))
        size = len(costs) if self.group_size is None else self.group_size
        starts = range(0, len(costs), max(size, 1))
        groups = [start + np.argsort(costs[start : start + size], kind="stable") for start in starts]
        if self.shuffle and self.group_size is not None:
            groups = [groups[i] for i in generator.permutation(len(groups))]
        chunks = _chunks([int(i) for group in groups for i in group], self.world_size, self.num_samples)
        if self.shuffle and self.group_size is None:
            chunks = [chunks[i] for i in generator.permutation(len(chunks))]
        return chunks[: self.num_samples]

    def __iter__(self) -> Iterator[int]:
        """Iterate over the indices of this process."""
        return iter([chunk[self.rank] for chunk in self._draw()])

    def __len__(self) -> int:
        """Return the number of indices of each process."""
        return self.num_samples

    def set_epoch(self, epoch: int) -> None:
        """Choose the random order of an epoch.

        Parameters
        ----------
        epoch : int
            Number of the epoch; it is added to the seed. Call this before each epoch, in all processes.
        """
        self.epoch = epoch


class LoadBalancingDistributedBatchSampler:
    """Batches of varying size from the indices of a sampler.

    Parameters
    ----------
    sampler : LoadBalancingDistributedSampler
        The indices.
    batch_fn : callable
        Given a list of indices, returns a list of batches, each a list of indices.
    drop_last : bool, default: False
        Whether every process gets as many batches as the one with the fewest, instead of as many as the one with
        the most, with its own first batches repeated.

    Raises
    ------
    ValueError
        When ``sampler`` is something else, or drops samples itself.
    """

    def __init__(
        self,
        sampler: LoadBalancingDistributedSampler,
        batch_fn: Callable[[list[int]], list[list[int]]],
        drop_last: bool = False,
    ) -> None:
        if not isinstance(sampler, LoadBalancingDistributedSampler):
            raise ValueError(
                f"sampler should be of LoadBalancingDistributedSampler type, found {type(sampler).__name__}"
            )
        if sampler.drop_last:
            raise ValueError("drop_last of sampler should be False: batches are dropped here")
        self.sampler = sampler
        self.batch_fn = batch_fn
        self.drop_last = drop_last
        self.world_size = sampler.world_size
        self.rank = sampler.rank
        self.generate_batches()

    def generate_batches(self) -> None:
        """Make the batches of the sampler's epoch."""
        chunks = self.sampler._draw()
        batches = [self.batch_fn([chunk[rank] for chunk in chunks]) for rank in range(self.world_size)]
        counts = [len(of_rank) for of_rank in batches]
        self.total_batch = min(counts) if self.drop_last else max(counts)
        own = batches[self.rank]
        self._batches = [own[i % len(own)] for i in range(self.total_batch)] if own else []

    def __iter__(self) -> Iterator[list[int]]:
        """Iterate over the batches of this process."""
        return iter(self._batches)

    def __len__(self) -> int:
        """Return the number of batches of each process."""
        return self.total_batch

    def set_epoch(self, epoch: int) -> None:
        """Choose the random order of an epoch, and make its batches.

        Parameters
        ----------
        epoch : int
            Number of the epoch. Call this before each epoch, in all processes.
        """
        self.sampler.set_epoch(epoch)
        self.generate_batches()
