"""Own PTX that makes ptxas write instructions no corpus has: one small kernel per PTX statement.

The statements are generated from lists of types, state spaces, cache operators and shapes; those that an architecture
or a compiler refuses are dropped one by one. Only the words count, so a kernel need not make sense when run.
"""

from __future__ import annotations

import itertools
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from isa_learning.corpus import text_words

from gwatch.errors import ToolError

PTX_VERSION = "9.0"
OWN = "own"
"""The name of our statements among the projects that words are from."""
BATCH = 60
OPTIMIZED, DEBUG = ("-O2",), ("-O0", "-g")
"""How ptxas is called: as for releases, and as ``nvcc -G`` calls it, which writes words that nothing else shows."""

_REGISTERS = """.reg .pred %p<8>; .reg .b16 %h<16>; .reg .b32 %r<80>; .reg .f32 %f<140>; .reg .b64 %l<20>;
.reg .f64 %d<12>; .reg .b128 %q<4>;
"""
_WIDE = (" .reg .b128 %q<4>;", (8, 3))
"""A declaration, and the first PTX that knows it."""
_LOADS = """ld.param.u64 %l0,[p]; ld.param.u64 %l1,[p+8]; ld.param.u32 %r0,[p+16]; ld.param.u32 %r1,[p+20];
ld.global.u32 %r2,[%l0]; ld.global.u32 %r3,[%l0+4]; ld.global.u32 %r4,[%l0+8]; ld.global.u32 %r5,[%l0+12];
ld.global.f32 %f0,[%l0+16]; ld.global.f32 %f1,[%l0+20]; ld.global.f32 %f2,[%l0+24]; ld.global.f64 %d0,[%l0+32];
ld.global.f64 %d1,[%l0+40]; ld.global.f64 %d2,[%l0+48]; ld.global.u64 %l2,[%l0+56]; ld.global.u64 %l3,[%l0+64];
ld.global.u16 %h0,[%l0+72]; ld.global.u16 %h1,[%l0+74]; ld.global.u16 %h2,[%l0+76]; setp.gt.s32 %p0,%r2,%r3;
setp.lt.s32 %p1,%r4,%r5;
"""
_STORE = {"r": "st.global.u32 [%l1],{0};", "f": "st.global.f32 [%l1],{0};", "l": "st.global.u64 [%l1],{0};",
          "d": "st.global.f64 [%l1],{0};", "h": "st.global.u16 [%l1],{0};",
          "p": "selp.u32 %r79,1,%r0,{0}; st.global.u32 [%l1],%r79;", "": ""}


# The same statements with operands from the parameters live in uniform registers: all of them, or every second one.
_UNIFORM = {name: f"ld.param.{kind} {name},[p+{24 + 8 * n}];" for n, (name, kind) in enumerate((
    ("%r2", "u32"), ("%r3", "u32"), ("%r4", "u32"), ("%r5", "u32"), ("%f0", "f32"), ("%f1", "f32"), ("%f2", "f32"),
    ("%d0", "f64"), ("%d1", "f64"), ("%d2", "f64"), ("%l2", "u64"), ("%l3", "u64"), ("%h0", "u16"), ("%h1", "u16"),
    ("%h2", "u16")))}
_ODD = ("%r3", "%r5", "%f1", "%d1", "%l3", "%h1")
_EVEN = ("%r2", "%r4", "%f0", "%f2", "%d0", "%d2", "%l2", "%h0", "%h2")


def _uniform(kernel: str, names: Sequence[str]) -> str:
    """``kernel`` with the registers ``names`` loaded from parameters."""
    for name in names:
        kernel = re.sub(rf"ld\.global\.\w+ {name},\[%l0[^]]*\];", _UNIFORM[name], kernel, count=1)
    return kernel


def _kernel(name: str, body: str, outputs: Sequence[str]) -> str:
    stores = []
    for n, output in enumerate(outputs):
        kind = output[1]
        stores.append(_STORE[kind].format(output).replace("[%l1]", f"[%l1+{16 * n}]"))
    return (f".visible .entry {name}(.param .align 8 .b8 p[256]) {{\n{_REGISTERS}.shared .align 128 .b8 sh[1024];\n"
            f".local .align 16 .b8 lo[256];\n{_LOADS}{body}\n{' '.join(stores)}\nret;\n}}\n")


def statements() -> Iterator[tuple[str, tuple[str, ...]]]:
    """(PTX, registers to store) pairs."""
    yield from _special_registers()
    yield from _memory()
    yield from _atomics()
    yield from _integer()
    yield from _floating()
    yield from _half()
    yield from _convert()
    yield from _warp()
    yield from _barriers()
    yield from _matrix()
    yield from _asynchronous()
    yield from _texture()
    yield from _control()
    yield from _tensor_memory()
    yield from _blackwell()
    yield from _more_scalar()


def _special_registers() -> Iterator[tuple[str, tuple[str, ...]]]:
    names = [*(f"{n}.{c}" for n in ("tid", "ntid", "ctaid", "nctaid", "clusterid", "nclusterid", "cluster_ctaid",
                                    "cluster_nctaid") for c in "xyz"),
             "laneid", "warpid", "nwarpid", "smid", "nsmid", "gridid", "lanemask_eq", "lanemask_le", "lanemask_lt",
             "lanemask_ge", "lanemask_gt", "clock", "clock_hi", "globaltimer_lo", "globaltimer_hi", "cluster_ctarank",
             "cluster_nctarank", "is_explicit_cluster", "total_smem_size", "aggr_smem_size", "dynamic_smem_size",
             "reserved_smem_offset_begin", *(f"pm{n}" for n in range(8)), *(f"envreg{n}" for n in range(4))]
    for name in names:
        if name == "is_explicit_cluster":
            yield "mov.pred %p2,%is_explicit_cluster;", ("%p2",)
            continue
        yield f"mov.u32 %r10,%{name};", ("%r10",)
        yield f"mov.u32 %r10,%{name}; setp.eq.u32 %p2,%r10,0; @%p2 bra L; st.global.u32 [%l1+64],%r10; L:", ("%r10",)
    for name in ("clock64", "globaltimer", "current_graph_exec", *(f"pm{n}_64" for n in range(4))):
        yield f"mov.u64 %l10,%{name};", ("%l10",)


def _memory() -> Iterator[tuple[str, tuple[str, ...]]]:
    spaces = {"global": "%l0", "shared": "%r0", "local": "lo", "": "%l0", "const": "%l0", "shared::cluster": "%r0"}
    types = ("b8", "u8", "s8", "b16", "u16", "s16", "b32", "u32", "b64", "f32", "f64", "b128")
    register = {"8": "%h10", "16": "%h10", "32": "%r10", "64": "%l10", "28": "%q1"}
    vectors = {"": 1, ".v2": 2, ".v4": 4, ".v8": 8}
    modes = ("", ".ca", ".cg", ".cs", ".lu", ".cv", ".volatile", ".relaxed.cta", ".relaxed.gpu", ".relaxed.sys",
             ".relaxed.cluster", ".acquire.cta", ".acquire.gpu", ".acquire.sys", ".acquire.cluster", ".weak", ".mmio.relaxed.sys",
             ".nc", ".nc.L1::evict_first", ".nc.L1::no_allocate", ".L1::evict_first", ".L1::evict_last",
             ".L1::evict_unchanged", ".L1::no_allocate", ".L2::64B", ".L2::128B", ".L2::256B", ".nc.L2::128B",
             ".nc.L2::256B", ".L1::no_allocate.L2::256B", ".nc.L1::no_allocate.L2::128B", ".nc.L1::evict_last")
    for (space, address), kind, (vector, count), mode in itertools.product(spaces.items(), types, vectors.items(), modes):
        width = kind[1:][-2:] if kind[1:] != "8" else "8"
        if count > 1 and kind[0] != "b" and kind not in ("f32", "u8", "u16"):
            continue
        base = register[width]
        if kind == "f32":
            base = "%f10"
        if kind == "f64":
            base = "%d5"
        prefix, number = re.match(r"(%\w)(\d+)", base).groups()  # type: ignore[union-attr]
        names = [f"{prefix}{int(number) + n}" for n in range(count)]
        value = names[0] if count == 1 else "{" + ",".join(names) + "}"
        order, dot = (mode.split(".", 2)[1], mode) if mode else ("", "")
        at = f".{space}" if space else ""
        semantic = order in ("volatile", "relaxed", "acquire", "weak", "mmio")
        left, right = (dot + at, "") if semantic else (at, dot)
        outputs = tuple(names) if prefix in "%r%f%l%d%h" and prefix != "%q" else ()
        for offset in ("", "+64"):
            if offset and mode not in ("", ".volatile"):
                continue
            yield f"ld{left}{right}{vector}.{kind} {value},[{address}{offset}];", outputs
            if ".nc" in mode or space == "const":
                continue
            store = dot.replace("acquire", "release").replace(".ca", ".wb").replace(".lu", ".wb").replace(".cv", ".wt")
            left2, right2 = (store + at, "") if semantic else (at, store)
            sources = {"%r": ["%r2", "%r3", "%r4", "%r5"], "%f": ["%f0", "%f1", "%f2", "%f0"],
                       "%l": ["%l2", "%l3", "%l2", "%l3"], "%d": ["%d0", "%d1", "%d2", "%d0"],
                       "%h": ["%h0", "%h1", "%h2", "%h0"]}.get(prefix)
            if sources is None or count > 4:
                continue
            data = sources[0] if count == 1 else "{" + ",".join(sources[:count]) + "}"
            yield f"st{left2}{right2}{vector}.{kind} [{address}{offset}],{data};", ()
    for space, op in itertools.product(("global", ""), ("prefetch.{}L1", "prefetch.{}L2", "prefetch.{}L2::evict_last",
                                                        "prefetch.{}L2::evict_normal", "applypriority.{}L2::evict_normal",
                                                        "discard.{}L2")):
        text = op.format(f"{space}." if space else "")
        yield f"{text} [%l0]{', 128' if text[0] in 'ad' else ''};", ()
    for kind, register in (("u8", "%h10"), ("u32", "%r10"), ("u64", "%l10"), ("f32", "%f10")):
        for offset in ("", "+8"):  # a parameter as address of local and shared memory: a uniform register
            yield f"ld.param.u64 %l6,[p+200]; ld.local.{kind} {register},[%l6{offset}];", (register,)
            yield f"ld.param.u64 %l6,[p+200]; st.local.{kind} [%l6{offset}],{register.replace('10', '2')};", ()
            yield f"ld.param.u32 %r6,[p+200]; ld.shared.{kind} {register},[%r6{offset}];", (register,)
            yield f"ld.param.u32 %r6,[p+200]; st.shared.{kind} [%r6{offset}],{register.replace('10', '2')};", ()
    yield "ld.param.u64 %l6,[p+200]; ld.local.v2.u64 {%l10,%l11},[%l6+16];", ("%l10", "%l11")
    yield "ld.param.u64 %l6,[p+200]; ld.local.v4.u32 {%r10,%r11,%r12,%r13},[%l6+16];", ("%r10", "%r13")
    yield "prefetchu.L1 [%l0];", ()
    for policy in ("L2::evict_first", "L2::evict_last", "L2::evict_normal", "L2::evict_unchanged"):
        yield (f"createpolicy.fractional.{policy}.b64 %l5,0.5; ld.global.L2::cache_hint.u32 %r10,[%l0],%l5;", ("%r10",))
        yield f"createpolicy.fractional.{policy}.b64 %l5,1.0; st.global.L2::cache_hint.u32 [%l0],%r2,%l5;", ()
    for space in ("global", "shared", "local", "const", "shared::cluster", "param"):
        yield f"isspacep.{space} %p2,%l2;", ("%p2",)
        yield f"cvta.{space}.u64 %l10,%l2;", ("%l10",)
        yield f"cvta.to.{space}.u64 %l10,%l2;", ("%l10",)
    yield "mapa.shared::cluster.u32 %r10,%r2,%r3;", ("%r10",)
    yield "mapa.u64 %l10,%l2,%r3;", ("%l10",)
    yield "getctarank.shared::cluster.u32 %r10,%r2;", ("%r10",)
    yield "getctarank.u64 %r10,%l2;", ("%r10",)


def _atomics() -> Iterator[tuple[str, tuple[str, ...]]]:
    ops = {"add": ("u32", "s32", "u64", "f32", "f64", "noftz.f16", "noftz.f16x2", "noftz.bf16", "noftz.bf16x2"),
           "min": ("u32", "s32", "u64", "s64", "noftz.f16x2", "noftz.bf16x2"),
           "max": ("u32", "s32", "u64", "s64", "noftz.f16x2", "noftz.bf16x2"), "inc": ("u32",), "dec": ("u32",),
           "and": ("b32", "b64"), "or": ("b32", "b64"), "xor": ("b32", "b64"), "exch": ("b32", "b64", "b128"),
           "cas": ("b16", "b32", "b64", "b128")}
    sources = {"u32": "%r2", "s32": "%r2", "b32": "%r2", "u64": "%l2", "s64": "%l2", "b64": "%l2", "f32": "%f0",
               "f64": "%d0", "f16": "%h0", "bf16": "%h0", "f16x2": "%r2", "bf16x2": "%r2", "b16": "%h0", "b128": "%q0"}
    targets = {"%r": "%r10", "%l": "%l10", "%f": "%f10", "%d": "%d5", "%h": "%h10", "%q": "%q1"}
    for (space, address), order, (op, kinds) in itertools.product(
            (("global", "%l0"), ("shared", "%r0"), ("", "%l0"), ("shared::cluster", "%r0")),
            ("", ".relaxed.cta", ".relaxed.gpu", ".relaxed.sys", ".acquire.gpu", ".release.gpu", ".acq_rel.gpu",
             ".acq_rel.sys", ".acq_rel.cta", ".relaxed.cluster", ".acq_rel.cluster"), ops.items()):
        for kind in kinds:
            source = sources[kind.split(".")[-1]]
            target = targets[source[:2]]
            at = f".{space}" if space else ""
            extra = {"%r": ",%r3", "%l": ",%l3", "%h": ",%h1", "%q": ",%q2"}.get(source[:2], "") if op == "cas" else ""
            setup = "mov.b128 %q0,{%l2,%l3}; mov.b128 %q2,{%l3,%l2};" if "b128" in kind else ""
            outputs = (target,) if target[1] in "rfldh" else ()
            for offset in ("", "+16"):
                yield f"{setup} atom{order}{at}.{op}.{kind} {target},[{address}{offset}],{source}{extra};", outputs
                if op not in ("exch", "cas") and not any(o in order for o in ("acq",)):
                    yield f"red{order}{at}.{op}.{kind} [{address}{offset}],{source};", ()
    for vector, kind in (("v2", "f32"), ("v4", "f32"), ("v2", "f16x2"), ("v4", "f16x2"), ("v2", "bf16x2"), ("v4", "bf16x2")):
        name = "%f" if kind == "f32" else "%r"
        data = [f"{name}{n % 3 + (0 if kind == 'f32' else 2)}" for n in range(int(vector[1]))]
        out = [f"{name}{10 + n}" for n in range(int(vector[1]))]
        noftz = "" if kind == "f32" else ".noftz"
        yield (f"atom.global.{vector}.{kind}.add{noftz} {{{','.join(out)}}},[%l0],{{{','.join(data)}}};", tuple(out))
        yield f"atom.global.add{noftz}.{vector}.{kind} {{{','.join(out)}}},[%l0],{{{','.join(data)}}};", tuple(out)
        yield f"red.global.add{noftz}.{vector}.{kind} [%l0],{{{','.join(data)}}};", ()
    for op in ("add", "min", "max", "and", "or", "xor"):
        for kind in ("u32", "s32", "b32", "u64", "f16x2", "bf16x2"):
            reg = "%l10" if "64" in kind else "%r10"
            yield f"multimem.ld_reduce.relaxed.sys.global.{op}.{kind} {reg},[%l0];", (reg,)
            yield f"multimem.red.relaxed.sys.global.{op}.{kind} [%l0],{'%l2' if '64' in kind else '%r2'};", ()


