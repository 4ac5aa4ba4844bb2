"""Language models on the command line: artifacts of a model and its tokenizer, and text as their data."""

from __future__ import annotations

import glob
import hashlib
import json
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ortrain import _ortrain, text
from ortrain._files.writing import write_file
from ortrain._support.counts import counted
from ortrain.cli.adapter_option import NEW, WEIGHTS
from ortrain.cli.language_options import LanguageOptions
from ortrain.inference_session import InferenceSession
from ortrain.options import SessionOptions
from ortrain.preprocessing.text import FILE
from ortrain.text.inputs import shape_of
from ortrain.trainer import Trainer
from ortrain.trainer.checks import Form

if TYPE_CHECKING:
    from ortrain.artifacts import LoRA

RECORD = "language_model.json"
"""The file in a folder of artifacts with the path of their language model and the settings of their creation."""

_FOLDER = "session.model_external_initializers_file_folder_path"

LOSS = "token_cross_entropy"
KIND = "language_model"
BATCH = 8
"""The default number of rows of an optimizer step: rows of text take more memory than other rows."""

_OPTIMIZER = "adamw"  # the default, to which the rates below belong
_RATE_OF_ADAPTERS, _RATE_OF_WEIGHTS = 2e-4, 2e-5
_TABLES = (".csv", ".tsv", ".parquet")
_BLOCK = 1 << 20
_PLACES = ("model.onnx", "onnx/model.onnx", "decoder_model.onnx")


def model_in(path: Path) -> Path | None:
    """Return the ONNX model that a user names by its file or its folder, None for a folder of artifacts."""
    if path.is_file():
        return path if path.suffix == ".onnx" else None
    if not path.is_dir() or (path / "training_model.onnx").exists():
        return None
    found = next((path / name for name in _PLACES if (path / name).is_file()), None)
    if found is None:
        models = sorted(path.glob("*.onnx"))
        found = models[0] if len(models) == 1 else None
    return found


def opened(model: Path, options: SessionOptions) -> InferenceSession:
    """Return a session with a language model, without its key-value cache if it has one."""
    from ortrain._files.models import load_model
    from ortrain._files.weights import load_with_weights_apart, serialized_beside
    from ortrain.artifacts.graph.cache import cache_inputs, remove_cache
    from ortrain.artifacts.graph.packed_tables import has_unpacked_tables, pack_tables

    light = load_model(model, load_external_data=False)
    if not cache_inputs(light.graph) and not has_unpacked_tables(light):
        return InferenceSession(model, options)
    loaded = load_with_weights_apart(model)
    remove_cache(loaded)
    pack_tables(loaded)
    options.add_session_config_entry(_FOLDER, str(model.absolute().parent))
    return InferenceSession(serialized_beside(loaded), options)


def batch_of(folder: Path) -> tuple[int, int]:
    """Return the rows per batch, and the batches of an optimizer step, for the artifacts of a language model.

    With quantized weights, a batch has one row, because several rows would need more memory than the weights.
    """
    record = _record(folder)
    if "batch" in record:
        return int(record["batch"]), 1
    return (BATCH, 1) if record["bits"] is None else (1, BATCH)


def is_one(folder: Path) -> bool:
    """Whether the command made the artifacts in a folder from a language model."""
    return (folder / RECORD).is_file()


def set_defaults(folder: Path, settings: dict[str, Any], is_first: bool) -> None:
    """Set what a trainer of a language model needs, unless the user says otherwise.

    Scores are large, [batch, tokens, vocabulary]. Only a metric that the user names reads them; without such a metric,
    the loss is computed from parts of the scores. With quantized weights, a step saves memory at the cost of some time.
    """
    metrics = tuple(settings["metrics"])
    if all(metric == "perplexity" for metric in metrics):
        settings["config"] = {"ortrain.optional_outputs": "0", **settings["config"]}
    if _record(folder)["bits"] is not None:
        settings["config"] = {"ortrain.memory_budget": "auto", **settings["config"]}
    settings["metrics"] = metrics if "perplexity" in metrics else ("perplexity", *metrics)
    record = _record(folder)
    if is_first and settings["learning_rate"] is None and record.get("optimizer", _OPTIMIZER) == _OPTIMIZER:
        settings["learning_rate"] = _RATE_OF_WEIGHTS if record["adapter"] == WEIGHTS else _RATE_OF_ADAPTERS


