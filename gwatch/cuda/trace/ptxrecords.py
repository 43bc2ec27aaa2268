"""The tracer's snippets in PTX: the prologue and the record, writing the same ring as the SASS tier's.

State in registers of the kernel's outermost block: ``%gwatch_off`` (running byte offset of the lane), ``%gwatch_base``
and ``%gwatch_high`` (the lane's first slot, two halves of its address), ``%gwatch_armed``. An unarmed thread makes no
record; it still pays for the instructions, since this tier has no untouched copy of the code.
"""

from __future__ import annotations

from gwatch.rewrite.ring import (
    CANARY,
    DESCRIPTOR_BYTES,
    DESCRIPTOR_DTYPE,
    HEADER_BYTES,
    HEADER_DTYPE,
    LANES,
    Keep,
    RecordKind,
    RingFormat,
    unarmed_descriptor,
)

_CLOCKS = {"gpu": ("%globaltimer_lo", "%globaltimer"), "sm": ("%clock", "%clock64")}
CLOCKS = tuple(_CLOCKS)
_LUT_OR, _LUT_AND_OR = "0xfc", "0xea"


def descriptor(symbol: str, fmt: RingFormat, *, alone: bool) -> str:
    """The constant that arms the kernel, as a declaration for the module's level; ``alone``: the module has no other.

    Beside others it is not ``.visible``: ptxas lays out visible constants first, and those of the module must stay
    where they are.
    """
    values = ", ".join(map(str, unarmed_descriptor(fmt)))
    linkage = ".visible " if alone else ""
    return f"{linkage}.const .align 8 .b8 {symbol}[{DESCRIPTOR_BYTES}] = {{{values}}};"


def prologue(symbol: str, fmt: RingFormat) -> str:
    """Declarations and code for the kernel's start."""
    assert DESCRIPTOR_DTYPE.fields is not None and HEADER_DTYPE.fields is not None
    field = {name: f"[{symbol}+{entry[1]}]" for name, entry in DESCRIPTOR_DTYPE.fields.items()}
    head = {name: f"[%gwatch_head+{entry[1]}]" for name, entry in HEADER_DTYPE.fields.items()}
    linear = "\n".join(
        f"mad.lo.u32 %gwatch_{out}, %gwatch_u, %gwatch_v, %gwatch_w;"
        if step == "mad"
        else f"mov.u32 %gwatch_{out}, %{step};"
        for out, step in (
            ("u", "tid.z"), ("v", "ntid.y"), ("w", "tid.y"), ("u", "mad"),
            ("v", "ntid.x"), ("w", "tid.x"), ("tid", "mad"),
            ("u", "ctaid.z"), ("v", "nctaid.y"), ("w", "ctaid.y"), ("u", "mad"),
            ("v", "nctaid.x"), ("w", "ctaid.x"), ("cta", "mad"),
        )
    )  # fmt: skip
    return f"""
.reg .b32 %gwatch_off, %gwatch_base, %gwatch_high;
.reg .pred %gwatch_armed;
mov.u32 %gwatch_off, 0;
mov.u32 %gwatch_base, 0;
mov.u32 %gwatch_high, 0;
{{
.reg .b32 %gwatch_u, %gwatch_v, %gwatch_w, %gwatch_tid, %gwatch_cta, %gwatch_slot, %gwatch_lanes;
.reg .b64 %gwatch_ring, %gwatch_head, %gwatch_table, %gwatch_x, %gwatch_y;
.reg .pred %gwatch_p;
ld.const.u64 %gwatch_ring, {field["ring"]};
setp.ne.u64 %gwatch_armed, %gwatch_ring, 0;
@!%gwatch_armed bra $gwatch_ready;
activemask.b32 %gwatch_lanes;
{linear}
mov.u32 %gwatch_slot, %gwatch_cta;
ld.const.u64 %gwatch_table, {field["table"]};
setp.ne.u64 %gwatch_p, %gwatch_table, 0;
mad.wide.u32 %gwatch_x, %gwatch_cta, 4, %gwatch_table;
@%gwatch_p ld.global.u32 %gwatch_slot, [%gwatch_x];
ld.const.u32 %gwatch_u, {field["cta_slots"]};
ld.const.u32 %gwatch_v, {field["warps_per_cta"]};
shr.u32 %gwatch_w, %gwatch_tid, {LANES.bit_length() - 1};
setp.lt.u32 %gwatch_armed, %gwatch_slot, %gwatch_u;
setp.lt.and.u32 %gwatch_armed, %gwatch_w, %gwatch_v, %gwatch_armed;
@!%gwatch_armed bra $gwatch_ready;
mad.lo.u32 %gwatch_w, %gwatch_slot, %gwatch_v, %gwatch_w;
mov.b64 {{%gwatch_u, %gwatch_high}}, %gwatch_ring;
mad.lo.u32 %gwatch_base, %gwatch_w, {fmt.chunk_bytes}, %gwatch_u;
and.b32 %gwatch_v, %gwatch_tid, {LANES - 1};
mad.lo.u32 %gwatch_base, %gwatch_v, {fmt.lane_bytes}, %gwatch_base;
ld.const.u64 %gwatch_head, {field["headers"]};
mad.wide.u32 %gwatch_head, %gwatch_w, {HEADER_BYTES}, %gwatch_head;
mov.u32 %gwatch_u, %smid;
mov.u32 %gwatch_v, {CANARY};
st.global.v4.b32 {head["canary"]}, {{%gwatch_v, %gwatch_u, %gwatch_lanes, %gwatch_cta}};
mov.u64 %gwatch_x, %clock64;
mov.u64 %gwatch_y, %globaltimer;
st.global.v2.b64 {head["clock_in"]}, {{%gwatch_x, %gwatch_y}};
$gwatch_ready:
}}
"""


