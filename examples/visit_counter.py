"""Count how often an instruction is reached, with a snippet of your own.

    python examples/visit_counter.py kernel.cubin KERNEL INDEX out.cubin

The patched cubin has a ``__constant__`` 64-bit variable ``visits``: set it (cuModuleGetGlobal, cuMemcpyHtoD)
to the address of a zeroed 32-bit counter in device memory. While it is 0 nothing is counted. Every thread
that passes the instruction with its guard true adds one.
"""

from __future__ import annotations

import sys
from pathlib import Path

from gwatch.cuda.binary import Cubin
from gwatch.cuda.binary.constants import add_constant3
from gwatch.rewrite import Rewriter, Rewritten, Snippet

VISIT = Snippet(
    """
    LDC.64 %address, c[0x3][{offset}]             // where to count, 0: don't
    ULDC.64 %memory, c[0x0][0x208]                // descriptor of global memory
    IMAD.MOV.U32 %one, RZ, RZ, 0x1
    ISETP.NE.AND %p0, PT, %address+1, RZ, %guard  // an address, and the instruction itself would run
    @%p0 REDG.E.ADD.STRONG.GPU desc[%memory][%address.64], %one
    """,
    registers={"address": 2, "one": 1},
    uniforms={"memory": 2},
    name="visit counter",
)


def count_visits(image: bytes, kernel: str, index: int, symbol: str = "visits") -> Rewritten:
    """The cubin ``image`` with visits of instruction ``index`` of ``kernel`` counted through ``symbol``."""
    image, offset = add_constant3(image, symbol, 8, bytes(8))
    rewriter = Rewriter(Cubin.from_bytes(image), kernel)
    rewriter.insert(index, VISIT, {"offset": offset})
    return rewriter.apply()


if __name__ == "__main__":
    if len(sys.argv) != 5:
        raise SystemExit(__doc__)
    source, kernel_name, where, target = sys.argv[1:]
    result = count_visits(Path(source).read_bytes(), kernel_name, int(where, 0))
    Path(target).write_bytes(result.data)
    print(f"{target}: {result.registers_before} -> {result.registers_after} registers; {result.check}")
