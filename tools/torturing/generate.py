"""Random CUDA kernels, the same ones for the same seed: loops, branches, switches, calls, shared memory, shuffles.

Every kernel takes (in, out, n) like those of kernels.cu, is free of races, and ends.
"""

from __future__ import annotations

import random

_HEAD = """#include <cstdint>
#define KERNEL(name) extern "C" __global__ void name(const uint32_t *__restrict__ in, uint32_t *__restrict__ out, int n)
__device__ __forceinline__ int place() { return blockIdx.x * blockDim.x + threadIdx.x; }
"""
_VARIABLES = "abcdef"


class _Writer:
    def __init__(self, rng: random.Random, functions: list[str]) -> None:
        self.rng, self.functions = rng, functions
        self.lines: list[str] = []
        self.counters = 0

    def expression(self, depth: int = 0) -> str:
        rng = self.rng
        if depth > 2 or rng.random() < 0.25:
            return rng.choice(
                [*_VARIABLES, *_VARIABLES, "i0", str(rng.randrange(1 << rng.randrange(1, 33))) + "u"]
            )
        one, two = self.expression(depth + 1), self.expression(depth + 1)
        return rng.choice(
            [
                f"({one} + {two})",
                f"({one} - {two})",
                f"({one} * {two})",
                f"({one} ^ {two})",
                f"({one} & {two})",
                f"({one} | {two})",
                f"({one} << ({two} & 15))",
                f"({one} >> ({two} & 15))",
                f"({one} / ({two} % 61 + 1))",
                f"min({one}, {two})",
                f"max({one}, {two})",
                f"({one} > {two} ? {one} : {two} + 1)",
                f"__popc({one})",
                f"__brev({one})",
                f"(uint32_t)__clz({one})",
                f"__funnelshift_l({one}, {two}, 7)",
                f"__umulhi({one}, {two})",
                f"__float_as_uint((float)({one} & 4095) * 1.5f + (float)({two} & 255))",
                f"(uint32_t)(int64_t)((double)({one} & 65535) * 0.75 - 3.0)",
                f"in[{one} & 0xffff]",
                *(f"{name}({one}, {two})" for name in self.functions),
            ]
        )

    def body(self, depth: int, indent: str, together: bool) -> None:
        """Statements; ``together``: all threads of the CTA are here."""
        rng = self.rng
        for _ in range(rng.randrange(1, 5)):
            kind = rng.random()
            target = rng.choice(_VARIABLES)
            if kind < 0.45 or depth > 2:
                self.lines.append(f"{indent}{target} = {self.expression()};")
            elif kind < 0.6:
                self.lines.append(f"{indent}if ({self.expression(1)} % {rng.choice([2, 3, 5])} == 0) {{")
                self.body(depth + 1, indent + "    ", False)
                if rng.random() < 0.5:
                    self.lines.append(f"{indent}}} else {{")
                    self.body(depth + 1, indent + "    ", False)
                self.lines.append(f"{indent}}}")
            elif kind < 0.75:
                self.counters += 1
                name = f"k{self.counters}"
                uniform = together and rng.random() < 0.5
                trips = str(rng.randrange(2, 7)) if uniform else f"(int)({self.expression(2)} & 7)"
                unroll = rng.choice(["#pragma unroll 1", "#pragma unroll 2", "#pragma unroll"])
                self.lines += [unroll, f"{indent}for (int {name} = 0; {name} < {trips}; ++{name}) {{"]
                self.lines.append(f"{indent}    {target} += {name};")
                self.body(depth + 1, indent + "    ", uniform)
                self.lines.append(f"{indent}}}")
            elif kind < 0.85:
                cases = rng.randrange(4, 11)
                self.lines.append(f"{indent}switch ({self.expression(2)} % {cases + 1}) {{")
                for number in range(cases):
                    self.lines.append(
                        f"{indent}case {number}: {rng.choice(_VARIABLES)} = {self.expression(1)}; break;"
                    )
                self.lines.append(f"{indent}default: {target} ^= 77; }}")
            elif together and kind < 0.93:
                lane = rng.choice([1, 2, 4, 8, 16])
                self.lines.append(
                    f"{indent}{target} += __shfl_xor_sync(~0u, {rng.choice(_VARIABLES)}, {lane});"
                )
            elif together:
                self.lines += [
                    f"{indent}__syncthreads();",
                    f"{indent}heap[threadIdx.x] = {rng.choice(_VARIABLES)};",
                    f"{indent}__syncthreads();",
                    f"{indent}{target} ^= heap[(threadIdx.x * 5 + {rng.randrange(64)}) % blockDim.x];",
                ]
            else:
                self.lines.append(f"{indent}{target} ^= {self.expression()};")


def source(seed: int, kernels: int = 4) -> str:
    """A file of ``kernels`` random kernels with their ``// TORTURE`` comments."""
    rng = random.Random(f"source {seed}")
    parts = [_HEAD]
    functions: list[str] = []
    for number in range(rng.randrange(3)):
        writer = _Writer(rng, list(functions))
        writer.body(1, "    ", False)
        name = f"f{seed}_{number}"
        head = f"__device__ __noinline__ uint32_t {name}(uint32_t a, uint32_t b)\n{{\n"
        head += "    uint32_t c = a ^ b, d = a + b, e = 3, f = b;\n    const uint32_t i0 = a;\n"
        head = head.replace("{name}", name)
        parts.append(
            head.replace(
                "uint32_t a, uint32_t b)", "uint32_t a, uint32_t b, const uint32_t *__restrict__ in)"
            )
            + "\n".join(writer.lines)
            + "\n    return a + b * 3 + c ^ d - e * f;\n}\n#define "
            + f"{name}(x, y) {name}(x, y, in)\n"
        )
        functions.append(name)
    for number in range(kernels):
        writer = _Writer(rng, functions)
        writer.body(0, "        ", True)
        threads = rng.choice([64, 96, 128, 256])
        spare = rng.choice(["", "", f" __launch_bounds__({threads}, {rng.choice([1, 2, 4])})"])
        parts.append(
            f"// TORTURE g{seed}_{number} grid={rng.randrange(2, 12)} block={threads}\n"
            f'extern "C" __global__ void{spare} g{seed}_{number}(const uint32_t *__restrict__ in, '
            "uint32_t *__restrict__ out, int n)\n{\n"
            "    __shared__ uint32_t heap[256];\n"
            "    uint32_t a = in[place()], b = a >> 5, c = place(), d = a * 3, e = 1, f = c ^ a;\n"
            "#pragma unroll 1\n    for (int i0 = 0; i0 < n; ++i0) {\n"
            + "\n".join(writer.lines)
            + "\n    }\n    out[place()] = a + b * 3 + (c ^ d) - e * f;\n}\n"
        )
    return "\n".join(parts)
