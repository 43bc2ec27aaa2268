"""``.nv.info`` attributes: byte-exact reading and writing, names, and which of them hold code offsets.

A record is ``u8 format, u8 code, u16 value``; format 4 is followed by ``value`` payload bytes. Formats 1 to 3
carry their value inline (none, one byte, two bytes). Names and payload shapes: observed in compiler output
and printed by nvdisasm; which codes hold offsets: observed over some 20,000 cubins (payload values hit the
instruction kinds they name).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from enum import IntEnum
from typing import NamedTuple

from gwatch.errors import CubinError, UnsupportedError

_HEAD = struct.Struct("<BBH")


class Attr(IntEnum):
    """Attribute codes gwatch knows by name."""

    CTAIDZ_USED = 0x04
    MAX_THREADS = 0x05
    PARAM_CBANK = 0x0A
    EXTERNS = 0x0F
    REQNTID = 0x10
    FRAME_SIZE = 0x11
    MIN_STACK_SIZE = 0x12
    BINDLESS_TEXTURE_BANK = 0x15
    BINDLESS_SURFACE_BANK = 0x16
    KPARAM_INFO = 0x17
    CBANK_PARAM_SIZE = 0x19
    MAXREG_COUNT = 0x1B
    EXIT_INSTR_OFFSETS = 0x1C
    S2RCTAID_INSTR_OFFSETS = 0x1D
    CRS_STACK_SIZE = 0x1E
    NEED_CNP_WRAPPER = 0x1F
    NEED_CNP_PATCH = 0x20
    EXPLICIT_CACHING = 0x21
    MAX_STACK_SIZE = 0x23
    LD_CACHEMOD_INSTR_OFFSETS = 0x25
    ATOM_SYS_INSTR_OFFSETS = 0x27
    COOP_GROUP_INSTR_OFFSETS = 0x28
    COOP_GROUP_MASK_REGIDS = 0x29
    SW1850030_WAR = 0x2A
    WMMA_USED = 0x2B
    ATOMF16_EMUL_INSTR_OFFSETS = 0x2D
    ATOM16_EMUL_INSTR_REG_MAP = 0x2E
    REGCOUNT = 0x2F
    SW2393858_WAR = 0x30
    INT_WARP_WIDE_INSTR_OFFSETS = 0x31
    INDIRECT_BRANCH_TARGETS = 0x34
    SW2861232_WAR = 0x35
    SW_WAR = 0x36
    CUDA_API_VERSION = 0x37
    NUM_MBARRIERS = 0x38
    MBARRIER_INSTR_OFFSETS = 0x39
    COROUTINE_RESUME_OFFSETS = 0x3A
    CTA_PER_CLUSTER = 0x3D
    EXPLICIT_CLUSTER = 0x3E
    MAX_CLUSTER_RANK = 0x3F
    INSTR_REG_MAP = 0x40
    RESERVED_SMEM_USED = 0x41
    RESERVED_SMEM_0_SIZE = 0x42
    UNUSED_LOAD_BYTE_OFFSET = 0x44
    KPARAM_INFO_V2 = 0x45
    SYSCALL_OFFSETS = 0x46
    SW_WAR_MEMBAR_SYS_INSTR_OFFSETS = 0x47
    VRC_CTA_INIT_COUNT = 0x4A
    NUM_BARRIERS = 0x4C
    AT_ENTRY_FRAGMENTS = 0x4F
    SPARSE_MMA_MASK = 0x50
    TCGEN05_1CTA_USED = 0x51
    TCGEN05_2CTA_USED = 0x52
    REG_RECONFIG = 0x54
    ANNOTATIONS = 0x55
    STACK_CANARY_TRAP_OFFSETS = 0x57
    LOCAL_CTA_ASYNC_STORE_OFFSETS = 0x59
    CLUSTER_LAUNCH_CONTROL_USED = 0x62
    LANGUAGE = 0x66
    PREEXIT_USED = 0x67
    NVSAL_SW_WAR = 0x6B


class Shape(NamedTuple):
    """Payload layout of an offset-holding attribute: entries of ``stride`` words, the offset in word
    ``column``."""

    stride: int
    column: int

    def replaced(self, entry: tuple[int, ...], offset: int) -> tuple[int, ...]:
        """The entry with another offset."""
        return (*entry[: self.column], offset, *entry[self.column + 1 :])


OFFSET_SHAPES: dict[int, Shape] = {
    Attr.EXIT_INSTR_OFFSETS: Shape(1, 0),
    Attr.COOP_GROUP_INSTR_OFFSETS: Shape(1, 0),
    Attr.INT_WARP_WIDE_INSTR_OFFSETS: Shape(1, 0),
    Attr.SYSCALL_OFFSETS: Shape(1, 0),
    Attr.ATOM16_EMUL_INSTR_REG_MAP: Shape(2, 0),
    Attr.UNUSED_LOAD_BYTE_OFFSET: Shape(2, 0),
    Attr.ANNOTATIONS: Shape(2, 1),
    Attr.INSTR_REG_MAP: Shape(3, 0),
    Attr.MBARRIER_INSTR_OFFSETS: Shape(4, 0),
}
"""Lists whose offsets all follow the place map. INDIRECT_BRANCH_TARGETS (both maps) is handled by its own
reader."""

_BY_OWN_READER = frozenset({Attr.INDIRECT_BRANCH_TARGETS})

PARALLEL = {Attr.COOP_GROUP_MASK_REGIDS: Attr.COOP_GROUP_INSTR_OFFSETS}
"""Lists without offsets whose entries pair up with those of an offset list."""

_SCALARS = frozenset(
    {
        Attr.CTAIDZ_USED, Attr.MAX_THREADS, Attr.PARAM_CBANK, Attr.EXTERNS, Attr.REQNTID, Attr.FRAME_SIZE,
        Attr.MIN_STACK_SIZE, Attr.BINDLESS_TEXTURE_BANK, Attr.BINDLESS_SURFACE_BANK, Attr.KPARAM_INFO,
        Attr.CBANK_PARAM_SIZE, Attr.MAXREG_COUNT, Attr.CRS_STACK_SIZE, Attr.NEED_CNP_WRAPPER,
        Attr.NEED_CNP_PATCH, Attr.EXPLICIT_CACHING, Attr.MAX_STACK_SIZE, Attr.COOP_GROUP_MASK_REGIDS,
        Attr.SW1850030_WAR, Attr.WMMA_USED, Attr.REGCOUNT, Attr.SW2393858_WAR, Attr.SW2861232_WAR,
        Attr.SW_WAR, Attr.CUDA_API_VERSION, Attr.NUM_MBARRIERS, Attr.CTA_PER_CLUSTER, Attr.EXPLICIT_CLUSTER,
        Attr.MAX_CLUSTER_RANK, Attr.RESERVED_SMEM_USED, Attr.RESERVED_SMEM_0_SIZE, Attr.KPARAM_INFO_V2,
        Attr.VRC_CTA_INIT_COUNT, Attr.NUM_BARRIERS, Attr.AT_ENTRY_FRAGMENTS, Attr.SPARSE_MMA_MASK,
        Attr.TCGEN05_1CTA_USED, Attr.TCGEN05_2CTA_USED, Attr.REG_RECONFIG, Attr.CLUSTER_LAUNCH_CONTROL_USED,
        Attr.LANGUAGE, Attr.PREEXIT_USED, Attr.NVSAL_SW_WAR, 0x5F, 0x68, 0x6D,
    }
)  # fmt: skip
"""Codes that hold no code offset. 0x5f, 0x68 and 0x6d have no public name; their values were scalar in all
samples."""


class Attribute(NamedTuple):
    """One record. ``value`` is the inline 16 bits (formats 1 to 3); ``payload`` the bytes of format 4."""

    format: int
    code: int
    value: int
    payload: bytes = b""

    @property
    def name(self) -> str:
        """Public name, or the code in hex."""
        try:
            return Attr(self.code).name
        except ValueError:
            return f"{self.code:#04x}"

    @property
    def words(self) -> tuple[int, ...]:
        """Payload as unsigned 32-bit words. Raises CubinError [nvinfo-shape] when it isn't made of words."""
        if len(self.payload) % 4:
            raise CubinError(
                "nvinfo-shape", f"attribute {self.name}: {len(self.payload)} bytes are not 32-bit words"
            )
        return struct.unpack(f"<{len(self.payload) // 4}I", self.payload)

    def with_words(self, words: Iterable[int]) -> Attribute:
        """The same record with another payload. Raises CubinError [nvinfo-shape] beyond 65,535 bytes."""
        values = list(words)
        if len(values) * 4 > 0xFFFF:
            raise CubinError(
                "nvinfo-shape", f"attribute {self.name}: {len(values)} words exceed the record's 64 KiB"
            )
        payload = struct.pack(f"<{len(values)}I", *values)
        return self._replace(value=len(payload), payload=payload)


