"""The seed API of cubins and kernels."""

from __future__ import annotations

import re
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from binary_support import DATA, load, with_dependent_mercury

import gwatch.cuda.binary as gw_binary
from gwatch.cuda.binary import Cubin
from gwatch.errors import CubinError, CubinNotFound, GWatchError, KernelError, SiteError, UsageError

ROOT = Path(__file__).resolve().parents[2]
MATMUL = ROOT / "examples" / "cuda" / "trace" / "matmul_sm90.cubin"


def test_the_documented_site_search_works_unchanged() -> None:
    source = (DATA / "holders.cu").read_text().splitlines()
    line = source.index("    p[i] = v + table[i & 3] + limits[n & 3];") + 1
    cubin = gw_binary.Cubin()
    cubin.fill(str(DATA / "holders_sm90.cubin"))
    cubin.parse()
    kernel_def = cubin.get_kerneldef_by_name("reach")
    kernel_def.parse_cfg()
    isize = kernel_def.cfg.instruction_size
    assert isize == 16
    candidates = [
        index for index in range(len(kernel_def.list_instructions))
        if (kernel_def.map_address_to_line.get(index * isize) or (None, None))[1] == line
    ]  # fmt: skip
    texts = [instruction.str(flatten=True) for instruction in kernel_def.list_instructions]
    assert candidates
    assert any("STG" in texts[i] for i in candidates) and not any("EXIT" in texts[i] for i in candidates)
    assert texts[0] == "LDC R1, c[0x0][0x28]"
    assert kernel_def.parse_cfg() is None and kernel_def.cfg.instruction_size == 16