def _integer() -> Iterator[tuple[str, tuple[str, ...]]]:
    two = {"u32": "%r", "s32": "%r", "u64": "%l", "s64": "%l", "u16": "%h", "s16": "%h"}
    first = {"%r": ("%r2", "%r3", "%r4"), "%l": ("%l2", "%l3", "%l2"), "%h": ("%h0", "%h1", "%h2")}
    out = {"%r": "%r10", "%l": "%l10", "%h": "%h10"}
    for op, kind in itertools.product(("add", "sub", "mul.lo", "mul.hi", "div", "rem", "min", "max"), two):
        a, b, _ = first[two[kind]]
        for right in (b, "7", "-3" if kind[0] == "s" else "65521", "0"):
            if right == "0" and op in ("div", "rem"):
                continue
            yield f"{op}.{kind} {out[two[kind]]},{a},{right};", (out[two[kind]],)
    for op, kind in itertools.product(("mad.lo", "mad.hi"), two):
        a, b, c = first[two[kind]]
        yield f"{op}.{kind} {out[two[kind]]},{a},{b},{c};", (out[two[kind]],)
        yield f"{op}.{kind} {out[two[kind]]},{a},13,{c};", (out[two[kind]],)
    for kind in ("u32", "s32", "u16", "s16"):
        wide = "%l10" if "32" in kind else "%r10"
        a, b, _ = first[two[kind]]
        yield f"mul.wide.{kind} {wide},{a},{b};", (wide,)
        yield f"mul.wide.{kind} {wide},{a},12;", (wide,)
        yield f"mad.wide.{kind} {wide},{a},{b},{'%l2' if '32' in kind else '%r4'};", (wide,)
    for op in ("add", "sub"):
        yield f"{op}.cc.u32 %r10,%r2,%r3; {op}c.cc.u32 %r11,%r4,%r5; {op}c.u32 %r12,%r2,%r5;", ("%r10", "%r11", "%r12")
        yield f"{op}.cc.u64 %l10,%l2,%l3; {op}c.u64 %l11,%l2,%l3;", ("%l10", "%l11")
    yield "mad.lo.cc.u32 %r10,%r2,%r3,%r4; madc.hi.u32 %r11,%r2,%r3,%r5;", ("%r10", "%r11")
    yield "mad.hi.cc.u32 %r10,%r2,%r3,%r4; madc.lo.cc.u32 %r11,%r2,%r3,%r5; addc.u32 %r12,0,0;", ("%r10", "%r11", "%r12")
    for op in ("add.sat.s32", "sub.sat.s32", "mul24.lo.s32", "mul24.hi.u32", "mul24.lo.u32"):
        yield f"{op} %r10,%r2,%r3;", ("%r10",)
    yield "mad24.lo.s32 %r10,%r2,%r3,%r4;", ("%r10",)
    yield "mad.hi.sat.s32 %r10,%r2,%r3,%r4;", ("%r10",)
    for op in ("abs.s32", "neg.s32", "not.b32", "cnot.b32", "popc.b32", "clz.b32", "brev.b32", "bfind.u32", "bfind.s32",
               "bfind.shiftamt.u32", "bfind.shiftamt.s32"):
        yield f"{op} %r10,%r2;", ("%r10",)
    for op in ("abs.s64", "neg.s64", "not.b64", "brev.b64"):
        yield f"{op} %l10,%l2;", ("%l10",)
    for op in ("popc.b64", "clz.b64", "bfind.u64", "bfind.s64", "bfind.shiftamt.u64"):
        yield f"{op} %r10,%l2;", ("%r10",)
    for op in ("and.b32", "or.b32", "xor.b32", "shl.b32", "shr.u32", "shr.s32", "bmsk.clamp.b32", "bmsk.wrap.b32",
               "szext.clamp.u32", "szext.clamp.s32", "szext.wrap.s32", "szext.wrap.u32"):
        for right in ("%r3", "5", "0xff00"):
            yield f"{op} %r10,%r2,{right};", ("%r10",)
    for op in ("and.b64", "or.b64", "xor.b64"):
        yield f"{op} %l10,%l2,%l3;", ("%l10",)
    for op in ("shl.b64", "shr.u64", "shr.s64"):
        yield f"{op} %l10,%l2,%r3;", ("%l10",)
        yield f"{op} %l10,%l2,9;", ("%l10",)
    for mode, direction in itertools.product(("clamp", "wrap"), "lr"):
        for right in ("%r4", "11"):
            yield f"shf.{direction}.{mode}.b32 %r10,%r2,%r3,{right};", ("%r10",)
    for kind in ("u32", "s32", "u64", "s64"):
        reg, a = ("%r10", "%r2") if "32" in kind else ("%l10", "%l2")
        yield f"bfe.{kind} {reg},{a},%r3,%r4;", (reg,)
        yield f"bfe.{kind} {reg},{a},4,9;", (reg,)
    yield "bfi.b32 %r10,%r2,%r3,%r4,%r5;", ("%r10",)
    yield "bfi.b32 %r10,%r2,%r3,4,9;", ("%r10",)
    for lut in (0x96, 0xE8, 0xC0, 0xFE, 0x3C, 0x01):
        yield f"lop3.b32 %r10,%r2,%r3,%r4,{lut};", ("%r10",)
        yield f"lop3.b32 %r10,%r2,0x1234,%r4,{lut};", ("%r10",)
        for how in ("or", "and"):
            yield f"lop3.{how}.b32 %r10|%p2,%r2,%r3,%r4,{lut},%p0;", ("%r10", "%p2")
    for mode in ("", ".f4e", ".b4e", ".rc8", ".ecl", ".ecr", ".rc16"):
        for right in ("%r4", "0x5410" if not mode else "2"):
            yield f"prmt.b32{mode} %r10,%r2,%r3,{right};", ("%r10",)
    for op in ("dp4a", "dp2a.lo", "dp2a.hi"):
        for a, b in itertools.product(("u32", "s32"), repeat=2):
            yield f"{op}.{a}.{b} %r10,%r2,%r3,%r4;", ("%r10",)
    for a in ("u32", "s32"):
        yield f"sad.{a} %r10,%r2,%r3,%r4;", ("%r10",)
    for op in ("vadd", "vsub", "vabsdiff", "vmin", "vmax"):
        for sel in ("", ".b1", ".h1"):
            yield f"{op}.u32.u32.u32 %r10,%r2{sel},%r3;", ("%r10",)
            yield f"{op}.s32.s32.s32.sat %r10,%r2{sel},%r3{sel};", ("%r10",)
            yield f"{op}.s32.s32.u32.add %r10,%r2{sel},%r3,%r4;", ("%r10",)
    for op in ("vadd2", "vsub2", "vavrg2", "vabsdiff2", "vmin2", "vmax2", "vadd4", "vsub4", "vavrg4", "vabsdiff4", "vmin4",
               "vmax4"):
        for kind in ("u32.u32.u32", "s32.s32.s32", "s32.s32.u32"):
            for tail in ("", ".sat", ".add"):
                yield f"{op}.{kind}{tail} %r10,%r2,%r3,%r4;", ("%r10",)
    for op in ("vset2", "vset4"):
        for cmp in ("eq", "lt", "ge"):
            yield f"{op}.u32.u32.{cmp} %r10,%r2,%r3,%r4;", ("%r10",)
    for op, kind in itertools.product(("min", "max"), ("u16x2", "s16x2", "relu.s16x2", "relu.s32")):
        name = f"{op}.{kind}" if not kind.startswith("relu") else f"{op}.relu.{kind[5:]}"
        yield f"{name} %r10,%r2,%r3;", ("%r10",)
    yield "add.u16x2 %r10,%r2,%r3;", ("%r10",)
    for cmp, kind in itertools.product(("eq", "ne", "lt", "le", "gt", "ge", "lo", "ls", "hi", "hs"),
                                       ("u32", "s32", "u64", "s64", "u16", "s16", "b32")):
        a, b, _ = first[two.get(kind, "%r")]
        for right in (b, "0", "77"):
            yield f"setp.{cmp}.{kind} %p2,{a},{right};", ("%p2",)
        for combine in ("and", "or", "xor"):
            yield f"setp.{cmp}.{combine}.{kind} %p2|%p3,{a},{b},%p0;", ("%p2", "%p3")
            yield f"setp.{cmp}.{combine}.{kind} %p2,{a},{b},!%p0;", ("%p2",)
        if kind in ("u32", "s32", "u64"):
            yield f"set.{cmp}.u32.{kind} %r10,{a},{b};", ("%r10",)
    for kind in ("b32", "b64", "b16", "f32", "f64"):
        reg = {"b32": "%r", "b64": "%l", "b16": "%h", "f32": "%f", "f64": "%d"}[kind]
        names = {"%r": ("%r2", "%r3", "%r10"), "%l": ("%l2", "%l3", "%l10"), "%h": ("%h0", "%h1", "%h10"),
                 "%f": ("%f0", "%f1", "%f10"), "%d": ("%d0", "%d1", "%d5")}[reg]
        yield f"selp.{kind} {names[2]},{names[0]},{names[1]},%p0;", (names[2],)
    yield "slct.u32.s32 %r10,%r2,%r3,%r4;", ("%r10",)
    yield "slct.f32.f32 %f10,%f0,%f1,%f2;", ("%f10",)
    for op in ("and", "or", "xor"):
        yield f"{op}.pred %p2,%p0,%p1;", ("%p2",)
        yield f"not.pred %p3,%p1; {op}.pred %p2,%p0,%p3;", ("%p2",)


def _floating() -> Iterator[tuple[str, tuple[str, ...]]]:
    for ftz, sat, rnd in itertools.product(("", ".ftz"), ("", ".sat"), ("", ".rn", ".rz", ".rm", ".rp")):
        for op in ("add", "sub", "mul"):
            for right in ("%f1", "0f3FC00000", "0fC47A0000"):
                yield f"{op}{rnd}{ftz}{sat}.f32 %f10,%f0,{right};", ("%f10",)
        yield f"neg.f32 %f20,%f1; abs.f32 %f21,%f0; add{rnd}{ftz}{sat}.f32 %f10,%f21,%f20;", ("%f10",)
        if rnd:
            for b, c in (("%f1", "%f2"), ("0f3FC00000", "%f2"), ("%f1", "0f3FC00000")):
                yield f"fma{rnd}{ftz}{sat}.f32 %f10,%f0,{b},{c};", ("%f10",)
            yield f"neg.f32 %f20,%f1; neg.f32 %f21,%f2; fma{rnd}{ftz}{sat}.f32 %f10,%f0,%f20,%f21;", ("%f10",)
            if not sat:
                yield f"div{rnd}{ftz}.f32 %f10,%f0,%f1;", ("%f10",)
                yield f"div{rnd}{ftz}.f32 %f10,%f0,0f40400000;", ("%f10",)
                yield f"div{rnd}{ftz}.f32 %f10,0f3F800000,%f0;", ("%f10",)
                yield f"sqrt{rnd}{ftz}.f32 %f10,%f0;", ("%f10",)
                yield f"rcp{rnd}{ftz}.f32 %f10,%f0;", ("%f10",)
    for rnd in (".rn", ".rz", ".rm", ".rp"):
        for op in ("add", "mul", "sub", "div"):
            yield f"{op}{rnd}.f64 %d5,%d0,%d1;", ("%d5",)
            yield f"{op}{rnd}.f64 %d5,%d0,0d3FF8000000000000;", ("%d5",)
        yield f"fma{rnd}.f64 %d5,%d0,%d1,%d2;", ("%d5",)
        yield f"neg.f64 %d6,%d1; abs.f64 %d7,%d0; fma{rnd}.f64 %d5,%d7,%d6,%d2;", ("%d5",)
        yield f"fma{rnd}.f64 %d5,%d0,0d3FF8000000000000,%d2;", ("%d5",)
        yield f"fma{rnd}.f64 %d5,%d0,%d1,0d4024000000000000;", ("%d5",)
        yield f"sqrt{rnd}.f64 %d5,%d0;", ("%d5",)
        yield f"rcp{rnd}.f64 %d5,%d0;", ("%d5",)
    for op in ("rcp.approx", "rsqrt.approx", "sqrt.approx", "sin.approx", "cos.approx", "lg2.approx", "ex2.approx"):
        for ftz in ("", ".ftz"):
            yield f"{op}{ftz}.f32 %f10,%f0;", ("%f10",)
            yield f"neg.f32 %f20,%f0; {op}{ftz}.f32 %f10,%f20;", ("%f10",)
            yield f"abs.f32 %f20,%f0; {op}{ftz}.f32 %f10,%f20;", ("%f10",)
    yield "tanh.approx.f32 %f10,%f0;", ("%f10",)
    yield "rcp.approx.ftz.f64 %d5,%d0;", ("%d5",)
    yield "rsqrt.approx.ftz.f64 %d5,%d0;", ("%d5",)
    yield "rsqrt.approx.f64 %d5,%d0;", ("%d5",)
    yield "div.approx.f32 %f10,%f0,%f1;", ("%f10",)
    yield "div.full.ftz.f32 %f10,%f0,%f1;", ("%f10",)
    for op, extra in itertools.product(("min", "max"), ("", ".ftz", ".NaN", ".ftz.NaN", ".ftz.xorsign.abs", ".xorsign.abs",
                                                        ".NaN.xorsign.abs", ".ftz.NaN.xorsign.abs")):
        yield f"{op}{extra}.f32 %f10,%f0,%f1;", ("%f10",)
        yield f"{op}{extra}.f32 %f10,%f0,0f3FC00000;", ("%f10",)
    for op in ("min", "max"):
        yield f"{op}.f64 %d5,%d0,%d1;", ("%d5",)
    for op in ("abs", "neg"):
        yield f"{op}.ftz.f32 %f10,%f0;", ("%f10",)
        yield f"{op}.f64 %d5,%d0;", ("%d5",)
    yield "copysign.f32 %f10,%f0,%f1;", ("%f10",)
    yield "copysign.f64 %d5,%d0,%d1;", ("%d5",)
    for test in ("finite", "infinite", "number", "notanumber", "normal", "subnormal"):
        yield f"testp.{test}.f32 %p2,%f0;", ("%p2",)
        yield f"testp.{test}.f64 %p2,%d0;", ("%p2",)
    for cmp in ("eq", "ne", "lt", "le", "gt", "ge", "equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan"):
        for ftz in ("", ".ftz"):
            for right in ("%f1", "0f00000000", "0f3FC00000"):
                yield f"setp.{cmp}{ftz}.f32 %p2,%f0,{right};", ("%p2",)
            for combine in ("and", "or", "xor"):
                yield f"setp.{cmp}.{combine}{ftz}.f32 %p2|%p3,%f0,%f1,!%p0;", ("%p2", "%p3")
            for right in ("%f1", "0f3F800000"):
                yield f"set.{cmp}{ftz}.f32.f32 %f10,%f0,{right};", ("%f10",)
                yield f"abs.f32 %f20,%f0; set.{cmp}.and{ftz}.f32.f32 %f10,%f20,{right},%p0;", ("%f10",)
                yield f"abs.f32 %f20,%f0; setp.{cmp}{ftz}.f32 %p2,%f20,{right}; selp.f32 %f10,0f3F800000,0f00000000,%p2;", ("%f10",)
            yield f"set.{cmp}{ftz}.u32.f32 %r10,%f0,%f1;", ("%r10",)
        yield f"setp.{cmp}.f64 %p2,%d0,%d1;", ("%p2",)
        yield f"setp.{cmp}.and.f64 %p2|%p3,%d0,0d3FF8000000000000,%p0;", ("%p2", "%p3")
        yield f"abs.f64 %d6,%d0; neg.f64 %d7,%d1; setp.{cmp}.or.f64 %p2,%d6,%d7,%p0;", ("%p2",)