def write_adapter(folder: Path, checkpoint: Path) -> Path | None:
    """Write the adapters of a checkpoint as PEFT does, and return where; None if there are none, or of another kind of model."""
    if not is_one(folder) or not checkpoint.exists() or _record(folder)["adapter"] == WEIGHTS:
        return None
    target = folder / "adapter"
    try:
        from ortrain.artifacts import write_peft

        write_peft(checkpoint, target)
    except ImportError as error:
        click.echo(
            f"ortrain: {target} was not written: {error}; `ortrain export --peft` writes it from {checkpoint}",
            err=True,
        )
        return None
    return target


def _record(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / RECORD).read_text("utf-8"))
    return found


def artifacts_of(
    path: Path,
    model: Path,
    options: LanguageOptions,
    tokenizer: Path | None,
    seed: int,
    optimizer: str | None = None,
) -> Path:
    """Return the folder of the artifacts of a language model, which are made if there are none.

    Raises
    ------
    ValueError
        When the model is not a language model, has no tokenizer, or the folder has artifacts of another model or with other
        settings.
    """
    folder = options.folder
    found = None if is_one(folder) else _check_language_model(model, options)
    digest = _digest(model)
    if found is None or (folder / "training_model.onnx").exists():
        _check_same(folder, model, digest, options, optimizer)
        return folder
    made_of = text.Tokenizer(
        tokenizer or tokenizer_beside(path if path.is_dir() else model.parent, model.parent)
    )
    adapter = options.adapter or "lora"
    saved = _saved_adapters(adapter, options)
    chosen = options.of_new_adapters
    if chosen.alpha is None:
        chosen = replace(chosen, alpha=2 * (chosen.rank or 8))
    lora = saved or chosen.lora(use_dora=adapter == "dora", seed=seed)
    settings = {
        "adapter": adapter,
        "rank": lora.r,
        "alpha": lora.alpha,
        "dropout": lora.dropout,
        "bias": lora.bias,
        "rslora": lora.use_rslora,
        "bits": options.bits,
        "float-embeddings": options.float_embeddings,
        "logits": options.logits,
        "optimizer": optimizer or _OPTIMIZER,
    }
    if options.bits is not None and adapter == WEIGHTS:
        raise click.UsageError(
            "--bits: quantized weights are not trained: expected --adapter lora or dora as well"
        )
    if options.float_embeddings and options.bits is None:
        raise click.UsageError(
            "--float-embeddings: expected --bits as well, because otherwise no weights are quantized"
        )
    report = _make(model, folder, settings, found, None if adapter == WEIGHTS else lora)
    made_of.copy_to(folder)
    known = {"inputs": found.names.as_json(), "vocabulary": found.vocabulary}
    record = {"model": model.name, "sha256": digest, **settings, **known}
    write_file(folder / RECORD, "artifacts", json.dumps(record, indent=2).encode())
    what = (
        counted(len(report.trained), "weight tensor")
        if adapter == WEIGHTS
        else f"adapters ({adapter}, rank {lora.r}) beside {counted(len(report.adapters.layers), 'layer')}"
    )
    bits = f" with weights of {options.bits} bits" if options.bits else ""
    click.echo(f"ortrain: made {folder} of {model}{bits}, in which the command trains {what}", err=True)
    if found.has_cache:
        click.echo("ortrain: the model of the artifacts has no key-value cache", err=True)
    return folder


def _saved_adapters(adapter: str, options: LanguageOptions) -> LoRA | None:
    """Return the adapters in a folder of PEFT; None for new adapters, and for none."""
    if adapter not in NEW:
        options.of_new_adapters.refuse(adapter)
    if adapter in (*NEW, WEIGHTS):
        return None
    from ortrain.artifacts import read_peft

    return read_peft(adapter)


