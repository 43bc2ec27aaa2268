"""The example of a user's own snippet: count visits through an address in constant memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from records import named

from gwatch.cuda.binary import Cubin
from gwatch.rewrite.verify import verify

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "examples"))

from visit_counter import VISIT, count_visits  # noqa: E402


def test_the_example_counts_with_a_snippet_of_ten_lines(corpus_sm90: list[Path]) -> None:
    assert VISIT.text.count("\n") <= 10
    image = named(corpus_sm90, "jax_cuda13_plugin-bb4300356c24").read_bytes()
    (kernel,) = Cubin.from_bytes(image).get_map_kernel_def()
    index = 38  # @P0 VIADD R2, R2, 0x1: counted only where P0 holds
    result = count_visits(image, kernel, index)
    patched = Cubin.from_bytes(result.data).get_kerneldef_by_name(kernel)
    (site,) = result.sites
    texts = [patched.text(site.first + place) for place in range(site.count)]
    guard = site.instruction.split()[0].strip("@")
    (test,) = [text for text in texts if "ISETP" in text]
    assert guard == "P0" and test.endswith(f", {guard}")
    assert any("REDG.E.ADD.STRONG.GPU" in text and text.startswith("@P") for text in texts)
    symbols = {symbol.name: symbol for symbol in Cubin.from_bytes(result.data).elf.symbols}
    assert symbols["visits"].size == 8
    with_symbol = Cubin.from_bytes(result.data).clone().data
    assert with_symbol == result.data


def test_the_example_proves_right_and_runs_as_a_program(corpus_sm90: list[Path], tmp_path: Path) -> None:
    from gwatch.cuda.binary.constants import add_constant3

    source = named(corpus_sm90, "jax_cuda13_plugin-bb4300356c24")
    image = source.read_bytes()
    (kernel,) = Cubin.from_bytes(image).get_map_kernel_def()
    with_constant, _ = add_constant3(image, "visits", 8, bytes(8))
    verify(with_constant, count_visits(image, kernel, 38))
    target = tmp_path / "out.cubin"
    done = subprocess.run(
        [
            sys.executable,
            str(ROOT / "examples" / "visit_counter.py"),
            str(source),
            kernel,
            "0x26",
            str(target),
        ],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
    )
    assert done.returncode == 0, done.stderr
    assert "0 reports" in done.stdout
    assert target.read_bytes() == count_visits(image, kernel, 38).data
