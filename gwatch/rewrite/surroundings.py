"""What a rewrite must know about the kernel it changes: control flow, registers named, scoreboards, callees."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from gwatch.cuda.binary.elf import SHF_ALLOC, STT_FUNC
from gwatch.cuda.binary.relayout import check_supported
from gwatch.errors import UnsupportedError
from gwatch.rewrite.registers import SPARE, STACK_POINTER
from gwatch.sass.abi import survivors
from gwatch.sass.arch import declared_shared
from gwatch.sass.budgets import Budgets
from gwatch.sass.cfg import Cfg, Flow, build_cfg, opcode_keys
from gwatch.sass.control import NO_SCOREBOARD, SCOREBOARDS
from gwatch.sass.convergence import Convergence
from gwatch.sass.flight import Flights
from gwatch.sass.indirect import Tables, address_loads, find_table_loads
from gwatch.sass.integrity import Callee
from gwatch.sass.latency import latency_class, latency_for
from gwatch.sass.liveness import Liveness
from gwatch.sass.motion import refuse_relative_returns, return_addresses
from gwatch.sass.pcs import Computed, computed_returns
from gwatch.sass.replay import step_of
from gwatch.sass.scoreboards import Waits, producers, result_board, timed
from gwatch.sass.uses import CodeView

if TYPE_CHECKING:
    from gwatch.cuda.binary import Cubin, KernelDef
    from gwatch.rewrite.homes import Places
    from gwatch.sass.isa import Isa

NEVER_LANDS = 1000
_STACK_LOAD = re.compile(r"(?:LDC|MOV|IMAD\.MOV\.U32) R1, (?:RZ, RZ, )?c\[0x0\]\[(0x[0-9a-f]+)\]$")
# Functions of the CUDA runtime that end the thread.
NEVER_RETURN = frozenset({"__assertfail", "__trap"})
EVERY_REGISTER = (1 << 255) - 1
# What a function that ends the thread may be handed: no compiler passes arguments in registers past these.
_ARGUMENTS = (1 << 32) - 1



class Surroundings:
    """Facts about ``kernel``, each computed when first asked for."""

    def __init__(self, cubin: Cubin, kernel: KernelDef, isa: Isa) -> None:
        self.cubin, self.kernel, self.isa = cubin, kernel, isa
        self.view = CodeView(isa, kernel.words)
        self._afterwards: dict[int, npt.NDArray[np.bool_]] = {}
        self._landings: dict[tuple[int, int], int] = {}
        self._lives: dict[frozenset[tuple[int, int]], Liveness] = {}
        self.places: dict[frozenset[int], Places] = {}

    @cached_property
    def cfg(self) -> Cfg:
        """The section's control flow."""
        size = self.isa.arch.instruction_size
        entries = [0, *(symbol.value // size for symbol in self.kernel.inner_functions)]
        return build_cfg(
            self.isa,
            self.kernel.words,
            [item for item in entries if item < len(self.kernel.words)],
            self.kernel.indirect_targets,
            self.kernel.pointer_callees,
        )

    @cached_property
    def convergence(self) -> Convergence:
        """Where all living lanes of a warp surely run together."""
        return Convergence(self.cfg, self.view)

    @cached_property
    def tables(self) -> Tables:
        """The loads behind indirect branches and calls. Raises UnsupportedError [jump-table] or [indirect-call]."""
        found = find_table_loads(self.view, self.cfg, self.kernel.table_bytes())
        tables = self.kernel.jump_tables
        for start, size in found.sizes.items():
            if tables is None or not tables.holds(start, size):
                load = next(index for index, place in found.loads.items() if place == start)
                raise UnsupportedError(
                    "jump-table",
                    f"{self.kernel.name}: the table at c[0x2][{start:#x}] that instruction {load} "
                    f"({load * self.isa.arch.instruction_size:#x}) reads can't be told from other constants",
                )
        return found

    @property
    def stride(self) -> int:
        """Bytes from a table of code offsets to the same table of the changed code, beside an untouched copy."""
        tables = self.kernel.jump_tables
        return tables.stride if tables is not None and self.tables.loads else 0

    @cached_property
    def waits(self) -> Waits:
        """Scoreboard waits and use."""
        return Waits(self.view)

    @cached_property
    def padding(self) -> int:
        """Index of the first instruction of the padding: the branch to itself and the NOPs (none where the code fills
        its last line) at the section's end.
        """
        first = len(self.view)
        if self.view.facts(first - 1).mnemonic == "NOP":
            keys = opcode_keys(self.kernel.words)
            other = np.flatnonzero(keys != keys[-1])
            first = int(other[-1]) + 1 if len(other) else 0
        flow = self.cfg.flow
        if first and flow.kind[first - 1] == Flow.BRANCH and flow.target[first - 1] == first - 1:
            first -= 1
        return first

    @cached_property
    def collective(self) -> frozenset[int]:
        """Indices inside a collective region: from behind ``WARPSYNC.COLLECTIVE`` up to its ``ENDCOLLECTIVE``.

        One thread runs those instructions for its whole warp, so code inserted there would not run per thread.
        """
        flow = self.cfg.flow
        ends: list[int] = []
        if "ENDCOLLECTIVE" in flow.mnemonics:
            keys = opcode_keys(self.kernel.words)
            ends = np.flatnonzero(keys == keys[flow.mnemonics["ENDCOLLECTIVE"]]).tolist()
        inside: set[int] = set()
        for start in np.flatnonzero(flow.kind == Flow.SPLIT).tolist():
            target = int(flow.target[start])
            end = next((item for item in ends if item > start), target - 1)
            inside.update(range(start + 1, end + 1))
        return frozenset(inside)

    @cached_property
    def max_threads(self) -> int | None:
        """Largest CTA that the kernel promises to accept, in threads; None when it states none."""
        bounds = self.kernel.max_threads
        return None if bounds is None else bounds[0] * bounds[1] * bounds[2]

    @cached_property
    def static_shared(self) -> int:
        """Bytes of shared memory that the kernel declares (a launch may add more)."""
        section = self.cubin.elf.find(f".nv.shared.{self.kernel.name}")
        return 0 if section is None else declared_shared(self.cubin.arch, section.size)

    @cached_property
    def relocated(self) -> frozenset[int]:
        """Indices of instructions that a relocation changes."""
        elf = self.cubin.elf
        size = self.isa.arch.instruction_size
        return frozenset(
            item.offset // size
            for section in elf.relocation_sections(self.kernel.section_index)
            for item in elf.relocations(section)
        )

    @cached_property
    def returns(self) -> dict[int, int]:
        """Instructions that load a return address as an immediate."""
        return return_addresses(self.view, self.cfg, self.relocated) | self.computed.returns

    @cached_property
    def computed(self) -> Computed:
        """Return addresses computed from the code's own place. Raises UnsupportedError [pc-arithmetic]."""
        return computed_returns(self.view, self.cfg)

    @cached_property
    def leaves(self) -> list[int]:
        """Indices of calls that leave the section."""
        found: list[int] = np.flatnonzero(self.cfg.flow.kind == Flow.CALL_OUT).tolist()
        return found

    @cached_property
    def stack_pointer(self) -> int | None:
        """The last instruction that sets up R1 as the stack pointer when the kernel is entered; behind it, R1 holds the
        lowest address in use of the thread's local memory. None when R1 is used in any other way.
        """
        arch = self.isa.arch
        writers = self.view.writers("R", STACK_POINTER).tolist()
        last = None
        for number, index in enumerate(writers):
            facts = self.view.facts(index)
            text = facts.text.rstrip(" ;")
            load = _STACK_LOAD.match(text)
            if load and int(load[1], 16) == arch.stack_offset and number == 0 and self._straight(index):
                last = index
            elif last is None or step_of(text) is None:
                return None
            elif self._straight(index):
                last = index
        return last

    @cached_property
    def stack_reload(self) -> str | None:
        """The instruction that loads R1, where nobody waits for it because nobody uses R1: code that does must load it
        again, to the same value, and wait.
        """
        writers = self.view.writers("R", STACK_POINTER).tolist()
        if self.stack_pointer is None or len(writers) != 1:
            return None
        announced = int(self.view.control["write_scoreboard"][writers[0]]) != NO_SCOREBOARD
        facts = self.view.facts(writers[0])
        return None if announced or facts.kind == "fixed" else facts.text.rstrip(" ;")

    @cached_property
    def parking(self) -> bool:
        """Whether words below the kernel's frame stay untouched while it runs: R1 is set up once, at the entry, and no
        call leaves the section and comes back.
        """
        last = self.stack_pointer
        if last is None or self.view.writers("R", STACK_POINTER).tolist()[-1] > last:
            return False
        return not any(callee.returns for callee in self.callees.values())

    @cached_property
    def frame(self) -> int:
        """Bytes by which the entry moves R1 down, where it is the stack pointer."""
        found = [step_of(self.view.facts(index).text) for index in self.view.writers("R", STACK_POINTER).tolist()]
        return -sum(step for step in found if step is not None)

    def _straight(self, index: int) -> bool:
        """Whether the kernel runs from its entry to ``index`` without a branch or join."""
        return not self.cfg.leaders[1 : index + 1].any() and not self.cfg.predecessors(0)

    @cached_property
    def functions(self) -> dict[str, KernelDef]:
        """Device functions with sections of their own that the kernel may call."""
        return self.cubin.get_map_function_def() if self.leaves else {}

    @cached_property
    def function_views(self) -> list[CodeView]:
        """Their code."""
        return [CodeView(self.isa, function.words) for function in self.functions.values()]

    @cached_property
    def first_free(self) -> int:
        """The first general register that neither the kernel nor a function it may call names: compilers name none of
        the last two that a count gives, but others might.
        """
        counts = [
            self.kernel.register_count,
            *(function.register_count for function in self.functions.values()),
        ]
        views = [] if self.budgets.changes else [self.view, *self.function_views]
        highest = max((number for view in views for number in view.named("R", certain=True)), default=-1)
        return max(0, max(counts) - SPARE, highest + 1)

    def named(self, file: str) -> frozenset[int]:
        """Registers of ``file`` that the kernel's code or that of functions it may call names.

        Raises UnsupportedError ``[word-unknown]`` when a word can't be read.
        """
        out: set[int] = set()
        for view in (self.view, *self.function_views):
            bad = [index for index in view.incomplete() if not view.facts(index).known]
            if bad:
                raise UnsupportedError(
                    "word-unknown",
                    f"{self.kernel.name}: instruction {bad[0]} can't be read, so which {file} registers are free "
                    "can't be told",
                )
            out |= view.named(file)
        return frozenset(out)

    @cached_property
    def predicate_liveness(self) -> Liveness:
        """Which predicates matter where. Code outside the section is taken to neither read nor write its caller's."""
        return Liveness(self.cfg, self.view, "P")

    @cached_property
    def callees(self) -> dict[int, Callee]:
        """What the code behind each call that leaves the section may do to general registers."""
        unlisted = [index for index in self.cfg.indirect if self.cfg.flow.kind[index] == Flow.CALL_INDIRECT]
        out = {index: Callee(EVERY_REGISTER, EVERY_REGISTER, EVERY_REGISTER) for index in unlisted}
        if not self.leaves:
            return out
        named = self._named_callees()
        outside = self._outside_functions()
        inside = 0
        for view in self.function_views:
            for register in view.named("R"):
                inside |= 1 << register
        lost = EVERY_REGISTER
        for file, register in survivors(self.isa.arch):
            if file == "R":
                lost &= ~(1 << register)
        for index in self.leaves:
            loaded = self._loaded_callees(index)
            names = {named[index]} if index in named else loaded or outside | self.functions.keys()
            reads = uses = touches = 0
            for name in names:
                if name in NEVER_RETURN:
                    reads |= _ARGUMENTS
                elif name in outside:
                    # What it leaves alone it may put away and use in between.
                    reads, uses, touches = reads | lost, EVERY_REGISTER, touches | lost
                else:
                    reads, uses, touches = reads | inside, uses | inside, touches | inside
            out[index] = Callee(reads, uses, touches, not names or bool(names - NEVER_RETURN))
        return out

    def _named_callees(self) -> dict[int, str]:
        """Instruction index -> the symbol that a relocation there names."""
        elf = self.cubin.elf
        size = self.isa.arch.instruction_size
        return {
            item.offset // size: elf.symbols[item.symbol].name
            for section in elf.relocation_sections(self.kernel.section_index)
            for item in elf.relocations(section)
        }

    def _outside_functions(self) -> frozenset[str]:
        """Names of functions that the cubin uses without holding them."""
        return frozenset(
            symbol.name
            for symbol in self.cubin.elf.symbols
            if symbol.section == 0 and symbol.kind == STT_FUNC and symbol.name
        )

    def liveness(self, asked: dict[int, int]) -> Liveness:
        """Which general registers matter where, ``asked`` (index -> mask) being read by inserted code as well."""
        wanted = frozenset(item for item in asked.items() if item[1])
        if wanted not in self._lives:
            reads = {index: callee.reads for index, callee in self.callees.items()}
            self._lives[wanted] = Liveness(self.cfg, self.view, "R", reads, asked)
        return self._lives[wanted]

    @cached_property
    def touches(self) -> list[int]:
        """Per instruction: general registers that it, or the code that it calls, may read or change."""
        masks = self.view.masks("R")
        found = [a | b for a, b in zip(masks.reads, masks.writes, strict=True)]
        for index, callee in self.callees.items():
            found[index] |= callee.reads | callee.touches
        return found

    @cached_property
    def unready(self) -> tuple[list[int], list[int]]:
        """:meth:`gwatch.sass.flight.Flights.masks`."""
        return self.flights.masks()

    @cached_property
    def wait_masks(self) -> list[int]:
        """Per instruction: scoreboards waited to zero."""
        found: list[int] = self.waits.mask.tolist()
        return found

    @cached_property
    def overwritten(self) -> list[int]:
        """Per instruction: general registers that it, or the code that it calls, may write."""
        writes = list(self.view.masks("R").writes)
        for index, callee in self.callees.items():
            writes[index] |= callee.uses
        return writes

    @cached_property
    def exposed(self) -> int:
        """General registers that code behind a call out of the section may use for itself."""
        mask = 0
        for callee in self.callees.values():
            mask |= callee.uses
        return mask

    @cached_property
    def flights(self) -> Flights:
        """General registers that something in flight still touches."""
        return Flights(self.cfg, self.view, self.waits)

    @cached_property
    def budgets(self) -> Budgets:
        """How many registers a warp owns where (setmaxnreg)."""
        return Budgets(self.cfg, self.view, self.kernel.register_count)

    def idle_predicates(self, index: int) -> list[int]:
        """Predicates whose value isn't needed any more at instruction ``index``: first those that no write can still
        be on its way to, then those that inserted code must wait for.
        """
        live = self.predicate_liveness.live_in(index)
        ranked = [
            (self._landing(index, number), -number)
            for number in range(self.isa.arch.predicate_true)
            if not live >> number & 1
        ]
        return [-number for cost, number in sorted(ranked) if cost < NEVER_LANDS]

    def settling_predicates(self, index: int) -> bool:
        """Whether all predicates can be waited for at instruction ``index``."""
        return all(
            self._landing(index, number) < NEVER_LANDS for number in range(self.isa.arch.predicate_true)
        )

    def _landing(self, index: int, predicate: int) -> int:
        """Issue cycles (or a scoreboard wait, counted as 20) until the predicate's last write has landed."""
        known = self._landings.get((index, predicate))
        if known is None:
            # Every attempt at placing a site asks again, and large kernels take long to search.
            known = self._landings[index, predicate] = self._find_landing(index, predicate)
        return known

    def _find_landing(self, index: int, predicate: int) -> int:
        latency = latency_for(self.isa.arch.latency)
        try:
            found = producers(self.cfg, self.view, self.waits, index, "P", predicate)
        except UnsupportedError:
            return NEVER_LANDS
        cost = 0
        for item in found:
            facts = self.view.facts(item.index)
            board = result_board(self.view, item.index, "P")
            if timed(self.view, item.index):
                cost = max(cost, latency.settled(latency_class(facts.opcode), "P") - item.distance)
            elif facts.kind == "async" or board == NO_SCOREBOARD:
                return NEVER_LANDS
            elif not item.waited >> board & 1:
                cost = max(cost, 20)
        return cost

    def refuse(self, state: bool, twin: bool) -> None:
        """Raise UnsupportedError by name for what can't be rewritten yet."""
        name = self.kernel.name
        check_supported(self.cubin.elf, self.kernel.section_index)
        flow = self.cfg.flow
        for mnemonic, code, what in (
            ("JMX", "jump-table", "an indirect jump"),
            ("JMP", "jump-table", "an absolute jump"),
            ("JMXU", "jump-table", "an indirect jump"),
            ("RPCMOV", "pc-arithmetic", "code that writes the return pc"),
        ):
            if mnemonic in flow.mnemonics:
                index = flow.mnemonics[mnemonic]
                raise UnsupportedError(
                    code,
                    f"{name} has {what} (instruction {index}, "
                    f"0x{index * self.cfg.instruction_size:x}): not rewritten yet",
                )
        self._refuse_damage()
        refuse_relative_returns(self.view, self.cfg)
        _ = self.tables
        if self.returns is not None and twin and self.kernel.inner_functions:
            self._refuse_inner_references()

    def _refuse_damage(self) -> None:
        """What no compiler writes and the analyses can't make sense of: scoreboards and registers that don't exist."""
        for field in ("write_scoreboard", "read_scoreboard"):
            boards = self.view.control[field]
            wrong = np.flatnonzero((boards >= SCOREBOARDS) & (boards != NO_SCOREBOARD))
            if len(wrong):
                index = int(wrong[0])
                raise UnsupportedError(
                    "control-illegal",
                    f"{self.kernel.name} instruction {index} (0x{index * self.cfg.instruction_size:x}) takes "
                    f"scoreboard {int(boards[index])} of 0 to {SCOREBOARDS - 1}",
                    "the code is damaged; `gwatch check` lists what else is wrong",
                )
        highest = max(self.view.named("R", certain=True), default=-1)
        if highest >= self.kernel.register_count and not self.budgets.changes:
            raise UnsupportedError(
                "register-count",
                f"{self.kernel.name} uses R{highest} and states {self.kernel.register_count} registers",
                "the cubin is damaged; `gwatch check` lists what else is wrong",
            )

    def _refuse_inner_references(self) -> None:
        """With a twin a function inside the section exists twice: nothing outside may name it."""
        elf = self.cubin.elf
        inner = {symbol.index: symbol.name for symbol in self.kernel.inner_functions}
        for section in elf.relocation_sections():
            if not elf.section(section.info).flags & SHF_ALLOC:
                continue
            for item in elf.relocations(section):
                if item.symbol in inner:
                    raise UnsupportedError(
                        "inner-function",
                        f"{inner[item.symbol]} inside {self.kernel.name} is named by a "
                        "relocation, so an untouched copy of the kernel can't be kept beside it",
                    )

    def outside_call(self, sites: Iterable[int]) -> int | None:
        """The first call after which code outside the cubin may run and come back before one of the instructions
        ``sites``; None when there is none. Only what the ABI keeps survives it (:mod:`gwatch.sass.abi`).
        """
        wanted = sorted(set(sites))
        if not self.leaves or not wanted:
            return None
        named, outside = self._named_callees(), self._outside_functions()
        for index in self.leaves:
            callees = {named[index]} if index in named else self._loaded_callees(index) or outside
            if (callees & outside) - NEVER_RETURN and any(self._runs_after(index, site) for site in wanted):
                return index
        return None

    def _loaded_callees(self, index: int) -> set[str]:
        """Names of the functions whose address the call at ``index`` loads from bank 4; empty where that isn't sure."""
        places = address_loads(self.view, self.cfg, index)
        elf = self.cubin.elf
        bank = elf.find(".nv.constant4")
        if not places or bank is None:
            return set()
        named = {
            item.offset: elf.symbols[item.symbol].name
            for section in elf.relocation_sections(bank.index)
            for item in elf.relocations(section)
        }
        return {named[place] for place in places} if places <= named.keys() else set()

    def _runs_after(self, call: int, site: int) -> bool:
        """Whether ``site`` may run after ``call`` came back."""
        if call not in self._afterwards:
            reached = self.cfg.reachable(self.cfg.successors(call))
            returns = np.flatnonzero(reached & (self.cfg.flow.kind == Flow.RETURN)).tolist()
            if any(set(self.cfg.successors(index)) <= {index + 1} for index in returns):
                # It returns from a function of this section whose callers aren't known: anything may follow.
                reached = np.ones_like(reached)
            self._afterwards[call] = reached
        return bool(self._afterwards[call][site])
