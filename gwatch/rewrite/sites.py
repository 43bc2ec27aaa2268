"""Site descriptions as a person writes them, resolved against a kernel.

``PLACE[@first|@last|@all][,OPTION…]`` where PLACE is

* ``12``: an instruction index; ``0x110``: a pc (a multiple of the instruction size); * ``line:matmul.cu:29``
or ``line:29``: the instructions of a source line (``-lineinfo`` or ``-G``), those of functions
  inlined there included;
* ``op:BAR.SYNC``: the instructions whose opcode is that, or that with more modifiers;

and OPTION is ``reg=R8``, ``reg=R8:64``, ``reg=UR4``, ``smid``, ``activemask``, ``ns``, ``ns:64`` (the value),
``warp``, ``always`` (also where the instruction's guard is false), ``after``, ``label=TEXT``.

A record is made right *before* its instruction: at a barrier that is the arrival. ``after`` makes it before the next
instruction instead, for every lane that comes by, whatever the guards of the two say. It is refused where the
instruction transfers control, and where the next one is reached from elsewhere too.

A place that names several instructions is refused with the list, unless ``@first``, ``@last`` or ``@all`` is
said.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gwatch.errors import SiteError
from gwatch.rewrite.trace import SPECIALS, SassTraceSite

if TYPE_CHECKING:
    from gwatch.cuda.binary.kernel import KernelDef

_CHOICES = ("first", "last", "all")
_CHOICE = re.compile(r"@([^@:]*)$")
_INDEX = re.compile(r"-?[0-9]+|0x[0-9a-f]+", re.IGNORECASE)
_WANTED = re.compile(r"[A-Z][A-Z0-9_]*(?:\.[A-Z0-9_]+)*", re.IGNORECASE)
_REGISTER = re.compile(r"(U?R)(\d+)(?::(32|64))?\Z")
_OPCODE = re.compile(r"(?:@(?P<guard>!?U?P\w+)\s+)?(?P<opcode>[A-Z][A-Z0-9_]*(?:\.[A-Za-z0-9_]+)*)")
_LISTED = 8


@dataclass(frozen=True, slots=True)
class SiteSpec:
    """A parsed description: ``place`` and ``choice`` ("" when none was said) name instructions, ``fields``
    are :class:`SassTraceSite` fields."""

    text: str
    place: str
    choice: str
    fields: dict[str, Any]
    after: bool = False


def parse_site(text: str) -> SiteSpec:
    """Read one description. Raises SiteError ``[site-syntax]`` that quotes the part it can't read."""
    place, *options = text.split(",")
    place = place.strip()
    match = _CHOICE.search(place)
    choice = match[1] if match else ""
    place = place[: match.start()] if match else place
    if (match and choice not in _CHOICES) or _CHOICE.search(place):
        raise SiteError(
            "site-syntax",
            f"site {text!r}: @{choice} is none of @first, @last, @all"
            if choice not in _CHOICES
            else f"site {text!r} chooses twice",
            "say one of @first, @last and @all behind the place",
        )
    if not place:
        raise SiteError(
            "site-syntax", f"site {text!r} names no place", "give an index, 0xPC, line:FILE:N or op:OPCODE"
        )
    _check_place(text, place)
    fields: dict[str, Any] = {}
    for option in (item.strip() for item in options):
        for name, value in _option(text, option).items():
            if name in fields:
                raise SiteError(
                    "site-syntax",
                    f"site {text!r} says {option!r} twice or against another option",
                    "say each option once",
                )
            fields[name] = value
    return SiteSpec(text, place, choice, fields, bool(fields.pop("after", False)))


def _check_place(text: str, place: str) -> None:
    """Whether the place has one of the four forms."""
    kind, colon, rest = place.partition(":")
    digits = rest.rpartition(":")[2]
    if colon and kind == "line":
        if not (digits.isascii() and digits.isdecimal()):
            raise SiteError("site-syntax", f"site {text!r}: {digits!r} is no line number", "write line:FILE:N")
    elif colon and kind == "op":
        if _WANTED.fullmatch(rest) is None:
            what = f"site {text!r}: {rest!r} is no opcode"
            raise SiteError("site-syntax", what, "write op:LDG or op:LDG.E.128, as --list shows it")
    elif _INDEX.fullmatch(place) is None:
        what = f"site {text!r}: {place!r} is no place"
        raise SiteError("site-syntax", what, "give an index, 0xPC, line:FILE:N or op:OPCODE")