class IndirectBranch(NamedTuple):
    """One jump-table record: byte offsets of the branch and of all its targets."""

    branch: int
    tag: int
    targets: tuple[int, ...]


class Parameter(NamedTuple):
    """One kernel parameter: position in the signature, byte offset in the parameter area, byte size."""

    ordinal: int
    offset: int
    size: int


def parse(data: bytes, where: str = ".nv.info") -> tuple[Attribute, ...]:
    """All records of a section. Raises CubinError [nvinfo-truncated] or [nvinfo-format]."""
    attributes = []
    at = 0
    while at < len(data):
        if at + 4 > len(data):
            raise CubinError("nvinfo-truncated", f"{where}: {len(data) - at} stray bytes at {at:#x}")
        form, code, value = _HEAD.unpack_from(data, at)
        at += 4
        if form not in (1, 2, 3, 4):
            raise CubinError("nvinfo-format", f"{where}: record at {at - 4:#x} has format {form}")
        payload = b""
        if form == 4:
            payload = data[at : at + value]
            if len(payload) != value:
                raise CubinError(
                    "nvinfo-truncated", f"{where}: record at {at - 4:#x} has {len(payload)} of {value} bytes"
                )
            at += value
        attributes.append(Attribute(form, code, value, payload))
    return tuple(attributes)


