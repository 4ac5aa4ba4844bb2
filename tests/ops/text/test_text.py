"""Operators on strings, against stock onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import ortrain
import pytest
from onnx import TensorProto, helper, numpy_helper

WORDS = np.array(
    [["apple", "", "a long text that needs memory of its own"], ["Äpfel", "apple", "fig"]], object
)
ROW = WORDS[0]


def run_on_both(nodes: list[onnx.NodeProto], feed: dict[str, Any], outputs: list[str]) -> list[Any]:
    """What a model gives here, in two runs, which has to be what it gives in onnxruntime."""
    onnxruntime = pytest.importorskip("onnxruntime", reason="it is the oracle")

    def kind(array: Any) -> int:
        return TensorProto.STRING if array.dtype == object else helper.np_dtype_to_tensor_dtype(array.dtype)

    inputs = [helper.make_tensor_value_info(n, kind(v), v.shape) for n, v in feed.items()]
    graph = helper.make_graph(
        nodes, "g", inputs, [helper.make_value_info(n, onnx.TypeProto()) for n in outputs]
    )
    domains = [helper.make_opsetid("", 20), helper.make_opsetid("ai.onnx.ml", 2)]
    domains.append(helper.make_opsetid("com.microsoft", 1))
    model = helper.make_model(graph, opset_imports=domains, ir_version=9).SerializeToString()
    expected = onnxruntime.InferenceSession(model).run(outputs, feed)
    session = ortrain.InferenceSession(model)
    for _ in range(2):
        found = session.run(outputs, feed)
        for a, b in zip(found, expected, strict=True):
            if isinstance(b, list):
                assert [x.tolist() for x in a] == [x.tolist() for x in b]
            else:
                assert a.dtype == b.dtype
                assert a.tolist() == b.tolist()
    return found


def constant(name: str, value: Any) -> onnx.NodeProto:
    array = np.asarray(value)
    return helper.make_node("Constant", [], [name], value=numpy_helper.from_array(array))


def op(kind: str, inputs: list[str], outputs: tuple[str, ...] = ("y",), **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(kind, inputs, list(outputs), **attributes)


def ml(kind: str, **attributes: Any) -> onnx.NodeProto:
    return op(kind, ["x"], domain="ai.onnx.ml", **attributes)


@pytest.mark.parametrize(
    "nodes",
    [
        [op("Identity", ["x"])],
        [op("Transpose", ["x"])],
        [constant("i", np.array([1, 0, 1])), op("Gather", ["x", "i"], axis=1)],
        [op("Concat", ["x", "x"], axis=1)],
        [constant("s", np.array([3, -1])), op("Reshape", ["x", "s"])],
        [constant("s", np.array([2, 2, 3])), op("Expand", ["x", "s"])],
        [op("Flatten", ["x"])],
        [constant("a", np.array([0])), constant("e", np.array([1])), op("Slice", ["x", "a", "e"])],
        [op("Unique", ["x"])],
        [op("Unique", ["x"], sorted=0)],
        [op("Shape", ["x"])],
        [op("SplitToSequence", ["x"], axis=0)],
    ],
    ids=lambda nodes: nodes[-1].op_type,
)
def test_strings_are_moved(nodes: list[onnx.NodeProto]) -> None:
    run_on_both(nodes, {"x": WORDS}, ["y"])


def test_strings_are_compared_and_chosen() -> None:
    nodes = [op("Equal", ["x", "z"], ("e",)), op("Where", ["e", "x", "z"], ("w",))]
    run_on_both(nodes, {"x": WORDS, "z": np.array([["apple"], ["fig"]], object)}, ["e", "w"])


def test_constants_of_strings_stay_after_the_first_run() -> None:
    nodes = [
        op("Constant", [], ("a",), value_strings=["one", "two"]),
        op("Constant", [], ("b",), value_string="!"),
        op("StringConcat", ["a", "b"], ("c",)),
        op("StringConcat", ["c", "x"]),
    ]
    assert run_on_both(nodes, {"x": np.array(["?"], object)}, ["y"])[0].tolist() == ["one!?", "two!?"]


@pytest.mark.parametrize("taken", [True, False])
def test_branches_return_strings(taken: bool) -> None:
    def branch(kind: str) -> onnx.GraphProto:
        node = op(kind, ["x", "x"] if kind == "StringConcat" else ["x"], ("b",))
        return helper.make_graph([node], kind, [], [helper.make_value_info("b", onnx.TypeProto())])

    node = op("If", ["c"], then_branch=branch("Identity"), else_branch=branch("StringConcat"))
    run_on_both([node], {"c": np.array(taken), "x": ROW}, ["y"])


def test_a_loop_builds_a_text() -> None:
    def info(name: str, kind: int, shape: list[int]) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, kind, shape)

    body = helper.make_graph(
        [
            op("StringConcat", ["s", "x"], ("t",)),
            op("Identity", ["t"], ("u",)),
            op("Identity", ["c"], ("d",)),
        ],
        "body",
        [
            info("i", TensorProto.INT64, []),
            info("c", TensorProto.BOOL, []),
            info("s", TensorProto.STRING, [3]),
        ],
        [
            info("d", TensorProto.BOOL, []),
            info("t", TensorProto.STRING, [3]),
            info("u", TensorProto.STRING, [3]),
        ],
    )
    nodes = [
        constant("n", np.array(3)),
        constant("go", np.array(True)),
        op("Loop", ["n", "go", "x"], ("y", "all"), body=body),
    ]
    found = run_on_both(nodes, {"x": ROW}, ["y", "all"])
    assert found[0][0] == "apple" * 4
    assert found[1].shape == (3, 3)


def test_texts_are_joined_with_broadcasting() -> None:
    run_on_both([op("StringConcat", ["x", "z"])], {"x": WORDS, "z": np.array([["-"], ["+"]], object)}, ["y"])


SENTENCES = np.array(["a,b,,c", "", "one  two ", "x,", " lead"], object)


@pytest.mark.parametrize(
    "attributes",
    [{"delimiter": ","}, {}, {"delimiter": ",", "maxsplit": 1}, {"maxsplit": 1}, {"delimiter": ",,"}],
    ids=str,
)
def test_texts_are_split(attributes: dict[str, Any]) -> None:
    run_on_both([op("StringSplit", ["x"], ("y", "n"), **attributes)], {"x": SENTENCES}, ["y", "n"])


@pytest.mark.parametrize("pattern", ["[a-z]+", r"(a|b).*", r"\w{3}", ""])
def test_texts_are_matched(pattern: str) -> None:
    run_on_both([op("RegexFullMatch", ["x"], pattern=pattern)], {"x": WORDS}, ["y"])


@pytest.mark.parametrize("case", ["NONE", "LOWER", "UPPER"])
@pytest.mark.parametrize("exact", [0, 1])
@pytest.mark.parametrize("stopwords", [[], ["apple"], ["APPLE", "fig", "Fig", "Äpfel", "the"]], ids=len)
def test_texts_are_normalized(case: str, exact: int, stopwords: list[str]) -> None:
    words = np.array(["apple", "Fig", "ÄPFEL", "The", "APPLE"], object)
    attributes: dict[str, Any] = {
        "case_change_action": case,
        "is_case_sensitive": exact,
        "locale": "C.UTF-8",
    }
    if stopwords:
        attributes["stopwords"] = stopwords
    try:
        run_on_both([op("StringNormalizer", ["x"], **attributes)], {"x": words}, ["y"])
    except Exception as error:
        if "locale" in str(error).lower():
            pytest.skip("onnxruntime needs the locale C.UTF-8 on this machine")
        raise


@pytest.mark.parametrize("kind", [np.float32, np.float64, np.int32, np.int64, np.uint8])
def test_numbers_become_texts_and_come_back(kind: Any) -> None:
    text, number = TensorProto.STRING, helper.np_dtype_to_tensor_dtype(np.dtype(kind))
    nodes = [op("Cast", ["x"], ("t",), to=text), op("Cast", ["t"], to=number)]
    values = np.array([0, 1, 12, 255 if kind == np.uint8 else -7], kind)
    run_on_both(nodes, {"x": values}, ["t", "y"])
    if np.issubdtype(kind, np.floating):
        special = np.array([0.1, 1e20, -1.5e-7, np.inf, -np.inf, np.nan], kind)
        run_on_both(nodes[:1], {"x": special}, ["t"])


def test_a_text_that_is_no_number_is_refused() -> None:
    graph = helper.make_graph(
        [op("Cast", ["x"], to=TensorProto.FLOAT)],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.STRING, [1])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1])],
    )
    session = ortrain.InferenceSession(helper.make_model(graph, ir_version=9).SerializeToString())
    with pytest.raises(ortrain.InvalidArgumentError, match='"fig" is not a number'):
        session.run(None, {"x": np.array(["fig"], object)})


@pytest.mark.parametrize(
    "node",
    [
        ml("LabelEncoder", keys_strings=["apple", "fig"], values_int64s=[3, 4], default_int64=9),
        ml("LabelEncoder", keys_strings=["apple", "fig"], values_strings=["A", "F"], default_string="?"),
        ml("LabelEncoder", keys_strings=["apple", "fig"], values_floats=[1.5, 2.5]),
        ml("CategoryMapper", cats_strings=["apple", "fig"], cats_int64s=[7, 8], default_int64=-2),
        ml("OneHotEncoder", cats_strings=["fig", "apple"], zeros=1),
    ],
    ids=lambda node: f"{node.op_type} {len(node.attribute)}",
)
def test_strings_are_looked_up(node: onnx.NodeProto) -> None:
    run_on_both([node], {"x": WORDS}, ["y"])


@pytest.mark.parametrize(
    "node",
    [
        ml("LabelEncoder", keys_int64s=[3, 4], values_strings=["three", "four"]),
        ml("CategoryMapper", cats_strings=["seven", "eight"], cats_int64s=[7, 8], default_string="none"),
    ],
    ids=lambda node: node.op_type,
)
def test_numbers_are_named(node: onnx.NodeProto) -> None:
    run_on_both([node], {"x": np.array([[3, 7], [8, 5]])}, ["y"])


@pytest.mark.parametrize("mode", ["TF", "IDF", "TFIDF"])
def test_n_grams_of_strings_are_counted(mode: str) -> None:
    node = op(
        "TfIdfVectorizer",
        ["x"],
        mode=mode,
        min_gram_length=1,
        max_gram_length=2,
        max_skip_count=1,
        ngram_counts=[0, 2],
        ngram_indexes=[0, 1, 2],
        pool_strings=["a", "b", "a", "b"],
        weights=[1.0, 2.0, 3.0],
    )
    run_on_both([node], {"x": np.array([["a", "b", "a", "c"], ["b", "b", "a", "b"]], object)}, ["y"])


@pytest.mark.parametrize("mark", [0, 1])
@pytest.mark.parametrize(
    "rule",
    [{"tokenexp": "[a-z]+"}, {"separators": [" "]}, {"separators": [""]}, {"separators": [",", " "]}],
    ids=str,
)
def test_texts_become_tokens(mark: int, rule: dict[str, Any]) -> None:
    node = op("Tokenizer", ["x"], domain="com.microsoft", mark=mark, mincharnum=1, pad_value="#", **rule)
    run_on_both([node], {"x": np.array(["one two, three", "four", "five,six"], object)}, ["y"])
