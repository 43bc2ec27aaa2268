"""Insert snippets into a kernel: collect, plan everything, refuse before touching, then write once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gwatch.cuda.binary.declare import declare_ctaid_z
from gwatch.cuda.binary.relayout import Moved, TextEdit, apply_edit
from gwatch.cuda.binary.stack import grow_stack
from gwatch.errors import KernelError, SiteError, UnsupportedError
from gwatch.rewrite.binding import Binder, Bound, Insertion
from gwatch.rewrite.homes import bits
from gwatch.rewrite.planning import Effort, Group, Plan
from gwatch.rewrite.registers import SPARE, Allocator, check_launchable, parse_excluded
from gwatch.rewrite.result import PlacedSite, ReuseEdit, Rewritten
from gwatch.rewrite.schedule import Run, Scheduler
from gwatch.rewrite.snippet import Snippet
from gwatch.rewrite.surroundings import Surroundings
from gwatch.sass.abi import survivors
from gwatch.sass.arch import occupancy
from gwatch.sass.cfg import Words
from gwatch.sass.control import Control, control_fields
from gwatch.sass.hazards import check_rewrite
from gwatch.sass.integrity import Kept, Rewrite
from gwatch.sass.isa import isa_for
from gwatch.sass.latency import latency_for
from gwatch.sass.motion import place_words, plan_layout
from gwatch.sass.uses import Key, word_facts

if TYPE_CHECKING:
    from gwatch.cuda.binary import Cubin, KernelDef

ENTRY = "entry"
TEXT_ALIGN = 8
REUSE_SHIFT = np.uint64(122 - 64)
DEFAULT_THREADS = 128


@dataclass(frozen=True, slots=True)
class _Reserved:
    file: str
    width: int
    kept: tuple[int, ...]


class Rewriter:
    """Rewrites one kernel of a cubin.

    ``cubin`` must be parsed; ``kernel`` is a mangled name or a KernelDef of it. ``excluded_registers`` has
    the keys "general", "uniform_general" and "predicate" with register numbers that inserted code must not
    use. Collect with :meth:`reserve` and :meth:`insert`; :meth:`apply` plans, checks and returns the new
    image, or raises and changes nothing. Raises KernelError for an unknown kernel, UnsupportedError
    ``[not-a-kernel]`` for a device function.
    """

    def __init__(
        self,
        cubin: Cubin,
        kernel: str | KernelDef,
        excluded_registers: Mapping[str, Iterable[int]] | None = None,
    ) -> None:
        self.cubin = cubin
        self.kernel = cubin.get_kerneldef_by_name(kernel) if isinstance(kernel, str) else kernel
        if self.kernel.name not in cubin.get_map_kernel_def():
            if self.kernel.name in cubin.get_map_function_def():
                raise UnsupportedError(
                    "not-a-kernel",
                    f"{self.kernel.name} is a device function, not a kernel",
                    "rewrite a kernel that calls it",
                )
            raise KernelError("kernel-not-found", f"{self.kernel.name} is no kernel of {cubin.name}")
        self.isa = isa_for(cubin.arch.name)
        self._excluded = parse_excluded(excluded_registers)
        self._reserved: dict[str, _Reserved] = {}
        self._insertions: list[Insertion] = []
        self._surroundings: Surroundings | None = None

    def another(self) -> Rewriter:
        """A rewriter of the same kernel with nothing collected yet; what is known about the kernel is shared."""
        other = object.__new__(Rewriter)
        other.cubin, other.kernel, other.isa = self.cubin, self.kernel, self.isa
        other._excluded = self._excluded
        other._reserved, other._insertions = {}, []
        other._surroundings = self.surroundings
        return other

    @property
    def surroundings(self) -> Surroundings:
        """What is known about the kernel: control flow, register use, scoreboards, calls. Computed once."""
        if self._surroundings is None:
            self._surroundings = Surroundings(self.cubin, self.kernel, self.isa)
        return self._surroundings

    def reserve(
        self, name: str, width: int = 1, file: str = "R", kept: Iterable[int] | None = None
    ) -> None:
        """Ask for ``width`` aligned registers of ``file`` ("R" or "UR") that all insertions share; snippets name them
        in ``state=``. Those of the elements ``kept`` (default: all) keep their value from the entry to the last site;
        the others are scratch. Raises SiteError ``[state-name]``.
        """
        if name in self._reserved or file not in ("R", "UR") or width not in (1, 2, 4):
            raise SiteError(
                "state-name",
                f"state register {name!r} ({width} x {file})",
                "each name once, width 1, 2 or 4, file R or UR",
            )
        elements = tuple(range(width)) if kept is None else tuple(sorted(set(kept)))
        if any(not 0 <= item < width for item in elements) or (file == "UR" and len(elements) < width):
            raise SiteError(
                "state-name",
                f"state register {name!r} keeps elements {elements} of {width}",
                "elements count from 0; all of a uniform group are kept",
            )
        self._reserved[name] = _Reserved(file, width, elements)

    def insert(
        self,
        where: int | str,
        snippet: Snippet,
        values: Mapping[str, int | str] | None = None,
        label: str | None = None,
    ) -> None:
        """Ask for ``snippet`` to run before instruction ``where``, or once at the kernel's ``"entry"``.

        ``values`` gives each ``{name}`` an integer or operand text. Several insertions at one place keep
        their order; the entry comes before a site at instruction 0. Raises SiteError ``[site-range]``,
        ``[site-padding]``, ``[site-collective]``, ``[snippet-state]``, ``[snippet-value]``.
        """
        count = len(self.kernel.words)
        if where == ENTRY:
            index = -1
        elif isinstance(where, str | bool) or not 0 <= where < count:
            raise SiteError(
                "site-range",
                f"{self.kernel.name} has instructions 0..{count - 1}, not {where!r}",
                'a site is an instruction index or "entry"',
            )
        else:
            index = int(where)
            if index >= self.surroundings.padding:
                raise SiteError(
                    "site-padding",
                    f"instruction {index} of {self.kernel.name} is padding behind its code",
                    f"the last instruction is {self.surroundings.padding - 1}",
                )
            if index in self.surroundings.collective:
                raise SiteError(
                    "site-collective",
                    f"instruction {index} of {self.kernel.name} is run by one thread for its whole warp "
                    "(WARPSYNC.COLLECTIVE region)",
                    "choose the instruction behind the region, or the ordinary path that it stands in for",
                )
        for name in snippet.state:
            if name not in self._reserved:
                raise SiteError(
                    "snippet-state",
                    f"{snippet.name} uses the state register %{name}, which is not reserved",
                    "call reserve() first",
                )
        given = dict(values or {})
        if snippet.values != given.keys():
            odd = sorted(snippet.values ^ given.keys())[0]
            raise SiteError(
                "snippet-value",
                f"value {{{odd}}} of {snippet.name} is "
                + ("missing" if odd in snippet.values else "given but not used"),
                f"the snippet's values: {' '.join(sorted(snippet.values)) or 'none'}",
            )
        self._insertions.append(Insertion(index, snippet, given, label or snippet.name))

    def apply(self, twin: bool | None = None, effort: Effort = Effort.ANY) -> Rewritten:
        """Plan, check, and build the new image.

        ``twin``: append an untouched copy of the code that ``{original}`` names (default: when a snippet
        does). ``effort``: what general registers may cost. Raises RegisterPressureError, SiteError,
        UnsupportedError, EncodeError or HazardError; nothing is changed then.
        """
        if not self._insertions:
            raise SiteError("no-site", f"nothing to insert into {self.kernel.name}", "call insert() first")
        wants_twin = any(item.snippet.uses_original for item in self._insertions)
        if wants_twin and twin is False:
            raise SiteError(
                "no-twin",
                "a snippet branches to {original}, but the rewrite has no twin",
                "call apply(twin=True)",
            )
        around = self.surroundings
        around.refuse(state=bool(self._reserved), twin=bool(wants_twin or twin))
        allocator = self._allocator()
        lasting = self._survivors()
        allocator.keep_to(lasting)
        uniforms = {
            name: (allocator.take("UR", item.width, name), item.width)
            for name, item in self._reserved.items()
            if item.file == "UR"
        }
        allocator.keep_to(None)
        groups = {
            name: Group(name, item.width, item.kept)
            for name, item in self._reserved.items()
            if item.file == "R"
        }
        lost = 0 if lasting is None else sum(1 << r for r in range(255) if ("R", r) not in lasting)
        bound = Binder(around, allocator, groups, uniforms, effort, lost).bind(self._insertions)
        runs, plan = bound.runs, bound.plan
        own = frozenset(("R", number) for number in bits(plan.own)) | {
            (file, number)
            for file, pool in (("UR", allocator.uniform), ("P", allocator.predicate))
            for number in pool.used
        }
        named = {
            (file, number)
            for item, registers in zip(self._insertions, bound.registers, strict=True)
            if item.index < 0
            for file, numbers in registers.values()
            for number in numbers
        }
        kept = frozenset(
            key
            for run in runs
            for line in run.lines
            for key, value in line.claims.items()
            if key in own and value.partition("+")[0] in self._reserved
        )
        held = {("R", number) for number in bits(plan.held.get(-1, 0))}
        entry_only = frozenset(named - own - held)
        before = self.kernel.register_count
        after = before if around.budgets.changes else max(before, plan.highest + 1 + SPARE)
        threads = around.max_threads
        check_launchable(self.cubin.arch, self.kernel.name, before, after, threads)
        latency = latency_for(self.cubin.arch.latency)
        read_board = around.waits.use.choose()
        write_board = around.waits.use.choose(avoid=frozenset({read_board}))
        nop = word_facts(self.isa, self.isa.encode("NOP"))
        Scheduler(
            around.cfg,
            around.view,
            around.waits,
            latency,
            own,
            entry_only,
            kept,
            read_board,
            write_board,
            nop,
            plan.boards,
            lambda: around.flights,
            frozenset(("R", number) for number in bits(plan.own & around.exposed)),
        ).schedule(runs)
        built = _Build(self, runs, bool(wants_twin or twin))
        check = check_rewrite(
            self.isa,
            latency,
            Rewrite(
                around.view,
                around.cfg,
                around.waits,
                built.words,
                built.inserted,
                built.layout.count,
                built.entry,
                own,
                entry_only,
                around.returns,
                built.twin,
                around.tables,
                built.stride,
                lasting,
                kept,
                around.computed.origins,
                built.claims,
                around.callees,
                {("R", register): value for value, register in plan.initial.items()},
                plan.frame,
            ),
        )
        edit = TextEdit(
            self.kernel.section_index,
            built.words.tobytes(),
            built.layout.target_map,
            built.place_maps,
            after if after != before else None,
        )
        holders = Moved()
        image = self.cubin.data
        if plan.frame:
            image = grow_stack(image, self.kernel.symbol.index, plan.frame)
            holders.add("stack size")
        data = apply_edit(image, edit, holders)
        if self.cubin.arch.marks_ctaid_z and self._reads_ctaid_z(runs):
            data = declare_ctaid_z(data, self.kernel.name)
        used = threads or DEFAULT_THREADS
        return Rewritten(
            data=data,
            kernel=self.kernel.name,
            words=built.words,
            target_map=built.layout.target_map,
            place_map=built.layout.place_map,
            twin=built.twin,
            inserted=built.inserted,
            sites=built.sites(self._insertions, bound),
            state=self._state(plan, uniforms),
            registers_before=before,
            registers_after=after,
            threads_per_cta=used,
            occupancy_before=occupancy(self.cubin.arch, before, used, around.static_shared),
            occupancy_after=occupancy(self.cubin.arch, after, used, around.static_shared),
            scoreboards=(read_board, write_board),
            branches=built.branches,
            returns=built.returns,
            origins=dict(around.computed.origins),
            edits=built.edits,
            moves=tuple(f"%{m.value} R{m.old} -> R{m.new} before {m.index}" for m in plan.moves),
            local_bytes=plan.frame,
            moved=dict(sorted(holders.counts.items())),
            check=check,
        )

    def _reads_ctaid_z(self, runs: list[Run]) -> bool:
        declared = any("ctaid.z" in item.snippet.needs for item in self._insertions)
        return declared or any("SR_CTAID.Z" in line.text for run in runs for line in run.lines)

    def _allocator(self) -> Allocator:
        around = self.surroundings
        wants = {file for item in self._insertions for file, _ in item.snippet.scratch.values()}
        wants |= {item.file for item in self._reserved.values()}
        return Allocator(
            self.cubin.arch,
            self.kernel.name,
            around.named("UR") if "UR" in wants else frozenset(),
            around.named("P") if "P" in wants else frozenset(),
            self._excluded,
        )

    def _survivors(self) -> frozenset[Key] | None:
        """The registers that state must be kept in because code outside the cubin runs in between; None for any."""
        sites = [item.index for item in self._insertions if item.index >= 0 and item.snippet.state]
        if self.surroundings.outside_call(sites) is None:
            return None
        return survivors(self.cubin.arch)

    @staticmethod
    def _state(plan: Plan, uniforms: Mapping[str, tuple[int, int]]) -> dict[str, str]:
        """Each state register's value with the register it lives in, or all of them in turn."""
        state = {
            value: "/".join(f"R{register}" for register in registers) or "local memory"
            for value, registers in plan.homes.items()
        }
        return {**state, **{name: f"UR{first}" for name, (first, _) in uniforms.items()}}


