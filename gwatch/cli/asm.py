"""``gwatch asm``: text as ``gwatch disasm`` writes it to words, into a file of their own or into a cubin."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from gwatch._kinds import CUBIN, SASS, expect
from gwatch.errors import UsageError, naming

if TYPE_CHECKING:
    from gwatch.cuda.binary import Cubin
    from gwatch.sass.asm import AssemblyError, Unit


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("file", type=Path, metavar="FILE", help="assembly text (- for standard input)")
    parser.add_argument("--arch", default="", metavar="SM", help="architecture, where the text has no .target")
    parser.add_argument("--kernel", default="", metavar="NAME", help="only this kernel of the text")
    parser.add_argument("--cubin", type=Path, metavar="FILE",
                        help="put the code into this cubin's kernels of the same names and lengths; needs -o")
    parser.add_argument("--raw", action="store_true", help="write bare 16-byte words, also to standard output")
    parser.add_argument("--json", action="store_true", help="words, or what is wrong with the text, as JSON")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="write the words, or the cubin, there")


def run(args: argparse.Namespace) -> int:
    """Run the command; 0 done, 2 lines that cannot be assembled."""
    from gwatch.sass.arch import arch_by_name
    from gwatch.sass.asm import AssemblyError, assemble

    try:
        arch, units = assemble(_read(args.file), arch_by_name(args.arch) if args.arch else None)
    except AssemblyError as error:
        return _refuse(error, args)
    if args.kernel:
        units = [unit for unit in units if unit.name == args.kernel] or _no_kernel(args.kernel, units)
    if args.cubin is not None:
        _patch(args, units)
    else:
        _write(args, arch.name, units)
    return 0


def _read(path: Path) -> str:
    expect(path, SASS)
    try:
        return sys.stdin.read() if str(path) == "-" else path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise UsageError("asm-file", f"cannot read {path}: {reason}", "check the path") from None


def _refuse(error: AssemblyError, args: argparse.Namespace) -> int:
    for problem in error.problems:
        print(f"gwatch: {args.file}: {problem}", file=sys.stderr)
    if args.json:
        print(json.dumps(error.as_dict()))
    return 2


def _no_kernel(name: str, units: list[Unit]) -> list[Unit]:
    names = [unit.name for unit in units]
    raise UsageError("asm-kernel", f"the text has no kernel {name!r}", "it has " + (", ".join(names) or "none"), names)


def _patch(args: argparse.Namespace, units: list[Unit]) -> None:
    from gwatch._files import write_atomically
    from gwatch.cuda.binary import Cubin

    if args.output is None:
        raise UsageError("output-needed", "a patched cubin needs a file to go to", "give -o FILE")
    expect(args.cubin, CUBIN)
    with naming(args.cubin):
        cubin = Cubin.from_file(args.cubin)
        data = _patched(cubin, units, args)
    write_atomically(args.output, data)
    if args.json:
        print(json.dumps({"cubin": str(args.output), "kernels": [unit.name for unit in units]}))


def _patched(cubin: Cubin, units: list[Unit], args: argparse.Namespace) -> bytes:
    from gwatch.cuda.binary.patch import patch_words

    for unit in units:
        if not unit.name:
            names = list(cubin.get_map_kernel_def())
            raise UsageError("asm-kernel", "the text does not say which kernel it is", "write .kernel NAME", names)
        if unit.unscheduled:
            raise UsageError("asm-control", f"{args.file}: line {unit.unscheduled[0]} has no control word "
                             f"({len(unit.unscheduled)} such lines in {unit.name})",
                             "write one, like {stall 2, wait SB0}; what it leaves to luck would not run right")
        cubin = cubin.from_bytes(patch_words(cubin, unit.name, unit.words), str(args.cubin))
    return cubin.data


def _write(args: argparse.Namespace, target: str, units: list[Unit]) -> None:
    from gwatch._files import write_atomically

    words = [[f"{low | high << 64:#034x}" for low, high in unit.words.tolist()] for unit in units]
    if args.raw or args.output is not None:
        if len(units) > 1:
            raise UsageError("asm-kernel", f"the text has {len(units)} kernels", "choose one with --kernel, or --cubin",
                             [unit.name for unit in units])
        data = b"".join(unit.words.astype("<u8").tobytes() for unit in units)
        if args.output is not None:
            write_atomically(args.output, data)
        else:
            sys.stdout.buffer.write(data)
            return
    if args.json:
        named = [{"name": unit.name, "words": rows} for unit, rows in zip(units, words, strict=True)]
        print(json.dumps({"target": target, "kernels": named}))
    elif args.output is None:
        for rows in words:
            print("\n".join(rows))
