"""Models of ``onnx``, read and edited: what artifacts, blocks and exports of frameworks share."""

from ortrain._graph.edits import (
    ADDED_OPSET,
    add_input_like,
    constants_to_initializers,
    import_domain,
    lift_initializers,
    register_outputs,
    rename_reads,
)
from ortrain._graph.inference import (
    check,
    check_types,
    infer_shapes,
    without_initializers,
    without_weights,
)
from ortrain._graph.queries import (
    FLOATING,
    element_type,
    find_value_info,
    floating_constants,
    graphs_in,
    names_in_use,
    opset_of,
    running_statistics,
    subgraphs,
    unknown_nodes,
    value_exists,
    walk,
)

__all__ = [
    "ADDED_OPSET",
    "FLOATING",
    "add_input_like",
    "check",
    "check_types",
    "constants_to_initializers",
    "element_type",
    "find_value_info",
    "floating_constants",
    "graphs_in",
    "import_domain",
    "infer_shapes",
    "lift_initializers",
    "names_in_use",
    "opset_of",
    "register_outputs",
    "rename_reads",
    "running_statistics",
    "subgraphs",
    "unknown_nodes",
    "value_exists",
    "walk",
    "without_initializers",
    "without_weights",
]
