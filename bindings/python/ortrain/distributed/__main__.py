"""``mpiexec -n 4 python -m ortrain.distributed program.py``: run a program, and report which rank was killed.

If a signal kills a process, MPI's launcher kills all other processes before they notice, and its message names the first
process of the machine, whichever process was killed. So each rank runs as a child of a process that waits for its end and
reports it.
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
    """Return the rank from the launcher's environment variables, which exist before MPI is initialized."""
    names = ("PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK")
    return next((os.environ[name] for name in names if name in os.environ), "?")


def _name_of(number: int) -> str:
    try:
        return f"{number} ({signal.Signals(number).name})"
    except ValueError:
        return str(number)


def _end_by(number: int) -> None:
    """End by the signal that ended the child.

    After a signal, MPICH's launcher always kills the other ranks. After an exit status it may let them wait for this rank
    forever: that happens if it notices the end of the process before the end of its connection.
    """
    if sys.platform != "win32":
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # no second core file: the child has written one
        if number != signal.SIGKILL:  # programs cannot handle this signal
            signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


def main() -> int:
    """Run the program that the command line names, and return its exit status."""
    if len(sys.argv) < 2 or sys.argv[1] in ("-h", "--help"):
        print(_USAGE, file=sys.stderr)
        return 0 if len(sys.argv) > 1 else 2
    if sys.platform == "win32":  # a child ends with a status, not by a signal, and Ctrl-C reaches it too
        return subprocess.run([sys.executable, *sys.argv[1:]], close_fds=False, check=False).returncode
    parent = os.getpid()
    libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None

    def end_with_parent() -> None:
        # The launcher only knows the parent: when it kills the parent, the child must end too.
        if libc is not None:
            libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)

    # close_fds: MPI talks to the launcher through a file descriptor that it inherited.
    child = subprocess.Popen([sys.executable, *sys.argv[1:]], close_fds=False, preexec_fn=end_with_parent)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda received, frame: child.send_signal(received))
    status = child.wait()
    if status >= 0:
        return status
    said = f"ortrain: rank {_rank()} (process {child.pid}) was killed by signal {_name_of(-status)}\n"
    os.write(2, said.encode())  # in one call, because all ranks write to this stream
    _end_by(-status)
    return 128 - status


if __name__ == "__main__":
    sys.exit(main())
