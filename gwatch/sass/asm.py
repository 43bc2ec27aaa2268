"""Assembly files: instruction text with control words, and back to the same bits.

One instruction a line::

    /*0010*/ @!P0 LDG.E R4, desc[UR4][R2.64] ;  {stall 2, write SB0, wait SB1 SB3}

The text is gwatch's canonical one: nvdisasm's, and what nvdisasm hides. In braces stands the control word: ``stall N``
(cycles), ``yield`` (another warp may be preferred; the bit is then 0), ``write SBn`` and ``read SBn`` (scoreboards
released with the result and with the sources), ``wait SBn ...``, and ``reuse a c`` for operand-cache bits that the text
does not show as ``.reuse``. Without braces: stall 1. ``= 0x...`` at the end gives the whole word where the text alone
would not; it must read as the text says. ``.word 0x...`` is a word that nothing decodes.

``.target sm_90a`` names the architecture, ``.kernel NAME`` starts a kernel, ``name:`` is a label, used as
`` `(name) ``. ``//`` starts a comment, ``/* */`` encloses one.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from gwatch.errors import EncodeError, GWatchError, ParseError, UnsupportedError
from gwatch.sass.arch import INSTRUCTION_SIZE, Arch, arch_by_name
from gwatch.sass.code import UNDECODED, Code, code_of
from gwatch.sass.control import NO_SCOREBOARD, SCOREBOARDS, SHIFT, Control
from gwatch.sass.isa import isa_for

if TYPE_CHECKING:
    from gwatch.sass.isa import Isa

Words = npt.NDArray[np.uint64]

_LABEL = re.compile(r"([A-Za-z_.$][\w.$]*)\s*:\s*")
_REFERENCE = re.compile(r"`\(([^()]*)\)")
_WORD = re.compile(r"=\s*(0x[0-9a-fA-F]{1,32})\s*$")
_CONTROL = re.compile(r"\{([^{}]*)\}\s*$")
_COMMENT = re.compile(r"/\*.*?\*/|//.*")
_COLUMN = re.compile(r"column (\d+) of ")
_COLUMNS = 72
_LETTERS = "abcd"
_REMEMBERED = 1 << 16


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong in one line. ``line`` and ``column`` count from 1; ``token`` is the part at fault."""

    line: int
    column: int
    token: str
    code: str
    message: str
    hint: str = ""
    candidates: tuple[str, ...] = ()

    def __str__(self) -> str:
        tail = f"; {self.hint}" if self.hint else ""
        return f"line {self.line}, column {self.column}: [{self.code}] {self.message}{tail}"

    def as_dict(self) -> dict[str, object]:
        """Plain data for JSON."""
        return {"line": self.line, "column": self.column, "token": self.token, "code": self.code,
                "message": self.message, "hint": self.hint, "candidates": list(self.candidates)}