def _make(
    model: Path,
    folder: Path,
    settings: dict[str, Any],
    found: _LanguageModel,
    adapter: LoRA | None,
) -> Any:
    """Make artifacts with the cross entropy of tokens.

    A fixed batch size is made free if that is possible; otherwise it becomes the batch size in the settings.
    """
    from ortrain.artifacts import quantize_weights, without_cache
    from ortrain.trainer.creation import make_artifacts

    with tempfile.TemporaryDirectory(prefix="ortrain-") as temporary:
        source = model
        if found.has_cache:
            source = Path(temporary) / "without_cache.onnx"
            without_cache(model, source)
        if settings["bits"] is not None:
            whole, source = source, Path(temporary) / model.name
            is_small = not settings["float-embeddings"]
            quantize_weights(whole, source, bits=int(settings["bits"]), embeddings=is_small)
        output = settings["logits"]

        def make(batch: str | None) -> Any:
            return make_artifacts(
                *(source, LOSS, settings["optimizer"], folder, None, None, output),
                adapter=adapter,
                batch=batch,
            )

        if found.rows is None:
            return make(None)
        try:
            return make("dynamic")
        except ValueError as error:
            made = make(None)
            click.echo(
                f"ortrain: a step takes batches of {counted(found.rows, 'row')}, as the model was exported: {error}",
                err=True,
            )
            settings["batch"] = found.rows
            return made


@dataclass(frozen=True)
class _LanguageModel:
    """What the file of a language model shows.

    Attributes
    ----------
    names : its inputs, without those of a cache.
    rows : its batch size, None if it is free.
    vocabulary : the number of its tokens, None if it is not known.
    has_cache : whether it has inputs for the keys and values of earlier tokens.
    """

    names: text.InputNames
    rows: int | None
    vocabulary: int | None
    has_cache: bool


def _check_language_model(model: Path, options: LanguageOptions) -> _LanguageModel:
    """Describe a language model.

    Raises
    ------
    ValueError
        When the model does not take tokens, or does not return a score for each token; the error lists its inputs or outputs.
    """
    from ortrain._files.models import load_model
    from ortrain.artifacts.graph.cache import remove_cache

    loaded = load_model(model, load_external_data=False)
    has_cache = bool(remove_cache(loaded))
    graph = loaded.graph
    weights = {tensor.name for tensor in graph.initializer}
    forms = [
        Form(value.name, _ortrain.numpy_type(kind) if (kind := _type_of(value)) else None, _shape_of(value))
        for value in graph.input
        if value.name not in weights
    ]
    try:
        names = text.InputNames.among(forms, **options.of_the_inputs)
    except ValueError as error:
        if options.of_the_inputs or any(form.dtype is not None and form.dtype.kind in "iu" for form in forms):
            raise ValueError(f"{model}: {error}") from error
        raise ValueError(
            f"DIR: expected a folder of training artifacts, found the file {model}, which is not a language model either: "
            f"{error}. `ortrain artifacts {model} --loss LOSS` creates artifacts from a model, in ./artifacts"
        ) from error
    outputs = {value.name: _shape_of(value) for value in graph.output}
    logits = options.logits or next(iter(outputs))
    if logits not in outputs:
        raise ValueError(f"--logits: {model} has no output {logits!r}; its outputs are {', '.join(outputs)}")
    shape = outputs[logits]
    if shape is None or len(shape) != 3:
        others = [name for name, found in outputs.items() if found is not None and len(found) == 3]
        advice = f"; --logits {others[0]} chooses an output with three dimensions" if others else ""
        raise ValueError(
            f"{model}: expected scores [batch, tokens, vocabulary] as the output {logits} of a language model, found "
            f"{'an unknown number of dimensions' if shape is None else counted(len(shape), 'dimension')}{advice}"
        )
    vocabulary = shape[2] if isinstance(shape[2], int) else None
    return _LanguageModel(names, shape_of(names, forms)[0], vocabulary, has_cache)


def _type_of(value: Any) -> int:
    """Return the element type of an input, 0 if it is not known."""
    return int(value.type.tensor_type.elem_type)


def _shape_of(value: Any) -> list[int | str] | None:
    """Return the declared shape of an input or output, None if it has none."""
    kind = value.type.tensor_type
    return [dim.dim_value or dim.dim_param for dim in kind.shape.dim] if kind.HasField("shape") else None