def _option(text: str, option: str) -> dict[str, Any]:
    name, has_value, value = option.partition("=")
    if option == "warp":
        return {"warp_level": True}
    if option == "always":
        return {"unconditional": True}
    if option == "after":
        return {"after": True}
    if option == "smid":
        return {"value_is_smid": True}
    if option in SPECIALS:
        return {"special": option}
    if name == "label" and value:
        return {"label": value}
    if name == "reg" and has_value:
        match = _REGISTER.match(value)
        if match is None:
            raise SiteError(
                "site-syntax", f"site {text!r}: {value!r} is no register", "write R8, R8:64, UR4 or UR4:64"
            )
        return {
            "value_reg": int(match[2]),
            "value_is_uniform": match[1] == "UR",
            "value_width_bits": int(match[3] or 32),
        }
    raise SiteError(
        "site-syntax",
        f"site {text!r}: option {option!r} is not known",
        "options: reg=R8[:64] reg=UR4[:64] smid activemask ns ns:64 warp always after label=TEXT",
    )


def resolve_site(kernel: KernelDef, text: str) -> list[SassTraceSite]:
    """The sites that ``text`` describes in ``kernel``: one, or several with ``@all``, in address order.

    Raises SiteError: ``[site-syntax]``, ``[site-range]``, ``[site-unaligned]``, ``[site-none]`` (nothing
    there, with the nearest), ``[site-ambiguous]`` (with the list), ``[site-after]``, what :class:`SassTraceSite`
    raises; with ``after`` also UnsupportedError ``[word-unknown]``.
    """
    return [site for site, _ in resolve_with_notes(kernel, text)]


def resolve_with_notes(kernel: KernelDef, text: str) -> list[tuple[SassTraceSite, str]]:
    """As :func:`resolve_site`; with each site what a reader of its records must know about guards, or ""."""
    spec = parse_site(text)
    found = _places(kernel, spec)
    if len(found) > 1 and not spec.choice:
        raise SiteError(
            "site-ambiguous",
            f"site {text!r} names {len(found)} instructions of {kernel.name}: {_listing(kernel, found)}",
            "say @first, @last or @all, or give one index",
            map(str, found),
        )
    if spec.choice == "first":
        found = found[:1]
    elif spec.choice == "last":
        found = found[-1:]
    if spec.after:
        return [_behind(kernel, spec, index) for index in found]
    return [(site, guard_note(kernel, site)) for site in (SassTraceSite(index, **spec.fields) for index in found)]


def guard_note(kernel: KernelDef, site: SassTraceSite) -> str:
    """What a guarded site leaves out; "" where it leaves nothing out."""
    guard = "" if site.unconditional else _read(kernel.text(site.insert_index))[0]
    return f"records only lanes for which @{guard} holds; `always` records all" if guard else ""


def _read(text: str) -> tuple[str, str]:
    """(guard, opcode) of an instruction's text: ("!P0", "BRA"); "" for what it has not."""
    match = _OPCODE.match(text)
    return (match["guard"] or "", match["opcode"]) if match else ("", "")


def _behind(kernel: KernelDef, spec: SiteSpec, index: int) -> tuple[SassTraceSite, str]:
    """The site right behind instruction ``index``, where nothing else leads."""
    from gwatch.sass.cfg import Flow

    kernel.parse_cfg()
    assert kernel.cfg is not None
    graph, text = kernel.cfg.graph, kernel.text(index).rstrip(" ;")
    where = f"site {spec.text!r}: instruction {index} ({text})"
    if graph.flow.kind[index] not in (Flow.NEXT, Flow.REFERENCE) or graph.successors(index) != [index + 1]:
        raise SiteError(
            "site-after",
            f"{where} transfers control, so what comes after it is not one place",
            "leave `after` out, or name the instructions that it leads to",
        )
    others = [str(other) for other in graph.predecessors(index + 1) if other != index]
    others += ["an entry"] if index + 1 in graph.entries else []
    if others or index + 1 >= kernel.code.unpadded:
        raise SiteError(
            "site-after",
            f"{where}: instruction {index + 1} behind it "
            + (f"is also reached from {', '.join(others[:_LISTED])}" if others else "is padding"),
            "a record there would count other visits too: name another instruction",
        )
    guard, opcode = _read(text)
    label = spec.fields.get("label") or f"after {index} {opcode}".strip()
    site = SassTraceSite(index + 1, **{**spec.fields, "unconditional": True, "label": label})
    note = f"is made before {index + 1}, the next instruction after {index}"
    if guard:
        note += f", for all lanes, also those for which @{guard} does not hold"
    return site, note


