"""C: declarations, comments, checks of arguments."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable

from codegen import lower
from codegen.languages import Action, Base, File
from codegen.lower import Operand
from codegen.spec import absent
from codegen.spec.check import CORE_CLASSES
from codegen.spec.model import Call, Class, Command, Given, Parameter
from codegen.spec.names import pascal, snake

PATCHES = 6
"""The number of patch releases per version of onnxruntime: 1.32.0 to 1.32.5. 1.24 had most, up to 1.24.4."""


class Language(Base):
    """The filters of the C and C++ templates."""

    key = "c"
    folders = (
        "core/alias/generated",
        "core/src/capi/generated",
        "core/src/legacy/generated",
        "core/src/runtime/generated",
        "core/src/session/generated",
        "tests/scenarios/generated/c",
    )

    truth = {"true": "1", "false": "0", "none": "null"}  # noqa: RUF012

    def files(self) -> Iterable[File]:
        """Return the headers, the tables, the declarations of the bodies, and the page."""
        for header in dict.fromkeys(self.header(table["name"]) for table in self.spec.tables):
            yield File(f"c/{header}.j2", f"core/include/{header}")
        for table in self.spec.tables:
            name = snake(self.table(table["name"]))
            yield File("c/table.cpp.j2", f"core/src/capi/generated/{name}.cpp", {"table": table})
        yield File("c/bodies.h.j2", "core/src/capi/generated/bodies.h")
        yield File("c/parts.h.j2", "core/src/runtime/generated/parts.h")
        yield File("c/session_config.h.j2", "core/src/session/generated/session_config.h")
        yield File("c/training_parameters.h.j2", "core/src/legacy/generated/training_parameters.h")
        for of in ("session", "run"):
            yield File(
                "c/config_keys.h.j2", f"core/include/onnxruntime_{of}_options_config_keys.h", {"of": of}
            )
        yield File("c/cpu_provider_factory.h.j2", "core/include/cpu_provider_factory.h")
        minors = range(self.spec.library["first_api_version"], self.spec.library["api_version"] + 1)
        for name in ("versions.cpp", "versions.map"):
            releases = {"minors": minors, "patches": range(PATCHES)}
            yield File(f"c/{name}.j2", f"core/alias/generated/{name}", releases)
        yield File("c/coverage.md.j2", "docs/reference/onnxruntime-api.md")
        yield File("c/commands.h.j2", "tests/scenarios/generated/c/commands.h")

    # ---- commands of the scenarios ----

    token = "arguments[{i}]"
    tokens = {  # noqa: RUF012
        "state": "state_of({t})",
        "session": "session_of({t})",
        "tensor": "tensor_of({t})",
        "tensors": "tensors_from(count, arguments, {i})",
        "counted_tensors": "tensors_counted(count, arguments, {i})",
        "outputs": "tensors_behind(count, arguments, {i})",
        "written": "tensors_behind(count, arguments, {i})",
        "model": "model_of({t})",
        "counted_pairs": "pairs_counted(count, arguments, {i})",
        "rest_pairs": "pairs_behind(count, arguments, {i})",
        "rest_texts": "names_behind(count, arguments, {i})",
        "values_of_rest_pairs": "outputs.values",
        "names_of_rest_pairs": "outputs.names",
        "names_of_rest_texts": "output_names.names",
        "integer": "read_integer({t})",
        "number": "read_number({t})",
        "path": "path_of({t})",
        "path_or_none": "path_or_none({t})",
        "text": "{t}",
        "texts": "(const char* const*)&{t}",
        "content": "read_file({t}, &content_length)",
        "choice": 'flag({t}, "{yes}", "{no}")',
    }
    ambient = {"env": "env", "session_options": "options", "run_options": "NULL"}  # noqa: RUF012
    operands = {  # noqa: RUF012
        "receiver": "object",
        "allocator": "allocator",
        "absent": "NULL",
        "made": "&result",
        "out": "&result",
        "output_count": "outputs_len",
        "outputs": "outputs",
    }

    def scenario_classes(self) -> list[Class]:
        """Return the classes of the spec. C has no classes, but the scenarios name the calls by class."""
        return self.spec.classes

    @staticmethod
    def argument(action: Action, p: Given) -> str:
        """Return the kind as which a token is read for a parameter."""
        return action.arguments[[q.name for q in action.m.parameters].index(p.name)]

    def function_of(self, call: Call) -> str:
        """Return the expression of a call's function."""
        table = {"general": "ort", "training": "training", "extension": "extension"}[call.table]
        return f"{table}->{self.function(call)}"

    def invocation(self, s: lower.Invoke | lower.Make, action: Action) -> str:
        """Return the expression of a call."""
        return f"{self.function_of(s.call)}({', '.join(self.operand(o, action) for o in s.operands)})"

    def operand(self, o: Operand, action: Action) -> str:
        """Return one operand of a call."""
        match o:
            case lower.Passed(p) | lower.Values(p) if p.type in ("values", "named_values"):
                cast = "" if p.role == "outputs" else "(const OrtValue* const*)"
                return f"{cast}{p.name}.values"
            case lower.Names(p) | lower.Passed(p) if p.type in ("named_values", "name_set"):
                return f"{p.name}.names"
            case lower.Passed(p):
                return "content" if p.type == "bytes" else self.argument(action, p)
            case lower.AddressOf(p) if p.type == "string":
                return f"(void*){self.argument(action, p)}"
            case lower.AddressOf(p):
                return f"&({self.base(p.type)}){{{self.argument(action, p)}}}"
            case lower.Length(p):
                lengths = dict.fromkeys(("values", "named_values"), f"{p.name}.length")
                lengths["bytes"] = "content_length"
                return lengths.get(p.type, f"(size_t)count - {action.command.fewest}")
        return self.fixed_operand(o)

    def kind_kept(self, action: Action) -> str:
        """Return the kind of the object that a command keeps."""
        kinds = {"checkpoint_state": "kState", "training_session": "kSession", "inference_session": "kModel"}
        return kinds[action.cls.name] if action.m.pattern == "create" else "kTensor"

    def log_text(self, command: Command) -> str:
        """Return the expression of what the log has in front of a result."""
        tokens = [self.token.format(i=part) for part in command.log_parts if isinstance(part, int)]
        text = "".join(part if isinstance(part, str) else "%s" for part in command.log_parts)
        return f'text("{text}", {", ".join(tokens)})' if tokens else f'"{text}"'

    # ---- names ----

    def table(self, name: str) -> str:
        """Return the name of a table."""
        return str(self.own["tables"][name]["name"])

    def header(self, table: str) -> str:
        """Return the header that declares a table and its types."""
        return str(self.own["tables"][table]["header"])

    def function(self, call: Call) -> str:
        """Return the name of a call."""
        if call.name in self.own["calls"]:
            return str(self.own["calls"][call.name])
        prefix = next((p for p in self.own["prefixes"] if call.name.startswith(f"{p}_")), "")
        rest = call.name.removeprefix(f"{prefix}_")
        return (
            f"{pascal(prefix, self.words)}_{pascal(rest, self.words)}" if prefix else pascal(rest, self.words)
        )

    def config_key(self, name: str) -> str:
        """Return the constant of a key of configuration entries."""
        return str(self.own["config_keys"].get(name) or f"kOrt{pascal(name, self.words)}")

    def base(self, name: str) -> str:
        """Return the name of a type, a handle, a structure, a callback, an enumeration or a table."""
        if name in self.types:
            return self.types[name]
        if name in self.spec.enums:
            return str(self.own["enums"][name].get("name") or f"Ort{pascal(name, self.words)}")
        if name in self.own["tables"]:
            return self.table(name)
        return f"Ort{pascal(name, self.words)}"

    def mention(self, name: str) -> str:
        """Return the name for a call, a type or a value that a text mentions."""
        if name in self.truth:
            return self.truth[name]
        enum, _, value = name.partition(".")
        if value:
            return self.value_name(enum, value)
        return self.function(self.spec.calls[name]) if name in self.spec.calls else self.base(name)

    def is_pointer_type(self, name: str) -> bool:
        """Whether values of the type are passed by pointer."""
        if name in self.own["typedefs"]:
            return False
        named = (*self.spec.handles, *self.spec.structs, *self.spec.opaque, "string", "path", "bytes")
        return name in named

    def declaration(self, p: Parameter) -> str:
        """Return a parameter as declared: ``const OrtValue* const* inputs``."""
        base = self.base(p.type)
        if not self.is_pointer_type(p.type):
            if p.direction != "in":
                return f"{base}* {p.name}"
            return f"const {base}* {p.name}" if p.length else f"{base} {p.name}"
        is_array = bool(p.length) and p.type != "bytes"
        mutable = p.type == "allocator" if p.mutable is None else p.mutable
        const = "" if mutable else "const "
        if p.room:
            return f"{base}* {p.name}"
        if p.direction == "in":
            if is_array:
                return f"{base}** {p.name}" if mutable else f"const {base}* const* {p.name}"
            return f"{const}{base}* {p.name}"
        if is_array and p.type == "string" and p.owner == "caller":
            return f"{base}*** {p.name}"
        borrowed = "const " if p.owner == "callee" and not p.mutable else ""
        return f"{borrowed}{base}** {p.name}"

    def declarations_of(self, call: Call) -> str:
        """Return the parameter list of a call."""
        exact = self.own["declarations"].get(call.name, {})
        return ", ".join(exact.get(p.name) or self.declaration(p) for p in call.parameters) or "void"

    def entry_declarations(self, call: Call) -> str:
        """Return the parameter list of a call's entry in a table, which may be empty."""
        if not call.parameters:
            return ""
        unused = "[[maybe_unused]] " if call.core.startswith(f"{absent.OWNER}::") else ""
        return unused + self.declarations_of(call).replace(", ", f", {unused}")

    def declarations(self, parameters: list[Parameter]) -> str:
        """Return a parameter list."""
        return ", ".join(self.declaration(p) for p in parameters) or "void"

    def part(self, name: str) -> str:
        """Return the constant of the core for a part that builds can leave out."""
        return f"k{name.replace('_', ' ').title().replace(' ', '')}Part"

    def returned(self, call: Call) -> str:
        """Return the return type of a call."""
        if call.returns is None or call.returns["type"] == "status":
            return "OrtStatus*"
        kind = call.returns["type"]
        if kind == "void":
            return "void"
        if kind == "bytes":
            return "void*"
        if self.is_pointer_type(kind) or any(t["name"] == kind for t in self.spec.tables):
            return f"const {self.base(kind)}*"
        return self.base(kind)

    def names(self, call: Call) -> str:
        """Return the parameters as arguments."""
        return ", ".join(p.name for p in call.parameters)

    def comment(self, call: Call, indent: int = 2) -> str:
        """Return the documentation of a call."""
        lines = self.wrap(self.said(call.summary))
        if call.details:
            lines += ["", *self.wrap(self.said(call.details))]
        notes = []
        for p in call.parameters:
            direction = {"in": "in", "out": "out", "inout": "in,out"}[p.direction]
            notes += self.wrap(
                f"\\param[{direction}] {p.name} {self.said(p.doc)}{self.remarks(p)}", hanging=4
            )
        if call.returns and call.returns["type"] != "void":
            notes += self.wrap(f"\\return {self.said(call.returns['doc'])}", hanging=4)
        for error in call.errors:
            notes += self.wrap(
                f"\\retval {self.value_name('error_code', error['code'])} when {self.said(error['when'])}.",
                hanging=4,
            )
        if notes:
            lines += ["", *notes]
        if call.since > 1:
            lines += [f"\\since version {call.since}"]
        return self.block(lines, indent)

    def remarks(self, p: Parameter) -> str:
        """Return sentences about further properties of a parameter, for the end of its documentation."""
        said = []
        if p.unit:
            said.append(f"In {p.unit}.")
        if p.length and not p.room:
            said.append(f"The length is {p.length}.")
        if p.valid:
            said.append(f"Valid as long as {p.valid}.")
        if p.owner == "allocator":
            said.append("Freed with the allocator.")
        if p.owner == "caller" and p.type in self.spec.handles:
            release = self.spec.handles[p.type].get("release")
            said.append(
                f"Freed with {self.function(self.spec.calls[release]) if release else 'its release call'}."
            )
        return " " + " ".join(said) if said else ""

    @staticmethod
    def wrap(text: str, hanging: int = 0, width: int = 100) -> list[str]:
        """Text broken into lines."""
        return textwrap.wrap(text, width, subsequent_indent=" " * hanging, break_long_words=False)

    @staticmethod
    def block(lines: list[str], indent: int = 0) -> str:
        """Lines as a documentation comment."""
        margin = " " * indent
        if len(lines) == 1:
            return f"{margin}/** {lines[0]} */"
        body = "\n".join(f"{margin} * {line}".rstrip() for line in lines[1:])
        return f"{margin}/** {lines[0]}\n{body}\n{margin} */"

    def doc(self, text: str, indent: int = 0) -> str:
        """Return a text as a documentation comment."""
        return self.block(self.wrap(self.said(text)), indent)

    def checks(self, call: Call) -> list[str]:
        """Return the statements that reject null arguments by name."""
        out = []
        for p in call.parameters:
            length = next((q for q in call.parameters if q.name == p.length), None)
            pointer = p.is_result or self.is_pointer_type(p.type) or p.length or p.type in self.spec.callbacks
            if not pointer:
                continue
            if length is not None and length.direction == "in":
                if p.nullable and p.direction == "out":
                    continue
                if p.type in self.spec.handles or p.type == "string":
                    elements = "check_elements" if p.direction == "in" else "check_array"
                    out.append(f'{elements}({p.name}, {length.name}, "{p.name}", "{length.name}");')
                else:
                    out.append(f'check_array({p.name}, {length.name}, "{p.name}", "{length.name}");')
            elif p.type == "allocator" and p.direction == "in":
                given = f"if ({p.name} != nullptr) " if p.nullable else ""
                out.append(f'{given}check_allocator({p.name}, "{p.name}");')
            elif not p.nullable:
                out.append(f'check_pointer({p.name}, "{p.name}");')
        return out

    def core_call(self, call: Call) -> str:
        """Return the statement that calls the core."""
        if call.core == "body":
            return f"capi::{self.function(call)}({self.names(call)});"
        owner, method = call.core.split("::")
        if owner == absent.OWNER:
            return f'reject_provider("{method}");'
        inputs = [p for p in call.parameters if p.direction == "in"]
        outputs = [p for p in call.parameters if p.direction != "in"]
        first = inputs[0] if inputs else None
        if first is not None and self.core_class(first.type) == owner:
            work = f"core_of(*{first.name}).{method}({', '.join(p.name for p in inputs[1:])})"
        else:
            scope = "" if owner == "ortrain" else f"{owner}::"
            work = f"::ortrain::{scope}{method}({', '.join(p.name for p in inputs)})"
        if not outputs:
            return f"{work};"
        result = outputs[0]
        return (
            f"*{result.name} = wrap({work});"
            if result.type in self.spec.handles
            else f"*{result.name} = {work};"
        )

    @staticmethod
    def core_class(handle: str) -> str:
        """Return the class of the core behind a handle."""
        return CORE_CLASSES.get(handle, "")