def _half() -> Iterator[tuple[str, tuple[str, ...]]]:
    packs = {"f16": ("%h0", "%h1", "%h2", "%h10"), "bf16": ("%h0", "%h1", "%h2", "%h10"),
             "f16x2": ("%r2", "%r3", "%r4", "%r10"), "bf16x2": ("%r2", "%r3", "%r4", "%r10")}
    for kind, (a, b, c, out) in packs.items():
        for op, ftz, sat in itertools.product(("add", "sub", "mul"), ("", ".ftz"), ("", ".sat")):
            for rnd in ("", ".rn"):
                yield f"{op}{rnd}{ftz}{sat}.{kind} {out},{a},{b};", (out,)
            yield f"neg.{kind} {b},{b}; abs.{kind} {a},{a}; {op}{ftz}{sat}.{kind} {out},{a},{b};", (out,)
        for ftz, sat in itertools.product(("", ".ftz"), ("", ".sat", ".relu", ".oob", ".oob.relu")):
            yield f"fma.rn{ftz}{sat}.{kind} {out},{a},{b},{c};", (out,)
            yield f"neg.{kind} {b},{b}; fma.rn{ftz}{sat}.{kind} {out},{a},{b},{c};", (out,)
        for op, extra in itertools.product(("min", "max"), ("", ".ftz", ".NaN", ".ftz.NaN", ".xorsign.abs",
                                                            ".NaN.xorsign.abs")):
            yield f"{op}{extra}.{kind} {out},{a},{b};", (out,)
        for op in ("abs", "neg", "ex2.approx", "ex2.approx.ftz", "tanh.approx"):
            yield f"{op}.{kind} {out},{a};", (out,)
        for cmp, ftz in itertools.product(("eq", "ne", "lt", "le", "gt", "ge", "equ", "neu", "ltu", "num", "nan"), ("", ".ftz")):
            pair = "%p2|%p3" if "x2" in kind else "%p2"
            yield f"setp.{cmp}{ftz}.{kind} {pair},{a},{b};", ("%p2",)
            yield f"setp.{cmp}.and{ftz}.{kind} {pair},{a},{b},!%p0;", ("%p2",)
            for to in ("f16", "u16", "bf16", "u32", "f16x2", "bf16x2"):
                yield f"set.{cmp}{ftz}.{to}.{kind} {'%r10' if to in ('u32', 'f16x2', 'bf16x2') else '%h10'},{a},{b};", (
                    "%r10" if to in ("u32", "f16x2", "bf16x2") else "%h10",)
    for rnd in ("", ".rn", ".rz"):
        yield f"add{rnd}.f32.f16 %f10,%h0,%f0;", ("%f10",)
        yield f"fma{rnd or '.rn'}.f32.bf16 %f10,%h0,%h1,%f0;", ("%f10",)
    for value in ("0x3C003C00", "0x40004200", "0xBC003800", "0x3F803F80"):
        yield f"mov.b32 %r20,{value}; fma.rn.f16x2 %r10,%r2,%r20,%r4;", ("%r10",)
        yield f"mov.b32 %r20,{value}; fma.rn.f16x2 %r10,%r2,%r3,%r20;", ("%r10",)
        yield f"mov.b32 %r20,{value}; fma.rn.bf16x2 %r10,%r2,%r20,%r4;", ("%r10",)
        yield f"mov.b32 %r20,{value}; add.f16x2 %r10,%r2,%r20;", ("%r10",)
        yield f"mov.b32 %r20,{value}; mul.bf16x2 %r10,%r2,%r20;", ("%r10",)
        yield f"mov.b32 %r20,{value}; mul.f16x2 %r10,%r2,%r20;", ("%r10",)
    yield "mov.b32 {%h5,%h6},%r2; add.f16 %h10,%h5,%h6; mul.f16 %h11,%h10,%h6;", ("%h10", "%h11")
    yield "mov.b32 {%h5,%h6},%r2; mov.b32 {%h7,%h8},%r3; mov.b32 %r20,{%h6,%h7}; add.f16x2 %r10,%r20,%r4;", ("%r10",)
    yield "mov.b32 {%h5,%h6},%r2; mov.b32 %r20,{%h6,%h6}; fma.rn.f16x2 %r10,%r20,%r3,%r4;", ("%r10",)


def _convert() -> Iterator[tuple[str, tuple[str, ...]]]:
    registers = {"8": "%h", "16": "%h", "32": "%r", "64": "%l"}
    source = {"%h": "%h0", "%r": "%r2", "%l": "%l2", "%f": "%f0", "%d": "%d0"}
    target = {"%h": "%h10", "%r": "%r10", "%l": "%l10", "%f": "%f10", "%d": "%d5"}
    ints = ("u8", "s8", "u16", "s16", "u32", "s32", "u64", "s64")
    floats = {"f16": "%h", "bf16": "%h", "f32": "%f", "f64": "%d"}
    for to, of in itertools.product(ints, repeat=2):
        if to != of:
            for sat in ("", ".sat"):
                yield (f"cvt{sat}.{to}.{of} {target[registers[to[1:]]]},{source[registers[of[1:]]]};", (target[registers[to[1:]]],))
    for to, (of, file) in itertools.product(ints, floats.items()):
        for rnd, ftz, sat in itertools.product((".rni", ".rzi", ".rmi", ".rpi"), ("", ".ftz"), ("", ".sat")):
            yield f"cvt{rnd}{ftz}{sat}.{to}.{of} {target[registers[to[1:]]]},{source[file]};", (target[registers[to[1:]]],)
    for (to, file), of in itertools.product(floats.items(), ints):
        for rnd in (".rn", ".rz", ".rm", ".rp"):
            yield f"cvt{rnd}.{to}.{of} {target[file]},{source[registers[of[1:]]]};", (target[file],)
    for (to, file), (of, other) in itertools.product(floats.items(), repeat=2):
        for rnd, ftz, sat in itertools.product(("", ".rn", ".rz", ".rm", ".rp", ".rni", ".rzi", ".rmi", ".rpi", ".rna"),
                                               ("", ".ftz"), ("", ".sat", ".relu")):
            yield f"cvt{rnd}{ftz}{sat}.{to}.{of} {target[file]},{source[other]};", (target[file],)
    for to, sat in itertools.product(("f16x2", "bf16x2"), ("", ".relu", ".satfinite", ".relu.satfinite")):
        for rnd in (".rn", ".rz", ".rs"):
            tail = ",%r2" if rnd == ".rs" else ""
            yield f"cvt{rnd}{sat}.{to}.f32 %r10,%f0,%f1{tail};", ("%r10",)
            yield f"neg.f32 %f20,%f1; cvt{rnd}{sat}.{to}.f32 %r10,%f0,%f20{tail};", ("%r10",)
    for to, relu in itertools.product(("e4m3x2", "e5m2x2"), ("", ".relu")):
        yield f"cvt.rn.satfinite{relu}.{to}.f32 %h10,%f0,%f1;", ("%h10",)
        yield f"cvt.rn.satfinite{relu}.{to}.f16x2 %h10,%r2;", ("%h10",)
        yield f"cvt.rn{relu}.f16x2.{to} %r10,%h0;", ("%r10",)
    for rnd, extra in itertools.product((".rna", ".rn", ".rz"), ("", ".relu", ".satfinite")):
        yield f"cvt{rnd}{extra}.tf32.f32 %r10,%f0;", ("%r10",)
    for kind in ("s8", "u8", "s4", "u4", "s2", "u2"):
        for of in ("s32",):
            yield f"cvt.pack.sat.{kind}.{of}.b32 %r10,%r2,%r3,%r4;", ("%r10",)
    for kind in ("s16", "u16"):
        yield f"cvt.pack.sat.{kind}.s32 %r10,%r2,%r3;", ("%r10",)


def _warp() -> Iterator[tuple[str, tuple[str, ...]]]:
    for mode in ("idx", "up", "down", "bfly"):
        for lane, clamp, mask in itertools.product(("%r3", "3"), ("31", "%r4", "0x1c1f"), ("-1", "%r5")):
            yield f"shfl.sync.{mode}.b32 %r10|%p2,%r2,{lane},{clamp},{mask};", ("%r10", "%p2")
            yield f"shfl.sync.{mode}.b32 %r10,%r2,{lane},{clamp},{mask};", ("%r10",)
    for mode, mask in itertools.product(("all", "any", "uni"), ("-1", "%r5", "0xffff")):
        yield f"vote.sync.{mode}.pred %p2,%p0,{mask};", ("%p2",)
        yield f"vote.sync.{mode}.pred %p2,!%p0,{mask};", ("%p2",)
    for mask in ("-1", "%r5", "0xffff"):
        yield f"vote.sync.ballot.b32 %r10,%p0,{mask};", ("%r10",)
        yield f"match.any.sync.b32 %r10,%r2,{mask};", ("%r10",)
        yield f"match.any.sync.b64 %r10,%l2,{mask};", ("%r10",)
        yield f"match.all.sync.b32 %r10|%p2,%r2,{mask};", ("%r10", "%p2")
        yield f"match.all.sync.b64 %r10|%p2,%l2,{mask};", ("%r10", "%p2")
        yield f"bar.warp.sync {mask};", ()
        yield f"elect.sync %r10|%p2,{mask};", ("%r10", "%p2")
        yield f"elect.sync _|%p2,{mask};", ("%p2",)
        for op in ("add.u32", "add.s32", "min.u32", "min.s32", "max.u32", "max.s32", "and.b32", "or.b32", "xor.b32"):
            yield f"redux.sync.{op} %r10,%r2,{mask};", ("%r10",)
    yield "activemask.b32 %r10;", ("%r10",)
    yield "ld.shared.u32 %r20,[%r0]; vote.sync.ballot.b32 %r10,%p0,-1; popc.b32 %r11,%r10; add.u32 %r12,%r11,%r20;", ("%r12",)


def _barriers() -> Iterator[tuple[str, tuple[str, ...]]]:
    for number, count in itertools.product(("0", "5", "%r2"), ("", ",64", ",%r3")):
        yield f"barrier.sync {number}{count};", ()
        yield f"bar.sync {number}{count};", ()
        yield f"barrier.sync.aligned {number}{count};", ()
        if count:
            yield f"bar.arrive {number}{count};", ()
            yield f"barrier.arrive {number}{count};", ()
        yield f"bar.red.popc.u32 %r10,{number}{count},%p0;", ("%r10",)
        yield f"barrier.red.popc.u32 %r10,{number}{count},!%p0;", ("%r10",)
        for op in ("and", "or"):
            yield f"bar.red.{op}.pred %p2,{number}{count},%p0;", ("%p2",)
    for level in ("cta", "gl", "sys"):
        yield f"membar.{level};", ()
    for sem, scope in itertools.product(("sc", "acq_rel", "acquire", "release"), ("cta", "cluster", "gpu", "sys")):
        yield f"fence.{sem}.{scope};", ()
    for proxy in ("alias", "async", "async.global", "async.shared::cta", "async.shared::cluster", "tensormap::generic.release.gpu",
                  "tensormap::generic.release.cta", "tensormap::generic.release.sys"):
        yield f"fence.proxy.{proxy};", ()
    for scope in ("cta", "cluster", "gpu", "sys"):
        yield f"fence.proxy.tensormap::generic.acquire.{scope} [%l0],128;", ()
    yield "fence.mbarrier_init.release.cluster;", ()
    for tail in ("", ".release", ".relaxed"):
        yield f"barrier.cluster.arrive{tail};", ()
        yield f"barrier.cluster.arrive{tail}.aligned;", ()
    for tail in ("", ".acquire"):
        yield f"barrier.cluster.wait{tail};", ()
        yield f"barrier.cluster.wait{tail}.aligned;", ()
    shared = "mov.u32 %r20,sh;"
    yield f"{shared} mbarrier.init.shared::cta.b64 [%r20],4;", ()
    yield f"{shared} mbarrier.init.shared::cta.b64 [%r20+8],%r2;", ()
    yield f"{shared} mbarrier.inval.shared::cta.b64 [%r20];", ()
    for sem in ("", ".release.cta", ".release.cluster"):
        yield f"{shared} mbarrier.arrive{sem}.shared::cta.b64 %l10,[%r20];", ("%l10",)
        yield f"{shared} mbarrier.arrive{sem}.shared::cta.b64 %l10,[%r20],%r2;", ("%l10",)
        yield f"{shared} mbarrier.arrive.expect_tx{sem}.shared::cta.b64 %l10,[%r20],%r2;", ("%l10",)
        yield f"{shared} mbarrier.arrive{sem}.shared::cluster.b64 _,[%r2];", ()
        yield f"{shared} mbarrier.arrive.expect_tx{sem}.shared::cluster.b64 _,[%r2],%r3;", ()
    yield f"{shared} mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%r20],%r2;", ()
    yield f"{shared} mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%r20],%r2;", ()
    yield f"{shared} mbarrier.arrive.noComplete.shared::cta.b64 %l10,[%r20],1;", ("%l10",)
    yield f"{shared} mbarrier.arrive_drop.shared::cta.b64 %l10,[%r20];", ("%l10",)
    yield f"{shared} mbarrier.pending_count.b64 %r10,%l2;", ("%r10",)
    for op, tail in itertools.product(("test_wait", "try_wait"), ("", ".acquire.cta", ".acquire.cluster")):
        yield f"{shared} mbarrier.{op}{tail}.shared::cta.b64 %p2,[%r20],%l2;", ("%p2",)
        yield f"{shared} mbarrier.{op}.parity{tail}.shared::cta.b64 %p2,[%r20],%r2;", ("%p2",)
    yield f"{shared} mbarrier.try_wait.parity.shared::cta.b64 %p2,[%r20],%r2,%r3;", ("%p2",)
    yield "griddepcontrol.launch_dependents;", ()
    yield "griddepcontrol.wait;", ()


