"""gather_state: the whole state of a session whose state is divided among processes."""

from __future__ import annotations

from typing import Any, Protocol

import numpy.typing as npt

Array = npt.NDArray[Any]


class Session(Protocol):
    """A session whose state may be divided among processes, which :class:`ortrain.TrainingSession` is."""

    def _gather_state(self) -> dict[str, Array]: ...


def gather_state(session: Session) -> dict[str, Array]:
    """Return the state of a session as one process would have it, from the parts of all processes.

    Every rank calls this. The result can be saved by rank 0 and loaded with :meth:`TrainingSession.load_state` by any
    number of processes, each of which keeps its parts.

    Parameters
    ----------
    session : ortrain.TrainingSession
        The session of this process.
    """
    return session._gather_state()
