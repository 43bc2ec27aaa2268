"""Rules for CI: what a kernel must have, must not have, and may use at most.

Written on the command line or in a TOML file::

    kernel:copy.* has LDG.E.128 >= 2        # --require; "kernel:…" may be left out: every kernel

    [[rule]]
    kernel = "copy.*"                       # regular expression, found anywhere in the (de)mangled name
    require = "LDG.E.128 >= 2"              # or a list of such
    forbid = ["STL", "LDL"]
    max_registers = 128
    fail_on = ["spill"]                     # spill, local, narrow

An opcode pattern names a mnemonic (``*`` and ``?`` allowed) and modifiers that must be there in that order:
``LDG.128`` counts ``LDG.E.128.CONSTANT`` as well. Modifiers that no architecture's opcode can have are refused: such a
rule would let everything pass.
"""

from __future__ import annotations

import fnmatch
import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from gwatch.cuda.binary import KernelDef
from gwatch.errors import ParseError
from gwatch.inspect.demangle import demangle
from gwatch.inspect.facts import CodeFacts, KernelFacts
from gwatch.inspect.opcodes import access_of
from gwatch.inspect.spelling import can_have, modifiers_of
from gwatch.inspect.vectorize import GlobalAccess, Vectorization
from gwatch.inspect.view import CubinView
from gwatch.sass.isa.table import mnemonics

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

