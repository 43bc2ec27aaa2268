"""The cubin object of the seed API: fill, parse, look kernels up, edit, dump. Needs no driver and no GPU."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from gwatch._files import write_atomically
from gwatch.cuda.binary.elf import SHF_EXECINSTR, SHT_PROGBITS, STO_CUDA_ENTRY, STT_FUNC, Elf
from gwatch.cuda.binary.kernel import KernelDef
from gwatch.errors import CubinError, CubinNotFound, KernelError
from gwatch.sass import nvdisasm
from gwatch.sass.arch import Arch, arch_by_name
from gwatch.sass.code import UNDECODED

_TKINFO = ".note.nv.tkinfo"
_ABI_OLD = 7


@dataclass(slots=True)
class CubinParams:
    """Facts of a parsed cubin. ``arch_version`` is like "90a"."""

    arch_version: str = ""


class Cubin:
    """A CUDA binary for one architecture.

    ``fill`` takes a path or the bytes, ``parse`` reads them; kernels are then looked up by name or pattern.
    """

    def __init__(self, gw_instance: object = None) -> None:
        """``gw_instance`` is accepted for compatibility and unused."""
        del gw_instance
        self._reset("cubin", None)

    def _reset(self, source: str, data: bytes | None) -> None:
        self.params = CubinParams()
        self._source = source
        self._data = data
        self._elf: Elf | None = None
        self._arch: Arch | None = None
        self._kernels: dict[str, KernelDef] = {}
        self._functions: dict[str, KernelDef] = {}

    @classmethod
    def from_bytes(cls, data: bytes, name: str = "cubin") -> Cubin:
        """A parsed cubin from its bytes; ``name`` is used in messages. Raises CubinError."""
        cubin = cls()
        cubin.fill(data)
        cubin._source = name
        cubin.parse()
        return cubin

    @classmethod
    def from_file(cls, path: str | os.PathLike[str]) -> Cubin:
        """A parsed cubin from a file. Raises CubinNotFound, CubinError."""
        cubin = cls()
        cubin.fill(path)
        cubin.parse()
        return cubin

    # reading ------------------------------------------------------------------------------------------------

    def fill(self, source: str | os.PathLike[str] | bytes | bytearray | memoryview) -> None:
        """Take the image from a path or from bytes; :meth:`parse` has to follow. Raises CubinNotFound."""
        if isinstance(source, bytes | bytearray | memoryview):
            data, name = bytes(source), "cubin"
        else:
            path = Path(source)
            if path.exists() and not path.is_file():
                # Reading a device or a pipe may never end.
                raise CubinError("cubin-unreadable", f"{path} is not a regular file", "name the cubin itself")
            try:
                data, name = path.read_bytes(), str(path)
            except (FileNotFoundError, NotADirectoryError):
                raise CubinNotFound("cubin-not-found", f"no such file: {path}", "check the path") from None
            except OSError as error:
                raise CubinError("cubin-unreadable", f"cannot read {path}: {error.strerror}") from error
        self._reset(name, data)

    def parse(self) -> None:
        """Read containers, architecture and kernels. Raises CubinError with a stable code for any damage."""
        if self._data is None:
            raise CubinError("cubin-empty", "nothing to parse", "call fill(path or bytes) first")
        elf = Elf(self._data, self._source)
        arch = arch_by_name(_arch_name(elf))
        kernels: dict[str, KernelDef] = {}
        functions: dict[str, KernelDef] = {}
        for symbol in elf.symbols:
            if symbol.kind != STT_FUNC or not 0 < symbol.section < len(elf.sections):
                continue
            section = elf.sections[symbol.section]
            if not (section.type == SHT_PROGBITS and section.flags & SHF_EXECINSTR):
                continue
            if symbol.other & STO_CUDA_ENTRY:
                if symbol.name in kernels:
                    raise CubinError(
                        "kernel-duplicate", f"{self._source}: two kernels are named {symbol.name}"
                    )
                if symbol.value != 0:
                    raise CubinError(
                        "kernel-offset",
                        f"{self._source}: kernel {symbol.name} starts at {symbol.value:#x} of its section",
                    )
                kernels[symbol.name] = KernelDef(elf, arch, symbol)
            elif symbol.value == 0 and symbol.size == section.size:
                functions[symbol.name] = KernelDef(elf, arch, symbol)
        self._elf, self._arch = elf, arch
        self._kernels, self._functions = kernels, functions
        self.params = CubinParams(f"{arch.number}{arch.suffix}")

    def _require_parsed(self) -> Elf:
        if self._elf is None:
            raise CubinError("cubin-not-parsed", "the cubin was not parsed", "call parse() first")
        return self._elf

    @property
    def elf(self) -> Elf:
        """The parsed container. Raises CubinError [cubin-not-parsed]."""
        return self._require_parsed()

    @property
    def data(self) -> bytes:
        """The image's bytes. Raises CubinError [cubin-empty]."""
        if self._data is None:
            raise CubinError("cubin-empty", "the cubin holds no image", "call fill(path or bytes) first")
        return self._data

    @property
    def name(self) -> str:
        """Where the image came from, as used in messages."""
        return self._source

    @property
    def arch(self) -> Arch:
        """The architecture the code was compiled for. Raises CubinError [cubin-not-parsed]."""
        if self._arch is None:
            raise CubinError("cubin-not-parsed", "the cubin was not parsed", "call parse() first")
        return self._arch

    @property
    def abi_version(self) -> int:
        """ELF ABI version: 7 (CUDA 11 and 12) or 8 (12.8 and later)."""
        return self.elf.header.abi_version

    # kernels ------------------------------------------------------------------------------------------------

    def get_map_kernel_def(self) -> dict[str, KernelDef]:
        """Name -> kernel, in symbol order."""
        self._require_parsed()
        return dict(self._kernels)

    def get_map_function_def(self) -> dict[str, KernelDef]:
        """Name -> device function with a code section of its own (not launchable)."""
        self._require_parsed()
        return dict(self._functions)

    def get_kerneldef_by_name(self, name: str) -> KernelDef:
        """Kernel (or device function with its own section) by mangled name.

        Raises KernelError [kernel-not-found] with the nearest names.
        """
        self._require_parsed()
        found = self._kernels.get(name) or self._functions.get(name)
        if found is None:
            raise self._not_found(f"is named {name!r}", name)
        return found

    def get_kerneldef_by_regex(self, pattern: str) -> KernelDef:
        """The one kernel whose mangled name contains a match of ``pattern``; an exact name wins.

        Raises KernelError [kernel-pattern], [kernel-not-found] (nearest names) or [kernel-ambiguous] (all
        matches).
        """
        self._require_parsed()
        if pattern in self._kernels:
            return self._kernels[pattern]
        try:
            compiled = re.compile(pattern)
        except re.error as error:
            raise KernelError("kernel-pattern", f"{pattern!r} is not a regular expression: {error}") from None
        matches = [name for name in self._kernels if compiled.search(name)]
        if not matches:
            raise self._not_found(f"matches {pattern!r}", pattern)
        if len(matches) > 1:
            there = f"{len(matches)} kernels of {self._source}: {_listed(matches)}"
            raise KernelError(
                "kernel-ambiguous",
                f"{pattern!r} matches {there}" if pattern else f"no kernel is named, and there are {there}",
                "name one by a pattern (^name$ matches a whole name)",
                matches,
            )
        return self._kernels[matches[0]]

    def _not_found(self, wanted: str, name: str) -> KernelError:
        import difflib

        names = list(self._kernels)
        if not names:
            return KernelError("kernel-not-found", f"{self._source} has no kernel", "give a cubin that has one")
        bare = re.sub(r"[^\w]+", "", name)
        close = [n for n in names if bare and bare.lower() in n.lower()]
        close += [n for n in difflib.get_close_matches(bare, names[:2000], n=5, cutoff=0.3) if n not in close]
        if close:
            hint = f"nearest of {len(names)}: {_listed(close, 5)}"
        else:
            hint = f"the {len(names)} kernels are: {_listed(names, 5)}"
        return KernelError("kernel-not-found", f"no kernel of {self._source} {wanted}", hint, close or names[:20])

    # editing ------------------------------------------------------------------------------------------------

    def _edit(self, kernel: str | KernelDef, inserted: dict[int, list[int]], deleted: frozenset[int]) -> None:
        from gwatch.cuda.binary.edit import edit_instructions

        found = self.get_kerneldef_by_name(kernel if isinstance(kernel, str) else kernel.name)
        image, source = edit_instructions(self.data, found, inserted, deleted), self._source
        self._reset(source, image)
        self.parse()

    def insert_instruction(
        self, kernel: str | KernelDef, pc: int, instruction: int | bytes | str, insert_before: bool = True
    ) -> None:
        """Insert one instruction; everything that holds a code address moves along.

        ``pc`` is an instruction *index*; ``instruction`` a 128-bit word, 16 bytes, or SASS text (encoded with
        the default control word). ``insert_before=False`` puts it behind instruction ``pc``. Kernel objects
        got before the call keep describing the old image. Raises by name what can't be moved
        (UnsupportedError).
        """
        from gwatch.cuda.binary.edit import word_of

        found = self.get_kerneldef_by_name(kernel if isinstance(kernel, str) else kernel.name)
        index = pc if insert_before else pc + 1
        found.check_index(pc)
        self._edit(found, {index: [word_of(found, instruction, index)]}, frozenset())

    def delete_instruction(self, kernel: str | KernelDef, pc: int) -> None:
        """Delete the instruction at *index* ``pc``; a branch to it reaches the next one.

        Raises UnsupportedError [deleted-instruction] where an attribute or relocation names it.
        """
        found = self.get_kerneldef_by_name(kernel if isinstance(kernel, str) else kernel.name)
        found.check_index(pc)
        self._edit(found, {}, frozenset({pc}))

    # writing ------------------------------------------------------------------------------------------------

    def clone(self) -> Cubin:
        """An independent cubin with the same image."""
        return Cubin.from_bytes(self.data, self._source)

    def serialize(self) -> bytes:
        """The image's bytes."""
        return self.data

    def dump(self, path: str | os.PathLike[str], do_check: bool = False) -> None:
        """Write the image; the file appears whole or not at all.

        ``do_check`` reads every instruction first, with gwatch's own tables and, where it is installed, with nvdisasm;
        CubinError [word-unknown] or ToolError [nvdisasm-failed] when that fails.
        """
        if do_check:
            self._check()
        write_atomically(Path(path), self.data)


    def _check(self) -> None:
        for kernel in (*self._kernels.values(), *self._functions.values()):
            for index, text in enumerate(kernel.texts):
                if text.startswith(UNDECODED):
                    raise CubinError("word-unknown", f"{self._source}: instruction {index} of {kernel.name} is {text}")
        if nvdisasm.present():
            nvdisasm.disassemble_cubin(self.data, "-c")


def _listed(names: list[str], limit: int = 20) -> str:
    shown = ", ".join(names[:limit])
    return shown if len(names) <= limit else f"{shown} and {len(names) - limit} more"


def _arch_name(elf: Elf) -> str:
    """``sm_90a`` and the like from ``e_flags`` and, where CUDA 13 keeps the suffix, from the toolkit note."""
    flags, abi = elf.header.flags, elf.header.abi_version
    if abi <= _ABI_OLD:
        return f"sm_{flags & 0xFF}{'a' if flags & 0x800 else ''}"
    number = flags >> 8 & 0xFF
    note = elf.find(_TKINFO)
    if note is not None:
        match = re.search(rb"-arch[ =]+(?:sm|compute)_(\d+)([af]?)\b", elf.content(note))
        if match is not None and int(match[1]) == number:
            return f"sm_{number}{match[2].decode()}"
    return f"sm_{number}{'a' if flags & 8 else ''}"