def tokenizer_beside(*folders: Path) -> Path:
    """Return the tokenizer in the first of some folders, or the folders around them, that has one.

    Raises
    ------
    ValueError
        When none has one.
    """
    found = next(
        (place for folder in folders for place in (folder / FILE, folder.parent / FILE) if place.is_file()),
        None,
    )
    if found is None:
        raise ValueError(
            f"--tokenizer: expected {FILE} in {folders[0]}, or the option with its path; found none"
        )
    return found


def _check_same(
    folder: Path, model: Path, digest: str, options: LanguageOptions, optimizer: str | None
) -> None:
    """Reject artifacts that were made from another model or with other settings."""
    elsewhere = "--artifacts names another folder"
    if not is_one(folder):
        raise ValueError(
            f"{folder} has artifacts that this command did not make from a language model; {elsewhere}"
        )
    record = _record(folder)
    if record["sha256"] != digest:
        raise ValueError(
            f"{folder} has artifacts of another model, {record['model']}, than {model}; {elsewhere}"
        )
    # Records of earlier versions lack these settings.
    record = {"optimizer": _OPTIMIZER, "dropout": 0.0, "bias": "none", "rslora": False, **record}
    given = options.of_the_model | ({} if optimizer is None else {"--optimizer": optimizer})
    for name, value in given.items():
        before = record.get(name.removeprefix("--"))
        if before != value:
            raise ValueError(
                f"{name} {value}: the artifacts in {folder} were made with {before}; {elsewhere}"
            )


def check_made_from(folder: Path, model: Path) -> None:
    """Reject a model other than the one that the artifacts of a language model were made from."""
    record = _record(folder)
    if record["sha256"] != _digest(model):
        raise ValueError(
            f"--into: expected the model that {folder} was made from, {record['model']}, found {model}, which differs"
        )


def base_of(folder: Path, model: Path, temporary: Path) -> Path:
    """Return the model whose weights were trained: the given one, with quantized weights if the artifacts have such weights."""
    if not is_one(folder) or (bits := _record(folder)["bits"]) is None:
        return model
    from ortrain.artifacts import quantize_weights

    target = temporary / "quantized.onnx"
    quantize_weights(model, target, bits=int(bits), embeddings=not _record(folder)["float-embeddings"])
    return target


def _digest(path: Path) -> str:
    """Return a digest of a model, and of the sizes and ends of files beside it that may contain its weights."""
    found = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            found.update(block)
    for weights in sorted(path.parent.glob(f"{glob.escape(path.stem)}*data")):
        size = weights.stat().st_size
        found.update(f"{weights.name} {size}".encode())
        with weights.open("rb") as file:
            found.update(file.read(_BLOCK))
            file.seek(max(0, size - _BLOCK))
            found.update(file.read(_BLOCK))
    return found.hexdigest()


def takes_text(trainer: Trainer, path: Path, tokenizer: Path | None) -> bool:
    """Whether a file has text for the model of a trainer: JSON lines for a language model with a tokenizer."""
    if path.suffix.lower() not in (".jsonl", ".ndjson") or not path.is_file():
        return False
    if trainer.preprocessing is not None:
        return bool(trainer.preprocessing["kind"] == KIND)
    if tokenizer is None and not (trainer.folder / FILE).is_file():
        return False
    target = trainer.inputs.forms[-1]
    has_labels = target.takes_classes and target.shape is not None and len(target.shape) == 2
    return has_labels and _has_tokens(trainer)


def check_data(folder: Path, path: Path) -> None:
    """Reject a table as the data of a language model, whose artifacts the command made to learn text."""
    if is_one(folder) and path.suffix.lower() in _TABLES:
        raise ValueError(
            f"--data: expected JSON lines (.jsonl) with prompt and completion, messages or text for the language model in "
            f"{folder}, found the table {path}"
        )


def _has_tokens(trainer: Trainer) -> bool:
    form = trainer.inputs.forms[0]
    return (
        form.dtype is not None and form.dtype.kind in "iu" and form.shape is not None and len(form.shape) == 2
    )


