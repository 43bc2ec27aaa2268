"""What a package says about how its Triton kernels were made: source, argument types, alignment, launch.

Read from AOTInductor's C++ wrapper (the Triton module is embedded there as text), from Inductor's Python files
(``async_compile.triton``), from Triton's own ``.ttir`` (or ``.source``, ``.ttgir``) and from its metadata JSON. Text is
parsed as text (:mod:`ast`); nothing of it is run.
"""

from __future__ import annotations

import ast
import json
import re
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from typing import Any

from gwatch.inspect.artifacts import Text

# None of these may take more than linear time on any text: a package can come from anywhere.
_EMBEDDED = re.compile(r"async_compile\.triton\(\s*'([^'\n]{1,500})'\s*,\s*'''")
_QUOTES = "'''"
_LOAD = "loadKernel("
_LOADED_INTO = re.compile(r"(\w+)\s*=\s*$")
_LOADED = re.compile(r'\s{0,9}("[^"\n]*"|\w+)\s{0,9},\s{0,9}"([^"\n]+)"\s{0,9},\s{0,9}([0-9]{1,9})')
_BEFORE_LOAD = 600
_SYMBOL = re.compile(r"__(\w+)_start")
_LAUNCH = re.compile(
    r"launchKernel\(\s{0,9}(?:kernels_?\.)?(\w+)\s{0,9},[^,]{1,500},[^,]{1,500},[^,]{1,500},"
    r"\s{0,9}([0-9]{1,9})\s{0,9},\s{0,9}([0-9]{1,9})\s{0,9},"
)
_FUNCTION = re.compile(r"tt\.func public @([\w$.]+)\(")
_TOKEN = re.compile(r'"[^"]*"|->|[][(){}<>,]')
_PARAMETER = re.compile(r"%([\w$.-]+)\s*:\s*(.+)", re.DOTALL)
_DIVISIBILITY = re.compile(r"tt\.divisibility\s*=\s*([0-9]+)")
_BYTES = {"1": 1, "8": 1, "16": 2, "32": 4, "64": 8}
_TTIR_TYPES = {"f32": "fp32", "f16": "fp16", "bf16": "bf16", "f64": "fp64"}


@dataclass(frozen=True, slots=True)
class Argument:
    """A kernel argument: ``type`` as Triton writes it (``*fp32``, ``i32``), proven ``divisibility`` (bytes for a
    pointer, a number for an integer; None when nothing is promised)."""

    name: str
    type: str
    divisibility: int | None

    @property
    def is_pointer(self) -> bool:
        return self.type.startswith("*")

    @property
    def element_bytes(self) -> int | None:
        """Size of an element of a pointer, or of the number itself."""
        match = re.search(r"([0-9]+)$", self.type.lstrip("*"))
        return _BYTES.get(match[1]) if match else None


@dataclass(frozen=True, slots=True)
class TritonKernel:
    """One kernel. ``arguments`` are those passed at launch, in order (constants left out). ``source`` is the
    module's text, line 1 first; ``lines`` the range of the kernel's own function in it. ``cubin`` is the file name
    that the wrapper loads, ``symbol`` the name of the image that the library embeds; "" where it isn't stated."""

    name: str
    arguments: tuple[Argument, ...]
    constants: tuple[tuple[str, str], ...] = ()
    source: str = ""
    lines: tuple[int, int] = (0, 0)
    num_warps: int | None = None
    shared: int | None = None
    cubin: str = ""
    symbol: str = ""
    found_in: str = ""

    def line(self, number: int) -> str:
        """Text of a source line inside the kernel's function; "" for any other."""
        if not self.lines[0] <= number <= self.lines[1]:
            return ""
        return self.source.split("\n")[number - 1].strip()