def serialize(attributes: Iterable[Attribute]) -> bytes:
    """The bytes of a section; ``serialize(parse(data)) == data``."""
    return b"".join(_HEAD.pack(a.format, a.code, a.value) + a.payload for a in attributes)


def first(attributes: Iterable[Attribute], code: int) -> Attribute | None:
    """First record of that code, or None."""
    return next((a for a in attributes if a.code == code), None)


def dims(attributes: Iterable[Attribute], code: int) -> tuple[int, int, int] | None:
    """The first record of that code as (x, y, z); None where there is none of three words."""
    attribute = first(attributes, code)
    if attribute is None or len(attribute.words) != 3:
        return None
    x, y, z = attribute.words
    return x, y, z


def code_offsets(attribute: Attribute) -> tuple[int, ...]:
    """The code offsets that an attribute holds, in its order; none where it holds none."""
    shape = OFFSET_SHAPES.get(attribute.code)
    return () if shape is None else tuple(attribute.words[shape.column :: shape.stride])


def entries(attribute: Attribute) -> list[tuple[int, ...]]:
    """The entries of a list of code offsets; none where the attribute is no such list.

    Raises CubinError [nvinfo-shape] for one that isn't made of whole entries.
    """
    shape = OFFSET_SHAPES.get(attribute.code)
    if shape is None:
        return []
    words = attribute.words
    if attribute.format != 4 or len(words) % shape.stride:
        raise CubinError(
            "nvinfo-shape",
            f"attribute {attribute.name} of format {attribute.format}: {len(words)} words are not a list of entries "
            f"of {shape.stride}",
        )
    return [words[at : at + shape.stride] for at in range(0, len(words), shape.stride)]


