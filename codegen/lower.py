"""Lowering: a method becomes a list of steps, which every language prints.

A pattern is a function in this file. It declares the roles of its calls and parameters, and returns the steps of a method.
A language has one macro per kind of step, and none for patterns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from codegen.spec.model import Call, Class, Given, Method, Parameter, argument_kind
from codegen.spec.names import snake
from codegen.spec.source import Problem, SpecError

# ---- what is passed to a call ----


@dataclass(frozen=True)
class Operand:
    """An operand of a call."""

    @property
    def kind(self) -> str:
        """Its name in templates, such as ``output_count``."""
        return snake(type(self).__name__)


@dataclass(frozen=True)
class Receiver(Operand):
    """The handle of the object."""


@dataclass(frozen=True)
class Passed(Operand):
    """An argument in its C form."""

    argument: Given


@dataclass(frozen=True)
class Length(Operand):
    """The number of elements or bytes of an array argument."""

    argument: Given


@dataclass(frozen=True)
class Allocator(Operand):
    """The CPU allocator."""


@dataclass(frozen=True)
class Environment(Operand):
    """The process-wide environment, for methods that take none."""


@dataclass(frozen=True)
class Fixed(Operand):
    """A value that the method passes itself."""

    parameter: Parameter
    value: str


@dataclass(frozen=True)
class Absent(Operand):
    """Null, for an optional parameter that is left out."""

    parameter: Parameter


@dataclass(frozen=True)
class Out(Operand):
    """Where a call stores something."""

    parameter: Parameter


@dataclass(frozen=True)
class Made(Operand):
    """Where a call stores the handle of the object that is being created."""

    parameter: Parameter


@dataclass(frozen=True)
class Room(Operand):
    """The buffer that a call fills; null in the first of two calls, which only queries the size."""

    parameter: Parameter


@dataclass(frozen=True)
class RoomSize(Operand):
    """The size of that buffer, in and out."""

    parameter: Parameter


@dataclass(frozen=True)
class OutputCount(Operand):
    """The number of outputs."""


@dataclass(frozen=True)
class Outputs(Operand):
    """The array that receives outputs."""


@dataclass(frozen=True)
class ValueOf(Operand):
    """A value of an enumeration."""

    enum: str
    value: str


@dataclass(frozen=True)
class AddressOf(Operand):
    """The address of an argument, for a parameter without a type."""

    argument: Given


@dataclass(frozen=True)
class TypeOf(Operand):
    """The type of an argument, for a parameter without one."""

    argument: Given


@dataclass(frozen=True)
class Names(Operand):
    """The names of an argument that is named values."""

    argument: Given


@dataclass(frozen=True)
class Values(Operand):
    """The values of an argument that is named values."""

    argument: Given


@dataclass(frozen=True)
class CountDiffers(Operand):
    """Whether the counted number of elements differs from the number that a call returned."""


# ---- steps ----


@dataclass
class Step:
    """One step of a method."""

    @property
    def kind(self) -> str:
        """Its name in templates, such as ``read_names``."""
        return snake(type(self).__name__)


@dataclass
class Convert(Step):
    """Checks an argument and converts it to its C form."""

    argument: Given


@dataclass
class SameLength(Step):
    """Rejects two arrays of different lengths, because C gets one length for both."""

    first: Given
    other: Given


@dataclass
class Invoke(Step):
    """Makes a call; a failure ends the method. Results are stored in variables named after the parameters."""

    call: Call
    operands: list[Operand]

    @property
    def stored(self) -> list[Parameter]:
        """What the call stores."""
        return [o.parameter for o in self.operands if isinstance(o, Out)]


@dataclass
class Make(Step):
    """Makes a call whose result is the handle of the new object."""

    call: Call
    operands: list[Operand]

    @property
    def result(self) -> Parameter:
        """The handle."""
        return self.call.results[0]


@dataclass
class FillRoom(Step):
    """Makes a call twice, to get the size of a string and then to fill a buffer, and returns the string."""

    call: Call
    operands: list[Operand]

    @property
    def asking(self) -> list[Operand]:
        """The operands of the first call, which gets no buffer."""
        return [Absent(o.parameter) if isinstance(o, Room) else o for o in self.operands]


@dataclass
class Return(Step):
    """Converts what calls stored, and returns it."""

    results: list[Parameter]


@dataclass
class ReadNames(Step):
    """Returns names, of which one call returns the count and another one each name by index."""

    count: Call
    name: Call


@dataclass
class ReadNumbers(Step):
    """Returns numbers, of which one call returns the count and another one fills an array."""

    count: Call
    fill: Call


@dataclass
class ReadInfos(Step):
    """Returns name, type and shape of inputs or outputs: one call returns the count, two describe each by index."""

    count: Call
    name: Call
    type: Call


@dataclass
class Choose(Step):
    """Runs one list of steps or the other, depending on an argument or, without one, on the mode of the object."""

    argument: Given | None
    when_true: list[Step]
    when_false: list[Step]


@dataclass
class CountOutputs(Step):
    """Gets the number of outputs."""

    call: Call


@dataclass
class MakeOutputs(Step):
    """Creates the array that receives the outputs: as many as were counted, or one per name."""

    names: Given | None = None


@dataclass
class ReturnOutputs(Step):
    """Returns the outputs, by name if there are names."""

    names: Given | None = None


@dataclass
class CountElements(Step):
    """Counts the elements of a tensor argument."""

    argument: Given


@dataclass
class StoreByType(Step):
    """Makes a call with the address of a value whose type is known only at run time."""

    call: Call
    operands: list[Operand]
    argument: Given


@dataclass
class ReadByType(Step):
    """Makes a call that returns a value and its type; with ``wanted``, rejects any other type."""

    call: Call
    operands: list[Operand]
    wanted: str


@dataclass
class Remember(Step):
    """Keeps the value of a setting, for languages that can return it."""

    argument: Given


@dataclass
class Default(Step):
    """Creates default settings if an argument is not given."""

    argument: Given


@dataclass
class CheckDevice(Step):
    """Rejects an unknown device."""

    argument: Given


@dataclass
class CheckProviders(Step):
    """Rejects unknown providers."""

    providers: Given
    options: Given


@dataclass
class KeepAlive(Step):
    """Keeps an argument alive as long as the object; as its owner, if the object is a view of it."""

    argument: Given
    owner: bool = False


@dataclass
class MakeFromPathOrBytes(Step):
    """Creates the object from a file or from bytes, whichever an argument is."""

    argument: Given
    options: Given
    file: Call
    buffer: Call


@dataclass
class RunStep(Step):
    """Takes the inputs in any form, makes one of two calls depending on the mode, and returns outputs in that form."""

    train: Call
    eval: Call
    inputs: Given


@dataclass
class RunModel(Step):
    """Takes the inputs by name, runs the model, and returns the outputs as arrays, or as values if ``outputs`` is set."""

    call: Call
    inputs: Given
    output_names: Given
    run_options: Given
    outputs: Given | None


@dataclass
class ReadInfosOfMode(Step):
    """Returns name, type and shape of the inputs in the mode of the object."""

    type: Call


@dataclass
class SetMode(Step):
    """Sets the mode of the object to an argument or a fixed value, and returns the object."""

    mode: bool | None
    argument: Given | None


@dataclass
class ReturnKey(Step):
    """Returns the name of the entry that the object is."""


@dataclass
class ReadEntry(Step):
    """Returns what a call returns for the entry that the object is; nothing if the call ``when`` returns false."""

    call: Call
    type: str
    when: Call | None = None
    set: Call | None = None


@dataclass
class ReadNamesOfEntry(Step):
    """Returns names that belong to the entry that the object is."""

    count: Call
    name: Call


@dataclass
class ReadAttribute(Step):
    """Returns an attribute of the entry that the object is, by the name of the method; it can be assigned to."""

    get: Call
    set: Call
    type: str


@dataclass
class ReturnView(Step):
    """Returns a view into the object."""

    type: str


@dataclass
class Describe(Step):
    """Returns a human-readable representation."""


@dataclass
class GetEntry(Step):
    """Returns an entry by its name."""

    call: Call
    name: Given


@dataclass
class SetEntry(Step):
    """Sets an entry by its name."""

    call: Call
    name: Given
    value: Given


@dataclass
class HasEntry(Step):
    """Returns whether there is an entry of a name."""

    name: Given


@dataclass
class IterateEntries(Step):
    """Iterates over (name, entry) pairs."""


@dataclass
class CountEntries(Step):
    """Returns the number of entries."""


# ---- patterns ----

Lowering = Callable[[Class, Method], list[Step]]


@dataclass
class Pattern:
    """A way to use calls: the roles of its calls and parameters, and the steps of its methods."""

    calls: tuple[str, ...]
    optional: tuple[str, ...]
    parameters: tuple[str, ...]
    open: bool
    fails: tuple[str, ...]
    lower: Lowering


PATTERNS: dict[str, Pattern] = {}
"""Every pattern by its name."""


def pattern(
    *calls: str,
    optional: Sequence[str] = (),
    parameters: Sequence[str] = (),
    open: bool = False,
    fails: Sequence[str] | None = None,
) -> Callable[[Lowering], Lowering]:
    """Register a pattern under the name of its function.

    Parameters
    ----------
    calls, optional : str
        Roles of the calls that it needs, and of those that it may have.
    parameters : sequence of str
        Roles of the parameters that a method may have; ``*`` for any.
    open : bool
        Whether its parameters are those of its call, by name, instead of fixed roles.
    fails : sequence of str, optional
        Roles of the calls whose errors a caller can get, if not all: an index below a count that another call returned
        is always valid.
    """

    def register(function: Lowering) -> Lowering:
        met = calls if fails is None else tuple(fails)
        PATTERNS[function.__name__] = Pattern(calls, tuple(optional), tuple(parameters), open, met, function)
        return function

    return register


def lower(cls: Class, method: Method) -> list[Step]:
    """Return the steps of a method."""
    return PATTERNS[method.pattern].lower(cls, method)


def operands_of(
    call: Call,
    given: Sequence[Given],
    receiver: bool,
    made: bool = False,
    fixed: Mapping[str, Any] | None = None,
) -> list[Operand]:
    """Return the operands of a call: the object, the arguments in their roles, and what a caller does not pass.

    Raises
    ------
    SpecError
        If there is no operand for a parameter of the call.
    """
    roles = {g.role: g for g in given}
    out: list[Operand] = []
    for i, p in enumerate(call.parameters):
        arrays = call.arrays.get(p.name, [])
        if i == 0 and receiver:
            out.append(Receiver())
        elif p.name in roles:
            out.append(Passed(roles[p.name]))
        elif fixed and p.name in fixed:
            out.append(Fixed(p, str(fixed[p.name])))
        elif p.room:
            out.append(Room(p))
        elif arrays and arrays[0].room:
            out.append(RoomSize(p))
        elif p.is_result:
            out.append(Made(p) if made and p in call.results else Out(p))
        elif p.type == "allocator":
            out.append(Allocator())
        elif p.type == "env":
            out.append(Environment())
        elif arrays and arrays[0].name in roles:
            out.append(Length(roles[arrays[0].name]))
        elif (typed := call.typed_by(p)) and typed.name in roles:
            out.append(TypeOf(roles[typed.name]))
        elif p.nullable:
            out.append(Absent(p))
        else:
            message = f"expected a parameter of the method in the role {p.name}, which the call {call.name} needs, found none"
            raise SpecError([Problem("spec", 1, "", message)])
    return out


def _bound(method: Method, call: Call) -> list[Given]:
    """Return the parameters of a method with the parameters of the call that they become."""
    names = {p.name: p for p in call.parameters}
    return [replace(g, passed=names.get(g.role)) for g in method.parameters]


def arguments(method: Method) -> list[Given]:
    """Return the arguments of a method, each with the parameter of the call that it becomes."""
    return _bound(method, method.call) if method.calls else list(method.parameters)


def errors(m: Method) -> list[dict[str, str]]:
    """Return the errors of its calls that the caller of a method can get, each once."""
    met = [m.calls[role] for role in PATTERNS[m.pattern].fails if role in m.calls]
    return list({(e["code"], e["when"]): e for call in met for e in call.errors}.values())


def with_run_options(m: Method) -> Method | None:
    """Return the form of a method with run options as its last parameter, if its call takes them and it does not."""
    known = {g.role for g in m.parameters}
    taken = [p for p in m.call.parameters if p.type == "run_options" and p.nullable and p.name not in known]
    if not taken:
        return None
    options = Given(taken[0].name, "run_options", taken[0].doc, nullable=True)
    return replace(m, parameters=[*m.parameters, options])


def _conversions(call: Call, given: Sequence[Given]) -> list[Step]:
    steps: list[Step] = [Convert(g) for g in given]
    roles = {g.role: g for g in given}
    for arrays in call.arrays.values():
        counted = [roles[a.name] for a in arrays if a.name in roles]
        steps += [SameLength(counted[0], other) for other in counted[1:]]
    return steps


def function_of(call: Call) -> list[Step]:
    """Return the steps of a function that makes one call and takes all of its arguments."""
    given = [
        Given(p.name, argument_kind(p), p.doc, nullable=p.nullable, own=p.name, passed=p)
        for p in call.arguments
    ]
    operands = operands_of(call, given, receiver=False)
    steps = _conversions(call, given)
    if any(isinstance(o, Room) for o in operands):
        return [*steps, FillRoom(call, operands)]
    return [*steps, Invoke(call, operands), Return(call.results)]


def _made_by(method: Method, receiver: bool) -> list[Step]:
    call = method.call
    given = _bound(method, call)
    operands = operands_of(call, given, receiver, fixed=method.fixed)
    steps = _conversions(call, given)
    if any(isinstance(o, Room) for o in operands):
        return [*steps, FillRoom(call, operands)]
    steps.append(Invoke(call, operands))
    return [*steps, Return(call.results)] if method.returns else steps


@pattern("call", open=True)
def direct(cls: Class, m: Method) -> list[Step]:
    """Lower a call on the object."""
    return _made_by(m, receiver=True)


@pattern("call", open=True)
def static(cls: Class, m: Method) -> list[Step]:
    """Lower a call that needs no object, or takes it as an argument."""
    return _made_by(m, receiver=False)


@pattern("call", optional=("device_count", "device_name"), parameters=("device", "unused"), open=True)
def create(cls: Class, m: Method) -> list[Step]:
    """Lower a call that creates an object. An unused parameter is one that programs pass and that has no effect."""
    given = _bound(m, m.call)
    steps: list[Step] = []
    for g in given:
        if g.role == "device":
            steps.append(CheckDevice(g))
        elif g.role == "unused":
            continue
        elif g.nullable and g.passed and not g.passed.nullable:
            steps.append(Default(g))
    given = [g for g in given if g.role not in ("device", "unused")]
    steps += _conversions(m.call, given)
    steps.append(Make(m.call, operands_of(m.call, given, False, made=True, fixed=m.fixed)))
    return steps + [KeepAlive(g) for g in given if g.passed and g.passed.mutable]


@pattern("call", open=True)
def attach(cls: Class, m: Method) -> list[Step]:
    """Lower a call that adds something to another object, of which the new object is a view."""
    given = _bound(m, m.call)
    owner = next(g for g in given if g.type == cls.view_of)
    operands = operands_of(m.call, given, receiver=False)
    return [*_conversions(m.call, given), Invoke(m.call, operands), KeepAlive(owner, owner=True)]


SETTINGS = ("option", "switch", "kept")
"""The patterns of settings: properties in some languages, setters in others."""


def value_of_setting(m: Method) -> Given:
    """Return the value of a setting, its only parameter."""
    p = m.call.arguments[1] if m.pattern == "option" else None
    kind = m.returns.type if m.returns else (p.type if p else "bool")
    doc = m.returns.doc if m.returns else (p.doc if p else "")
    name = p.name if p else m.name
    return Given(name, kind, doc, passed=p)


@pattern("call")
def option(cls: Class, m: Method) -> list[Step]:
    """Lower a setting with one call."""
    (value,) = m.parameters
    operands = operands_of(m.call, [value], receiver=True)
    return [Convert(value), Invoke(m.call, operands), Remember(value)]


@pattern()
def kept(cls: Class, m: Method) -> list[Step]:
    """Lower a setting that nothing reads, for programs that set it."""
    (value,) = m.parameters
    return [Remember(value)]


@pattern("enable", "disable")
def switch(cls: Class, m: Method) -> list[Step]:
    """Lower a setting with a call that enables it and a call that disables it."""
    on, off = (Invoke(m.calls[role], [Receiver()]) for role in ("enable", "disable"))
    (value,) = m.parameters
    return [Choose(value, [on], [off]), Remember(value)]


@pattern("count", "name", fails=("count",))
def names(cls: Class, m: Method) -> list[Step]:
    """Lower names: one call returns the count, another one each name by index."""
    return [ReadNames(m.calls["count"], m.calls["name"])]


@pattern("count", "fill")
def numbers(cls: Class, m: Method) -> list[Step]:
    """Lower numbers: one call returns the count, another one fills an array."""
    return [ReadNumbers(m.calls["count"], m.calls["fill"])]


def _names_of_both(m: Method, by: Given | None) -> list[Step]:
    train, evaluation = (
        ReadNames(m.calls[f"{mode}_count"], m.calls[f"{mode}_name"]) for mode in ("train", "eval")
    )
    return [Choose(by, [train], [evaluation])]


@pattern(
    "train_count",
    "train_name",
    "eval_count",
    "eval_name",
    parameters=("training",),
    fails=("train_count", "eval_count"),
)
def names_by_flag(cls: Class, m: Method) -> list[Step]:
    """Lower the names of the training or the eval model, depending on an argument."""
    return _names_of_both(m, m.parameter("training"))


@pattern("train_count", "train_name", "eval_count", "eval_name")
def names_by_mode(cls: Class, m: Method) -> list[Step]:
    """Lower the names of the training or the eval model, depending on the mode of the object."""
    return _names_of_both(m, None)


@pattern("count", "name", "type", fails=("count",))
def value_infos(cls: Class, m: Method) -> list[Step]:
    """Lower name, type and shape of inputs or outputs."""
    return [ReadInfos(m.calls["count"], m.calls["name"], m.calls["type"])]


@pattern("train_count", "train_name", "eval_count", "eval_name", "type")
def value_infos_by_mode(cls: Class, m: Method) -> list[Step]:
    """Lower name, type and shape of the inputs, depending on the mode of the object."""
    return [ReadInfosOfMode(m.calls["type"])]


@pattern("step", "output_count", "output_name", parameters=("inputs",), fails=("step",))
def step(cls: Class, m: Method) -> list[Step]:
    """Lower a step of a training session that returns new outputs."""
    call = m.calls["step"]
    given = _bound(m, call)
    known: dict[str, Operand] = {"outputs": Outputs(), "outputs_len": OutputCount()}
    operands = [
        known.get(p.name) or o
        for p, o in zip(call.parameters, operands_of(_without(call, known), given, True), strict=True)
    ]
    steps: list[Step] = [Convert(g) for g in given]
    return [
        *steps,
        CountOutputs(m.calls["output_count"]),
        MakeOutputs(),
        Invoke(call, operands),
        ReturnOutputs(),
    ]


@pattern("step", parameters=("inputs", "outputs", "run_options"))
def step_into(cls: Class, m: Method) -> list[Step]:
    """Lower a step of a training session that writes into values of the caller."""
    call = m.calls["step"]
    given = _bound(m, call)
    outputs = next(g for g in given if g.role == "outputs")
    known: dict[str, Operand] = {
        "outputs": Passed(outputs),
        "outputs_len": Length(outputs),
    }
    operands = [
        known.get(p.name) or o
        for p, o in zip(call.parameters, operands_of(_without(call, known), given, True), strict=True)
    ]
    return [*(Convert(g) for g in given), Invoke(call, operands)]


def _without(call: Call, known: dict[str, Operand]) -> Call:
    """Return a call whose parameters with a known operand are optional, so that no argument is required for them."""
    given = [
        replace(p, nullable=True, length="", direction="in") if p.name in known else p
        for p in call.parameters
    ]
    return replace(call, parameters=given)


def _run(m: Method, into: bool) -> list[Step]:
    call = m.call
    inputs = m.parameter("inputs")
    outputs = m.parameter("outputs") if into else None
    names = None if into else m.parameter("output_names")
    known: dict[str, Operand] = {
        "run_options": Passed(m.parameter("run_options")),
        "input_names": Names(inputs),
        "inputs": Values(inputs),
        "input_len": Length(inputs),
    }
    if outputs:
        known |= {
            "output_names": Names(outputs),
            "output_names_len": Length(outputs),
            "outputs": Values(outputs),
        }
    elif names:
        known |= {"output_names": Passed(names), "output_names_len": OutputCount(), "outputs": Outputs()}
    operands: list[Operand] = [Receiver(), *(known[p.name] for p in call.parameters[1:])]
    steps: list[Step] = [Convert(g) for g in _bound(m, call)]
    if into:
        return [*steps, Invoke(call, operands)]
    return [*steps, MakeOutputs(names), Invoke(call, operands), ReturnOutputs(names)]


@pattern("call", parameters=("inputs", "output_names", "run_options"))
def run(cls: Class, m: Method) -> list[Step]:
    """Lower a run of a model on named values that returns new outputs."""
    return _run(m, into=False)


@pattern("call", parameters=("inputs", "outputs", "run_options"))
def run_into(cls: Class, m: Method) -> list[Step]:
    """Lower a run of a model on named values that writes into values of the caller."""
    return _run(m, into=True)


@pattern("call", parameters=("inputs", "output_names", "run_options"))
def run_arrays(cls: Class, m: Method) -> list[Step]:
    """Lower a run of a model on anything that converts to a tensor; it returns arrays."""
    inputs, wanted, options = (m.parameter(r) for r in ("inputs", "output_names", "run_options"))
    return [RunModel(m.call, inputs, wanted, options, None)]


@pattern("call", parameters=("inputs", "output_names", "run_options", "outputs"))
def run_values(cls: Class, m: Method) -> list[Step]:
    """Lower a run of a model on values that writes some outputs into values of the caller."""
    inputs, wanted, options, outputs = (
        m.parameter(r) for r in ("inputs", "output_names", "run_options", "outputs")
    )
    return [RunModel(m.call, inputs, wanted, options, outputs)]


@pattern("file", "buffer", parameters=("model", "options", "providers", "provider_options"))
def load(cls: Class, m: Method) -> list[Step]:
    """Lower the creation of an object from a file or from bytes."""
    model, options, providers, more = (
        m.parameter(r) for r in ("model", "options", "providers", "provider_options")
    )
    made = MakeFromPathOrBytes(model, options, m.calls["file"], m.calls["buffer"])
    return [CheckProviders(providers, more), Default(options), made]


@pattern("copy", "size", parameters=("parameters_buffer",))
def copy_in_buffer(cls: Class, m: Method) -> list[Step]:
    """Lower a copy of a tensor to all parameters, or to the trainable ones if it has as many elements as they have."""
    buffer = _bound(m, m.calls["copy"])[0]
    size = m.calls["size"]
    return [
        Convert(buffer),
        Invoke(size, [Receiver(), Out(size.results[0]), ValueOf("bool", "false")]),
        CountElements(buffer),
        Invoke(m.calls["copy"], [Receiver(), Passed(buffer), CountDiffers()]),
    ]


@pattern("call", parameters=("property_name", "property_value"), fails=())
def property_set(cls: Class, m: Method) -> list[Step]:
    """Lower setting a property of a checkpoint, of a given type or of the type of the value."""
    name, value = _bound(m, m.call)
    kind, _ = m.call.parameters[2:4]
    if m.property_type:
        operands = [Receiver(), Passed(name), ValueOf(kind.type, m.property_type), AddressOf(value)]
        return [Convert(name), Convert(value), Invoke(m.call, operands)]
    operands = [Receiver(), Passed(name), Out(kind), AddressOf(value)]
    return [Convert(name), StoreByType(m.call, operands, value)]


@pattern("call", parameters=("property_name",))
def property_get(cls: Class, m: Method) -> list[Step]:
    """Lower getting a property of a checkpoint, of a given type or of the type that it has."""
    (name,) = _bound(m, m.call)
    operands = operands_of(m.call, [name], receiver=True)
    return [Convert(name), ReadByType(m.call, operands, m.property_type)]


@pattern("call", open=True)
def allocated_name(cls: Class, m: Method) -> list[Step]:
    """Lower a name by index, in memory of an allocator of the caller."""
    return [Invoke(m.call, operands_of(m.call, _bound(m, m.call), receiver=True)), Return(m.call.results)]


# Patterns of languages whose objects behave like mappings, and of classes with a mode.


@pattern()
def key(cls: Class, m: Method) -> list[Step]:
    """Lower the name of an entry."""
    return [ReturnKey()]


@pattern("call")
def keyed_value(cls: Class, m: Method) -> list[Step]:
    """Lower what a call returns for an entry."""
    return [ReadEntry(m.call, m.returns.type if m.returns else "")]


@pattern("when", "get", optional=("set",))
def keyed_value_if(cls: Class, m: Method) -> list[Step]:
    """Lower what a call returns for an entry if another call returns true for it.

    With a call that sets the entry, it can be assigned to, and what is read is read-only.
    """
    kind = m.returns.type if m.returns else ""
    return [ReadEntry(m.calls["get"], kind, m.calls["when"], m.calls.get("set"))]


@pattern("count", "name", fails=("count",))
def keyed_names(cls: Class, m: Method) -> list[Step]:
    """Lower names that belong to an entry: one call returns the count, another one each name by index."""
    return [ReadNamesOfEntry(m.calls["count"], m.calls["name"])]


@pattern("get", "set")
def keyed_attribute(cls: Class, m: Method) -> list[Step]:
    """Lower an attribute of an entry that calls get and set by its name, which is that of the method."""
    return [ReadAttribute(m.calls["get"], m.calls["set"], m.returns.type if m.returns else "")]


@pattern()
def view(cls: Class, m: Method) -> list[Step]:
    """Lower a view into the object."""
    return [ReturnView(m.returns.type if m.returns else "")]


@pattern()
def describe(cls: Class, m: Method) -> list[Step]:
    """Lower a human-readable representation."""
    return [Describe()]


@pattern("call", parameters=("parameter_name", "property_name", "group_name"))
def map_get(cls: Class, m: Method) -> list[Step]:
    """Lower an entry by its name."""
    return [GetEntry(m.call, m.parameters[0])]


@pattern("call", open=True)
def map_set(cls: Class, m: Method) -> list[Step]:
    """Lower setting an entry by its name."""
    return [SetEntry(m.call, *_bound(m, m.call))]


@pattern(parameters=("name",))
def map_contains(cls: Class, m: Method) -> list[Step]:
    """Lower a check for an entry with a name."""
    return [HasEntry(m.parameters[0])]


@pattern()
def map_iterate(cls: Class, m: Method) -> list[Step]:
    """Lower all entries with their names."""
    return [IterateEntries()]


@pattern()
def map_length(cls: Class, m: Method) -> list[Step]:
    """Lower the number of entries."""
    return [CountEntries()]


@pattern(parameters=("*",))
def by_hand(cls: Class, m: Method) -> list[Step]:
    """Lower nothing: the class is written by hand, and the spec has its signatures and its documentation."""
    return []


@pattern()
def mode(cls: Class, m: Method) -> list[Step]:
    """Lower the mode of the object, a plain attribute."""
    return []


@pattern()
def field(cls: Class, m: Method) -> list[Step]:
    """Lower a field of an object that consists of fields only."""
    return []


@pattern(parameters=("mode",))
def set_mode(cls: Class, m: Method) -> list[Step]:
    """Lower setting the mode of the object."""
    return [SetMode(m.mode, m.parameters[0] if m.parameters else None)]


@pattern("train", "train_output_count", "eval", "eval_output_count", parameters=("inputs",))
def step_by_mode(cls: Class, m: Method) -> list[Step]:
    """Lower a train step or an eval step, depending on the mode of the object."""
    return [RunStep(m.calls["train"], m.calls["eval"], m.parameter("inputs"))]
