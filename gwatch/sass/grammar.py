"""The Lark grammars of ``grammars/``, compiled once and turned into syntax trees. The only module that knows
Lark.

This is the slow, exact road (about ten thousand lines a second): :mod:`gwatch.sass.syntax` takes it once per
shape, :mod:`gwatch.sass.listing` for the directives of a listing.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from lark import Lark, Token, Tree
from lark.exceptions import UnexpectedCharacters, UnexpectedEOF, UnexpectedInput, UnexpectedToken

from gwatch._resources import resource
from gwatch.errors import ParseError
from gwatch.sass.operand import (
    Address,
    BarrierSet,
    Constant,
    Core,
    Immediate,
    Label,
    Memory,
    Name,
    Operand,
    Placeholder,
    Register,
    Relocation,
    Virtual,
)

Node = Tree[Token] | Token

_WORDS = {
    "BANG": "'!'", "PREFIX": "'-', '!' or '~'", "MNEMONIC": "a mnemonic", "SUFFIX": "a modifier",
    "REGISTER": "a register", "ZERO": "a register", "PREDICATE": "a predicate",
    "TRUE": "a predicate", "CONSTANT": "a constant c[..][..]",
    "SPACE": "a memory operand", "RELOCATION": "a relocation", "NUMBER": "a number", "NAN": "a number",
    "NAME": "a name", "LABEL": "a label `(name)", "SET": "a set {1,0}", "VIRTUAL": "a register %name",
    "PLACEHOLDER": "{name}", "INDEX": "an index", "COMMA": "','", "GAP": "a blank", "BLANK": "'['",
    "LSQB": "'['", "RSQB": "']'", "PLUS": "'+'", "VBAR": "'|'", "AT": "a guard @P0", "$END": "the end",
    "DIRECTIVE": "a directive", "WORD": "a word", "STRING": "a quoted string",
    "LPAR": "'('", "RPAR": "')'", "MINUS": "'-'",
}

_TERM = {"REGISTER", "ZERO", "NUMBER", "NAME", "VIRTUAL", "PLACEHOLDER"}
_OPERAND = _TERM | {"PREDICATE", "TRUE", "NAN", "PREFIX", "CONSTANT", "SPACE", "LSQB", "RELOCATION", "LABEL",
                    "SET", "VBAR"}


@dataclass(frozen=True, slots=True)
class ParsedGuard:
    """``@!P0`` and the blank behind it."""

    register: Register | Virtual
    negated: bool
    gap: str


@dataclass(frozen=True, slots=True)
class ParsedLine:
    """One instruction as parsed: ``places[i]`` are the start and end columns of operand i in the text."""

    guard: ParsedGuard | None
    mnemonic: str
    modifiers: tuple[str, ...]
    separators: tuple[str, ...]
    operands: tuple[Operand, ...]
    places: tuple[tuple[int, int], ...]


@lru_cache(maxsize=2)
def _parser(name: str) -> Lark:
    text = resource("grammars", name).read_text(encoding="utf-8")
    return Lark(text, parser="lalr", lexer="contextual", start="start")


def parse_tree(grammar: str, text: str, *, line: int = 1) -> Tree[Token]:
    """Parse ``text`` with ``grammars/<grammar>``. Raises ParseError ``[sass-syntax]`` with line, column,
    token."""
    try:
        return _parser(grammar).parse(text)
    except UnexpectedInput as error:
        raise _error(error, text, line, grammar.removesuffix(".lark")) from None


def _error(error: UnexpectedInput, text: str, line: int, what: str) -> ParseError:
    if isinstance(error, UnexpectedToken):
        expected = set(error.expected)
        found = repr(str(error.token)) if error.token.type != "$END" else "the end"
        column = error.token.start_pos if error.token.type != "$END" else len(text)
        position = column or 0
    elif isinstance(error, UnexpectedCharacters):
        expected = set(error.allowed or ())
        position = error.pos_in_stream or 0
        found = repr(text[position:position + 1])
    else:
        expected = set(error.expected) if isinstance(error, UnexpectedEOF) else set()
        position, found = len(text), "the end"
    wanted = []
    for word, names in (("an operand", _OPERAND), ("a register or a number", _TERM)):
        if names <= expected:
            wanted.append(word)
            expected -= _OPERAND
    wanted += sorted({_WORDS.get(name, name) for name in expected})
    return ParseError(f"{what}-syntax",
                      f"line {line}, column {position + 1}: unexpected {found} in {text.strip()!r}",
                      "expected " + " or ".join(wanted) if wanted else "")


def parse_instruction(text: str, *, line: int = 1) -> ParsedLine:
    """Parse one instruction without semicolon (``grammars/sass.lark``).

    Raises ParseError ``[sass-syntax]``; ``line`` is the line number it names.
    """
    tree = parse_tree("sass.lark", text, line=line)
    guard: ParsedGuard | None = None
    mnemonic = ""
    modifiers: tuple[str, ...] = ()
    separators: list[str] = []
    operands: list[Operand] = []
    places: list[tuple[int, int]] = []
    for part in _trees(tree):
        if part.data == "guard":
            guard = _guard(part)
        elif part.data == "opcode":
            mnemonic, modifiers = str(part.children[0]), _suffixes(part.children[1:])
        else:
            starts: list[int] = []
            ends: list[int] = []
            for child in part.children:
                if isinstance(child, Token):
                    separators.append(str(child))
                    starts.append(_position(child.end_pos))
                    ends.append(_position(child.start_pos))
                else:
                    operands.append(_operand(child))
            places = list(zip(starts, [*ends[1:], len(text)], strict=True))
    return ParsedLine(guard, mnemonic, modifiers, tuple(separators), tuple(operands), tuple(places))


def parse_directive(text: str, *, line: int = 1) -> tuple[str, list[tuple[str, str, str]]]:
    """Name of a listing's directive, and (kind, text, subtrahend) of each argument
    (``grammars/listing.lark``).

    Kinds are word, string, attribute and difference; strings come without quotes. Raises ParseError
    ``[listing-syntax]``; ``line`` is the line number it names.
    """
    name, *nodes = parse_tree("listing.lark", text, line=line).children
    arguments = []
    for node in nodes:
        if isinstance(node, Token):
            kind = "string" if node.type == "STRING" else "word"
            arguments.append((kind, _unquoted(node), ""))
        else:
            texts = [_unquoted(child) for child in node.children]
            arguments.append((str(node.data), texts[0], texts[1] if len(texts) > 1 else ""))
    return str(name), arguments


def _unquoted(node: Node) -> str:
    text = str(node)
    return text[1:-1] if text.startswith('"') else text


def _position(value: int | None) -> int:
    # Lark types token positions as optional; the lexer always sets them.
    assert value is not None
    return value


def _trees(tree: Tree[Token]) -> list[Tree[Token]]:
    return [child for child in tree.children if isinstance(child, Tree)]


def _suffixes(tokens: list[Node]) -> tuple[str, ...]:
    return tuple([str(token)[1:] for token in tokens])


def _guard(tree: Tree[Token]) -> ParsedGuard:
    tokens = [child for child in tree.children if isinstance(child, Token)]
    register = _value(tokens[-2])
    assert isinstance(register, (Register, Virtual))
    return ParsedGuard(register, tokens[0].type == "BANG", str(tokens[-1]))


def _operand(tree: Tree[Token]) -> Operand:
    children = list(tree.children)
    prefix = ""
    if isinstance(children[0], Token) and children[0].type == "PREFIX":
        prefix = str(children.pop(0))
    core = _core(children.pop(0))
    inner: tuple[str, ...] = ()
    if tree.data == "absolute":
        bars = children.pop(0)
        assert isinstance(bars, Tree)
        inner = _suffixes(bars.children)
    return Operand(core, prefix, tree.data == "absolute", inner, _suffixes(children))


def _core(node: Node) -> Core:
    if isinstance(node, Token):
        return _value(node)
    if node.data == "virtual":
        name, *offset = [str(child) for child in node.children]
        return Virtual(name[1:], int(offset[0]) if offset else None)
    addresses = [Address(tuple([_operand(term) for term in _trees(child)]))
                 for child in _trees(node) if child.data == "address"]
    if node.data == "memory":
        space = str(node.children[0]) if isinstance(node.children[0], Token) else ""
        return Memory(space, addresses[-1], addresses[0] if len(addresses) == 2 else None)
    gaps = [str(child) for child in node.children[2:] if isinstance(child, Token)]
    return Constant(str(node.children[0]) == "cx", _operand(_trees(node)[0]), addresses[0], "".join(gaps))


def _value(token: Token) -> Core:
    text = str(token)
    if token.type in ("REGISTER", "PREDICATE"):
        file = text.rstrip("0123456789")
        return Register(file, int(text[len(file):]))
    if token.type in ("ZERO", "TRUE"):
        return Register(text[:-1], None)
    if token.type in ("NUMBER", "NAN"):
        return Immediate(text.rstrip(), text[len(text.rstrip()):])
    if token.type == "VIRTUAL":
        return Virtual(text[1:])
    if token.type == "PLACEHOLDER":
        return Placeholder(text[1:-1])
    if token.type == "LABEL":
        return Label(text[2:-1])
    if token.type == "SET":
        return BarrierSet(tuple([int(item) for item in text[1:-1].split(",")]))
    if token.type == "RELOCATION":
        head, symbol = text[:-1].split("(", 1)
        bits, part = head.split("@")
        return Relocation(bits, part, symbol)
    return Name(text)