class AssemblyError(GWatchError):
    """A file with lines that cannot be assembled; ``problems`` are all of them."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        count = len(self.problems)
        super().__init__("asm", f"{count} line{'s' if count > 1 else ''} cannot be assembled: {self.problems[0]}")

    def as_dict(self) -> dict[str, object]:
        """The error as plain data, with all its problems."""
        return {**super().as_dict(), "problems": [problem.as_dict() for problem in self.problems]}

    def __reduce__(self) -> tuple[type[AssemblyError], tuple[tuple[Problem, ...]]]:  # type: ignore[override]
        return AssemblyError, (self.problems,)


@dataclass(slots=True)
class Unit:
    """The words ``(n, 2) uint64`` of one kernel; ``name`` "" where the file names none.

    ``unscheduled`` are the lines (from 1) that say no control word: they got stall 1, which may be too early.
    """

    name: str
    words: Words
    unscheduled: tuple[int, ...] = ()


# -- control words --------------------------------------------------------------------------------------------------


def control_text(control: Control, shown: int = 0) -> str:
    """A control word in braces. ``shown`` are the operand-cache bits that the text shows already."""
    parts = [f"stall {control.stall}"]
    if not control.yield_flag:
        parts.append("yield")
    for name, board in (("write", control.write_scoreboard), ("read", control.read_scoreboard)):
        if board != NO_SCOREBOARD:
            parts.append(f"{name} SB{board}")
    if control.wait_mask:
        parts.append("wait " + " ".join(f"SB{n}" for n in range(SCOREBOARDS) if control.wait_mask >> n & 1))
    hidden = control.reuse & ~shown
    if hidden:
        parts.append("reuse " + " ".join(letter for n, letter in enumerate(_LETTERS) if hidden >> n & 1))
    return "{" + ", ".join(parts) + "}"


def parse_control(text: str) -> Control:
    """The control word of what stands between the braces.

    Raises EncodeError ``[control-syntax]``, ``[control-range]`` or ``[control-illegal]``, with the word at fault.
    """
    fields: dict[str, int] = {"stall": 1}
    seen: set[str] = set()
    for part in text.split(","):
        words = part.split()
        if not words:
            raise EncodeError("control-syntax", f"an empty item in {{{text}}}", "drop the comma", token=",")
        name, values = words[0], words[1:]
        if name not in _ITEMS:
            near = difflib.get_close_matches(name, _ITEMS, 1, 0.3)
            raise EncodeError("control-syntax", f"{name!r} is not part of a control word",
                              f"nearest: {near[0]}" if near else "known: " + " ".join(_ITEMS), _ITEMS, name)
        if name in seen:
            raise EncodeError("control-syntax", f"{name!r} is said twice", token=name)
        seen.add(name)
        fields |= _ITEMS[name](name, values)
    control = Control(**fields)
    if control.illegal:
        raise EncodeError("control-illegal", f"no opcode admits {{{text}}}: {control.illegal}", token="stall")
    return control


def _stall(name: str, values: list[str]) -> dict[str, int]:
    if len(values) != 1 or not values[0].isdigit() or int(values[0]) > 15:
        raise EncodeError("control-range", f"{' '.join([name, *values])!r} is no stall", "stall 0 to stall 15",
                          token=values[0] if values else name)
    return {"stall": int(values[0])}


def _yield(name: str, values: list[str]) -> dict[str, int]:
    if values:
        raise EncodeError("control-syntax", f"{name!r} takes no value", token=values[0])
    return {"yield_flag": 0}


def _boards(name: str, values: list[str]) -> list[int]:
    names = {f"SB{n}": n for n in range(SCOREBOARDS)}
    for value in values or [name]:
        if value not in names:
            raise EncodeError("control-range", f"{value!r} is no scoreboard", f"SB0 to SB{SCOREBOARDS - 1}", names,
                              value)
    return [names[value] for value in values]


def _board(name: str, values: list[str]) -> dict[str, int]:
    boards = _boards(name, values)
    if len(boards) != 1:
        raise EncodeError("control-syntax", f"{name!r} takes one scoreboard", f"like {name} SB0", token=values[1])
    return {f"{name}_scoreboard": boards[0]}


def _wait(name: str, values: list[str]) -> dict[str, int]:
    return {"wait_mask": sum(1 << board for board in set(_boards(name, values)))}


def _reuse(name: str, values: list[str]) -> dict[str, int]:
    for value in values or [name]:
        if value not in tuple(_LETTERS):
            raise EncodeError("control-range", f"{value!r} is no operand position", "a, b, c or d", token=value)
    return {"reuse": sum(1 << _LETTERS.index(value) for value in set(values))}


_ITEMS: dict[str, Callable[[str, list[str]], dict[str, int]]] = {
    "stall": _stall, "yield": _yield, "write": _board, "read": _board, "wait": _wait, "reuse": _reuse}


# -- words to text --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Listed:
    """One instruction as written: ``text`` None for a word that nothing decodes. ``bare``: text and control word do not
    give the word, so it has to be written out. ``target`` is the byte address that it names."""

    word: int
    text: str | None
    control: Control | None
    bare: bool
    target: int | None


def disassemble(arch: Arch, words: Words, canonical: bool = True) -> list[Listed]:
    """The instructions of a section's ``words`` ``(n, 2)``, which starts at address 0.

    With ``canonical`` False the text is nvdisasm's, which may not be enough to get the words back. Raises ToolError
    ``[nvdisasm-missing]`` where nvdisasm is asked for, or needed because ``arch`` has no table.
    """
    code = code_of(arch, words)
    isa: Isa | None = code.isa
    with suppress(UnsupportedError):
        isa = isa_for(arch)  # also what nvdisasm reads is checked to give the words back, where there is a table
    texts: Sequence[str | None]
    if code.section is not None:
        texts = code.section.texts(code.addresses, canonical)
    else:
        texts = [None if text.startswith(UNDECODED) else text for text in code.texts]
    controls: dict[int, Control | None] = {}
    out = []
    halves, targets = words.tolist(), _targets(code)
    for index, ((low, high), text, target) in enumerate(zip(halves, texts, targets, strict=True)):
        word, bits = low | high << 64, high >> SHIFT - 64
        if bits not in controls:
            controls[bits] = _control(word)
        control = controls[bits]
        if text is None or control is None:
            out.append(Listed(word, None, None, False, None))
            continue
        bare = isa is None or _made(isa, text, control, index * INSTRUCTION_SIZE) != word
        out.append(Listed(word, text, control, bare, None if target < 0 else target))
    return out


def _targets(code: Code) -> list[int]:
    """The byte address that each word names, -1 for none. Words that the tables do not read are data here."""
    targets = code.targets if code.section is None else np.where(
        code.section.relative, code.section.offsets + code.addresses + INSTRUCTION_SIZE, -1)
    found: list[int] = targets.tolist()
    return found


def _control(word: int) -> Control | None:
    """The word's control word, None where it holds what no instruction has."""
    try:
        control = Control.from_word(word)
    except EncodeError:
        return None
    return None if control.illegal or word >> 126 else control


