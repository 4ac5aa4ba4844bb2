"""What the command says of itself."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest
from ortrain import __version__
from ortrain.cli.app import _COMMANDS, group


@pytest.mark.parametrize("name", sorted(_COMMANDS))
def test_every_command_has_help_and_examples(name, run):
    said = run(name, "--help").out
    assert "Examples:" in said
    assert f"  ortrain {name}" in said
    assert "--debug" in said


def test_the_list_of_commands(run):
    said = run("--help").out
    assert all(f"  {name} " in said for name in _COMMANDS)
    assert "Exit status: 0 done, 1 an error, 2 invalid arguments, 3 the answer is no" in " ".join(
        said.split()
    )
    assert run("--version").out == f"ortrain {__version__}\n"


@pytest.mark.parametrize("arguments", [["nonsense"], ["profile"], ["profile", "x", "--steps", "0"]])
def test_wrong_arguments_end_with_status_2(arguments, run):
    assert "Error: " in run(*arguments, status=2).err


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_completion(shell, run):
    assert "_ORTRAIN_COMPLETE" in run("completion", shell).out
    environment = {
        **os.environ,
        "_ORTRAIN_COMPLETE": f"{shell}_complete",
        "COMP_WORDS": "ortrain pro",
        "COMP_CWORD": "1",
    }
    ran = subprocess.run([sys.executable, "-m", "ortrain"], env=environment, capture_output=True, text=True)
    assert "profile" in ran.stdout.split("\n")[0 if shell == "bash" else 1].split(",")[-1]


def test_completion_in_a_bare_zsh(run, tmp_path):
    script = run("completion", "zsh").out
    assert script.startswith("#compdef ortrain\n")
    assert script.index("&& compinit") < script.index("compdef _ortrain")
    zsh = shutil.which("zsh") or pytest.skip("there is no zsh")
    (tmp_path / "completion.zsh").write_text(script)
    command = "source completion.zsh; print -r -- $_comps[ortrain]"
    environment = {**os.environ, "HOME": str(tmp_path)}
    ran = subprocess.run(
        [zsh, "-f", "-c", command], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert (ran.stdout, ran.stderr) == ("_ortrain_completion\n", "")


def test_help_imports_no_command():
    script = (
        "import sys; from ortrain.cli import main; main(['--help']); "
        "print([name for name in sys.modules if name.endswith('_command')], file=sys.stderr)"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert ran.stderr.strip() == "[]"
    assert group.name == "group"
