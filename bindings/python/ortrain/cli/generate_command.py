"""``ortrain generate``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from ortrain._files.reading import check_file
from ortrain._support.counts import counted
from ortrain.adapters import LoraAdapter
from ortrain.cli import app, language_models, results, running
from ortrain.cli.language_options import LanguageOptions, input_options
from ortrain.cli.numbers import Integer, Number
from ortrain.inference_session import InferenceSession
from ortrain.options import SessionOptions
from ortrain.text import Generated, InputNames, Tokenizer, generate
from ortrain.text.inputs import forms_of


@app.command(
    "generate",
    """
    ortrain generate artifacts --prompt "What is the capital of France?"
    ortrain generate trained.onnx --tokenizer artifacts/tokenizer.json --prompt "Once upon a time" --max-tokens 100
    ortrain generate artifacts --prompt "Write a poem." --temperature 0.8 --top-p 0.95 --seed 3
    """,
)
@click.argument("source", type=click.Path(path_type=Path), metavar="DIR|MODEL")
@click.option(
    "--prompt", required=True, help="the text that the model continues; - reads it from standard input"
)
@click.option(
    "--chat/--no-chat",
    default=None,
    help="whether the prompt is a user message, to be formatted with the chat template (default: if the model was "
    "trained on messages)",
)
@click.option("--system", metavar="TEXT", help="with --chat, a system message before the prompt")
@click.option(
    "--max-tokens",
    type=running.COUNT,
    default=64,
    show_default=True,
    help="maximum number of tokens to write",
)
@click.option(
    "--temperature",
    type=Number(min=0),
    default=0.0,
    show_default=True,
    help="number by which scores are divided before a token is drawn; 0 always takes the token with the highest score",
)
@click.option(
    "--top-k",
    type=Integer(min=0),
    default=0,
    help="draw only from this many tokens with the highest scores (default all)",
)
@click.option(
    "--top-p",
    type=Number(min=0, min_open=True, max=1),
    default=1.0,
    help="draw only from the most probable tokens whose probabilities sum to this (default 1)",
)
@click.option("--seed", type=Integer(min=0), default=0, show_default=True, help="seed of the random draws")
@click.option(
    "--tokenizer",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="tokenizer.json (default the one in DIR, or beside MODEL)",
)
@click.option(
    "--adapter",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="file of adapters for a MODEL that `ortrain export --adapters apart` wrote",
)
@input_options
@running.model_options
@app.as_json
def command(
    source: Path,
    prompt: str,
    chat: bool | None,
    system: str | None,
    max_tokens: int,
    temperature: float,
    top_k: int,
    top_p: float,
    seed: int,
    tokenizer: Path | None,
    adapter: Path | None,
    names: LanguageOptions,
    checkpoint: Path | None,
    threads: int,
    json_output: bool,
) -> None:
    """Generate text with a language model: the artifacts in DIR, or MODEL, an ONNX file or its folder.

    The text is printed to standard output while it is generated.
    """
    text = sys.stdin.read() if prompt == "-" else prompt
    model: Any
    exported = language_models.model_in(source)
    if exported is not None:
        if checkpoint is not None:
            raise click.UsageError(f"--checkpoint is for a folder of artifacts, found the model {exported}")
        options = SessionOptions()
        options.intra_op_num_threads = threads
        model, stored = language_models.opened(exported, options), None
        if adapter is None:
            _say_that_adapters_are_missing(model, exported)
        inputs = InputNames.among(forms_of(model), **names.of_the_inputs)
    else:
        if adapter is not None:
            raise click.UsageError(
                f"--adapter is for an exported model, found the folder of artifacts {source}"
            )
        read = results.chosen_checkpoint(running.artifacts_folder(source), checkpoint)
        model = running.trainer_to_read(source, read, threads=threads)
        results.say_which(read, model)
        stored = model.preprocessing
        inputs = language_models.input_names(model, names)
    folder = source if source.is_dir() else source.parent
    made = Tokenizer(tokenizer or language_models.tokenizer_beside(folder))
    is_chat = bool(stored and stored.get("chats")) if chat is None else chat
    if system is not None and not is_chat:
        raise click.UsageError("--system: expected --chat with it")
    messages = [{"role": "system", "content": system}] if system is not None else []
    given = [*messages, {"role": "user", "content": text}] if is_chat else text
    found = generate(
        model,
        made,
        given,
        max_tokens=max_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        seed=seed,
        on_text=None if json_output else lambda piece: click.echo(piece, nl=False),
        inputs=inputs,
        logits=names.logits,
        adapter=None if adapter is None else _read_adapter(adapter),
    )
    if json_output:
        app.print_json({"text": found.text, "tokens": found.tokens, "stopped": found.stopped})
        return
    if found.text:
        click.echo()
    else:
        _say_that_the_text_is_empty(found, made, temperature, is_chat)
    if found.stopped != "end":
        why = (
            f"--max-tokens {max_tokens}"
            if found.stopped == "max_tokens"
            else "the maximum number of tokens that the model takes"
        )
        click.echo(f"ortrain: stopped at {why}", err=True)


def _say_that_the_text_is_empty(
    found: Generated, tokenizer: Tokenizer, temperature: float, is_chat: bool
) -> None:
    """Print why a model wrote no text, and what may help."""
    if found.stopped == "end" and len(found.tokens) == 1:
        end = tokenizer.decode(found.tokens, special=True)
        what = f"the first token that the model wrote is {end}, which ends the text, so the text is empty"
    else:
        what = f"the model wrote {counted(len(found.tokens), 'token')}, but their text is empty"
    other = "another --seed" if temperature > 0 else "--temperature 0.8, which draws tokens at random"
    form = (
        "--no-chat, if the model was trained to continue texts"
        if is_chat
        else "--chat, if the model was trained on chats"
    )
    click.echo(
        f"ortrain: {what}; try another prompt, {other}, or {form}",
        err=True,
    )


def _read_adapter(path: Path) -> LoraAdapter:
    check_file(path, "--adapter")
    adapter = LoraAdapter()
    adapter.Load(path)
    return adapter


def _say_that_adapters_are_missing(model: InferenceSession, path: Path) -> None:
    """Print that a model whose inputs are adapters runs without them."""
    if not any(".lora_" in value.name for value in model.get_overridable_initializers()):
        return
    file = path.with_suffix(".onnx_adapter")
    click.echo(
        f"ortrain: {path} takes adapters as inputs and runs without them; --adapter {file if file.exists() else 'FILE'} "
        "adds them",
        err=True,
    )