def _places(kernel: KernelDef, spec: SiteSpec) -> list[int]:
    kind, colon, rest = spec.place.partition(":")
    if colon and kind == "line":
        return _of_line(kernel, spec, rest)
    if colon and kind == "op":
        return _of_opcode(kernel, spec, rest)
    number = int(spec.place, 16 if spec.place[:2].lower() == "0x" else 10)
    size = kernel.arch.instruction_size
    if spec.place.lower().startswith("0x"):
        if number % size:
            raise SiteError(
                "site-unaligned",
                f"site {spec.text!r}: {number:#x} is no multiple of {size}",
                f"instructions near it: {number // size * size:#x}, {number // size * size + size:#x}",
            )
        number //= size
    if not 0 <= number < len(kernel.words):
        raise SiteError(
            "site-range",
            f"site {spec.text!r}: {kernel.name} has instructions 0..{kernel.code.unpadded - 1} "
            f"(pc 0x0..{(kernel.code.unpadded - 1) * size:#x})",
            "choose one that --list shows",
        )
    return [number]


def _of_line(kernel: KernelDef, spec: SiteSpec, rest: str) -> list[int]:
    file, _, digits = rest.rpartition(":")
    lines = _lines(kernel)
    if not lines:
        raise SiteError("site-none", f"{kernel.name} has no line information", "compile with -lineinfo")
    line = int(digits)
    files = {name for name, _ in lines if not file or name == file or name.endswith("/" + file)}
    if not files:
        names = ", ".join(sorted({name.rsplit("/", 1)[-1] for name, _ in lines}))
        raise SiteError(
            "site-none", f"site {spec.text!r}: no instruction comes from {file}", f"files: {names}"
        )
    with_line = sorted(name for name in files if (name, line) in lines)
    if not with_line:
        near = sorted({number for name, number in lines if name in files}, key=lambda n: (abs(n - line), n))[
            :6
        ]
        raise SiteError(
            "site-none",
            f"site {spec.text!r}: no instruction comes from line {line}",
            f"nearest lines with code: {', '.join(map(str, sorted(near)))}",
            (f"line:{file}:{number}" for number in near),
        )
    if len(with_line) > 1:
        raise SiteError(
            "site-ambiguous",
            f"site {spec.text!r} fits {len(with_line)} files: {', '.join(with_line)}",
            "give more of the path",
        )
    size = kernel.arch.instruction_size
    return [address // size for address in lines[with_line[0], line]]


def _lines(kernel: KernelDef) -> dict[tuple[str, int], list[int]]:
    """(file, line) -> addresses: each instruction under its own line and under those it was inlined into."""
    found = {place: set(addresses) for place, addresses in kernel.map_line_to_addresses.items()}
    for address, calls in kernel.inlined_at.items():
        for call in calls:
            found.setdefault((call.file, call.line), set()).add(address)
    return {place: sorted(addresses) for place, addresses in found.items()}


def _of_opcode(kernel: KernelDef, spec: SiteSpec, wanted: str) -> list[int]:
    found = []
    known = set()
    for index, text in enumerate(kernel.texts):
        match = _OPCODE.match(text)
        if match is None:
            continue
        known.add(match["opcode"])
        if match["opcode"] == wanted or match["opcode"].startswith(wanted + "."):
            found.append(index)
    if not found:
        near = difflib.get_close_matches(wanted.upper(), sorted(known), n=5, cutoff=0.3) or sorted(known)[:5]
        raise SiteError(
            "site-none",
            f"site {spec.text!r}: {kernel.name} has no {wanted}",
            f"nearest: {', '.join(near)}",
            (f"op:{name}" for name in near),
        )
    return found


def _listing(kernel: KernelDef, found: list[int]) -> str:
    size = kernel.arch.instruction_size
    shown = [f"{i} ({i * size:#x}) {kernel.text(i).rstrip(' ;')}" for i in found[:_LISTED]]
    more = [f"and {len(found) - _LISTED} more"] if len(found) > _LISTED else []
    return " | ".join(shown + more)


def parse_excluded(text: str) -> dict[str, list[int]]:
    """``"R252,UR4,P3"`` as ``excluded_registers``. Raises SiteError ``[site-syntax]``."""
    names = {"R": "general", "UR": "uniform_general", "P": "predicate"}
    out: dict[str, list[int]] = {}
    for item in text.split(","):
        match = re.fullmatch(r"(U?R|P)(\d+)", item.strip())
        if match is None:
            raise SiteError("site-syntax", f"{item.strip()!r} is no register to exclude", "write R252,UR4,P3")
        out.setdefault(names[match[1]], []).append(int(match[2]))
    return out
