"""Options of `ortrain train` for a language model that is given as such, instead of a folder of artifacts."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

_OPTIONS = [
    click.option(
        "--adapter",
        type=click.Choice(["lora", "dora", "none"]),
        help="with MODEL, what is trained: low-rank adapters (default lora), or none for all weights",
    ),
    click.option(
        "--rank", type=click.IntRange(min=1), help="with MODEL, the rank of the adapters (default 8)"
    ),
    click.option(
        "--alpha", type=float, help="with MODEL, adapters are scaled by alpha / rank (default twice the rank)"
    ),
    click.option(
        "--bits",
        type=click.Choice(["4", "8"]),
        help="with MODEL, give its weights 4 or 8 bits, beside which the adapters train (QLoRA)",
    ),
    click.option(
        "--length",
        type=click.IntRange(min=1),
        help="tokens of a row of text (default those of the longest example, 512 at most)",
    ),
    click.option("--pack", is_flag=True, help="rows of text hold as many examples as fit, instead of one"),
    click.option(
        "--loss-on",
        type=click.Choice(["completions", "all"]),
        help="which tokens of text count: those of completions and of the assistant's messages (default), or all",
    ),
    click.option(
        "--artifacts",
        type=click.Path(path_type=Path),
        help="with MODEL, the folder of the artifacts that are made of it (default ./artifacts)",
    ),
]


@dataclass(frozen=True)
class LanguageOptions:
    """How a language model is trained. What is not given is None, so that a stored choice is not overridden."""

    adapter: str | None = None
    rank: int | None = None
    alpha: float | None = None
    bits: str | None = None
    length: int | None = None
    pack: bool = False
    loss_on: str | None = None
    artifacts: Path | None = None

    @property
    def folder(self) -> Path:
        """The folder of the artifacts that are made."""
        return self.artifacts or Path("artifacts")

    @property
    def of_the_model(self) -> dict[str, Any]:
        """The options that say how artifacts are made, if they are given."""
        options = {"--adapter": self.adapter, "--rank": self.rank, "--alpha": self.alpha, "--bits": self.bits}
        return {name: value for name, value in options.items() if value is not None}

    def need_a_model(self) -> None:
        """Refuse options that say how artifacts are made, where there are artifacts already."""
        given = [*self.of_the_model, *(["--artifacts"] if self.artifacts is not None else [])]
        if given:
            raise click.UsageError(
                f"{given[0]} says how artifacts are made of a language model: expected its file or folder, found a folder of "
                "artifacts; `ortrain artifacts --adapter lora` makes others"
            )


def language_options(command: Callable[..., int]) -> Callable[..., int]:
    """Give a command the options, and as its argument ``language`` their values."""

    @functools.wraps(command)
    def with_language(
        *arguments: Any,
        adapter: str | None,
        rank: int | None,
        alpha: float | None,
        bits: str | None,
        length: int | None,
        pack: bool,
        loss_on: str | None,
        artifacts: Path | None,
        **others: Any,
    ) -> int:
        chosen = LanguageOptions(adapter, rank, alpha, bits, length, pack, loss_on, artifacts)
        return command(*arguments, language=chosen, **others)

    for option in reversed(_OPTIONS):
        with_language = option(with_language)
    return with_language