@dataclass(slots=True)
class TritonKernels:
    """All kernels that the texts of an artifact describe, and the launch metadata beside them."""

    kernels: list[TritonKernel] = field(default_factory=list)
    metadata: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)

    def add(self, text: Text) -> None:
        """Take in what a text says; texts of other kinds say nothing."""
        if text.path.endswith((".ttir", ".ttgir", ".source")):  # stages of one compilation: any of them will do
            place = _stem(text.path)
            known = {kernel.name for kernel in self.kernels if _stem(kernel.found_in) == place}
            self.kernels += [kernel for kernel in _ttir(text) if kernel.name not in known]
        elif text.path.endswith(".json"):
            data = _metadata(text)
            if data is not None:
                self.metadata[_stem(text.path)] = data
        elif "async_compile.triton" in text.text:
            self.kernels += _wrapper(text)

    def near(self, path: str, symbol: str = "") -> TritonKernels:
        """Only what may describe the cubin at ``path`` (a small object to send to a worker)."""
        folder, file = _folder(path), _file(path)
        kernels = [
            k for k in self.kernels
            if (k.cubin in ("", file) or not path.endswith(".cubin")) and (k.symbol in ("", symbol) or not symbol)
        ]  # fmt: skip
        return TritonKernels(kernels, {key: data for key, data in self.metadata.items() if key[0] == folder})

    def said(self, names: Iterable[str], path: str, symbol: str = "") -> tuple[TritonKernel, ...]:
        """What is said of the kernels of the cubin at ``path``, wherever it is said."""
        found = [self.find(name, path, symbol) for name in names]
        return tuple(replace(kernel, found_in="", cubin="", symbol="") for kernel in found if kernel is not None)

    def find(self, name: str, path: str, symbol: str = "") -> TritonKernel | None:
        """The description of kernel ``name`` in the cubin at ``path``: by the cubin file that a wrapper loads or the
        ``symbol`` it is embedded under, then by folder, then by name if only one has it."""
        named = [k for k in self.kernels if k.name == name]
        file, folder = _file(path), _folder(path)
        stated = [k for k in named if (k.cubin and k.cubin == file) or (symbol and k.symbol == symbol)]
        beside = [k for k in named if not k.cubin and _folder(k.found_in) == folder]
        stem = [k for k in beside if _stem(k.found_in) == _stem(path)]
        beside = stem or beside
        loose = [k for k in named if not k.cubin or not path.endswith(".cubin")]
        if stated:
            kernel = stated[0]
        elif len(beside) == 1:
            kernel = beside[0]
        elif len(loose) == 1:
            kernel = loose[0]
        else:
            return None
        data = self.metadata.get(_stem(path))
        if data is None:
            beside_it = [d for key, d in self.metadata.items() if key[0] == folder and d["name"] == name]
            data = beside_it[0] if len(beside_it) == 1 else None
        if data is not None and kernel.num_warps is None:
            return replace(kernel, num_warps=_integer(data, "num_warps"), shared=_integer(data, "shared"))
        return kernel


def _folder(path: str) -> str:
    return re.split(r"[!/](?=[^!/]*$)", path)[0]


def _file(path: str) -> str:
    return re.split(r"[!/]", path)[-1]


def _stem(path: str) -> tuple[str, str]:
    return _folder(path), _file(path).rsplit(".", 1)[0]


def _integer(data: dict[str, Any], key: str) -> int | None:
    value = data.get(key)
    return value if isinstance(value, int) else None


def _metadata(text: Text) -> dict[str, Any] | None:
    try:
        data = json.loads(text.text)
    except (ValueError, RecursionError):
        return None
    return data if isinstance(data, dict) and "num_warps" in data and "name" in data else None


def _wrapper(text: Text) -> Iterator[TritonKernel]:
    """Kernels of a wrapper: one embedded module each; loads and launches belong to the module in front of them."""
    modules = list(_modules(text.text))
    for position, (name, source, end) in enumerate(modules):
        # The generated file starts right behind the opening quotes; in a wrapper it is indented as a comment.
        kernel = _module(name, textwrap.dedent(source))
        if kernel is None:
            continue
        following = modules[position + 1][2] if position + 1 < len(modules) else len(text.text)
        after = text.text[end:following]
        load, launch = _load(after), _LAUNCH.search(after)
        kernel = replace(kernel, found_in=text.path)
        if load is not None and load.kernel == kernel.name:
            kernel = replace(kernel, cubin=load.file, symbol=load.symbol, shared=load.shared)
        if launch is not None and (load is None or launch[1] == load.variable):
            kernel = replace(kernel, num_warps=int(launch[2]), shared=int(launch[3]))
        yield kernel


def _modules(text: str) -> Iterator[tuple[str, str, int]]:
    """(name, source, where it ends) of every embedded Triton module."""
    at = 0
    while (match := _EMBEDDED.search(text, at)) is not None:
        end = text.find(_QUOTES, match.end())
        if end < 0:
            return
        yield match[1], text[match.end() : end], end
        at = end + len(_QUOTES)


@dataclass(frozen=True, slots=True)
class _Load:
    """A call of ``loadKernel``: ``variable`` is what it is kept in; ``file`` or ``symbol`` says where its image is."""

    variable: str
    file: str
    symbol: str
    kernel: str
    shared: int


def _load(text: str) -> _Load | None:
    """The first load of a kernel."""
    at = text.find(_LOAD)
    if at < 0:
        return None
    variable = _LOADED_INTO.search(text[max(0, at - _BEFORE_LOAD) : at])
    match = _LOADED.match(text, at + len(_LOAD))
    if variable is None or match is None:
        return None
    source = match[1]
    symbol = _SYMBOL.fullmatch(source)
    file = PurePosixPath(source.strip('"')).name if source.startswith('"') else ""
    return _Load(variable[1], file, symbol[1] if symbol else "", match[2], int(match[3]))