def _made(isa: Isa, text: str, control: Control, pc: int) -> int | None:
    try:
        return isa.encode(text, control, pc)
    except GWatchError:
        return None


def write_unit(arch: Arch, name: str, listed: Sequence[Listed], words: bool = False, labels: bool = False) -> str:
    """The lines of one kernel. ``words`` writes every word out; ``labels`` names targets instead of numbering them."""
    names: dict[int, str] = {}
    if labels:
        size = len(listed) * INSTRUCTION_SIZE
        found = sorted({one.target for one in listed if one.target is not None and 0 <= one.target <= size
                        and one.target % INSTRUCTION_SIZE == 0})
        names = {target: f".L_{number}" for number, target in enumerate(found)}
    out = [f".kernel {name}\n"] if name else []
    controls: dict[tuple[Control, int], str] = {}
    for index, one in enumerate(listed):
        at = index * INSTRUCTION_SIZE
        if at in names:
            out.append(f"{names[at]}:\n")
        place = f"/*{at:04x}*/"
        if one.text is None or one.control is None:
            out.append(f"{place} .word {one.word:#034x}\n")
            continue
        text = one.text
        if one.target in names:
            text = text[:len(text) - len(hex(one.target or 0))] + f"`({names[one.target or 0]})"
        shown = _shown_reuse(arch, one.word, text) if one.control.reuse else 0
        key = one.control, shown
        if key not in controls:
            controls[key] = control_text(*key)
        line = f"{place} {text} ;"
        tail = f" = {one.word:#034x}" if words or one.bare else ""
        out.append(f"{line:{_COLUMNS}} {controls[key]}{tail}\n")
    end = len(listed) * INSTRUCTION_SIZE
    if end in names:
        out.append(f"{names[end]}:\n")
    return "".join(out)


def _shown_reuse(arch: Arch, word: int, text: str) -> int:
    """The operand-cache bits of ``word`` that its ``text`` shows."""
    if ".reuse" not in text:
        return 0
    bits = word >> SHIFT + 17 & 15
    try:
        template = isa_for(arch).templates.of(word)
    except UnsupportedError:
        return bits  # no table: which operand is which bit is not known, and the word is written out
    return sum(bit for bit in (1, 2, 4, 8) if template is not None and bits & bit and template.form.marked(word, bit))