CONDITIONS = ("spill", "local", "narrow")
_REQUIRE = re.compile(
    r"(?:kernel:(?P<kernel>\S+)\s+)?(?:has\s+)?(?P<opcode>(?!has$)[A-Za-z0-9_.*?]+)"
    r"(?:\s*(?P<op>>=|<=|==|=|>|<)\s*(?P<count>[0-9]+))?"
)
_KERNEL = re.compile(r"(?:kernel:(?P<kernel>\S+)\s+)?(?:has\s+)?(?P<what>(?!has$|kernel:)\S+)")
_OPCODE = re.compile(r"[A-Za-z0-9_*?]+(?:\.[A-Za-z0-9_*?]+)*")
_COMPARE: dict[str, Callable[[int, int], bool]] = {
    ">=": lambda a, b: a >= b,
    "<=": lambda a, b: a <= b,
    "==": lambda a, b: a == b,
    ">": lambda a, b: a > b,
    "<": lambda a, b: a < b,
}


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule. ``kind``: require, forbid, max-registers, fail-on. ``what``: opcode pattern or condition; ``op``
    and ``count`` compare the number found (or of registers)."""

    kind: str
    kernel: str
    what: str
    op: str
    count: int

    @property
    def text(self) -> str:
        """The rule in words."""
        where = f"kernel:{self.kernel} " if self.kernel else ""
        if self.kind == "require":
            return f"{where}has {self.what} {self.op} {self.count}"
        if self.kind == "max-registers":
            return f"{where}max-registers {self.count}"
        return f"{where}{self.kind} {self.what}"

    @property
    def about_code(self) -> bool:
        """Whether instructions have to be read to check it."""
        return self.kind != "max-registers"

    def applies(self, name: str) -> bool:
        """Whether the rule is about the kernel of this (mangled) name."""
        return not self.kernel or any(re.search(self.kernel, n) for n in {name, demangle(name)})


@dataclass(frozen=True, slots=True)
class Violation:
    """A broken rule: in which kernel, at which instruction (``pc`` -1: none in particular), and why."""

    rule: str
    kernel: str
    message: str
    pc: int = -1
    instruction: str = ""
    line: tuple[str, int, str] | None = None
    cause: str = ""

    def to_json(self) -> dict[str, Any]:
        """JSON data."""
        return {
            "rule": self.rule,
            "kernel": self.kernel,
            "message": self.message,
            "pc": self.pc if self.pc >= 0 else None,
            "instruction": self.instruction,
            "line": None
            if self.line is None
            else {"file": self.line[0], "number": self.line[1], "text": self.line[2]},
            "cause": self.cause,
        }


def parse_require(text: str) -> Rule:
    """``[kernel:REGEX] has OPCODE [>= N]``; at least one when nothing is said. Raises ParseError [rule-syntax]."""
    match = _REQUIRE.fullmatch(text.strip())
    if match is None:
        raise ParseError(
            "rule-syntax", f"{text!r} is no requirement", "write 'kernel:copy.* has LDG.E.128 >= 2'"
        )
    op = {"=": "==", None: ">="}.get(match["op"], match["op"])
    count = int(match["count"]) if match["count"] else 1
    return Rule("require", _checked(match["kernel"]), _opcode(match["opcode"], text), op, count)


def parse_forbid(text: str) -> Rule:
    """``[kernel:REGEX] OPCODE``. Raises ParseError [rule-syntax]."""
    match = _KERNEL.fullmatch(text.strip())
    if match is None:
        raise ParseError(
            "rule-syntax", f"{text!r} names no opcode", "write it like 'STL' or 'kernel:copy.* STL'"
        )
    return Rule("forbid", _checked(match["kernel"]), _opcode(match["what"], text), "==", 0)


def _opcode(pattern: str, rule: str) -> str:
    """The pattern of an opcode, in upper case. A pattern that no opcode fits would let everything pass."""
    name = pattern.upper().split(".")[0]
    known = mnemonics()
    if not _OPCODE.fullmatch(pattern) or not (name in known or fnmatch.filter(known, name)):
        import difflib  # only where a rule is wrong

        near = difflib.get_close_matches(name, sorted(known), 3)
        raise ParseError(
            "rule-syntax",
            f"{rule!r}: no architecture has an opcode {pattern!r}",
            f"did you mean {', '.join(near)}?" if near else "write one opcode a rule, like 'STL' or 'LDG.E.128'",
        )
    modifiers = pattern.upper().split(".")[1:]
    if modifiers and not can_have(name, modifiers):
        _refuse_modifiers(name, modifiers, rule)
    return pattern.upper()


def _refuse_modifiers(name: str, modifiers: list[str], rule: str) -> NoReturn:
    import difflib  # only where a rule is wrong

    known = sorted(modifiers_of(name))
    for word in modifiers:
        if not fnmatch.filter(known, word):
            near = difflib.get_close_matches(word, known, 3)
            hint = f"did you mean {', '.join(near)}?" if near else f"it has {', '.join(known) or 'none'}"
            raise ParseError("rule-syntax", f"{rule!r}: no architecture has {name} with a modifier {word!r}", hint)
    raise ParseError(
        "rule-syntax",
        f"{rule!r}: no architecture has {name} with these modifiers together in this order",
        "write them as a listing does, like 'LDG.E.128.CONSTANT'",
    )


def fail_on(condition: str, kernel: str = "") -> Rule:
    """A named condition. Raises ParseError [rule-syntax]."""
    if condition not in CONDITIONS:
        raise ParseError(
            "rule-syntax", f"no condition is called {condition!r}", f"one of {', '.join(CONDITIONS)}"
        )
    return Rule("fail-on", _checked(kernel), condition, "==", 0)


def max_registers(count: int, kernel: str = "") -> Rule:
    """At most ``count`` registers a thread. Raises ParseError [rule-syntax]."""
    if count < 1:
        raise ParseError("rule-syntax", f"at most {count} registers is no rule", "give a number of 1 or more")
    return Rule("max-registers", _checked(kernel), "registers", "<=", count)


def _checked(kernel: str | None) -> str:
    try:
        re.compile(kernel or "")
    except re.error as error:
        raise ParseError("rule-syntax", f"{kernel!r} is no regular expression: {error}") from None
    return kernel or ""


def read_rules(path: Path) -> list[Rule]:
    """The rules of a TOML file. Raises ParseError [rule-file] or [rule-syntax]."""
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ParseError("rule-file", f"cannot read {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ParseError("rule-file", f"{path} is no TOML file: {error}") from None
    tables = data.get("rule")
    if not isinstance(tables, list) or set(data) != {"rule"}:
        raise ParseError("rule-file", f"{path}: rules are tables called [[rule]], and nothing else")
    rules: list[Rule] = []
    for number, table in enumerate(tables, 1):
        rules += _table(table, f"{path}, rule {number}")
    return rules


def _table(table: dict[str, Any], where: str) -> list[Rule]:
    unknown = set(table) - {"kernel", "require", "forbid", "max_registers", "fail_on"}
    if unknown or set(table) <= {"kernel"}:
        what = f"unknown key {sorted(unknown)[0]!r}" if unknown else "nothing is asked for"
        raise ParseError(
            "rule-file", f"{where}: {what}", "keys: kernel, require, forbid, max_registers, fail_on"
        )
    kernel = str(table.get("kernel", ""))
    prefix = f"kernel:{kernel} " if kernel else ""
    rules = [parse_require(f"{prefix}has {text}") for text in _list(table.get("require"), where, "require")]
    rules += [parse_forbid(f"{prefix}{text}") for text in _list(table.get("forbid"), where, "forbid")]
    rules += [fail_on(text, kernel) for text in _list(table.get("fail_on"), where, "fail_on")]
    if "max_registers" in table:
        if not isinstance(table["max_registers"], int) or isinstance(table["max_registers"], bool):
            raise ParseError("rule-file", f"{where}: max_registers is no number")
        rules.append(max_registers(table["max_registers"], kernel))
    return rules


def _list(value: Any, where: str, key: str) -> list[str]:
    if value is None:
        return []
    texts = value if isinstance(value, list) else [value]
    if not texts or not all(isinstance(text, str) for text in texts):
        raise ParseError("rule-file", f"{where}: {key} is no text", f'write {key} = "…", or a list of texts')
    return texts


def matches(pattern: str, opcode: str) -> bool:
    """Whether an opcode with modifiers fits a pattern (see the module's text)."""
    name, *wanted = pattern.split(".")
    mnemonic, *modifiers = opcode.split(".")
    if not fnmatch.fnmatchcase(mnemonic, name):
        return False
    rest = iter(modifiers)  # some are written in small letters, like 64x128x16; patterns are not
    return all(any(fnmatch.fnmatchcase(word.upper(), want) for word in rest) for want in wanted)


def check(
    rules: Iterable[Rule],
    view: CubinView,
    kernel: KernelDef,
    facts: KernelFacts,
    accesses: Callable[[], Vectorization],
) -> list[Violation]:
    """Violations of ``rules`` by one kernel; ``accesses`` is asked only where a rule is about widths.

    Rules that are about code need ``facts.code``.
    """
    out: list[Violation] = []
    for rule in rules:
        if not rule.applies(facts.name):
            continue
        if not rule.about_code:
            registers = facts.resources.registers
            if registers is not None and registers > rule.count:
                message = f"{registers} registers, at most {rule.count} allowed"
                out.append(Violation(rule.text, facts.name, message))
            continue
        assert facts.code is not None
        if rule.kind == "require":
            out += _require(rule, view, kernel, facts.code, accesses)
        elif rule.what == "narrow":
            narrow = [access for access in accesses().accesses if access.cause is not None]
            out += [
                _narrow(rule, facts.name, "narrower than 128 bits", access) for access in _distinct(narrow)
            ]
        else:
            out += _forbidden(rule, view, kernel, facts.code, facts.resources.stack)
    return out


def _require(
    rule: Rule, view: CubinView, kernel: KernelDef, code: CodeFacts, accesses: Callable[[], Vectorization]
) -> list[Violation]:
    found = sum(count for opcode, count in code.opcodes if matches(rule.what, opcode))
    if _COMPARE[rule.op](found, rule.count):
        return []
    message = f"{found} × {rule.what}, required {rule.op} {rule.count}"
    wanted = access_of(rule.what)
    if wanted is not None and rule.op in (">=", ">", "==") and found < rule.count:
        # Accesses of that kind that are narrower than asked for tell why.
        mnemonic = rule.what.split(".")[0]
        narrow = [
            access for access in accesses().accesses
            if access.cause is not None and access.bits < wanted.bits and access.opcode.split(".")[0] == mnemonic
        ]  # fmt: skip
        if narrow:
            return [_narrow(rule, kernel.name, message, access) for access in _distinct(narrow)]
    elif found > rule.count:
        return _instances(rule.text, view, kernel, message, rule.what)
    return [Violation(rule.text, kernel.name, message)]


def _distinct(accesses: list[GlobalAccess]) -> list[GlobalAccess]:
    """The first access of each cause."""
    seen: dict[tuple[str, str, str], GlobalAccess] = {}
    for access in accesses:
        assert access.cause is not None
        seen.setdefault((access.action, access.cause.name, access.cause.argument), access)
    return list(seen.values())


def _narrow(rule: Rule, kernel: str, message: str, access: GlobalAccess) -> Violation:
    assert access.cause is not None
    cause = f"{access.cause.name}: {access.cause.text}"
    return Violation(rule.text, kernel, message, access.pc, access.text, access.line, cause)


def _forbidden(
    rule: Rule, view: CubinView, kernel: KernelDef, code: CodeFacts, stack: int
) -> list[Violation]:
    if rule.kind == "forbid":
        found = sum(count for opcode, count in code.opcodes if matches(rule.what, opcode))
        message = f"{found} × {rule.what}, forbidden"
        return _instances(rule.text, view, kernel, message, rule.what) if found else []
    count = code.spills if rule.what == "spill" else code.local_accesses
    if not count:
        return []
    what = "spill" if rule.what == "spill" else "local-memory"
    estimate = (
        "" if rule.what != "spill" or code.spills_exact else " (loads and stores of fixed stack slots)"
    )
    message = f"{count} {what} instructions{estimate}, {stack} bytes of stack"
    return _instances(rule.text, view, kernel, message, "*", ("LDL", "STL"))


def _instances(
    rule: str,
    view: CubinView,
    kernel: KernelDef,
    message: str,
    pattern: str,
    only: tuple[str, ...] = (),
) -> list[Violation]:
    """One violation that names the first instruction found; the message counts them all."""
    code = view.code(kernel)
    mnemonics = only or tuple(
        {m for m, o in zip(code.mnemonics, code.opcode_names, strict=True) if matches(pattern, o)}
    )
    places = code.where(*mnemonics)
    for index in places.tolist():
        if only or matches(pattern, code.opcode_names[int(code.opcodes[index])]):
            pc = index * view.arch.instruction_size
            where = kernel.map_address_to_line.get(pc)
            line = (where[0], where[1], "") if where else None
            return [Violation(rule, kernel.name, message, pc, code.texts[index], line)]
    return [Violation(rule, kernel.name, message)]


def unmatched(rules: Iterable[Rule], names: Iterable[str], unread: bool) -> list[Violation]:
    """A violation for each rule that no kernel at all was measured by: it would pass for the wrong reason.

    ``unread``: there may be kernels that could not be read. Then what a rule forbids of every kernel isn't broken, but
    unchecked, which the caller says.
    """
    known = list(names)
    return [
        Violation(
            rule.text, "", f"no kernel matches {rule.kernel!r}" if rule.kernel else "there is no kernel"
        )
        for rule in rules
        if not any(rule.applies(name) for name in known) and (rule.kernel or rule.kind == "require" or not unread)
    ]