def _module(name: str, source: str) -> TritonKernel | None:
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # the last two: nested beyond reason
        return None
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name == name:
            meta = next((m for m in map(_triton_meta, node.decorator_list) if m), None)
            if meta is None:
                return None
            signature, stated = meta.get("signature"), meta.get("constants") or {}
            if not isinstance(signature, dict) or not isinstance(stated, dict):
                return None
            constants = {str(k): str(v) for k, v in stated.items()}
            aligned = _aligned(meta.get("configs"), [str(argument) for argument in signature])
            arguments = tuple(
                Argument(argument, str(kind), aligned.get(argument))
                for argument, kind in ((str(name), kind) for name, kind in signature.items())
                if kind != "constexpr" and argument not in constants
            )
            lines = (node.lineno, node.end_lineno or node.lineno)
            return TritonKernel(name, arguments, tuple(constants.items()), source, lines)
    return None


def _triton_meta(decorator: ast.expr) -> dict[str, Any] | None:
    if not isinstance(decorator, ast.Call):
        return None
    for keyword in decorator.keywords:
        if keyword.arg == "triton_meta":
            value = _literal(keyword.value)
            return value if isinstance(value, dict) else None
    return None


def _literal(node: ast.expr) -> Any:
    """The value of a literal; a call becomes a dict of its keywords (``DeviceProperties(...)``) or, if it has none, its
    only argument (``AttrsDescriptor.from_dict({...})``)."""
    if isinstance(node, ast.Dict):
        return {
            _literal(key): _literal(value)
            for key, value in zip(node.keys, node.values, strict=True)
            if key is not None
        }
    if isinstance(node, ast.Tuple | ast.List):
        items = [_literal(item) for item in node.elts]
        return tuple(items) if isinstance(node, ast.Tuple) else items
    if isinstance(node, ast.Call):
        if len(node.args) == 1 and not node.keywords:
            return _literal(node.args[0])
        return {word.arg: _literal(word.value) for word in node.keywords if word.arg}
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, RecursionError, MemoryError):
        return None


def _aligned(configs: Any, names: list[str]) -> dict[str, int]:
    """Argument name -> promised divisibility. Keys of a configuration are positions, as ``(0,)`` or ``0``; older
    ones list the positions that are divisible by 16 (``divisible_by_16``, or ``tt.divisibility`` of
    ``arg_properties``)."""
    out: dict[str, int] = {}
    for config in configs if isinstance(configs, list) else []:
        if not isinstance(config, dict):
            continue
        properties = config.get("arg_properties")
        listed = config.get("divisible_by_16")
        if isinstance(properties, dict):
            listed = properties.get("tt.divisibility")
        for position in listed if isinstance(listed, tuple | list) else ():
            if isinstance(position, int) and 0 <= position < len(names):
                out[names[position]] = 16
        for position, attributes in config.items():
            index = position[0] if isinstance(position, tuple) and position else position
            if not isinstance(index, int) or not 0 <= index < len(names) or not isinstance(attributes, list):
                continue
            for attribute in attributes:
                if (
                    isinstance(attribute, list)
                    and attribute[:1] == ["tt.divisibility"]
                    and len(attribute) == 2
                    and isinstance(attribute[1], int)
                ):
                    out[names[index]] = attribute[1]
    return out


def _ttir(text: Text) -> Iterator[TritonKernel]:
    match = _FUNCTION.search(text.text)
    pieces = _parameters(text.text, match.end()) if match is not None else []
    if match is None or not pieces:
        return
    arguments = []
    for piece in pieces:
        # %name: type {attributes} loc(place), each of the last two only where there is some
        parameter = _PARAMETER.fullmatch(piece)
        if parameter is None:
            return  # without it the others would stand in for one another
        kind, _, attributes = parameter[2].partition("loc(")[0].partition("{")
        divisibility = _DIVISIBILITY.search(attributes)
        pointer = re.search(r"!tt\.ptr<(\w+)", kind)
        plain = pointer[1] if pointer else kind.strip()
        shown = ("*" if pointer else "") + _TTIR_TYPES.get(plain, plain)
        arguments.append(Argument(parameter[1], shown, int(divisibility[1]) if divisibility else None))
    yield TritonKernel(match[1], tuple(arguments), found_in=text.path)


def _parameters(text: str, start: int) -> list[str]:
    """The texts between the commas of the list that begins at ``start``; [] for an empty list or one without end."""
    depth, at, pieces = 0, start, []
    for token in _TOKEN.finditer(text, start):
        if token[0] in ("(", "[", "{", "<"):
            depth += 1
        elif token[0] in (")", "]", "}", ">") and depth:
            depth -= 1
        elif token[0] in (",", ")") and not depth:
            pieces.append(text[at : token.start()].strip())
            at = token.end()
            if token[0] == ")":
                return pieces if any(pieces) else []
    return []