class _Build:
    """The new code: layout, words with control words, edits of the originals, the twin and the padding."""

    def __init__(self, rewriter: Rewriter, runs: list[Run], twin: bool) -> None:
        self.isa, self.kernel = rewriter.isa, rewriter.kernel
        self.around = rewriter.surroundings
        self.runs = runs
        words = self.around.view.words
        self.entry = next((run.entry for run in runs if run.entry), 0)
        self.layout = plan_layout(
            len(words), {run.index: len(run.lines) - run.entry for run in runs}, (0, self.entry)
        )
        self.stride = self.around.stride if twin else 0
        moved = place_words(
            self.isa,
            words,
            self.around.cfg,
            self.layout,
            self.around.returns,
            self.around.tables,
            self.stride,
            self.around.computed.origins,
        )
        self.branches, self.returns = moved.branches, moved.returns
        self.padding = -self.layout.count % TEXT_ALIGN
        start = self.layout.count + self.padding
        self.twin = start if twin else None
        body = moved.words
        self.inserted = np.zeros(start + (len(words) if twin else 0), bool)
        self.claims: dict[int, Mapping[Key, str]] = {}
        for run in runs:
            self._fill(body, run, start * self.isa.arch.instruction_size)
        self.edits = self._clear_reuse(body, words)
        pad = np.repeat(self._filler(words), self.padding, axis=0)
        self.words: Words = np.concatenate([body, pad, words] if twin else [body, pad])
        self.place_maps = [self.layout.place_map]
        if twin:
            self.place_maps.append(np.arange(len(words), dtype=np.int64) + start)

    def _filler(self, words: Words) -> Words:
        """(1, 2) the word behind the code: the compiler's own NOP; where the code fills its last line, one as it writes
        them."""
        if self.around.view.facts(len(words) - 1).mnemonic == "NOP":
            return words[-1:]
        word = self.isa.encode("NOP", control=Control(stall=0, yield_flag=0))
        return np.array([[word & (1 << 64) - 1, word >> 64]], np.uint64)

    def _fill(self, body: Words, run: Run, original: int) -> None:
        size = self.isa.arch.instruction_size
        first = int(self.layout.target_map[run.index])
        for offset, line in enumerate(run.lines):
            pc = (first + offset) * size
            text = line.text
            if line.target is not None:
                text += f"{original if line.target < 0 else (first + line.target) * size:#x}"
            word = self.isa.encode(text, control=line.control, pc=pc)
            body[first + offset] = word & (1 << 64) - 1, word >> 64
            self.inserted[first + offset] = True
            self.claims[first + offset] = line.claims

    def _clear_reuse(self, body: Words, words: Words) -> tuple[ReuseEdit, ...]:
        edits = []
        control = control_fields(words)
        kept = Kept(self.isa, self.around.view, self.around.cfg)
        for index in sorted({index for run in self.runs for index in kept.before(run.index)}):
            if control["reuse"][index] and control["yield_flag"][index]:
                body[int(self.layout.place_map[index]), 1] &= ~(np.uint64(15) << REUSE_SHIFT)
                edits.append(ReuseEdit(index, int(control["reuse"][index])))
            # Sparse products mark the register of their metadata by a bit of the instruction itself.
            text = self.around.view.facts(index).text
            if ".reuse" in text:
                raise SiteError(
                    "site-reuse",
                    f"{self.kernel.name}: instruction {index} ({text}) keeps an operand for the one behind it",
                    f"choose a site before instruction {index}, or further behind it",
                )
        return tuple(edits)

    def sites(self, insertions: list[Insertion], bound: Bound) -> tuple[PlacedSite, ...]:
        """Where each insertion went, in the order of the calls to insert()."""
        out = []
        for owner, item in enumerate(insertions):
            run = next(run for run in self.runs if any(line.owner == owner for line in run.lines))
            first = int(self.layout.target_map[run.index])
            chosen = [(first + offset, line) for offset, line in enumerate(run.lines) if line.owner == owner]
            controls = tuple(
                (
                    line.control.stall,
                    line.control.yield_flag,
                    line.control.write_scoreboard,
                    line.control.read_scoreboard,
                    line.control.wait_mask,
                )
                for _, line in chosen
            )
            instruction = "" if item.index < 0 else self.around.view.text(item.index)
            placement = bound.plan.placements[owner]
            out.append(
                PlacedSite(
                    item.index,
                    item.label,
                    instruction,
                    chosen[0][0],
                    len(chosen),
                    tuple(line.text for _, line in chosen),
                    controls,
                    {name: f"{file}{numbers[0]}" for name, (file, numbers) in bound.registers[owner].items()},
                    dict(placement.ways),
                    tuple(f"R{register}" for register, _ in placement.saved),
                )
            )
        return tuple(out)