def input_names(trainer: Trainer, options: LanguageOptions) -> text.InputNames:
    """Return the names of a language model's inputs: those that its checkpoint or its folder says, else options.

    Raises
    ------
    ValueError
        When the options say something else, or nothing says which input is which.
    """
    stored = (trainer.preprocessing or {}).get("inputs")
    if stored is None and is_one(trainer.folder):
        stored = _record(trainer.folder).get("inputs")
    if stored is None:
        return text.InputNames.among(trainer.inputs.forms[:-1], **options.of_the_inputs)
    for role, name in options.of_the_inputs.items():
        if stored.get(role) != name:
            raise ValueError(
                f"--{role} {name}: the model in {trainer.folder} was trained with {stored.get(role, 'no such input')}"
            )
    return text.InputNames(**stored)


def rows_of(
    trainer: Trainer, path: Path, options: LanguageOptions, tokenizer: Path | None, seed: int
) -> text.TextRows:
    """Return the text of a file as rows. The trainer's checkpoint decides how, otherwise the options do.

    The trainer stores the choice if its checkpoint has none.
    """
    stored = trainer.preprocessing
    made = text.Tokenizer(trainer.folder if stored is not None or tokenizer is None else tokenizer)
    if stored is not None and stored["digest"] != made.digest:
        raise ValueError(
            f"expected the tokenizer that the model was trained with in {made.path}, found another one"
        )
    examples = text.read_lines(path)
    known = stored or {}
    names = input_names(trainer, options)
    length = shape_of(names, trainer.inputs.forms)[1]
    if length is not None and options.length not in (None, length):
        raise ValueError(
            f"--length: the model takes rows of {counted(length, 'token')}, found {options.length}"
        )
    labels = trainer.inputs.names[-1]
    packed = options.pack or known.get("packed", False)
    loss_on = options.loss_on or known.get("loss_on", "completions")
    rows = text.rows_of(
        examples,
        made,
        names,
        length=length or options.length or known.get("length"),
        packed=packed,
        loss_on=loss_on,
        labels=labels,
        seed=seed,
        path=path,
    )
    _check_vocabulary(trainer.folder, max(rows.arrays[name].max() for name in (names.tokens, labels)), made)
    for sentence in rows.shown():
        click.echo(f"ortrain: {path}: {sentence}", err=True)
    if not made.ends:
        click.echo(
            f"ortrain: no token of {made.path} is known to end a text, so the model does not learn to stop; name that "
            "token as eos_token in tokenizer_config.json",
            err=True,
        )
    if stored is None or options.length or options.pack or options.loss_on:
        trainer.preprocessing = {
            "kind": KIND,
            "digest": made.digest,
            "inputs": names.as_json(),
            "length": rows.length,
            "packed": packed,
            "loss_on": loss_on,
            "chats": any(example.messages for example in examples),
        }
        if stored is None and tokenizer is not None:
            made.copy_to(trainer.folder)
    return rows


def say_how_to_lengthen(
    rows: text.TextRows, trainer: Trainer, options: LanguageOptions, is_first: bool
) -> None:
    """Print that --length makes rows longer if a length that the user did not give cuts examples of the training data."""
    model_length = shape_of(input_names(trainer, options), trainer.inputs.forms)[1]
    if options.length is not None or model_length is not None or rows.enough <= rows.length:
        return
    why = (
        "at most by default" if is_first else "as in the run before, whose parameters this run continues from"
    )
    click.echo(
        f"ortrain: rows have {counted(rows.length, 'token')}, {why}; --length sets another number, and the longest example "
        f"needs {rows.enough}",
        err=True,
    )


def _check_vocabulary(folder: Path, largest: int, tokenizer: text.Tokenizer) -> None:
    """Reject a token that the model does not have, if the record of its artifacts contains the number of its tokens."""
    size = _record(folder).get("vocabulary") if is_one(folder) else None
    if size is not None and largest >= size:
        shown = tokenizer.decode([int(largest)], special=True)
        raise ValueError(
            f"--tokenizer: token {largest} ({shown!r}) of {tokenizer.path} is not one of the {counted(size, 'token')} of "
            "the model; "
            "expected the tokenizer of this model"
        )