def _matrix() -> Iterator[tuple[str, tuple[str, ...]]]:
    def regs(name: str, first: int, count: int) -> str:
        return "{" + ",".join(f"%{name}{first + n}" for n in range(count)) + "}"

    # shape, A type, B type, accumulator type, registers of D, A, B, C
    shapes = [
        *((f"m16n8k{k}", a, a, "f32", 4, n, m, 4) for k, a, n, m in (
            (8, "f16", 2, 1), (16, "f16", 4, 2), (8, "bf16", 2, 1), (16, "bf16", 4, 2), (4, "tf32", 2, 1), (8, "tf32", 4, 2))),
        ("m16n8k8", "f16", "f16", "f16", 2, 2, 1, 2), ("m16n8k16", "f16", "f16", "f16", 2, 4, 2, 2),
        *((f"m16n8k{k}", a, b, "s32", 4, n, m, 4) for k, n, m in ((16, 2, 1), (32, 4, 2)) for a in ("s8", "u8") for b in ("s8", "u8")),
        *((f"m16n8k{k}", a, b, "s32", 4, n, m, 4) for k, n, m in ((32, 2, 1), (64, 4, 2)) for a in ("s4", "u4") for b in ("s4", "u4")),
        *(("m16n8k32", a, b, "f32", 4, 4, 2, 4) for a in ("e4m3", "e5m2") for b in ("e4m3", "e5m2")),
        ("m8n8k16", "s8", "s8", "s32", 2, 1, 1, 2), ("m8n8k32", "s4", "s4", "s32", 2, 1, 1, 2)]
    for shape, a, b, c, nd, na, nb, nc in shapes:
        acc = "r" if c in ("s32", "f16") else "f"
        for sat in ("", ".satfinite") if c == "s32" else ("",):
            out = tuple(f"%{acc}{40 + n}" for n in range(nd))
            setup = "".join(f"ld.global.u32 %r{20 + n},[%l0+{n * 4}];" for n in range(na + nb))
            kind = "u32" if acc == "r" else "f32"
            setup += "".join(f"ld.global.{kind} %{acc}{40 + n},[%l0+{128 + n * 4}];" for n in range(nc))
            yield (f"{setup} mma.sync.aligned.{shape}.row.col{sat}.{c}.{a}.{b}.{c} {regs(acc, 40, nd)},{regs('r', 20, na)},"
                   f"{regs('r', 20 + na, nb)},{regs(acc, 40, nc)};", out)
            if nd == 4 and na >= 2:
                twice = re.sub(r"k(\d+)", lambda m: f"k{2 * int(m[1])}", shape)
                for order in ("sp", "sp::ordered_metadata"):
                    for selector in ("0x0", "0x1"):
                        yield (f"{setup} mma.{order}.sync.aligned.{twice}.row.col{sat}.{c}.{a}.{b}.{c} {regs(acc, 40, nd)},"
                               f"{regs('r', 20, na)},{regs('r', 20 + na, 2 * nb)},{regs(acc, 40, nc)},%r2,{selector};", out)
    for op in ("xor", "and"):
        for k, n, m in ((128, 2, 1), (256, 4, 2)):
            yield (f"mma.sync.aligned.m16n8k{k}.row.col.s32.b1.b1.s32.{op}.popc {regs('r', 40, 4)},{regs('r', 2, n)},"
                   f"{regs('r', 2, m)},{regs('r', 40, 4)};", tuple(f"%r{40 + i}" for i in range(4)))
    for k, n in ((4, 1), (8, 2), (16, 4)):
        for shape in (f"m16n8k{k}",):
            da = "{" + ",".join(f"%d{i % 3}" for i in range(2 * n if k > 4 else 2)) + "}"
            db = "{" + ",".join(f"%d{i % 3}" for i in range(max(1, k // 4))) + "}"
            yield f"mma.sync.aligned.{shape}.row.col.f64.f64.f64.f64 {{%d5,%d6,%d7,%d8}},{da},{db},{{%d5,%d6,%d7,%d8}};", ("%d5",)
    yield "mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%d5,%d6},{%d0},{%d1},{%d5,%d6};", ("%d5", "%d6")
    for number, trans in itertools.product((1, 2, 4), ("", ".trans")):
        out = tuple(f"%r{20 + n}" for n in range(number))
        yield f"ldmatrix.sync.aligned.m8n8.x{number}{trans}.shared.b16 {{{','.join(out)}}},[%r0];", out
        yield f"ldmatrix.sync.aligned.m8n8.x{number}{trans}.shared.b16 {{{','.join(out)}}},[%r0+64];", out
        data = ",".join(f"%r{2 + n}" for n in range(number))
        yield f"stmatrix.sync.aligned.m8n8.x{number}{trans}.shared.b16 [%r0],{{{data}}};", ()
    yield "movmatrix.sync.aligned.m8n8.trans.b16 %r10,%r2;", ("%r10",)
    yield from _wgmma()


def _wgmma() -> Iterator[tuple[str, tuple[str, ...]]]:
    kinds = [("f16", "f16", "f16", 16, True), ("f32", "f16", "f16", 16, True), ("f32", "bf16", "bf16", 16, True),
             ("f32", "tf32", "tf32", 8, False), *(("f32", a, b, 32, False) for a in ("e4m3", "e5m2") for b in ("e4m3", "e5m2")),
             ("f16", "e4m3", "e4m3", 32, False), *(("s32", a, b, 32, None) for a in ("s8", "u8") for b in ("s8", "u8")),
             ("s32", "b1", "b1", 256, None)]
    for acc, a, b, k, transposed in kinds:
        for n in (8, 16, 24, 32, 48, 64, 96, 128, 192, 256):
            count = n // 2 if acc != "f16" else n // 4
            name = "f" if acc == "f32" else "r"
            if name == "r" and count > 64:
                continue
            first = 10
            d = "{" + ",".join(f"%{name}{first + i}" for i in range(count)) + "}"
            outs = (f"%{name}{first}", f"%{name}{first + count - 1}")
            scale = ",p,1,1" if transposed is not None else ",p"
            scale = scale.replace("p", "%p0")
            tails = [scale + (",0,0" if transposed else "")]
            if n in (64, 256) and transposed is not None:
                tails += [scale.replace(",1,1", ",-1,1") + (",1,0" if transposed else ""),
                          scale.replace(",1,1", ",1,-1") + (",0,1" if transposed else "")]
            op = ".and.popc" if a == "b1" else ""
            for tail in tails:
                sat = (".satfinite",) if acc == "s32" and a != "b1" and n == 64 else ()
                for s in ("", *sat):
                    yield ("wgmma.fence.sync.aligned; " f"wgmma.mma_async.sync.aligned.m64n{n}k{k}{s}.{acc}.{a}.{b}{op} {d},%l2,%l3{tail};"
                           "wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;", outs)
                short = tail if not transposed else tail[:-2]
                yield ("wgmma.fence.sync.aligned; " f"wgmma.mma_async.sync.aligned.m64n{n}k{k}.{acc}.{a}.{b}{op} {d},"
                       f"{{%r2,%r3,%r4,%r5}},%l3{short};wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;", outs)
            if a != "b1" and n in (32, 64, 128):
                yield ("wgmma.fence.sync.aligned; " f"wgmma.mma_async.sp.sync.aligned.m64n{n}k{2 * k}.{acc}.{a}.{b} {d},%l2,%l3,%r2,0"
                       f"{tails[0]};wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;", outs)
    for n in range(4):
        yield f"wgmma.wait_group.sync.aligned {n};", ()


def _asynchronous() -> Iterator[tuple[str, tuple[str, ...]]]:
    for size, mode in itertools.product((4, 8, 16), ("ca", "cg")):
        for tail in ("", ",%r2", f",{size // 2}", ", p"):
            text = tail.replace("p", "%p0")
            yield f"cp.async.{mode}.shared.global [%r0],[%l0],{size}{text};", ()
            yield f"cp.async.{mode}.shared.global.L2::128B [%r0+16],[%l0+32],{size}{text};", ()
            yield f"cp.async.{mode}.shared.global.L2::256B [%r0],[%l0],{size}{text};", ()
            yield f"cp.async.{mode}.shared.global.L2::64B [%r0],[%l0],{size}{text};", ()
    yield "cp.async.commit_group;", ()
    for n in range(4):
        yield f"cp.async.commit_group; cp.async.wait_group {n};", ()
    yield "cp.async.wait_all;", ()
    yield "cp.async.mbarrier.arrive.shared::cta.b64 [%r0];", ()
    yield "cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%r0];", ()
    bulk = "cp.async.bulk"
    for tail, extra in (("", ""), (".L2::cache_hint", ",%l3")):
        yield f"{bulk}.shared::cluster.global.mbarrier::complete_tx::bytes{tail} [%r0],[%l0],%r2,[%r3]{extra};", ()
        yield f"{bulk}.shared::cta.global.mbarrier::complete_tx::bytes{tail} [%r0],[%l0],%r2,[%r3]{extra};", ()
        yield f"{bulk}.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster{tail} [%r0],[%l0],%r2,[%r3],%h0{extra};", ()
        yield f"{bulk}.global.shared::cta.bulk_group{tail} [%l0],[%r0],%r2{extra};", ()
        yield f"{bulk}.prefetch.L2.global{tail} [%l0],%r2{extra};", ()
    yield f"{bulk}.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%r0],[%r2],%r3,[%r4];", ()
    for op, kind in (("add", "u32"), ("add", "s32"), ("add", "u64"), ("add", "f32"), ("add", "f64"), ("add.noftz", "f16"),
                     ("add.noftz", "bf16"), ("min", "u32"), ("max", "s32"), ("min", "f16"), ("max", "bf16"), ("inc", "u32"), ("dec", "u32"),
                     ("and", "b32"), ("or", "b64"), ("xor", "b32")):
        yield f"cp.reduce.async.bulk.global.shared::cta.bulk_group.{op}.{kind} [%l0],[%r0],%r2;", ()
        yield f"cp.reduce.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes.{op}.{kind} [%r0],[%r2],%r3,[%r4];", ()
    for dim in range(1, 6):
        place = "{" + ",".join(f"%r{2 + n % 4}" for n in range(dim)) + "}"
        offsets = "{" + ",".join(f"%h{n % 3}" for n in range(max(1, dim - 2))) + "}"
        tensor = "cp.async.bulk.tensor"
        for tail, extra in (("", ""), (".L2::cache_hint", ",%l3")):
            for cast, more in (("", ""), (".multicast::cluster", ",%h0")):
                yield f"{tensor}.{dim}d.shared::cluster.global.tile.mbarrier::complete_tx::bytes{cast}{tail} [%r0],[%l0,{place}],[%r1]{more}{extra};", ()
                if dim >= 3:
                    yield (f"{tensor}.{dim}d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes{cast}{tail} [%r0],[%l0,{place}],[%r1],"
                           f"{offsets}{more}{extra};", ())
            for mode in ("tile", "im2col_no_offs"):
                yield f"{tensor}.{dim}d.global.shared::cta.{mode}.bulk_group{tail} [%l0,{place}],[%r0]{extra};", ()
                for op in ("add", "min", "max", "inc", "dec", "and", "or", "xor"):
                    yield f"cp.reduce.async.bulk.tensor.{dim}d.global.shared::cta.{op}.{mode}.bulk_group{tail} [%l0,{place}],[%r0]{extra};", ()
            yield f"cp.async.bulk.prefetch.tensor.{dim}d.L2.global.tile{tail} [%l0,{place}]{extra};", ()
            if dim >= 3:
                yield f"cp.async.bulk.prefetch.tensor.{dim}d.L2.global.im2col{tail} [%l0,{place}],{offsets}{extra};", ()
    yield "cp.async.bulk.commit_group;", ()
    for n, read in itertools.product(range(3), ("", ".read")):
        yield f"cp.async.bulk.commit_group; cp.async.bulk.wait_group{read} {n};", ()
    for field, kind, value in (("global_address", "b64", "%l2"), ("rank", "b32", "2"), ("box_dim", "b32", "%r2"),
                               ("global_dim", "b32", "%r2"), ("global_stride", "b64", "%l2"), ("element_stride", "b32", "%r2"),
                               ("elemtype", "b32", "3"), ("interleave_layout", "b32", "0"), ("swizzle_mode", "b32", "1"), ("fill_mode", "b32", "0")):
        index = ",0" if field in ("box_dim", "global_dim", "global_stride", "element_stride") else ""
        yield f"tensormap.replace.tile.{field}.shared::cta.b1024.{kind} [%r0]{index},{value};", ()
    yield "tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned [%l0],[%r0],128;", ()
    yield "prefetch.tensormap [%l0];", ()
    for kind in ("b32", "b64", "v2.b32", "v4.b32", "u32", "f32"):
        value = "{%r2,%r3}" if "v2" in kind else "{%r2,%r3,%r4,%r5}" if "v4" in kind else "%l2" if "64" in kind else "%f0" if kind == "f32" else "%r2"
        yield f"st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.{kind} [%r0],{value},[%r3];", ()
    for op, kind in (("add", "u32"), ("add", "s32"), ("add", "u64"), ("min", "u32"), ("max", "s32"), ("inc", "u32"), ("dec", "u32"), ("and", "b32"), ("or", "b32"), ("xor", "b32")):
        yield f"red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.{op}.{kind} [%r0],{'%l2' if '64' in kind else '%r2'},[%r3];", ()
    for action, count in itertools.product(("inc", "dec"), (24, 40, 104, 160, 232, 240)):
        yield f"setmaxnreg.{action}.sync.aligned.u32 {count};", ()


def _texture() -> Iterator[tuple[str, tuple[str, ...]]]:
    places = {"1d": "{%f0}", "2d": "{%f0,%f1}", "3d": "{%f0,%f1,%f2,%f2}", "a1d": "{%r2,%f0}", "a2d": "{%r2,%f0,%f1,%f1}",
              "cube": "{%f0,%f1,%f2,%f2}", "acube": "{%r2,%f0,%f1,%f2}"}
    whole = {"1d": "{%r2}", "2d": "{%r2,%r3}", "3d": "{%r2,%r3,%r4,%r4}", "a1d": "{%r2,%r3}", "a2d": "{%r2,%r3,%r4,%r4}"}
    outs = ("%f10", "%f11", "%f12", "%f13")
    d = "{%f10,%f11,%f12,%f13}"
    for geometry, place in places.items():
        yield f"tex.{geometry}.v4.f32.f32 {d},[%l2,{place}];", outs
        yield f"tex.level.{geometry}.v4.f32.f32 {d},[%l2,{place}],%f2;", outs
        yield f"tex.level.{geometry}.v4.f32.f32 {d},[%l2,{place}],0f00000000;", outs
        yield f"tex.{geometry}.v4.f32.f32 {{%f10,%f11,_,_}},[%l2,{place}];", outs[:2]
        grads = {"1d": "{%f0},{%f1}", "2d": "{%f0,%f1},{%f1,%f2}", "3d": "{%f0,%f1,%f2,%f2},{%f0,%f1,%f2,%f2}",
                 "a1d": "{%f0},{%f1}", "a2d": "{%f0,%f1},{%f1,%f2}", "cube": "{%f0,%f1,%f2,%f2},{%f0,%f1,%f2,%f2}",
                 "acube": "{%f0,%f1,%f2,%f2},{%f0,%f1,%f2,%f2}"}[geometry]
        yield f"tex.grad.{geometry}.v4.f32.f32 {d},[%l2,{place}],{grads};", outs
    for geometry, place in whole.items():
        yield f"tex.{geometry}.v4.s32.s32 {{%r10,%r11,%r12,%r13}},[%l2,{place}];", ("%r10", "%r13")
    for component in "rgba":
        yield f"tld4.{component}.2d.v4.f32.f32 {d},[%l2,{{%f0,%f1}}];", outs
    for query in ("width", "height", "depth", "channel_data_type", "channel_order", "normalized_coords", "array_size", "num_mipmap_levels",
                  "num_samples"):
        yield f"txq.{query}.b32 %r10,[%l2];", ("%r10",)
        yield f"suq.{query}.b32 %r10,[%l2];", ("%r10",)
    for geometry, place in whole.items():
        for kind, mode in itertools.product(("b8", "b16", "b32", "b64"), ("trap", "clamp", "zero")):
            reg = {"b8": "%h10", "b16": "%h10", "b32": "%r10", "b64": "%l10"}[kind]
            source = {"b8": "%h0", "b16": "%h0", "b32": "%r2", "b64": "%l2"}[kind]
            yield f"suld.b.{geometry}.{kind}.{mode} {reg},[%l2,{place}];", (reg,)
            yield f"sust.b.{geometry}.{kind}.{mode} [%l2,{place}],{source};", ()
            yield f"suld.b.{geometry}.v2.{kind}.{mode} {{{reg},{reg[:2]}11}},[%l2,{place}];", (reg,)
        yield f"sust.p.{geometry}.v4.b32.trap [%l2,{place}],{{%r2,%r3,%r4,%r5}};", ()
        for op, kind in (("add", "u32"), ("add", "u64"), ("min", "s32"), ("max", "u32"), ("and", "b32"), ("or", "b32")):
            yield f"sured.b.{geometry}.{op}.{kind}.trap [%l2,{place}],{'%l2' if '64' in kind else '%r2'};", ()
            yield f"sured.p.{geometry}.{op}.{kind}.trap [%l2,{place}],{'%l2' if '64' in kind else '%r2'};", ()


def _control() -> Iterator[tuple[str, tuple[str, ...]]]:
    yield "pmevent 3;", ()
    yield "pmevent.mask 0x1234;", ()
    for text in ("nanosleep.u32 100;", "nanosleep.u32 %r2;", "trap;", "brkpt;", "exit;", "@%p0 exit;", "@!%p1 trap;"):
        yield text, ()
    yield "alloca.u64 %l10,256; st.local.u32 [%l10],%r2;", ("%l10",)
    yield "stacksave.u64 %l10; stackrestore.u64 %l10;", ("%l10",)
    yield ("brx.idx %r2,t; .branchtargets t0; t: .branchtargets A,B,C,D;", ())
    yield ("t: .branchtargets A,B,C,D; brx.idx %r2,t; A: st.global.u32 [%l1],%r3; B: st.global.u32 [%l1+4],%r4; bra.uni E; "
           "C: st.global.u32 [%l1+8],%r5; D: st.global.u32 [%l1+12],%r2; E:", ())
    yield ("L0: add.u32 %r2,%r2,1; ld.global.u32 %r20,[%l0]; setp.lt.u32 %p2,%r2,%r20; @%p2 bra L0;", ("%r2",))
    yield ("setp.lt.u32 %p2,%r2,%r3; @%p2 bra L1; st.global.u32 [%l1],%r2; bar.sync 0; bra L2; L1: st.global.u32 [%l1+4],%r2; L2: "
           "bar.warp.sync -1;", ())
    for value in ("0x12345678", "%r1"):
        yield f"mov.u32 %r20,{value}; add.u32 %r10,%r20,%r2;", ("%r10",)
    yield "mov.b64 {%r10,%r11},%l2; mov.b64 %l10,{%r11,%r10};", ("%l10",)
    yield "mov.b32 {%h10,%h11},%r2; mov.b32 %r10,{%h11,%h10};", ("%r10",)
    yield "mov.u32 %r20,sh; mov.u64 %l10,lo; st.local.u32 [%l10],%r20;", ("%l10",)


def _tensor_memory() -> Iterator[tuple[str, tuple[str, ...]]]:
    for group in ("1", "2"):
        at = f"cta_group::{group}"
        for columns in ("32", "512", "%r2"):
            yield f"tcgen05.alloc.{at}.sync.aligned.shared::cta.b32 [%r0],{columns};", ()
            yield f"tcgen05.dealloc.{at}.sync.aligned.b32 %r3,{columns};", ()
        yield f"tcgen05.relinquish_alloc_permit.{at}.sync.aligned;", ()
        yield f"tcgen05.commit.{at}.mbarrier::arrive::one.b64 [%l2];", ()
        yield f"tcgen05.commit.{at}.mbarrier::arrive::one.shared::cluster.b64 [%r0];", ()
        yield f"tcgen05.commit.{at}.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64 [%r0],%h0;", ()
        yield f"tcgen05.shift.{at}.down [%r3];", ()
        for shape, form in itertools.product(
                ("128x256b", "4x256b", "128x128b", "64x128b.warpx2::02_13", "64x128b.warpx2::01_23", "32x128b.warpx4"),
                ("", ".b8x16.b6x16_p32", ".b8x16.b4x16_p64")):
            yield f"tcgen05.cp.{at}.{shape}{form} [%r3],%l2;", ()
    for word in ("fence::before_thread_sync", "fence::after_thread_sync", "wait::ld.sync.aligned", "wait::st.sync.aligned"):
        yield f"tcgen05.{word};", ()
    sizes = {"32x32b": 1, "16x64b": 1, "16x128b": 2, "16x256b": 4, "16x32bx2": 1}
    for (shape, unit), number in itertools.product(sizes.items(), (1, 2, 4, 8, 16, 32, 64, 128)):
        count = unit * number
        if count > 128:
            continue
        half = ",16" if shape == "16x32bx2" else ""
        names = [f"%t{n}" for n in range(count)]
        setup = f".reg .b32 %t<{count}>; "
        for pack in ("", ".pack::16b"):
            yield (f"{{ {setup}tcgen05.ld.sync.aligned.{shape}.x{number}{pack}.b32 {{{','.join(names)}}},[%r3]{half}; "
                   f"tcgen05.wait::ld.sync.aligned; st.global.u32 [%l1],%t0; st.global.u32 [%l1+4],%t{count - 1}; }}", ())
        for unpack in ("", ".unpack::16b"):
            data = ",".join(f"%r{2 + n % 4}" for n in range(count))
            yield f"tcgen05.st.sync.aligned.{shape}.x{number}{unpack}.b32 [%r3]{half},{{{data}}};", ()
    kinds = ("f16", "tf32", "f8f6f4", "i8", "mxf8f6f4.block_scale", "mxf4.block_scale", "mxf4nvf4.block_scale.scale_vec::4X",
             "mxf4nvf4.block_scale.scale_vec::2X", "mxf8f6f4.block_scale.scale_vec::1X", "mxf4nvf4.block_scale.block16",
             "mxf4.block_scale.block32")
    for group, kind, a, sparse, collector in itertools.product(
            ("1", "2"), kinds, ("%l2", "[%r4]"), ("", ".sp"),
            ("", ".collector::a::fill", ".collector::a::use", ".collector::a::lastuse", ".collector::a::discard")):
        scale = ",[%r20],[%r21]" if "block" in kind else ""
        meta = ",[%r5]" if sparse else ""
        yield (f"tcgen05.mma{sparse}.cta_group::{group}.kind::{kind}{collector} [%r3],{a},%l3{meta},%r2{scale},%p0;", ())
        if not scale and not collector:
            zeros = ",".join("%r2" for _ in range(4 * int(group)))
            yield f"tcgen05.mma{sparse}.cta_group::{group}.kind::{kind} [%r3],{a},%l3{meta},%r2,{{{zeros}}},%p0;", ()
            yield f"tcgen05.mma{sparse}.cta_group::{group}.kind::{kind} [%r3],{a},%l3{meta},%r2,%p0,3;", ()
            if a[0] == "[":
                yield f"tcgen05.mma{sparse}.cta_group::{group}.kind::{kind}.ashift [%r3],{a},%l3{meta},%r2,%p0;", ()
    for kind, a, sparse, buffer in itertools.product(
            ("f16", "tf32", "f8f6f4", "i8"), ("%l2", "[%r4]"), ("", ".sp"),
            ("", *(f".collector::b{n}::{use}" for n in range(4) for use in ("fill", "use", "lastuse", "discard")))):
        meta = ",[%r5]" if sparse else ""
        yield f"tcgen05.mma.ws{sparse}.cta_group::1.kind::{kind}{buffer} [%r3],{a},%l3{meta},%r2,%p0;", ()
        yield f"tcgen05.mma.ws{sparse}.cta_group::1.kind::{kind}{buffer} [%r3],{a},%l3{meta},%r2,%p0,%l2;", ()


def _blackwell() -> Iterator[tuple[str, tuple[str, ...]]]:
    for op, rnd, ftz in itertools.product(("add", "mul", "sub"), ("", ".rn", ".rz", ".rm", ".rp"), ("", ".ftz")):
        yield f"{op}{rnd}{ftz}.f32x2 %l10,%l2,%l3;", ("%l10",)
    for rnd, ftz in itertools.product((".rn", ".rz", ".rm", ".rp"), ("", ".ftz")):
        yield f"fma{rnd}{ftz}.f32x2 %l10,%l2,%l3,%l2;", ("%l10",)
    for op, extra in itertools.product(("min", "max"), ("", ".abs", ".NaN", ".abs.NaN")):
        yield f"redux.sync.{op}{extra}.f32 %f10,%f0,-1;", ("%f10",)
        yield f"redux.sync.{op}{extra}.f32 %f10,%f0,%r5;", ("%f10",)
    for op, extra in itertools.product(("min", "max"), ("", ".ftz", ".NaN", ".ftz.NaN", ".abs", ".ftz.NaN.abs")):
        yield f"{op}{extra}.f32 %f10,%f0,%f1,%f2;", ("%f10",)
        yield f"{op}{extra}.f32 %f10,%f0,%f1,0f3FC00000;", ("%f10",)
    for cache in ("", ".nc", ".L2::evict_first", ".L2::evict_last", ".L1::no_allocate", ".L1::evict_last.L2::evict_last", ".volatile",
                  ".relaxed.gpu", ".nc.L1::no_allocate.L2::evict_last"):
        f8 = ",".join(f"%f{20 + n}" for n in range(8))
        l4 = ",".join(f"%l{10 + n}" for n in range(4))
        left, right = ("", f".global{cache}") if not cache.startswith((".vol", ".rel")) else (cache, ".global")
        for offset in ("", "+64"):
            yield f"ld{left}{right}.v8.f32 {{{f8}}},[%l0{offset}];", ("%f20", "%f27")
            yield f"ld{left}{right}.v8.b32 {{{f8.replace('f', 'r')}}},[%l0{offset}];", ("%r20", "%r27")
            yield f"ld{left}{right}.v4.b64 {{{l4}}},[%l0{offset}];", ("%l10", "%l13")
            if ".nc" not in cache:
                yield f"st{left}{right}.v8.f32 [%l0{offset}],{{%f0,%f1,%f2,%f0,%f1,%f2,%f0,%f1}};", ()
                yield f"st{left}{right}.v4.b64 [%l0{offset}],{{%l2,%l3,%l2,%l3}};", ()
    for to, relu in itertools.product(("e2m3x2", "e3m2x2", "e2m1x2"), ("", ".relu")):
        out = "%h10"
        yield (f"{{ .reg .b8 b; cvt.rn.satfinite{relu}.{to}.f32 b,%f0,%f1; cvt.u16.u8 %h10,b; }}" if to == "e2m1x2"
               else f"cvt.rn.satfinite{relu}.{to}.f32 {out},%f0,%f1;"), ("%h10",)
        yield (f"{{ .reg .b8 b; cvt.u8.u16 b,%h0; cvt.rn{relu}.f16x2.{to} %r10,b; }}" if to == "e2m1x2"
               else f"cvt.rn{relu}.f16x2.{to} %r10,%h0;"), ("%r10",)
    for rnd in (".rz", ".rp"):
        yield f"cvt{rnd}.satfinite.ue8m0x2.f32 %h10,%f0,%f1;", ("%h10",)
        yield f"cvt{rnd}.satfinite.ue8m0x2.bf16x2 %h10,%r2;", ("%h10",)
    yield "cvt.rn.bf16x2.ue8m0x2 %r10,%h0;", ("%r10",)
    for to in ("e4m3x4", "e5m2x4", "e2m3x4", "e3m2x4", "e2m1x4"):
        for relu in ("", ".relu"):
            out = "%h10" if to == "e2m1x4" else "%r10"
            yield f"cvt.rs{relu}.satfinite.{to}.f32 {out},{{%f0,%f1,%f2,%f0}},%r2;", (out,)
    for action in ("", ".multicast::cluster::all"):
        yield f"clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes{action}.b128 [%r0],[%r3];", ()
    yield ("mov.b128 %q0,{%l2,%l3}; clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 %p2,%q0; "
           "clusterlaunchcontrol.query_cancel.get_first_ctaid.v4.b32.b128 {%r10,%r11,%r12,%r13},%q0;"), ("%p2", "%r10")
    yield "mov.b128 %q0,{%l2,%l3}; clusterlaunchcontrol.query_cancel.get_first_ctaid::y.b32.b128 %r10,%q0;", ("%r10",)
    for number in (1, 2):
        out = ",".join(f"%r{20 + n}" for n in range(2 * number))
        data = ",".join(f"%r{2 + n}" for n in range(number))
        yield f"ldmatrix.sync.aligned.m16n16.x{number}.trans.shared.b8 {{{out}}},[%r0];", ("%r20",)
        for form in ("b8x16.b6x16_p32", "b8x16.b4x16_p64"):
            yield f"ldmatrix.sync.aligned.m16n16.x{number}.trans.shared.{form} {{{out}}},[%r0];", ("%r20",)
            yield f"ldmatrix.sync.aligned.m8n16.x{number}.shared.{form} {{{data.replace('r2', 'r20').replace('r3', 'r21')}}},[%r0];", ("%r20",)
        yield f"stmatrix.sync.aligned.m16n8.x{number}.trans.shared.b8 [%r0],{{{data}}};", ()
    yield "ldmatrix.sync.aligned.m8n16.x4.shared.b8x16.b4x16_p64 {%r20,%r21,%r22,%r23},[%r0];", ("%r20",)
    yield "stmatrix.sync.aligned.m16n8.x4.trans.shared.b8 [%r0],{%r2,%r3,%r4,%r5};", ()
    for size in ("%l2", "4096"):
        yield f"st.bulk.weak.shared::cta [%r0],{size},0;", ()
    tensor = "cp.async.bulk.tensor"
    place2, place4 = "{%r2,%r3}", "{%r2,%r3,%r4,%r5}"
    place5 = "{%r2,%r3,%r4,%r5,%r2}"
    for group, tail in itertools.product(("", ".cta_group::1", ".cta_group::2"), ("", ".L2::cache_hint")):
        extra = ",%l3" if tail else ""
        for target in ("shared::cluster", "shared::cta"):
            for cast, more in (("", ""), (".multicast::cluster", ",%h0")):
                base = f"{tensor}.2d.{target}.global"
                yield f"{base}.tile.mbarrier::complete_tx::bytes{cast}{group}{tail} [%r0],[%l0,{place2}],[%r1]{more}{extra};", ()
                yield f"{base}.tile::gather4.mbarrier::complete_tx::bytes{cast}{group}{tail} [%r0],[%l0,{place5}],[%r1]{more}{extra};", ()
                for mode in ("im2col::w", "im2col::w::128"):
                    yield (f"{tensor}.4d.{target}.global.{mode}.mbarrier::complete_tx::bytes{cast}{group}{tail} [%r0],[%l0,{place4}],[%r1],"
                           f"{{%h0,%h1}}{more}{extra};"), ()
        yield f"{tensor}.2d.global.shared::cta.tile::scatter4.bulk_group{tail} [%l0,{place5}],[%r0]{extra};", ()
        yield f"cp.async.bulk.prefetch.tensor.2d.L2.global.tile::gather4{tail} [%l0,{place5}]{extra};", ()
        yield f"cp.async.bulk.global.shared::cta.bulk_group{tail}.cp_mask [%l0],[%r0],%r2{extra},%h0;", ()
    fours = ("e4m3", "e5m2", "e2m3", "e3m2", "e2m1")
    c4, d4 = "{%f40,%f41,%f42,%f43}", "{%f40,%f41,%f42,%f43}"
    load = "".join(f"ld.global.f32 %f{40 + n},[%l0+{96 + 4 * n}]; " for n in range(4))
    a4, b2 = "{%r2,%r3,%r4,%r5}", "{%r3,%r4}"
    for a, b in itertools.product(fours, repeat=2):
        yield f"{load}mma.sync.aligned.m16n8k32.row.col.kind::f8f6f4.f32.{a}.{b}.f32 {d4},{a4},{b2},{c4};", ("%f40", "%f43")
        yield (f"{load}mma.sync.aligned.m16n8k32.row.col.kind::mxf8f6f4.block_scale.scale_vec::1X.f32.{a}.{b}.f32.ue8m0 {d4},{a4},{b2},{c4},"
               "{%r2},{%h0,%h1},{%r3},{%h0,%h1};"), ("%f40", "%f43")
        yield (f"{load}mma.sp::ordered_metadata.sync.aligned.m16n8k64.row.col.kind::f8f6f4.f32.{a}.{b}.f32 {d4},{a4},{{%r2,%r3,%r4,%r5}},{c4},"
               "%r2,0x0;"), ("%f40", "%f43")
    for vec, scale in (("2X", "ue8m0"), ("4X", "ue4m3")):
        kind = "mxf4" if vec == "2X" else "mxf4nvf4"
        for number in ("{%h0,%h1}", "{0,0}"):
            yield (f"{load}mma.sync.aligned.m16n8k64.row.col.kind::{kind}.block_scale.scale_vec::{vec}.f32.e2m1.e2m1.f32.{scale} {d4},{a4},{b2},"
                   f"{c4},{{%r2}},{number},{{%r3}},{number};"), ("%f40", "%f43")
            yield (f"{load}mma.sp::ordered_metadata.sync.aligned.m16n8k128.row.col.kind::{kind}.block_scale.scale_vec::{vec}.f32.e2m1.e2m1.f32."
                   f"{scale} {d4},{a4},{a4},{c4},%r2,0x0,{{%r2}},{number},{{%r3}},{number};"), ("%f40", "%f43")


def _more_scalar() -> Iterator[tuple[str, tuple[str, ...]]]:
    """Statements added for shapes that other people's code had and ours had not."""
    for kind, source in (("f32", "%f0"), ("u32", "%r2"), ("s32", "%r2"), ("u64", "%l2"), ("f64", "%d0"), ("noftz.f16x2", "%r2"), ("noftz.bf16x2", "%r2")):
        for space, address in (("global", "%l0"), ("shared", "%r0")):
            for offset in ("+640", "+-64"):
                yield f"red.{space}.add.{kind} [{address}{offset}],{source};", ()
                yield f"red.relaxed.gpu.{space}.add.{kind} [{address}{offset}],{source};", ()
    for to, of, a in (("bf16", "f32", "%f0"), ("f16", "f32", "%f0"), ("f32", "f16", "%h0"), ("f32", "bf16", "%h0"), ("f64", "f32", "%f0"), ("f32", "f64", "%d0")):
        out = {"bf16": "%h10", "f16": "%h10", "f32": "%f10", "f64": "%d5"}[to]
        file = {"%f": "%f20", "%h": "%h5", "%d": "%d6"}[a[:2]]
        rnd = "" if (of, to) in (("f16", "f32"), ("bf16", "f32"), ("f32", "f64")) else ".rn"
        for op in ("neg", "abs"):
            yield f"{op}.{of} {file},{a}; cvt{rnd}.{to}.{of} {out},{file};", (out,)
        yield f"abs.{of} {file},{a}; neg.{of} {file},{file}; cvt{rnd}.{to}.{of} {out},{file};", (out,)
    for op in ("neg", "abs"):
        for to in ("s32", "u32", "s64", "u64"):
            out = "%r10" if "32" in to else "%l10"
            yield f"{op}.f32 %f20,%f0; cvt.rzi.{to}.f32 {out},%f20;", (out,)
            yield f"{op}.f64 %d6,%d0; cvt.rzi.{to}.f64 {out},%d6;", (out,)
    for kind, values in (("f16x2", ("0xD840D840", "0x3C00BC00", "0x7C00FC00", "0x80008000")), ("bf16x2", ("0xC308C308", "0x3F80BF80", "0x7F80FF80", "0x80008000"))):
        for value in values:
            for half in ("", "mov.b32 {%h5,%h6},%r3; mov.b32 %r21,{%h5,%h5};", "mov.b32 {%h5,%h6},%r3; mov.b32 %r21,{%h6,%h6};"):
                b = "%r21" if half else "%r3"
                yield f"{half} mov.b32 %r20,{value}; fma.rn.{kind} %r10,%r2,{b},%r20;", ("%r10",)
                yield f"{half} mov.b32 %r20,{value}; fma.rn.{kind} %r10,{b},%r20,%r4;", ("%r10",)
                yield f"{half} mov.b32 %r20,{value}; fma.rn.relu.{kind} %r10,{b},%r20,%r4;", ("%r10",)
                yield f"{half} mov.b32 %r20,{value}; add.{kind} %r10,{b},%r20;", ("%r10",)
                yield f"{half} mov.b32 %r20,{value}; mul.{kind} %r10,{b},%r20;", ("%r10",)
                yield f"{half} mov.b32 %r20,{value}; max.{kind} %r10,{b},%r20;", ("%r10",)
                yield f"{half} mov.b32 %r20,{value}; setp.lt.{kind} %p2|%p3,{b},%r20;", ("%p2", "%p3")
    yield ("ld.global.u32 %r20,[%l0]; setp.eq.u32 %p2,%r20,0; @%p2 bra.uni L1; st.global.u32 [%l1+8],%r2; L1: bar.sync 0; "
           "ld.global.u32 %r21,[%l0+4]; setp.eq.u32 %p3,%r21,0; @%p3 bra L2; st.global.u32 [%l1+16],%r3; L2:"), ()
    yield "setp.ne.u32 %p2,%r0,0; @%p2 bra.uni L1; st.global.u32 [%l1+8],%r2; L1: st.global.u32 [%l1+16],%r3;", ()
    yield "setp.ne.u32 %p2,%r0,0; @!%p2 bra.uni L1; st.global.u32 [%l1+8],%r2; bar.sync 0; L1: st.global.u32 [%l1+16],%r3;", ()


def late_statements() -> Iterator[tuple[str, tuple[str, ...]]]:
    """Statements for shapes that were missed in code held out: compiled apart, so that a cache keeps all others."""
    for address in ("%r0", "%r0+64", "sh", "%r20", "%r20+128"):
        setup = "mov.u32 %r20,sh;"
        for op, kind in (("add", "u32"), ("add", "s32"), ("inc", "u32")):
            value = "0xffffffff" if op == "inc" else "1"
            yield f"{setup} red.shared.{op}.{kind} [{address}],{value};", ()
            yield f"{setup} atom.shared.{op}.{kind} %r10,[{address}],{value};", ("%r10",)
    for shift in (1, 4, 5, 16, 31):
        for value in ("-2", "1", "-64", "0x12345", "%r3"):
            yield f"shr.s32 %r20,%r2,{shift}; add.s32 %r10,%r20,{value};", ("%r10",)
            yield f"shr.u32 %r20,%r2,{shift}; add.s32 %r10,%r20,{value};", ("%r10",)
            yield f"shl.b32 %r20,%r2,{shift}; add.s32 %r10,%r20,{value};", ("%r10",)
            yield f"mad.lo.s32 %r20,%r2,{1 << min(shift, 30)},%r4; add.s32 %r10,%r20,{value};", ("%r10",)
    for factor in ("-2147483648", "1073741824", "-1", "3", "65536"):
        yield f"mul.lo.s32 %r10,%r2,{factor};", ("%r10",)
        yield f"mad.lo.s32 %r10,%r2,{factor},%r3;", ("%r10",)
    for kind in ("s8", "u8", "s16", "u16"):
        for to in ("f32", "f64", "f16", "bf16"):
            out = {"f32": "%f10", "f64": "%d5", "f16": "%h10", "bf16": "%h10"}[to]
            for byte in (0, 8, 16, 24) if kind[1:] == "8" else (0,):
                yield (f"shr.u32 %r20,{'%r2' if kind[1:] == '8' else '%r3'},{byte}; cvt.u16.u32 %h5,%r20; cvt.rn.{to}.{kind} {out},%h5;", (out,))
    for cmp in ("eq", "ne", "lt", "le", "gt", "ge", "neu", "ltu"):
        for kind in ("f16x2", "bf16x2"):
            yield f"mov.b32 {{%h5,%h6}},%r2; mov.b32 %r20,{{%h5,%h5}}; mov.b32 {{%h7,%h8}},%r3; mov.b32 %r21,{{%h8,%h8}}; setp.{cmp}.{kind} %p2|%p3,%r20,%r21;", ("%p2", "%p3")
        for kind in ("f16", "bf16"):
            yield f"mov.b32 {{%h5,%h6}},%r2; mov.b32 {{%h7,%h8}},%r3; setp.{cmp}.{kind} %p2,%h5,%h8;", ("%p2",)
            yield f"mov.b32 {{%h5,%h6}},%r2; mov.b32 {{%h7,%h8}},%r3; setp.{cmp}.or.{kind} %p2,%h6,%h7,!%p0;", ("%p2",)
    for number, trans, offset in itertools.product((1, 2, 4), ("", ".trans"), ("", "+4096", "+-16")):
        out = tuple(f"%r{20 + n}" for n in range(number))
        for base in ("%r0", "%r2"):
            yield f"ldmatrix.sync.aligned.m8n8.x{number}{trans}.shared.b16 {{{','.join(out)}}},[{base}{offset}];", out
    for op, kind in itertools.product(("max", "min"), ("f16x2", "bf16x2", "f16", "bf16")):
        a, b, c, out = ("%r2", "%r3", "%r4", "%r10") if "x2" in kind else ("%h0", "%h1", "%h2", "%h10")
        yield f"{op}.{kind} {out},{a},{b}; {op}.{kind} {out},{out},{c};", (out,)
        yield f"{op}.NaN.{kind} {out},{a},{b}; {op}.NaN.{kind} {out},{out},{c};", (out,)


def rare_kernels() -> list[str]:
    """Kernels for instructions that all libraries at hand lack, again compiled apart."""
    return [_kernel(f"k{n}", body, outputs) for n, (body, outputs) in enumerate(dict.fromkeys(_rare()))]


def _rare() -> Iterator[tuple[str, tuple[str, ...]]]:
    yield from _fences()
    yield from _small_matrix()
    yield from _rare_texture()
    for a, b, c in itertools.product(("u32", "s32"), repeat=3):
        for op in ("vmad", "vset", "vshl", "vshr"):
            sel = ".b1" if op != "vset" else ".h1"
            if op == "vmad":
                yield f"vmad.{a}.{b}.{c} %r10,%r2{sel},%r3.h0,%r4;", ("%r10",)
                yield f"vmad.{a}.{b}.{c}.sat.shr7 %r10,%r2,%r3{sel},%r4;", ("%r10",)
            elif op == "vset":
                yield f"vset.{a}.{b}.lt %r10,%r2{sel},%r3;", ("%r10",)
            else:
                yield f"{op}.{a}.{b}.u32.clamp %r10,%r2{sel},%r3;", ("%r10",)
                yield f"{op}.{a}.{b}.u32.wrap.add %r10,%r2,%r3,%r4;", ("%r10",)
    for offset in ("0", "%r4"):
        yield f"fns.b32 %r10,%r2,%r3,{offset};", ("%r10",)
    for kind, out in (("u8", "%h10"), ("u32", "%r10"), ("u64", "%l10"), ("f32", "%f10"), ("f64", "%d5")):
        yield f"ldu.global.{kind} {out},[%l0+8];", (out,)
    yield "ldu.global.v4.u32 {%r10,%r11,%r12,%r13},[%l0];", ("%r10", "%r13")
    for first, second in itertools.product(("last", "normal", "first", "unchanged"), ("first", "unchanged")):
        yield (f"createpolicy.fractional.L2::evict_{first}.L2::evict_{second}.b64 %l5,0.25; "
               "ld.global.L2::cache_hint.u32 %r10,[%l0],%l5;", ("%r10",))
        yield (f"createpolicy.range.global.L2::evict_{first}.L2::evict_{second}.b64 %l5,[%l0],%r2,%r3; "
               "ld.global.L2::cache_hint.v4.u32 {%r10,%r11,%r12,%r13},[%l0],%l5;", ("%r10", "%r13"))
    yield "createpolicy.cvt.L2.b64 %l5,0x10F0000000000000; st.global.L2::cache_hint.v4.u32 [%l0],{%r2,%r3,%r4,%r5},%l5;", ()
    for kind in ("u32", "f32", "u64", "v2.f32", "v4.f32"):
        base = {"u32": "%r10", "f32": "%f10", "u64": "%l10"}.get(kind, "{%f10,%f11}" if kind[1] == "2" else "{%f10,%f11,%f12,%f13}")
        for mode in ("", ".nc", ".L1::no_allocate", ".L1::evict_last", ".nc.L1::no_allocate"):
            for more in ("", ".L2::128B", ".L2::256B"):
                yield f"ld.global{mode}.L2::cache_hint{more}.{kind} {base},[%l0+16],%l3;", (base.strip("{}").split(",")[0],)
    for op, kind, source in (("add", "u32", "%r2"), ("add", "f32", "%f0"), ("add", "u64", "%l2"), ("max", "s32", "%r2"), ("or", "b32", "%r2"),
                             ("add.noftz", "f16x2", "%r2"), ("exch", "b32", "%r2")):
        out = {"%r": "%r10", "%f": "%f10", "%l": "%l10"}[source[:2]]
        yield f"atom.global.{op.split('.')[0]}{op[3:] if '.' in op else ''}.L2::cache_hint.{kind} {out},[%l0],{source},%l3;", (out,)
        if op != "exch":
            yield f"red.global.{op.split('.')[0]}{op[3:] if '.' in op else ''}.L2::cache_hint.{kind} [%l0],{source},%l3;", ()
    for size, mode in ((4, "ca"), (8, "ca"), (16, "ca"), (16, "cg")):
        for tail in ("", ",%r2", f",{size // 2}"):
            yield f"cp.async.{mode}.shared.global.L2::cache_hint [%r0+16],[%l0+32],{size}{tail},%l3;", ()
            yield f"cp.async.{mode}.shared.global.L2::cache_hint.L2::128B [%r0],[%l0],{size}{tail},%l3;", ()


def _rare_texture() -> Iterator[tuple[str, tuple[str, ...]]]:
    places = {"1d": "{%f0}", "2d": "{%f0,%f1}", "3d": "{%f0,%f1,%f2,%f2}", "a1d": "{%r2,%f0}", "a2d": "{%r2,%f0,%f1,%f1}",
              "cube": "{%f0,%f1,%f2,%f2}", "acube": "{%r2,%f0,%f1,%f2}"}
    offsets = {"1d": ",{%r3}", "2d": ",{%r3,%r4}", "3d": ",{%r3,%r4,%r5,%r5}", "a1d": ",{%r3}", "a2d": ",{%r3,%r4}"}
    fixed = {"1d": ",{3}", "2d": ",{3,-2}", "3d": ",{1,2,-3,0}", "a1d": ",{5}", "a2d": ",{-1,7}"}
    grads = {"1d": "{%f0},{%f1}", "2d": "{%f0,%f1},{%f1,%f2}", "3d": "{%f0,%f1,%f2,%f2},{%f0,%f1,%f2,%f2}",
             "a1d": "{%f0},{%f1}", "a2d": "{%f0,%f1},{%f1,%f2}", "cube": "{%f0,%f1,%f2,%f2},{%f0,%f1,%f2,%f2}",
             "acube": "{%f0,%f1,%f2,%f2},{%f0,%f1,%f2,%f2}"}
    d, outs = "{%f10,%f11,%f12,%f13}", ("%f10", "%f13")
    for (geometry, place), handle in itertools.product(places.items(), ("%l2", "%l6")):
        # A handle that is a parameter lies in a uniform register.
        setup = "ld.param.u64 %l6,[p+200]; " if handle == "%l6" else ""
        for offset, depth, full in itertools.product(("", offsets.get(geometry), fixed.get(geometry)), ("", ",%f1"), ("", "|%p2")):
            if offset is None or (depth and geometry in ("1d", "3d", "a1d")):
                continue
            yield f"{setup}tex.{geometry}.v4.f32.f32 {d}{full},[{handle},{place}]{offset}{depth};", outs
            for level in ("%f2", "0f00000000", "0f3FC00000"):
                yield f"{setup}tex.level.{geometry}.v4.f32.f32 {d}{full},[{handle},{place}],{level}{offset}{depth};", outs
            yield f"{setup}tex.grad.{geometry}.v4.f32.f32 {d}{full},[{handle},{place}],{grads[geometry]}{offset}{depth};", outs
        for kind in ("s32", "u32"):
            yield f"{setup}tex.{geometry}.v4.{kind}.f32 {{%r10,%r11,%r12,%r13}},[{handle},{place}];", ("%r10", "%r13")
        for used in range(1, 16):
            names = ",".join(f"%f{10 + n}" if used >> n & 1 else "_" for n in range(4))
            yield f"{setup}tex.{geometry}.v4.f32.f32 {{{names}}},[{handle},{place}];", tuple(
                f"%f{10 + n}" for n in range(4) if used >> n & 1)
        if geometry in ("2d", "a2d", "cube", "acube"):
            for component, offset, depth, full in itertools.product("rgba", ("", offsets.get(geometry), fixed.get(geometry)),
                                                                    ("", ",%f1"), ("", "|%p2")):
                if offset is not None:
                    yield f"{setup}tld4.{component}.{geometry}.v4.f32.f32 {d}{full},[{handle},{place}]{offset}{depth};", outs
    for geometry, place in (("2dms", "{%r2,%r3}"), ("a2dms", "{%r2,%r3,%r4,%r4}")):
        for offset in ("", ",{%r3,%r4}"):
            yield f"tex.{geometry}.v4.f32.s32 {d},[%l2,%r5,{place}]{offset};", outs
    for geometry, place in (("1d", "{%r2}"), ("2d", "{%r2,%r3}"), ("3d", "{%r2,%r3,%r4,%r4}"), ("a1d", "{%r2,%r3}"),
                            ("a2d", "{%r2,%r3,%r4,%r4}")):
        for offset, level in itertools.product(("", offsets[geometry], fixed[geometry]), ("", ",%r5", ",2")):
            name = "tex.level" if level else "tex"
            yield f"{name}.{geometry}.v4.f32.s32 {d},[%l2,{place}]{level}{offset};", outs
        for kind, mode in itertools.product(("b8", "b16", "b32"), ("trap", "clamp", "zero")):
            name = "r" if kind == "b32" else "h"
            four = ",".join(f"%{name}{10 + n}" for n in range(4))
            data = "%r2,%r3,%r4,%r5" if kind == "b32" else "%h0,%h1,%h2,%h0"
            yield f"suld.b.{geometry}.v4.{kind}.{mode} {{{four}}},[%l2,{place}];", (f"%{name}10", f"%{name}13")
            yield f"sust.b.{geometry}.v4.{kind}.{mode} [%l2,{place}],{{{data}}};", ()
            yield f"sust.b.{geometry}.v2.{kind}.{mode} [%l2,{place}],{{{','.join(data.split(',')[:2])}}};", ()
        for mode in ("trap", "clamp", "zero"):
            yield f"sust.p.{geometry}.b32.{mode} [%l2,{place}],%r2;", ()
            yield f"sust.p.{geometry}.v2.b32.{mode} [%l2,{place}],{{%r2,%r3}};", ()
            for op, kind in (("add", "u32"), ("min", "s32"), ("max", "s32"), ("min", "u32"), ("and", "b32"), ("or", "b32")):
                yield f"sured.b.{geometry}.{op}.{kind}.{mode} [%l2,{place}],%r2;", ()
                yield f"sured.p.{geometry}.{op}.{kind}.{mode} [%l2,{place}],%r2;", ()


def _small_matrix() -> Iterator[tuple[str, tuple[str, ...]]]:
    load = "".join(f"ld.global.u32 %r{40 + n},[%l0+{128 + 4 * n}]; ld.global.f32 %f{40 + n},[%l0+{192 + 4 * n}]; "
                   for n in range(8))
    for (k, kinds), sat in itertools.product(((16, ("s8", "u8")), (32, ("s4", "u4"))), ("", ".satfinite")):
        for a, b in itertools.product(kinds, repeat=2):
            yield (f"{load}mma.sync.aligned.m8n8k{k}.row.col{sat}.s32.{a}.{b}.s32 {{%r40,%r41}},{{%r2}},{{%r3}},{{%r40,%r41}};",
                   ("%r40", "%r41"))
    for op in ("xor", "and"):
        yield (f"{load}mma.sync.aligned.m8n8k128.row.col.s32.b1.b1.s32.{op}.popc {{%r40,%r41}},{{%r2}},{{%r3}},{{%r40,%r41}};",
               ("%r40", "%r41"))
    for a, b, d, c in itertools.product(("row", "col"), ("row", "col"), ("f16", "f32"), ("f16", "f32")):
        into, of = ("{" + ",".join(f"%{'r' if kind == 'f16' else 'f'}{40 + n}" for n in range(4 if kind == "f16" else 8)) + "}"
                    for kind in (d, c))
        yield (f"{load}mma.sync.aligned.m8n8k4.{a}.{b}.{d}.f16.f16.{c} {into},{{%r2,%r3}},{{%r4,%r5}},{of};",
               ("%r40", "%r43") if d == "f16" else ("%f40", "%f47"))


def debug_kernels() -> list[str]:
    """Kernels to compile with :data:`DEBUG`: one per statement, and all fences."""
    every = itertools.chain(statements(), late_statements(), _half_comparisons(), _missed(), _rare())
    return [_kernel(f"k{n}", body, outputs) for n, (body, outputs) in enumerate(dict.fromkeys(every))]


def _fences() -> Iterator[tuple[str, tuple[str, ...]]]:
    """Fences that :func:`_barriers` lacks, and what a fence of every scope and order makes of the access behind it."""
    for order, space in (("acquire", "cluster"), ("release", "cta")):
        for proxy in ("", ".proxy.async::generic"):
            yield f"fence{proxy}.{order}.sync_restrict::shared::{space}.cluster;", ()
    for order, scope in itertools.product(("sc", "acq_rel"), ("cta", "cluster", "gpu", "sys")):
        yield f"st.global.u32 [%l1],%r2; fence.{order}.{scope}; ld.global.u32 %r10,[%l0+128];", ("%r10",)
        yield f"st.shared.u32 [%r0],%r2; fence.{order}.{scope}; ld.shared.u32 %r10,[%r0+128];", ("%r10",)


def _compile(ptxas: str, arch: str, kernels: Sequence[str], options: Sequence[str], ptx: str, folder: Path,
             number: int) -> list[Path]:
    source = folder / f"{number}.ptx"
    source.write_text(f".version {ptx}\n.target {arch}\n.address_size 64\n" + "".join(kernels), encoding="utf-8")
    out = folder / f"{number}.cubin"
    done = subprocess.run([ptxas, f"-arch={arch}", *options, str(source), "-o", str(out)], capture_output=True, text=True)
    if done.returncode == 0:
        return [out]
    if len(kernels) == 1:
        return []
    lines = {int(n) for n in re.findall(r"line (\d+);", done.stderr)}
    if lines:
        at = 4
        bad = set()
        for n, kernel in enumerate(kernels):
            height = kernel.count("\n")
            if any(at <= line < at + height for line in lines):
                bad.add(n)
            at += height
        if bad:
            rest = [k for n, k in enumerate(kernels) if n not in bad]
            return _compile(ptxas, arch, rest, options, ptx, folder, number) if rest else []
    half = len(kernels) // 2
    return (_compile(ptxas, arch, kernels[:half], options, ptx, folder, 2 * number)
            + _compile(ptxas, arch, kernels[half:], options, ptx, folder, 2 * number + 1))


def release_of(ptxas: str, arch: str) -> tuple[str, str]:
    """Release (``12.4``) of a ptxas, and the newest PTX that it and these sources know; "" if it lacks ``arch``."""
    done = subprocess.run([ptxas, "--version"], capture_output=True, text=True, check=True)
    found = re.search(r"release ([\d.]+)", done.stdout)
    if found is None:
        raise ToolError("ptxas-missing", f"{ptxas} is no ptxas", "give the path of one")
    with tempfile.TemporaryDirectory(prefix="gwatch-isa-") as name:
        source = Path(name) / "a.ptx"
        for version in (PTX_VERSION, *(f"{major}.{minor}" for major in (8, 7) for minor in range(9, -1, -1))):
            source.write_text(f".version {version}\n.target {arch}\n.address_size 64\n", encoding="utf-8")
            if not subprocess.run([ptxas, f"-arch={arch}", str(source), "-o", f"{name}/a.cubin"],
                                  capture_output=True).returncode:
                return found[1], version
    return found[1], ""


def _ptxas() -> str:
    ptxas = shutil.which("ptxas")
    if ptxas is None:
        raise ToolError("ptxas-missing", "own sources need ptxas, which is not in PATH", "install the CUDA toolkit")
    return ptxas


def _ptxas_tells() -> str:
    """What the ptxas in PATH says of itself."""
    return subprocess.run([_ptxas(), "--version"], capture_output=True, text=True, check=True).stdout


def ptxas_version() -> str:
    """Version of the ptxas in PATH, e.g. "13.0.88"."""
    found = re.search(r"\bV([\d.]+)", _ptxas_tells())
    if found is None:
        raise ToolError("ptxas-missing", f"{_ptxas()} is no ptxas", "put the folder of one first in PATH")
    return found[1]


def own_inputs(arch: str, kernels: Sequence[str], options: Sequence[str] = OPTIMIZED) -> str:
    """All that :func:`own_words` depends on: the architecture, ptxas' version and options, the sources."""
    return "\n".join((arch, PTX_VERSION, *options, _ptxas_tells(), *kernels))


def own_kernels(made: Iterable[tuple[str, tuple[str, ...]]], all_uniform: bool = False) -> list[str]:
    """One kernel per statement, and more where the operands can come from uniform registers."""
    kernels: list[str] = []
    seen: set[str] = set()
    uniform = {body for make in (_integer, _floating, _half, _convert, _warp, _barriers, _more_scalar) for body, _ in make()}
    for body, outputs in made:
        if body not in seen:
            seen.add(body)
            kernels.append(_kernel(f"k{len(kernels)}", body, outputs))
            if all_uniform or body in uniform:
                for names in (_ODD, _EVEN, tuple(_UNIFORM)):
                    kernels.append(_uniform(_kernel(f"k{len(kernels)}", body, outputs), names))
    return kernels


_COMPUTED = {name: f"mov.u32 %r30,%ctaid.x; mad.lo.s32 %r30,%r30,{5 + n},{n + 1}; " + how.format(name) for n, (name, how) in enumerate((
    ("%r2", "mov.b32 {},%r30;"), ("%r3", "mov.b32 {},%r30;"), ("%r4", "mov.b32 {},%r30;"), ("%r5", "mov.b32 {},%r30;"),
    ("%f0", "mov.b32 {},%r30;"), ("%f1", "mov.b32 {},%r30;"), ("%f2", "mov.b32 {},%r30;"),
    ("%d0", "mov.b64 {},{{%r30,%r30}};"), ("%d1", "mov.b64 {},{{%r30,%r30}};"), ("%d2", "mov.b64 {},{{%r30,%r30}};"),
    ("%l2", "mov.b64 {},{{%r30,%r30}};"), ("%l3", "mov.b64 {},{{%r30,%r30}};"), ("%h0", "cvt.u16.u32 {},%r30;"),
    ("%h1", "cvt.u16.u32 {},%r30;"), ("%h2", "cvt.u16.u32 {},%r30;")))}


def _computed(kernel: str, names: Sequence[str]) -> str:
    """``kernel`` with the registers ``names`` computed from the block index: uniform registers, not constants."""
    for name in names:
        kernel = re.sub(rf"ld\.global\.\w+ {name},\[%l0[^]]*\];", lambda _, text=_COMPUTED[name]: text, kernel, count=1)
    return kernel


def late_kernels() -> list[str]:
    """Kernels for shapes that were missed in code held out: compiled apart, so that a cache keeps all others.

    Besides statements of their own: memory accesses whose address is no uniform register, and arithmetic on uniform
    registers that hold no kernel parameter.
    """
    kernels = own_kernels(late_statements(), all_uniform=True)
    for body, outputs in itertools.chain(_memory(), _atomics(), _asynchronous()):
        moved = body.replace("[%l0", "[%l2").replace("[%r0", "[%r2")
        if moved != body and "+64]" not in moved:
            kernels.append(_kernel(f"k{len(kernels)}", moved, outputs))
    for body, outputs in itertools.chain(_integer(), _floating(), _convert()):
        kernels.append(_computed(_kernel(f"k{len(kernels)}", body, outputs), tuple(_COMPUTED)))
    return kernels


def last_kernels() -> list[str]:
    """A third group, again compiled apart: local memory by halves and bytes, uniform shifts with an addition."""
    kernels: list[str] = []
    local = []
    for kind, register in (("u8", "%h10"), ("s8", "%h10"), ("u16", "%h10"), ("s16", "%h10"), ("u32", "%r10"),
                           ("u64", "%l10")):
        other = register.replace("10", "2")
        for cache, offset in itertools.product(("", ".lu", ".cs", ".cv", ".ca", ".cg"), ("", "+12", "+-8")):
            store = {".lu": ".wb", ".cv": ".wt", ".ca": ".wb"}.get(cache, cache)
            for setup, address in (("add.s64 %l7,%l6,%l2;", "%l7"), ("add.s64 %l7,%l6,%l0;", "%l7"), ("", "%l6")):
                local.append((f"mov.u64 %l6,lo; {setup} ld.local{cache}.{kind} {register},[{address}{offset}];", (register,)))
                local.append((f"mov.u64 %l6,lo; {setup} st.local{store}.{kind} [{address}{offset}],{other}; "
                              "ld.local.u8 %r20,[lo+3];", ("%r20",)))
    for body, outputs in local:
        kernels.append(_kernel(f"k{len(kernels)}", body, outputs))
    shifts = [b for b in late_statements() if b[0].startswith(("shr", "shl", "mad", "mul"))]
    for body, outputs in itertools.chain(shifts, _warp()):
        kernels.append(_computed(_kernel(f"k{len(kernels)}", body, outputs), tuple(_COMPUTED)))
    return kernels


# The same statements with operands that are constants, every second one: ptxas folds few of them.
_CONSTANT = {"%r2": "mov.u32 {},0x12345;", "%r3": "mov.u32 {},0x3C00BC00;", "%r4": "mov.u32 {},-64;", "%r5": "mov.u32 {},9;",
             "%f0": "mov.f32 {},0f3FC00000;", "%f1": "mov.f32 {},0fC0200000;", "%f2": "mov.f32 {},0f3DCCCCCD;",
             "%d0": "mov.f64 {},0d3FF8000000000000;", "%d1": "mov.f64 {},0dC004000000000000;",
             "%d2": "mov.f64 {},0d3FB999999999999A;", "%l2": "mov.u64 {},0x1234;", "%l3": "mov.u64 {},-5;",
             "%h0": "mov.u16 {},0x3E00;", "%h1": "mov.u16 {},0xC100;", "%h2": "mov.u16 {},0x3C00;"}


def constant_kernels() -> list[str]:
    """Scalar statements whose operands are constants, comparisons of halves, and descriptors that are sums."""
    kernels: list[str] = []
    scalar = itertools.chain(_integer(), _floating(), _half(), _convert(), _warp(), _more_scalar(), _half_comparisons())
    for body, outputs in dict.fromkeys(scalar):
        whole = _kernel(f"k{len(kernels)}", body, outputs)
        for names in (_ODD, _EVEN):
            kernel = whole
            for name in names:
                if re.search(rf"{name}(?!\d)", body):
                    kernel = re.sub(rf"ld\.global\.\w+ {name},\[%l0[^]]*\];", _CONSTANT[name].format(name), kernel, count=1)
            if kernel != whole:
                kernels.append(kernel.replace(whole.split("(")[0], f".visible .entry k{len(kernels)}", 1))
    for body, outputs in itertools.chain(_half_comparisons(), _descriptor_chains(), _uniform_memory(), _missed()):
        kernels.append(_kernel(f"k{len(kernels)}", body, outputs))
    return kernels


_HALVES = {"f16": ("%h0", "%h1"), "bf16": ("%h0", "%h1"), "f16x2": ("%r2", "%r3"), "bf16x2": ("%r2", "%r3")}
_COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge", "equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan")


def _half_comparisons() -> Iterator[tuple[str, tuple[str, ...]]]:
    for (kind, (a, b)), cmp, combine, ftz in itertools.product(_HALVES.items(), _COMPARISONS, ("", ".and", ".or"), ("", ".ftz")):
        tail = ",!%p0" if combine else ""
        pair = "%p2|%p3" if "x2" in kind else "%p2"
        yield f"setp.{cmp}{combine}{ftz}.{kind} {pair},{a},{b}{tail};", ("%p2",)
        for to, out in ((kind, "%r10" if "x2" in kind else "%h10"), ("u32", "%r10")):
            yield f"set.{cmp}{combine}{ftz}.{to}.{kind} {out},{a},{b}{tail};", (out,)


def _descriptor_chains() -> Iterator[tuple[str, tuple[str, ...]]]:
    """Warpgroup products in all sizes, one after the other, their descriptors an offset apart."""
    kinds = [("f16", "f16", "f16", 16, ",1,1,0,0"), ("f32", "f16", "f16", 16, ",1,1,0,0"), ("f32", "bf16", "bf16", 16, ",1,1,0,0"),
             ("f32", "tf32", "tf32", 8, ",1,1"), *(("f32", a, b, 32, ",1,1") for a in ("e4m3", "e5m2") for b in ("e4m3", "e5m2")),
             ("f16", "e4m3", "e4m3", 32, ",1,1"), *(("s32", a, b, 32, "") for a in ("s8", "u8") for b in ("s8", "u8"))]
    bases = ("ld.param.u64 %l5,[p+24];", "mov.u32 %r30,%ctaid.x; cvt.u64.u32 %l5,%r30;")
    for (acc, a, b, k, tail), n in itertools.product(kinds, range(8, 257, 8)):
        if acc == "s32" and n > 32 and n % 16:
            continue
        name = "f" if acc == "f32" else "b"
        count = n // 4 if acc == "f16" else n // 2
        d = "{" + ",".join(f"%x{i}" for i in range(count)) + "}"
        setup = (f".reg .{name}32 %x<{count}>; {bases[n // 8 % 2]} add.s64 %l6,%l5,2; add.s64 %l7,%l5,0x602; "
                 "setp.eq.u32 %p4,0,0; setp.ne.u32 %p5,0,0; ")
        product = f"wgmma.mma_async.sync.aligned.m64n{n}k{k}.{acc}.{a}.{b} {d}"
        end = f"wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0; st.global.{name}32 [%l1],%x{count - 1};"
        short = tail[:-2] if k == 16 else tail
        for left in ("%l5", "{%r2,%r3,%r4,%r5}"):
            rest = tail if left[0] == "%" else short
            first = "%p5" if n % 16 else "%p4"
            yield (f"{setup}wgmma.fence.sync.aligned; {product},{left},%l7,{first}{rest}; "
                   f"{product},{left.replace('l5', 'l6')},%l6,%p4{rest}; {product},{left.replace('l5', 'l7')},%l5,%p0{rest}; "
                   f"{product},{left.replace('l5', 'l6')},%l7,%p4{rest}; {end}"), ()


def _uniform_memory() -> Iterator[tuple[str, tuple[str, ...]]]:
    """Reductions and stores whose address and value are uniform; reductions over multicast addresses by vectors."""
    values = ("ld.param.u32 %r20,[p+24]; ld.param.u64 %l6,[p+32];", "mov.u32 %r20,1; mov.u64 %l6,1;",
              "mov.u32 %r20,%ctaid.x; cvt.u64.u32 %l6,%r20;")
    kinds = ("add.u32", "add.s32", "add.u64", "inc.u32", "dec.u32", "or.b32", "and.b32", "xor.b32", "max.u32", "max.s32", "min.u32",
             "min.s32", "max.u64", "max.s64", "or.b64", "add.f32")
    for value, kind, offset in itertools.product(values, kinds, ("", "+16")):
        source = "%l6" if "64" in kind else "%f20" if "f32" in kind else "%r20"
        more = "mov.b32 %f20,%r20;" if "f32" in kind else ""
        for order in ("red", "red.relaxed.gpu", "red.release.sys", "red.async.relaxed.gpu", "red.async.release.gpu",
                      "red.async.release.sys", "red.async.mmio.release.sys"):
            yield f"{value} {more} {order}.global.{kind} [%l0{offset}],{source};", ()
    for value, kind, offset in itertools.product(values, ("b32", "b64", "u32", "s64", "b8", "b16"), ("", "+16")):
        source = "%l6" if "64" in kind else "%h10" if kind in ("b8", "b16") else "%r20"
        more = "cvt.u16.u32 %h10,%r20;" if kind in ("b8", "b16") else ""
        for order in ("st.async.relaxed.gpu", "st.async.release.gpu", "st.async.release.sys", "st.async.mmio.release.sys"):
            yield f"{value} {more} {order}.global.{kind} [%l0{offset}],{source};", ()
    for kind, name in (("f16x2", "r"), ("bf16x2", "r"), ("f32", "f"), ("f16", "h"), ("bf16", "h"), ("e4m3x4", "r"), ("e5m2x4", "r")):
        for op, more, count in itertools.product(("add", "min", "max"), ("", ".acc::f32", ".acc::f16"), (1, 2, 4, 8)):
            names = [f"%{name}{n + 2 if name == 'h' else n + 30}" for n in range(count)]
            data, vector = (f"{{{','.join(names)}}}", f".v{count}") if count > 1 else (names[0], "")
            for order in ("weak", "relaxed.gpu", "relaxed.sys", "acquire.sys"):
                yield f"multimem.ld_reduce.{order}.global.{op}{more}{vector}.{kind} {data},[%l2];", tuple(names[:1])
            if not more:
                for order in ("relaxed.gpu", "relaxed.sys", "release.sys"):
                    yield f"multimem.red.{order}.global.{op}{vector}.{kind} [%l2+16],{data};", ()
                yield f"multimem.st.relaxed.sys.global{vector}.{kind} [%l2],{data};", ()


def _missed() -> Iterator[tuple[str, tuple[str, ...]]]:
    """Statements for single shapes of other people's code."""
    for rnd, relu in itertools.product((".rz", ".rp"), ("", ".satfinite")):
        for b in ("%f1", "0f00000000"):
            yield f"cvt{rnd}{relu}.ue8m0x2.f32 %h10,%f0,{b};", ("%h10",)
        yield f"cvt{rnd}{relu}.ue8m0x2.f32 %h10,0f00000000,%f0;", ("%h10",)


def random_gap_kernels() -> list[str]:
    """Kernels for shapes that random PTX showed and nothing else did, again compiled apart."""
    kernels = own_kernels(dict.fromkeys(itertools.chain(_packed_halves(), _packing(), _carries())), all_uniform=True)
    for (body, outputs), names in itertools.product(dict.fromkeys(itertools.chain(_packing(), _carries())),
                                                    (tuple(_COMPUTED), _ODD, _EVEN)):
        kernels.append(_computed(_kernel(f"k{len(kernels)}", body, outputs), names))
    for body, outputs in dict.fromkeys(itertools.chain(_surface_caches(), _texture_masks(), _policies())):
        kernels.append(_kernel(f"k{len(kernels)}", body, outputs))
    return kernels


def _packed_halves() -> Iterator[tuple[str, tuple[str, ...]]]:
    """Comparisons, minima and products of the halves of registers."""
    halves = "mov.b32 {%h4,%h5},%r2; mov.b32 {%h6,%h7},%r3;"
    pairs = (("%h4", "%h6"), ("%h5", "%h6"), ("%h5", "%h7"), ("%h5", "%h4"))
    for kind, cmp, combine in itertools.product(("f16", "bf16"), _COMPARISONS, ("and", "or", "xor")):
        yield f"setp.{cmp}.{combine}.{kind}x2 %p2|%p3,%r2,%r3,!%p0;", ("%p2", "%p3")
        yield f"set.{cmp}.{combine}.{kind}x2.{kind}x2 %r10,%r2,%r3,%p0;", ("%r10",)
        for (a, b), negated in zip(pairs, ("", "!", "", "!"), strict=True):
            yield f"{halves} setp.{cmp}.{combine}.{kind} %p2,{a},{b},{negated}%p0;", ("%p2",)
    for kind, op, ftz, nan, sign in itertools.product(("f16", "bf16"), ("min", "max"), ("", ".ftz"), ("", ".NaN"), ("", ".xorsign.abs")):
        yield f"{op}{ftz}{nan}{sign}.{kind}x2 %r10,%r2,%r3;", ("%r10",)
        for a, b in pairs:
            yield f"{halves} {op}{ftz}{nan}{sign}.{kind} %h10,{a},{b};", ("%h10",)
    for kind, rnd, sat, (a, b) in itertools.product(("f16", "bf16"), ("rn", "rz", "rm", "rp"), ("", ".sat"), pairs):
        yield f"{halves} fma.{rnd}{sat}.f32.{kind} %f10,{a},{b},%f0;", ("%f10",)
        for op in ("add", "sub"):
            yield f"{halves} {op}.{rnd}{sat}.f32.{kind} %f10,{a},%f0;", ("%f10",)


def _carries() -> Iterator[tuple[str, tuple[str, ...]]]:
    """Sums and differences of several words, and products added to them."""
    for kind, a, b, out in (("u32", "%r2", "%r3", "%r1"), ("u64", "%l2", "%l3", "%l1")):
        outs = tuple(f"{out}{n}" for n in range(3))
        for op, rest, b3 in itertools.product(("add", "sub"), (b, "0", "-1"), (a, b, "0")):
            more = {"add": "addc", "sub": "subc"}[op]
            yield (f"{op}.cc.{kind} {outs[0]},{a},{b}; {more}.cc.{kind} {outs[1]},{a},{rest}; {more}.{kind} {outs[2]},{b3},{rest};", outs)
        for half in ("lo", "hi"):
            yield (f"mad.lo.cc.{kind} {outs[0]},{a},{b},{b}; madc.{half}.cc.{kind} {outs[1]},{a},{b},{a}; "
                   f"madc.hi.{kind} {outs[2]},{a},{b},0;", outs)


def _packing() -> Iterator[tuple[str, tuple[str, ...]]]:
    """Conversions to short floats and packed integers, and byte shuffles."""
    for rnd, relu, sat in itertools.product(("rn", "rz", "rna"), ("", ".relu"), ("", ".satfinite")):
        yield f"cvt.{rnd}{relu}{sat}.tf32.f32 %r10,%f0;", ("%r10",)
        for kind in ("f16x2", "bf16x2"):
            yield f"cvt.{rnd}{relu}{sat}.{kind}.f32 %r10,%f0,%f1;", ("%r10",)
            yield f"cvt.rs{relu}{sat}.{kind}.f32 %r10,%f0,%f1,%r4;", ("%r10",)
    for kind, relu in itertools.product(("e4m3x2", "e5m2x2", "e2m3x2", "e3m2x2", "e2m1x2"), ("", ".relu")):
        yield f"cvt.rn.satfinite{relu}.{kind}.f32 %h10,%f0,%f1;", ("%h10",)
        yield f"cvt.rn.satfinite{relu}.{kind}.f16x2 %h10,%r2;", ("%h10",)
        yield f"cvt.rn{relu}.f16x2.{kind} %r10,%h0;", ("%r10",)
        yield f"mov.b32 {{%h4,%h5}},%r2; cvt.rn{relu}.f16x2.{kind} %r10,%h5;", ("%r10",)
    for kind, b in itertools.product(("u16", "s16"), ("%r3", "0x12345678")):
        yield f"cvt.pack.sat.{kind}.s32 %r10,%r2,{b};", ("%r10",)
    for kind in ("u8", "s8", "u4", "s4", "u2", "s2"):
        yield f"cvt.pack.sat.{kind}.s32.b32 %r10,%r2,%r3,%r4;", ("%r10",)
    for rnd, a, b in itertools.product(("rn", "rz", "rm", "rp"), ("f32", "f64"), ("u32", "s32", "u64", "s64")):
        yield f"cvt.{rnd}.{a}.{b} %{'f10' if a == 'f32' else 'd5'},%{'r2' if b[1:] == '32' else 'l2'};", (
            "%f10" if a == "f32" else "%d5",)
    for mode in ("", ".f4e", ".b4e", ".rc8", ".ecl", ".ecr", ".rc16"):
        yield f"prmt.b32{mode} %r10,%r2,%r3,%r4;", ("%r10",)
    for mode, width in itertools.product(("clamp", "wrap"), ("%r3", "9")):
        yield f"bmsk.{mode}.b32 %r10,%r2,{width};", ("%r10",)
    matrices = "{%f10,%f11,%f12,%f13}", "{%r2,%r3}", "{%r4}", "{%f0,%f1,%f2,%f0}"
    for a, b in itertools.product(("e4m3", "e5m2"), repeat=2):
        yield f"mma.sync.aligned.m16n8k16.row.col.f32.{a}.{b}.f32 {','.join(matrices)};", ("%f10", "%f13")
        yield f"mma.sync.aligned.m16n8k16.row.col.f16.{a}.{b}.f16 {{%r10,%r11}},{{%r2,%r3}},{{%r4}},{{%r5,%r2}};", ("%r10", "%r11")


def _surface_caches() -> Iterator[tuple[str, tuple[str, ...]]]:
    """Surfaces of every geometry, width and cache operator."""
    places = {"1d": "{%r2}", "2d": "{%r2,%r3}", "3d": "{%r2,%r3,%r4,%r4}", "a1d": "{%r2,%r3}", "a2d": "{%r2,%r3,%r4,%r4}"}
    widths = (("b8", "h"), ("b16", "h"), ("b32", "r"), ("b64", "l"))
    for (geometry, place), (kind, name), count, mode in itertools.product(
            places.items(), widths, (1, 2, 4), ("trap", "clamp", "zero")):
        if kind == "b64" and count == 4:
            continue
        first = "%l2,%l3" if name == "l" else "%r2,%r3,%r4,%r5" if name == "r" else "%h0,%h1,%h2,%h0"
        data, into = (f"{{{','.join(names)}}}" if count > 1 else names[0]
                      for names in (first.split(",")[:count], [f"%{name}{10 + n}" for n in range(count)]))
        vector = f".v{count}" if count > 1 else ""
        for load, store in ((".cs", ".cs"), (".cv", ".wt"), (".cg", ".cg")):
            yield f"suld.b.{geometry}{load}{vector}.{kind}.{mode} {into},[%l2,{place}];", (f"%{name}10",)
            yield f"sust.b.{geometry}{store}{vector}.{kind}.{mode} [%l2,{place}],{data};", ()
            if kind == "b32":
                yield f"sust.p.{geometry}{store}{vector}.b32.{mode} [%l2,{place}],{data};", ()


def _texture_masks() -> Iterator[tuple[str, tuple[str, ...]]]:
    """Textures of which all components are used, or some, with and without a residency predicate."""
    places = {"1d": "{%r2}", "2d": "{%r2,%r3}", "3d": "{%r2,%r3,%r4,%r4}", "a1d": "{%r2,%r3}", "a2d": "{%r2,%r3,%r4,%r4}"}
    sampled = {"1d": "{%f0}", "2d": "{%f0,%f1}", "3d": "{%f0,%f1,%f2,%f2}", "a1d": "{%r2,%f0}", "a2d": "{%r2,%f0,%f1,%f1}",
               "cube": "{%f0,%f1,%f2,%f2}", "acube": "{%r2,%f0,%f1,%f2}"}
    d = "{%f10,%f11,%f12,%f13}"
    for used, full in itertools.product((15, 1, 2, 3, 5, 8, 14), ("", "|%p2")):
        outputs = (*(f"%f{10 + n}" for n in range(4) if used >> n & 1), *(("%p2",) if full else ()))
        for handle in ("%l2", "%l6"):
            setup = "ld.param.u64 %l6,[p+200]; " if handle == "%l6" else ""
            for geometry, place in places.items():
                yield f"{setup}tex.{geometry}.v4.f32.s32 {d}{full},[{handle},{place}];", outputs
                yield f"{setup}tex.level.{geometry}.v4.f32.s32 {d}{full},[{handle},{place}],%r5;", outputs
            for geometry, place in (("2dms", "{%r2,%r3}"), ("a2dms", "{%r2,%r3,%r4,%r4}")):
                for sample in ("%r5", "0"):
                    yield f"{setup}tex.{geometry}.v4.f32.s32 {d}{full},[{handle},{sample},{place}];", outputs
            for geometry, place in sampled.items():
                yield f"{setup}tex.{geometry}.v4.f32.f32 {d}{full},[{handle},{place}];", outputs
                for level in ("%f2", "0f00000000"):
                    yield f"{setup}tex.level.{geometry}.v4.f32.f32 {d}{full},[{handle},{place}],{level};", outputs


def _moved(names: str, by: int) -> str:
    """Registers as many numbers further."""
    return re.sub(r"\d+", lambda found: str(int(found[0]) + by), names)


def _policies() -> Iterator[tuple[str, tuple[str, ...]]]:
    """Accesses of every width with a cache policy, and the orders that :func:`_memory` lacks."""
    kinds = {"u8": "%r2", "s8": "%r2", "u16": "%h0", "s16": "%h0", "b32": "%r2", "b64": "%l2", "v2.b16": "{%h0,%h1}",
             "v2.b32": "{%r2,%r3}", "v4.b32": "{%r2,%r3,%r4,%r5}", "v2.b64": "{%l2,%l3}"}
    policies = ("", "createpolicy.fractional.L2::evict_last.b64 %l3,1.0;", "ld.param.u64 %l3,[p+64];")
    caches = ("", ".L1::evict_first", ".L1::evict_last", ".L1::no_allocate", ".L1::evict_unchanged", ".relaxed.gpu", ".volatile")
    for (kind, data), policy, cache in itertools.product(kinds.items(), policies[1:], caches):
        into = _moved(data, 10)
        first = into.strip("{}").split(",")[0]
        front, behind = (cache, "") if "L1" not in cache else ("", cache)
        for offset in ("", "+48"):
            for size in ("", ".L2::128B"):
                yield f"{policy} ld{front}.global{behind}.L2::cache_hint{size}.{kind} {into},[%l0{offset}],%l3;", (first,)
            yield f"{policy} ld.global.nc{behind}.L2::cache_hint.{kind} {into},[%l0{offset}],%l3;", (first,)
            yield f"{policy} st{front}.global{behind}.L2::cache_hint.{kind} [%l0{offset}],{data},%l3;", ()
    atomics = (("add.u32", "%r2"), ("min.s32", "%r2"), ("max.u32", "%r2"), ("and.b32", "%r2"), ("xor.b32", "%r2"), ("inc.u32", "%r2"),
               ("exch.b32", "%r2"), ("add.u64", "%l2"), ("max.s64", "%l2"), ("exch.b64", "%l2"), ("add.f32", "%f0"), ("add.f64", "%d0"),
               ("add.noftz.f16x2", "%r2"), ("add.noftz.bf16x2", "%r2"), ("add.noftz.f16", "%h0"))
    for (op, source), policy, order, offset in itertools.product(atomics, policies[1:], ("", ".relaxed.sys", ".release.gpu"), ("", "+48")):
        name, kind = op.rsplit(".", 1)
        into = _moved(source, 4 if source[1] == "d" else 10)
        yield f"{policy} atom{order}.global.{name}.L2::cache_hint.{kind} {into},[%l0{offset}],{source},%l3;", (into,)
        if name != "exch":
            yield f"{policy} red{order}.global.{name}.L2::cache_hint.{kind} [%l0{offset}],{source},%l3;", ()
    for policy, size, offset in itertools.product(policies, (4, 8, 16), ("", "+32")):
        hint, last = (".L2::cache_hint", ",%l3") if policy else ("", "")
        for mode, tail in itertools.product(("ca", "cg") if size == 16 else ("ca",), ("", ",%r2", ",%p0")):
            for more in ("", ".L2::128B"):
                yield f"{policy} cp.async.{mode}.shared.global{hint}{more} [%r0{offset}],[%l0{offset}],{size}{tail}{last};", ()
    for order, (kind, data) in itertools.product((".mmio.relaxed.sys", ".relaxed.sys", ".volatile"), kinds.items()):
        into = _moved(data, 10)
        for space, offset in itertools.product(("", ".global"), ("", "+16", "+-4096")):
            yield f"ld{order}{space}.{kind} {into},[%l2{offset}];", (into.strip("{}").split(",")[0],)
            yield f"st{order}{space}.{kind} [%l2{offset}],{data};", ()
            yield f"ld.param.u64 %l6,[p+64]; st{order}{space}.{kind} [%l6{offset}],{data};", ()
    for space, level in itertools.product(("", ".global", ".local"), ("L1", "L2")):
        address = "%l6" if space == ".local" else "%l2"
        yield f"mov.u64 %l6,lo; add.s64 %l6,%l6,%l2; prefetch{space}.{level} [{address}+16];", ()
        yield f"mov.u64 %l6,lo; add.s64 %l6,%l6,%l2; prefetch{space}.{level} [{address}];", ()
    for count, trans, offset in itertools.product((1, 2, 4), ("", ".trans"), ("", "+16", "+2048")):
        names = "{" + ",".join(f"%r{2 + n}" for n in range(count)) + "}"
        for setup, address in (("", "%r0"), ("mov.u32 %r30,sh;", "%r30"), ("", "%r5")):
            yield f"{setup} stmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16 [{address}{offset}],{names};", ()
            yield (f"{setup} ldmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16 {names},[{address}{offset}];", ("%r2",))


def groups(every: bool = True) -> list[tuple[list[str], tuple[str, ...]]]:
    """All kernels, and how they are compiled; without ``every`` those of most statements, each in few ways."""
    most = [(own_kernels(statements()), OPTIMIZED), (random_gap_kernels(), OPTIMIZED)]
    if not every:
        return most
    others = late_kernels(), last_kernels(), constant_kernels(), rare_kernels()
    return [*most, *((kernels, OPTIMIZED) for kernels in others), (debug_kernels(), DEBUG)]


def own_words(arch: str, kernels: Sequence[str], options: Sequence[str] = OPTIMIZED, ptxas: str = "",
              ptx: str = PTX_VERSION) -> set[int]:
    """Distinct words (control bits included) that ptxas writes for those of the kernels that it accepts."""
    ptxas = ptxas or _ptxas()
    if tuple(map(int, ptx.split("."))) < _WIDE[1]:
        kernels = [kernel.replace(_WIDE[0], "") for kernel in kernels]
    words: set[int] = set()
    with tempfile.TemporaryDirectory(prefix="gwatch-isa-") as name:
        for i in range(0, len(kernels), BATCH):
            for path in _compile(ptxas, arch, kernels[i:i + BATCH], options, ptx, Path(name), 1 << 20 | i << 24):
                words.update(text_words(path))
    return words