def by_symbol(attributes: Iterable[Attribute], code: int) -> dict[int, int]:
    """``{symbol index: value}`` of a two-word attribute of the global ``.nv.info`` (REGCOUNT, FRAME_SIZE,
    ...)."""
    found = {}
    for attribute in attributes:
        if attribute.code == code and attribute.format == 4:
            words = attribute.words
            if len(words) != 2:
                raise CubinError(
                    "nvinfo-shape", f"attribute {attribute.name} has {len(words)} words, expected 2"
                )
            found[words[0]] = words[1]
    return found


def parameters(attributes: Iterable[Attribute]) -> tuple[Parameter, ...]:
    """Kernel parameters in order (KPARAM_INFO: index, ordinal | offset << 16, flags with the size in bits 18
    up).

    Raises CubinError [nvinfo-shape].
    """
    found = []
    for attribute in attributes:
        if attribute.code != Attr.KPARAM_INFO:
            continue
        words = attribute.words
        if len(words) != 3:
            raise CubinError("nvinfo-shape", f"KPARAM_INFO has {len(words)} words, expected 3")
        found.append(Parameter(words[1] & 0xFFFF, words[1] >> 16, words[2] >> 18))
    return tuple(sorted(found, key=lambda p: p.ordinal))


def indirect_branches(attribute: Attribute) -> tuple[IndirectBranch, ...]:
    """Records of INDIRECT_BRANCH_TARGETS: branch offset, 0, count, targets. Raises CubinError
    [nvinfo-shape]."""
    words = attribute.words
    found = []
    at = 0
    while at < len(words):
        head = words[at : at + 3]
        if len(head) < 3 or at + 3 + head[2] > len(words):
            raise CubinError(
                "nvinfo-shape", f"{attribute.name}: record at word {at} runs past {len(words)} words"
            )
        found.append(IndirectBranch(head[0], head[1], words[at + 3 : at + 3 + head[2]]))
        at += 3 + head[2]
    return tuple(found)


def check_movable(attributes: Iterable[Attribute], kernel: str) -> None:
    """Refuse a kernel whose attributes might hold a code offset that gwatch cannot move.

    Raises UnsupportedError [nvinfo-unknown] for a format-4 code that isn't known to be a scalar or an offset list.
    """
    for attribute in attributes:
        known = (
            attribute.code in OFFSET_SHAPES or attribute.code in _SCALARS or attribute.code in _BY_OWN_READER
        )
        if attribute.format == 4 and not known:
            raise UnsupportedError(
                "nvinfo-unknown",
                f"kernel {kernel} carries attribute {attribute.name} ({attribute.code:#04x})",
                "it may hold code offsets; gwatch does not move code below attributes it does not know",
            )  # fmt: skip


def move(
    attributes: Iterable[Attribute], place: Callable[[int, int], int], copies: int
) -> tuple[tuple[Attribute, ...], dict[str, int]]:
    """Attributes with every code offset moved, one set of entries per copy of the code.

    ``place(offset, copy)``: old byte offset -> new byte offset of the same instruction in that copy. Returns
    the new records and the number of moved offsets per attribute name. Raises CubinError [nvinfo-shape].
    """
    moved = []
    counts: dict[str, int] = {}
    for attribute in attributes:
        shape = OFFSET_SHAPES.get(attribute.code)
        if shape is not None:
            old = entries(attribute)
            fresh = [
                word
                for copy in range(copies)
                for entry in old
                for word in shape.replaced(entry, place(entry[shape.column], copy))
            ]
            counts[attribute.name] = counts.get(attribute.name, 0) + len(old)
            attribute = attribute.with_words(fresh)
        elif attribute.code in PARALLEL:
            attribute = attribute.with_words(attribute.words * copies)
        moved.append(attribute)
    return tuple(moved), counts