def record(
    fmt: RingFormat, clock: str, site: int, number: int, *, warp_level: bool, guard: str, payload: str | None
) -> str:
    """One record with tag ``site``; ``number`` makes its labels unique in the function, ``guard`` is the marker's
    predicate."""
    narrow, wide = _CLOCKS[clock]
    tag = "%gwatch_s"
    lines = [
        "{",
        ".reg .b32 %gwatch_t, %gwatch_h, %gwatch_s, %gwatch_a, %gwatch_l;",
        ".reg .b64 %gwatch_x, %gwatch_c;",
        ".reg .pred %gwatch_q;",
        *(
            (f"mov.u64 %gwatch_c, {wide};", "mov.b64 {%gwatch_t, %gwatch_h}, %gwatch_c;")
            if fmt.kind is RecordKind.LONG
            else (f"mov.u32 %gwatch_t, {narrow};",)
        ),
        f"add.u32 {tag}, %gwatch_off, {site};"
        if fmt.by_lane
        else f"lop3.b32 {tag}, %gwatch_off, {site}, 0, {_LUT_OR};",
    ]
    if fmt.keep is Keep.NEWEST:
        lines.append(f"lop3.b32 %gwatch_a, %gwatch_off, {fmt.mask}, %gwatch_base, {_LUT_AND_OR};")
    else:
        lines += [
            f"min.u32 %gwatch_a, %gwatch_off, {fmt.limit};",
            "add.u32 %gwatch_a, %gwatch_a, %gwatch_base;",
        ]
    lines.append("mov.b64 %gwatch_x, {%gwatch_a, %gwatch_high};")
    when = "%gwatch_armed"
    if warp_level:
        when = "%gwatch_q"
        lines += [
            "activemask.b32 %gwatch_l;",
            "neg.s32 %gwatch_a, %gwatch_l;",
            "and.b32 %gwatch_l, %gwatch_l, %gwatch_a;",
            "mov.u32 %gwatch_a, %lanemask_eq;",
            "setp.eq.and.u32 %gwatch_q, %gwatch_l, %gwatch_a, %gwatch_armed;",
        ]
    lines.append(f"@{when} st.global.L1::evict_first.{_stored(fmt, tag, payload)};")
    lines.append(f"@{when} add.u32 %gwatch_off, %gwatch_off, {fmt.step};")
    lines.append("}")
    if guard:
        # Branched around, not predicated: the lanes that skip it must not take part in an election.
        opposite = guard[1:] if guard.startswith("!") else f"!{guard}"
        lines = [f"@{opposite} bra $gwatch_skip{number};", *lines, f"$gwatch_skip{number}:"]
    return "\n".join(lines)


def _stored(fmt: RingFormat, tag: str, payload: str | None) -> str:
    value = payload or "0"
    if fmt.kind is RecordKind.NARROW:
        return f"v2.b32 [%gwatch_x], {{%gwatch_t, {tag}}}"
    if fmt.kind is RecordKind.LONG:
        return f"v4.b32 [%gwatch_x], {{%gwatch_t, %gwatch_h, {tag}, {value}}}"
    return f"v4.b32 [%gwatch_x], {{%gwatch_t, {tag}, {value}, 0}}"