# -- text to words --------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Line:
    """An instruction yet to be encoded: ``text`` from ``column`` of line ``number``; ``given`` the word written out.

    ``control`` is None where the line says none.
    """

    number: int
    source: str
    text: str
    column: int
    control: Control | None
    given: int | None
    raw: bool = False


@dataclass(slots=True)
class _Kernel:
    name: str
    lines: list[_Line] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)


class _Reader:
    """Reads a file into kernels and collects what is wrong."""

    def __init__(self, arch: Arch | None) -> None:
        self.arch = arch
        self.named = ""
        self.kernels: list[_Kernel] = []
        self.problems: list[Problem] = []

    def refuse(self, number: int, source: str, error: GWatchError, start: int = 0) -> None:
        """Note what is wrong in line ``number``; the token is looked for from column ``start`` (from 0) on."""
        token = getattr(error, "token", "")
        at = source.find(token, start) if token else -1
        if at < 0:
            at = len(source) - len(source[start:].lstrip())
            said = _COLUMN.search(error.message)
            if isinstance(error, ParseError) and said:
                at = start + int(said[1]) - 1
        self.problems.append(Problem(number, at + 1, token, error.code, error.message, error.hint, error.candidates))

    @property
    def kernel(self) -> _Kernel:
        """The kernel that lines belong to now."""
        if not self.kernels:
            self.kernels.append(_Kernel(""))
        return self.kernels[-1]

    def read(self, number: int, source: str) -> None:
        """One line."""
        # Comments become blanks, so that columns stay those of the file.
        bare = _COMMENT.sub(lambda found: " " * len(found[0]), source) if "/" in source else source
        start = len(bare) - len(bare.lstrip())
        label = _LABEL.match(bare, start)
        while label is not None:
            self._label(number, source, label[1], start)
            start = label.end()
            label = _LABEL.match(bare, start)
        text = bare[start:].rstrip()
        try:
            if not text:
                return
            if text.startswith("."):
                self._directive(number, source, text, start)
            else:
                self._instruction(number, source, text, start)
        except GWatchError as error:
            self.refuse(number, source, error, start)

    def _label(self, number: int, source: str, name: str, start: int) -> None:
        if name in self.kernel.labels:
            error = EncodeError("asm-label", f"label {name!r} stands here twice", "rename one", token=name)
            self.refuse(number, source, error, start)
        self.kernel.labels[name] = len(self.kernel.lines) * INSTRUCTION_SIZE

    def _directive(self, number: int, source: str, text: str, start: int) -> None:
        name, _, rest = text.partition(" ")
        rest = rest.strip()
        if name == ".target":
            arch = arch_by_name(rest)
            if self.named and self.named != arch.name:
                raise EncodeError("asm-target", f"the file is for {self.named}, not for {arch.name}", token=rest)
            if self.arch is not None and self.arch.name != arch.name:
                raise EncodeError("asm-target", f"the file is for {arch.name}, not for {self.arch.name}", token=rest)
            self.named, self.arch = arch.name, arch
        elif name == ".kernel":
            if not rest or rest in [kernel.name for kernel in self.kernels]:
                raise EncodeError("asm-kernel", f"kernel {rest!r} stands here twice" if rest else "no kernel name",
                                  token=rest)
            self.kernels.append(_Kernel(rest))
        elif name == ".word":
            try:
                word = int(rest, 16) if rest.startswith("0x") else -1
            except ValueError:
                word = -1
            if not 0 <= word < 1 << 128:
                raise EncodeError("asm-word", f"{rest!r} is no 128-bit word", "like .word 0x000fe2...", token=rest)
            self.kernel.lines.append(_Line(number, source, "", start, None, word, True))
        else:
            near = difflib.get_close_matches(name, _DIRECTIVES, 1, 0.3)
            raise EncodeError("asm-directive", f"there is no directive {name}",
                              f"nearest: {near[0]}" if near else "known: " + " ".join(_DIRECTIVES), _DIRECTIVES, name)

    def _instruction(self, number: int, source: str, text: str, start: int) -> None:
        given: int | None = None
        control: Control | None = None
        line = _Line(number, source, "", start, control, None)
        self.kernel.lines.append(line)  # also a line that is refused takes its place, so that labels stay right
        end = text.rfind(";")
        if end >= 0:
            tail = text[end + 1:]
            written = _WORD.search(tail)
            if written is not None:
                given = int(written[1], 16)
                tail = tail[:written.start()]
            braces = _CONTROL.search(tail)
            if braces is not None:
                control = parse_control(braces[1])
                tail = tail[:braces.start()]
            if tail.strip():
                raise EncodeError("asm-syntax", f"{tail.strip()!r} behind the instruction is not understood",
                                  "{control word} and = 0xword may stand there", token=tail.strip())
            text = text[:end].rstrip()
        line.text, line.control, line.given = text, control, given