def test_nothing_of_a_driver_is_imported() -> None:
    code = (
        "import sys, gwatch.cuda.binary as b; c = b.Cubin(); "
        f"c.fill({str(DATA / 'holders_sm90.cubin')!r}); c.parse(); "
        "print([m for m in sys.modules if m.split('.')[0] in ('torch', 'cupy') or m.startswith('cuda')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "[]"


def test_architecture_and_kernels_of_the_whole_corpus(corpus_all: list[Path]) -> None:
    kernels = instructions = 0
    abis = set()
    bases = {75: 0x160, 80: 0x160, 86: 0x160, 89: 0x160, 90: 0x210, 100: 0x380, 103: 0x380, 120: 0x380}
    for path in corpus_all:
        cubin = Cubin.from_file(path)
        assert f"sm_{cubin.params.arch_version}" == cubin.arch.name == path.name.split("-")[0]
        abis.add(cubin.abi_version)
        for kernel in cubin.get_map_kernel_def().values():
            assert 0 < kernel.register_count <= 255
            assert kernel.param_base == (bases[cubin.arch.number] if kernel.params else kernel.param_base)
            assert [p.ordinal for p in kernel.params] == list(range(len(kernel.params)))
            kernels += 1
            instructions += len(kernel.words)
        instructions += sum(len(f.words) for f in cubin.get_map_function_def().values())
    assert abis == {7, 8}
    # The open corpus holds this many (its listing, made with other tools, says the same).
    assert kernels == 1793
    assert instructions == 1_194_720


def test_the_suffix_of_cuda_13_files_comes_from_the_toolkit_note() -> None:
    assert load("holders_sm120.cubin").params.arch_version == "120"
    data = bytearray((DATA / "holders_sm90.cubin").read_bytes())
    at = data.index(b"-arch sm_90 ")
    data[at : at + 12] = b"-arch sm_90a"
    assert Cubin.from_bytes(bytes(data)).params.arch_version == "90a"


def test_words_and_instructions_agree_with_the_file() -> None:
    kernel = load("holders_sm90.cubin").get_kerneldef_by_name("swap")
    data = (DATA / "holders_sm90.cubin").read_bytes()
    start = kernel.section.offset
    assert kernel.words.shape == (kernel.section.size // 16, 2)
    for index, instruction in enumerate(kernel.list_instructions):
        assert instruction.bytes == data[start + 16 * index : start + 16 * index + 16]
        assert (instruction.index, instruction.pc) == (index, 16 * index)
    assert kernel.list_instructions[-1].str() == "NOP"
    assert [i.pc for i in kernel.list_instructions[2:4]] == [32, 48]
    assert kernel.map_pc_to_instruction[48] == kernel.list_instructions[3]
    with pytest.raises(IndexError):
        kernel.list_instructions[len(kernel.words)]
    with pytest.raises(ValueError, match="read-only"):
        kernel.words[0, 0] = np.uint64(1)


def test_branch_targets_are_absolute_addresses() -> None:
    kernel = load("holders_sm90.cubin").get_kerneldef_by_name("swap")
    last_branch = max(i for i, t in enumerate(kernel.texts) if t.startswith("BRA"))
    assert kernel.texts[last_branch] == f"BRA {16 * last_branch:#x}"


def test_the_long_form_of_an_instruction_shows_address_word_and_scheduling() -> None:
    instruction = load("holders_sm90.cubin").get_kerneldef_by_name("swap").list_instructions[0]
    first, second, third = instruction.str(flatten=False).splitlines()
    assert first == f"/*0000*/ {instruction.str()}"
    high, low = divmod(instruction.word, 1 << 64)
    assert second == f"/* {low:#018x} {high:#018x} */"
    assert third.startswith("Control(stall=")
    assert str(instruction) == instruction.str()


def test_parameters() -> None:
    kernel = load("holders_sm75.cubin").get_kerneldef_by_name("reach")
    assert kernel.mangled_prototype == "reach"
    assert kernel.list_param_sizes == [8, 4] and kernel.list_param_sizes_reversed == [4, 8]
    assert kernel.list_param_offsets == [0, 8] and kernel.list_param_offsets_reversed == [8, 0]
    assert kernel.param_base == 0x160
    assert kernel.max_threads is None and kernel.cluster_dim is None


def test_cluster_dimensions_that_the_code_fixes() -> None:
    cubin = Cubin.from_file(DATA.parents[1] / "scopes/data/hgmma_matmul.cubin")  # __cluster_dims__(2)
    assert cubin.get_kerneldef_by_name("hgmma_matmul").cluster_dim == (2, 1, 1)


def test_launch_bounds_of_a_real_kernel(corpus_sm90: list[Path]) -> None:
    path = next(p for p in corpus_sm90 if "xformers" in p.name)
    bounds = {k.max_threads for k in Cubin.from_file(path).get_map_kernel_def().values()}
    assert bounds == {(256, 1, 1), (384, 1, 1)} or all(b and b[1:] == (1, 1) for b in bounds)


def test_lookup_by_name_and_pattern() -> None:
    cubin = load("holders_sm90.cubin")
    assert set(cubin.get_map_kernel_def()) == {"reach", "speak", "swap", "halves", "choose"}
    assert cubin.get_kerneldef_by_regex("^sw").name == "swap"
    assert cubin.get_kerneldef_by_regex("reach").name == "reach"
    assert load("debug_sm90.cubin").get_kerneldef_by_name("_Z4stepf").is_entry is False


@pytest.mark.parametrize(
    ("pattern", "code", "said"),
    [
        ("s", "kernel-ambiguous", "swap, speak"),
        ("reahc", "kernel-not-found", "reach"),
        ("halv(es", "kernel-pattern", "regular expression"),
        ("zzz", "kernel-not-found", "choose"),
    ],
)
def test_patterns_that_name_no_one_kernel(pattern: str, code: str, said: str) -> None:
    with pytest.raises(KernelError) as caught:
        load("holders_sm90.cubin").get_kerneldef_by_regex(pattern)
    assert caught.value.code == code and said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_name_that_does_not_exist_lists_the_nearest() -> None:
    with pytest.raises(KernelError, match=r"\[kernel-not-found\].*nearest of 5: reach"):
        load("holders_sm90.cubin").get_kerneldef_by_name("reach2")


def test_a_missing_file_and_a_missing_parse() -> None:
    cubin = Cubin()
    with pytest.raises(CubinNotFound, match=r"\[cubin-not-found\] no such file: nowhere.cubin"):
        cubin.fill("nowhere.cubin")
    with pytest.raises(FileNotFoundError):
        cubin.fill("nowhere.cubin")
    with pytest.raises(CubinError, match=r"\[cubin-empty\]"):
        cubin.parse()
    cubin.fill((DATA / "debug_sm90.cubin").read_bytes())
    with pytest.raises(CubinError, match=r"\[cubin-not-parsed\]"):
        cubin.get_map_kernel_def()
    with pytest.raises(CubinError, match=r"\[cubin-unreadable\]"):
        cubin.fill(DATA)


def test_a_device_file_is_refused_instead_of_read_for_ever() -> None:
    with pytest.raises(CubinError, match=r"\[cubin-unreadable\] /dev/zero is not a regular file"):
        Cubin().fill("/dev/zero")


def test_registers_by_class() -> None:
    kernel = load("holders_sm90.cubin").get_kerneldef_by_name("swap")
    assert set(kernel.map_registers) == {"general", "predicate", "uniform_general", "uniform_predicate"}
    named = {int(n) for text in kernel.texts for n in re.findall(r"\bR(\d+)\b", text)}
    assert named <= kernel.map_registers["general"] <= named | {n + 1 for n in named}
    assert max(kernel.map_registers["general"]) == kernel.register_count - 3
    uniform = {int(n) for text in kernel.texts for n in re.findall(r"\bUR(\d+)\b", text)}
    assert uniform <= kernel.map_registers["uniform_general"] <= uniform | {n + 1 for n in uniform}


def test_clone_and_dump(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cubin = load("holders_sm90.cubin")
    copy = cubin.clone()
    assert copy.data == cubin.data and copy.get_kerneldef_by_name("swap") is not cubin.get_kerneldef_by_name(
        "swap"
    )
    target = tmp_path / "out.cubin"
    copy.dump(target, do_check=True)
    monkeypatch.setenv("GWATCH_NVDISASM", "/nowhere")
    copy.dump(target, do_check=True)
    assert target.read_bytes() == cubin.serialize()
    assert [p.name for p in tmp_path.iterdir()] == ["out.cubin"]
    with pytest.raises(UsageError, match=r"\[output-folder\]"):
        copy.dump(tmp_path / "no" / "such" / "dir.cubin")


def test_a_failed_dump_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "out.cubin"
    target.write_bytes(b"old")

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", fail)
    with pytest.raises(UsageError, match="No space left"):
        load("holders_sm90.cubin").dump(target)
    assert target.read_bytes() == b"old" and len(list(tmp_path.iterdir())) == 1


def test_basic_blocks() -> None:
    kernel = load("holders_sm90.cubin").get_kerneldef_by_name("swap")
    assert kernel.cfg is None
    kernel.parse_cfg()
    cfg = kernel.cfg
    assert cfg is not None and cfg.nb_basic_blocks == len(cfg.basic_blocks) >= 2
    size = cfg.instruction_size
    assert sum(block.nb_instructions for block in cfg.basic_blocks) == len(kernel.words)
    assert [cfg.get_basic_block_by_id(b.id) for b in cfg.basic_blocks] == list(cfg.basic_blocks)
    for block in cfg.basic_blocks:
        assert cfg.get_basic_block_by_pc(block.base_pc) == cfg.get_basic_block_by_pc(block.end_pc) == block
        assert block.instruction_strs == list(kernel.texts[block.base_pc // size : block.end_pc // size + 1])
        for other, source, reached in block.successors:
            assert source == block.end_pc and cfg.basic_blocks[other].base_pc == reached
            assert (block.id, source, reached) in cfg.basic_blocks[other].predecessors
    exit_at = next(16 * i for i, text in enumerate(kernel.texts) if text == "EXIT")
    ending = cfg.get_basic_block_by_pc(exit_at)
    assert ending is not None and ending.end_pc == exit_at and ending.successors == ()
    # The branch to itself behind the code.
    loop = cfg.get_basic_block_by_pc(exit_at + 16)
    assert loop is not None and loop.successors[0] == (loop.id, loop.end_pc, loop.base_pc)
    assert cfg.get_basic_block_by_id(99) is None and cfg.get_basic_block_by_pc(16 * len(kernel.words)) is None
    assert cfg.serialize()["instruction_size"] == 16


def test_inserting_and_deleting_instructions() -> None:
    cubin = load("holders_sm90.cubin")
    before = cubin.get_kerneldef_by_name("reach")
    nop = before.list_instructions[-1]
    cubin.insert_instruction("reach", 3, nop.word)
    cubin.insert_instruction("reach", 0, nop.bytes, insert_before=False)
    after = cubin.get_kerneldef_by_name("reach")
    assert after.texts[:6] == (before.texts[0], "NOP", *before.texts[1:3], "NOP", before.texts[3])
    cubin.delete_instruction("reach", 4)
    cubin.delete_instruction("reach", 1)
    last = cubin.get_kerneldef_by_name("reach")
    assert last.texts == before.texts
    assert np.array_equal(last.words, before.words)
    assert (last.attributes, last.symbol, last.relocations) == (
        before.attributes,
        before.symbol,
        before.relocations,
    )
    assert last.inner_functions == before.inner_functions
    assert last.map_address_to_line == before.map_address_to_line and last.inlined_at == before.inlined_at


def test_what_was_inserted_and_deleted_again_leaves_no_trace(corpus_sm90: list[Path]) -> None:
    """A NOP before an instruction and out again: every section of the image has its old bytes."""
    done = 0
    refused = set()
    for path in corpus_sm90:
        cubin = Cubin.from_file(path)
        before = cubin.elf
        for name, kernel in list(cubin.get_map_kernel_def().items())[:7]:
            index = len(kernel.words) // 3
            try:
                cubin.insert_instruction(name, index, "NOP")
            except GWatchError as error:
                refused.add(error.code)
                continue
            assert cubin.get_kerneldef_by_name(name).texts[index] == "NOP"
            cubin.delete_instruction(name, index)
            for old, new in zip(before.sections, cubin.elf.sections, strict=True):
                if old.name not in (
                    ".debug_line",
                    ".nv_debug_line_sass",
                    ".rela.debug_line",
                    ".rela.nv_debug_line_sass",
                ):
                    assert cubin.elf.content(new) == before.content(old), (path.name, name, old.name)
            done += 1
    assert done >= 20
    assert refused <= {"jump-table", "return-address", "word-unknown"}


def test_inserted_text_is_encoded() -> None:
    cubin = load("holders_sm90.cubin")
    cubin.insert_instruction("swap", 2, "CS2R.32 R9, SR_CLOCKLO")
    assert cubin.get_kerneldef_by_name("swap").texts[2] == "CS2R.32 R9, SR_CLOCKLO"


@pytest.mark.parametrize("instruction", [b"short", 1 << 128, -1])
def test_what_is_no_instruction_word_is_refused(instruction: bytes | int) -> None:
    with pytest.raises(SiteError, match=r"\[word-size\]"):
        load("holders_sm90.cubin").insert_instruction("swap", 0, instruction)


def test_sites_outside_the_kernel_are_refused() -> None:
    cubin = load("holders_sm90.cubin")
    kernel = cubin.get_kerneldef_by_name("swap")
    for action in (
        lambda: cubin.insert_instruction("swap", len(kernel.words), 0),
        lambda: cubin.insert_instruction("swap", -1, 0),
        lambda: cubin.delete_instruction("swap", len(kernel.words)),
    ):
        with pytest.raises(SiteError, match=r"\[site-range\]"):
            action()
    with pytest.raises(SiteError, match=r"\[pc-unaligned\]"):
        kernel.index_of(8)
    with pytest.raises(SiteError, match=r"\[pc-range\]"):
        kernel.index_of(16 * len(kernel.words))
    assert kernel.index_of(32) == 2


def test_a_kernel_that_cannot_be_moved_stays_untouched() -> None:
    cubin = Cubin.from_bytes(with_dependent_mercury())
    data = cubin.data
    with pytest.raises(GWatchError, match=r"\[mercury\]"):
        cubin.insert_instruction("reach", 0, 0)
    assert cubin.data == data


def test_a_large_kernel_is_read_within_bounds(corpus_all: list[Path]) -> None:
    """The longest kernel of the corpus, text included: CPU seconds and memory of a fresh process."""
    path = next(p for p in corpus_all if "sm_100-jax" in p.name and p.stat().st_size > 400_000)
    code = (
        f"import gwatch.cuda.binary as b, resource; c = b.Cubin(); c.fill({str(path)!r}); c.parse();"
        "k = max(c.get_map_kernel_def().values(), key=lambda k: len(k.words));"
        "n = sum(len(i.str()) for i in k.list_instructions); "
        "s, p = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN);"
        "print(len(k.words), s.ru_utime + p.ru_utime, max(s.ru_maxrss, p.ru_maxrss))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    count, seconds, kib = done.stdout.split()
    assert int(count) > 5000
    assert float(seconds) < 6
    assert float(kib) < 400 * 1024
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss > 0
