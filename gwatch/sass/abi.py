"""Which registers survive a call into code that isn't in the cubin (vprintf, malloc, free, ... of the driver).

Observed in nvcc 13.0 output: kernels that keep 40 and 120 values, a uniform descriptor and predicates alive across such
a call, compiled for sm_75, 80, 90, 100 and 120; what the compiler leaves in a register there, the callee must leave
alone. Calls of the driver's functions: R16 to R19 and every register from R22 up, and UR36 to UR62; on sm_75 as for
calls of a function that the compiler doesn't see: R16 to R19, R22 to R31, and of each eight registers from R32 on the
upper four, and no uniform register. R20 and R21 hold the return address. Predicates never survive.
"""

from __future__ import annotations

from gwatch.sass.arch import Arch
from gwatch.sass.uses import Key

_LOW = frozenset({*range(16, 20), *range(22, 32)})
_UNIFORM = range(36, 63)


def survivors(arch: Arch) -> frozenset[Key]:
    """The registers that code outside the cubin leaves alone when it is called and comes back."""
    # The oldest architecture, which is the one without memory descriptors, treats all callees alike.
    spares = arch.descriptor_offset is not None
    high = {number for number in range(32, arch.max_registers) if spares or number & 4}
    uniform = _UNIFORM if spares else range(0)
    return frozenset({("R", number) for number in _LOW | high} | {("UR", number) for number in uniform})
