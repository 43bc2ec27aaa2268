"""Running nvdisasm: found where it should be, robust against every kind of bad word, clear when it fails."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import numpy as np
import pytest

from gwatch.errors import ToolError
from gwatch.sass import nvdisasm
from gwatch.sass.nvdisasm import arch_option, disassemble_cubin, disassemble_words, find, probe_words, version

CONTROL = 0x7F1 << 105
NOP = 0x7918 | CONTROL
EXIT = 0x000FEA0003800000_000000000000794D
BAD = 0
# Found by enumeration: words that stop nvdisasm 13 for sm_75, and words it passes over for sm_90a.
FATAL_75 = [0x00FE2C31012F037B64CE4228C38F321, 0x00FE27672FDF2022A96FB1A14A0F321, 0x00FE30D113DB17D30CBC97D0FEF7321]
SILENT_90 = [0x00FE20000000066726AD393F004131E, 0x00FE200000000777A028912159CA31E]
BRA = 0x000FC0000383FFFF_FFFFFFFC00FC7947  # BRA to itself


def executable(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A process that sees no nvdisasm anywhere; returns an empty folder."""
    for name in ("GWATCH_NVDISASM", "CUDA_HOME", "CUDA_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    monkeypatch.setattr(sys, "path", [str(tmp_path / "site")])
    monkeypatch.setattr(nvdisasm, "DEFAULT_FOLDER", tmp_path / "default")
    return tmp_path


def test_the_search_goes_from_the_most_to_the_least_deliberate(
        bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    places = [executable(bare / "default" / "nvdisasm")]
    assert find() == places[-1]
    places.append(executable(bare / "path" / "nvdisasm"))
    monkeypatch.setenv("PATH", str(bare / "path"))
    assert find() == places[-1]
    for name in ("CUDA_PATH", "CUDA_HOME"):
        places.append(executable(bare / name / "bin" / "nvdisasm"))
        monkeypatch.setenv(name, str(bare / name))
        assert find() == places[-1]
    for wheel in ("cu12", "cu13"):
        places.append(executable(bare / "site" / "nvidia" / wheel / "bin" / "nvdisasm"))
        assert find() == places[-1]
    places.append(executable(bare / "mine" / "disassembler"))
    monkeypatch.setenv("GWATCH_NVDISASM", str(places[-1]))
    assert find() == places[-1]
    assert len(set(places)) == 7


def test_a_missing_nvdisasm_names_every_place_looked_at(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_HOME", str(bare / "cuda"))
    with pytest.raises(ToolError) as caught:
        find()
    assert caught.value.code == "nvdisasm-missing"
    for place in ("GWATCH_NVDISASM (unset)", "nvidia-cuda-nvdisasm", str(bare / "cuda" / "bin"), "CUDA_PATH (unset)",
                  "PATH", str(bare / "default")):
        assert place in caught.value.message
    assert "pip install nvidia-cuda-nvdisasm" in caught.value.hint


def test_an_override_that_is_no_program_is_an_error(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    executable(bare / "default" / "nvdisasm")
    monkeypatch.setenv("GWATCH_NVDISASM", str(bare / "nothing"))
    with pytest.raises(ToolError, match=r"\[nvdisasm-missing\] GWATCH_NVDISASM=.*nothing is not an executable file"):
        find()


def test_a_file_that_is_not_nvdisasm_is_an_error(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GWATCH_NVDISASM", str(executable(bare / "fake")))
    with pytest.raises(ToolError, match=r"\[nvdisasm-failed\] .*fake --version gave no version"):
        version()
    (bare / "broken").write_bytes(b"\x7fELF no program")
    (bare / "broken").chmod(0o755)
    monkeypatch.setenv("GWATCH_NVDISASM", str(bare / "broken"))
    with pytest.raises(ToolError, match=r"\[nvdisasm-failed\] cannot start .*broken"):
        version()


def test_version_is_a_version() -> None:
    assert int(version().split(".")[0]) >= 12


@pytest.mark.parametrize("name", ["sm_90a", "90a", "SM90a", "sm90a", "SM_90A"])
def test_spellings_of_an_architecture(name: str) -> None:
    assert arch_option(name) == "SM90a"


@pytest.mark.parametrize("name", ["", "sm_", "hopper", "sm_90x", "sm_9", "-b", "90 a"])
def test_what_is_no_architecture(name: str) -> None:
    with pytest.raises(ToolError, match=r"\[arch-unknown\]"):
        arch_option(name)


def test_an_architecture_that_nvdisasm_does_not_know() -> None:
    for mostly_valid in (True, False):
        with pytest.raises(ToolError, match=r"\[arch-unknown\] this nvdisasm does not know SM99"):
            disassemble_words("sm_99", [NOP], mostly_valid=mostly_valid)


def test_good_words_are_one_run() -> None:
    probe = probe_words("sm_90a", [NOP, EXIT, NOP])
    assert probe.texts == ["NOP", "EXIT", "NOP"]
    assert (probe.runs, probe.bad, probe.fatal, probe.silent) == (1, set(), set(), set())


def test_no_words_are_no_run() -> None:
    probe = probe_words("sm_90a", [])
    assert (probe.texts, probe.runs) == ([], 0)


@pytest.mark.parametrize("mostly_valid", [True, False])
def test_bad_and_silent_words_do_not_disturb_their_neighbours(mostly_valid: bool) -> None:
    words = [BAD, NOP, nvdisasm.MARKER, SILENT_90[0], EXIT, BAD, BAD, SILENT_90[1], nvdisasm.MARKER, NOP]
    probe = probe_words("sm_90a", words, mostly_valid=mostly_valid)
    assert probe.texts == [None, "NOP", None, None, "EXIT", None, None, None, None, "NOP"]
    assert probe.bad == {0, 2, 5, 6, 8}
    assert probe.silent == {3, 7}
    assert probe.fatal == set()


def test_only_bad_words() -> None:
    assert disassemble_words("sm_90a", [BAD, nvdisasm.MARKER]) == [None, None]


@pytest.mark.parametrize("mostly_valid", [True, False])
def test_words_that_stop_the_program(mostly_valid: bool) -> None:
    words = [NOP, FATAL_75[0], BAD, FATAL_75[1], EXIT, FATAL_75[2], NOP]
    probe = probe_words("sm_75", words, mostly_valid=mostly_valid)
    assert probe.texts == ["NOP", None, None, None, "EXIT", None, "NOP"]
    assert (probe.fatal, probe.bad, probe.skipped) == ({1, 3, 5}, {2}, set())


def test_an_opcode_that_keeps_stopping_the_program_is_dropped_and_said_to_be() -> None:
    words = [NOP, FATAL_75[0], FATAL_75[1], EXIT, FATAL_75[2], NOP]
    probe = probe_words("sm_75", words, mostly_valid=False, fatal_limit=1)
    assert probe.texts == ["NOP", None, None, "EXIT", None, "NOP"]
    assert (probe.fatal, probe.skipped) == ({1}, {2, 4})


def test_a_batch_gives_what_single_words_give(monkeypatch: pytest.MonkeyPatch) -> None:
    """Random words, most of them bad, in batches of three against each word by itself."""
    rng = random.Random(11)
    words = [(rng.getrandbits(72) >> 12 << 12 | rng.choice((0x221, 0x824, 0x981, 0x947, 0x31E, 0x5A))) | CONTROL
             for _ in range(8)]
    single = [disassemble_words("sm_90a", [word], pc=0)[0] for word in words]
    monkeypatch.setattr(nvdisasm, "BATCH", 3)
    assert disassemble_words("sm_90a", words, pc=0) == single
    assert disassemble_words("sm_90a", words, pc=0, mostly_valid=False) == single
    assert 0 < sum(text is None for text in single) < len(single)


def test_targets_are_absolute_and_move_with_the_address() -> None:
    assert disassemble_words("sm_90a", [BRA, NOP, BRA]) == ["BRA 0x0", "NOP", "BRA 0x20"]
    assert disassemble_words("sm_90a", [BRA, NOP, BRA], base=0x1000) == ["BRA 0x1000", "NOP", "BRA 0x1020"]
    assert disassemble_words("sm_90a", [BRA, NOP, BRA], base=0x1000, pc=0x40) == ["BRA 0x40", "NOP", "BRA 0x40"]


def test_targets_behind_bad_words_are_as_absolute_as_elsewhere() -> None:
    assert disassemble_words("sm_90a", [NOP, BAD, BAD, BRA], base=0x100) == ["NOP", None, None, "BRA 0x130"]


@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_90a", "sm_100a", "sm_120a"])
def test_with_a_pc_the_text_depends_on_the_word_alone(arch: str) -> None:
    """Control flow of every kind, also the absolute forms, at two addresses."""
    rng = random.Random(5)
    words = []
    for opcode in (0x947, 0x945, 0x944, 0x943, 0x950, 0x94E, 0x348, 0x548, 0x948, 0x349, 0x949, 0x94A, 0x94B, 0x94C):
        for number in range(60):
            word = rng.getrandbits(105) >> 12 << 12 | opcode
            if number % 3:
                word &= (1 << 72) - 1
                word |= 7 << 87
            words.append(word | CONTROL)
    near = disassemble_words(arch, words, pc=0, mostly_valid=False)
    assert near == disassemble_words(arch, words, pc=0, base=0x7F000000, mostly_valid=False)
    opcodes = {text.split()[text.startswith("@")].split(".")[0] for text in near if text}
    assert {"BRA", "BSSY", "CALL", "RET", "WARPSYNC"} <= opcodes


def test_words_as_an_array() -> None:
    words = np.array([[NOP & ((1 << 64) - 1), NOP >> 64], [EXIT & ((1 << 64) - 1), EXIT >> 64]], dtype=np.uint64)
    assert disassemble_words("sm_90a", words) == ["NOP", "EXIT"]
    with pytest.raises(ValueError, match=r"\(n, 2\)"):
        disassemble_words("sm_90a", words.reshape(4))


def test_a_cubin_as_file_and_as_bytes(corpus_sm90: list[Path]) -> None:
    path = min(corpus_sm90, key=lambda one: one.stat().st_size)
    text = disassemble_cubin(path, "-c")
    assert text.count(" EXIT ;") == 2 and ".text." in text
    assert disassemble_cubin(path.read_bytes(), "-c") == text
    assert disassemble_cubin(str(path), "-c", "-hex").count("/* 0x") == 64


def test_a_warning_about_an_old_file_is_no_failure(corpus_sm90: list[Path]) -> None:
    old = [path for path in corpus_sm90 if path.read_bytes()[8] == 7]
    assert old
    assert "EXIT" in disassemble_cubin(min(old, key=lambda one: one.stat().st_size), "-c")


def test_what_is_no_cubin_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ToolError, match=r"\[nvdisasm-failed\] nvdisasm cannot disassemble image of 5 bytes: "):
        disassemble_cubin(b"hello")
    with pytest.raises(ToolError, match=r"\[nvdisasm-failed\] .*nothing.cubin is not a file"):
        disassemble_cubin(tmp_path / "nothing.cubin")


def test_an_undecodable_word_in_a_cubin_is_an_error(corpus_sm90: list[Path]) -> None:
    data = bytearray(min(corpus_sm90, key=lambda one: one.stat().st_size).read_bytes())
    place = data.index(EXIT.to_bytes(16, "little")[:8])
    data[place:place + 16] = b"\xff" * 16
    with pytest.raises(ToolError) as caught:
        disassemble_cubin(bytes(data), "-c")
    assert caught.value.code == "nvdisasm-failed"
    assert "Unrecognized operation" in caught.value.message or "Illegal instruction" in caught.value.message


def test_a_program_that_hangs_is_stopped(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = executable(bare / "slow")
    slow.write_text("#!/bin/sh\nexec /bin/sleep 60\n")
    monkeypatch.setenv("GWATCH_NVDISASM", str(slow))
    with pytest.raises(ToolError, match=r"\[nvdisasm-failed\] .*slow did not finish within 0 s"):
        disassemble_cubin(b"x", timeout=0.3)
