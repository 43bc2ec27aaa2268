"""``gwatch disasm``: the code of a cubin, or bare instruction words, as text that ``gwatch asm`` takes back."""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gwatch._kinds import CUBIN, expect
from gwatch.errors import ParseError, UsageError, naming, printable

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from gwatch.sass.arch import Arch
    from gwatch.sass.asm import Listed


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("file", type=Path, metavar="FILE", help="cubin, or (--raw) 16-byte little-endian words")
    parser.add_argument("--kernel", default="", metavar="REGEX", help="only kernels whose name matches")
    parser.add_argument("--raw", action="store_true", help="FILE holds bare instruction words; needs --arch")
    parser.add_argument("--arch", default="", metavar="SM", help="architecture of bare words, like sm_90a")
    parser.add_argument("--words", action="store_true", help="write every word out behind its text")
    parser.add_argument("--labels", action="store_true", help="name the targets of branches")
    parser.add_argument("--plain", action="store_true", help="nvdisasm's text, which hides some operands")
    parser.add_argument("--json", action="store_true", help="instructions as JSON")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="write there, not to standard output")


def run(args: argparse.Namespace) -> int:
    """Run the command; 0 done."""
    with naming(args.file):
        return _run(args)


def _run(args: argparse.Namespace) -> int:
    from gwatch.cli.output import put
    from gwatch.sass.asm import disassemble, write_unit

    arch, units = _units(args)
    if args.json:
        kernels = [{"name": name, "instructions": _plain(disassemble(arch, words, not args.plain))}
                   for name, words in units]
        put(json.dumps({"target": arch.name, "kernels": kernels}) + "\n", args.output)
        return 0
    out = [f".target {arch.name}\n"]
    for name, words in units:
        listed = disassemble(arch, words, not args.plain)
        out.append("\n" + write_unit(arch, printable(name), listed, args.words, args.labels))
    put("".join(out), args.output)
    return 0


def _units(args: argparse.Namespace) -> tuple[Arch, list[tuple[str, npt.NDArray[np.uint64]]]]:
    from gwatch.sass.arch import arch_by_name

    if args.raw:
        if not args.arch:
            raise UsageError("arch-needed", "bare words do not say their architecture", "give --arch sm_90a")
        expect(args.file)
        return arch_by_name(args.arch), [("", read_words(args.file))]
    from gwatch.cuda.binary import Cubin

    if args.arch:
        raise UsageError("usage", "--arch is for --raw: a cubin says its own", "leave it out, or give --raw")
    try:
        pattern = re.compile(args.kernel)
    except re.error as error:
        raise ParseError("kernel-pattern", f"{args.kernel!r} is not a regular expression: {error}") from None
    expect(args.file, CUBIN)
    cubin = Cubin.from_file(args.file)
    found = {**cubin.get_map_kernel_def(), **cubin.get_map_function_def()}
    chosen = [(name, kernel.words) for name, kernel in found.items() if pattern.search(name)]
    if not chosen:
        cubin.get_kerneldef_by_regex(args.kernel)
    return cubin.arch, chosen


def read_words(path: Path) -> npt.NDArray[np.uint64]:
    """The words of a raw file. Raises UsageError ``[words-file]``."""
    import numpy as np

    try:
        data = path.read_bytes()
    except OSError as error:
        raise UsageError("words-file", f"cannot read {path}: {error.strerror}", "check the path") from None
    if not data or len(data) % 16:
        raise UsageError("words-file", f"{path} has {len(data)} bytes, not whole words of 16",
                         "--raw takes a file of bare instruction words alone")
    return np.frombuffer(data, "<u8").reshape(-1, 2)


def _plain(listed: list[Listed]) -> list[dict[str, Any]]:
    from dataclasses import asdict

    return [{"pc": 16 * index, "word": f"{one.word:#034x}", "text": one.text,
             "control": asdict(one.control) if one.control is not None else None, "target": one.target}
            for index, one in enumerate(listed)]