_DIRECTIVES = (".target", ".kernel", ".word")


def assemble(text: str, arch: Arch | None = None) -> tuple[Arch, list[Unit]]:
    """The architecture and the kernels of an assembly file; ``arch`` where the file has no ``.target``.

    Raises AssemblyError with every line that is refused, UnsupportedError ``[isa-missing]``, EncodeError
    ``[asm-target]`` where nothing names the architecture.
    """
    reader = _Reader(arch)
    for number, line in enumerate(text.splitlines(), 1):
        reader.read(number, line)
    if reader.arch is None:
        if reader.problems:
            raise AssemblyError(reader.problems)
        raise EncodeError("asm-target", "nothing says which architecture the code is for",
                          "write .target sm_90a, or give --arch")
    isa = isa_for(reader.arch)
    units = [Unit(kernel.name, _words(_encoded(reader, isa, kernel)),
                  tuple(line.number for line in kernel.lines if line.control is None and line.given is None))
             for kernel in reader.kernels if kernel.lines or kernel.name]
    if reader.problems:
        raise AssemblyError(sorted(reader.problems, key=lambda problem: (problem.line, problem.column)))
    return reader.arch, units


def _encoded(reader: _Reader, isa: Isa, kernel: _Kernel) -> Iterable[int]:
    for index, line in enumerate(kernel.lines):
        if line.raw or not line.text:
            yield line.given or 0
            continue
        try:
            yield _encode(isa, kernel, line, index * INSTRUCTION_SIZE)
        except GWatchError as error:
            reader.refuse(line.number, line.source, error, line.column)
            yield 0


def _encode(isa: Isa, kernel: _Kernel, line: _Line, pc: int) -> int:
    text = line.text
    if "`" in text:
        text = _REFERENCE.sub(lambda found: _address(kernel, found[1]), text)
    if line.given is None:
        return isa.encode(text, line.control, pc)
    read = isa.decode(line.given, pc)
    if text not in (read.canonical, read.text):
        raise EncodeError("word-mismatch", f"the word reads {read.canonical!r}, not {text!r}",
                          "change the text or drop the word", token=hex(line.given))
    shown = _shown_reuse(isa.arch, line.given, text)
    if line.control is not None and replace(line.control, reuse=line.control.reuse | shown) != read.control:
        raise EncodeError("word-mismatch", f"the word's control word is {control_text(read.control, shown)}, not "
                          f"{control_text(line.control)}", "change the one or the other", token=hex(line.given))
    return line.given


def _address(kernel: _Kernel, name: str) -> str:
    at = kernel.labels.get(name)
    if at is None:
        near = difflib.get_close_matches(name, kernel.labels, 3, 0.3)
        raise EncodeError("asm-label", f"there is no label {name!r}", "nearest: " + " ".join(near) if near else
                          "the file has no labels" if not kernel.labels else "", near, name)
    return hex(at)


def _words(words: Iterable[int]) -> Words:
    image = b"".join(word.to_bytes(INSTRUCTION_SIZE, "little") for word in words)
    return np.frombuffer(image, dtype="<u8").reshape(-1, 2)
