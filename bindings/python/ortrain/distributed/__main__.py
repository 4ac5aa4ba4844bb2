"""``mpiexec -n 4 python -m ortrain.distributed program.py``: run a program, and say which rank was killed.

If a process is killed by a signal, MPI's launcher kills all others at once, before they could notice, and names the first
process of the machine, whichever was killed. Each rank is therefore a child of a process that waits for it.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys

_USAGE = "usage: mpiexec -n RANKS python -m ortrain.distributed PROGRAM.py [ARGUMENT ...]"
_PR_SET_PDEATHSIG = 1


def _rank() -> str:
    """Return the rank that the launcher tells its processes in the environment, before MPI is initialized."""
    names = ("PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK")
    return next((os.environ[name] for name in names if name in os.environ), "?")


def _name_of(number: int) -> str:
    try:
        return f"{number} ({signal.Signals(number).name})"
    except ValueError:
        return str(number)


def _end_by(number: int) -> None:
    """End by the signal that ended the child.

    MPICH's launcher always kills the other ranks after a signal. After a mere exit status it may leave them to wait for
    this one: it does if it notices the end of the process before the end of its connection.
    """
    if sys.platform != "win32":
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the child has dumped its own
    if number != signal.SIGKILL:  # whose handler cannot be set
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


def main() -> int:
    """Run the program that the command line names, and return its exit status."""
    if len(sys.argv) < 2 or sys.argv[1] in ("-h", "--help"):
        print(_USAGE, file=sys.stderr)
        return 0 if len(sys.argv) > 1 else 2
    parent = os.getpid()
    libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None

    def end_with_parent() -> None:
        # The launcher knows the parent alone: what it kills must take the child with it.
        if libc is not None:
            libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)

    # close_fds: MPI talks to the launcher through a file descriptor that it got from it.
    child = subprocess.Popen([sys.executable, *sys.argv[1:]], close_fds=False, preexec_fn=end_with_parent)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda received, frame: child.send_signal(received))
    status = child.wait()
    if status >= 0:
        return status
    said = f"ortrain: rank {_rank()} (process {child.pid}) was killed by signal {_name_of(-status)}\n"
    os.write(2, said.encode())  # in one piece: all ranks write to it
    _end_by(-status)
    return 128 - status


if __name__ == "__main__":
    sys.exit(main())
