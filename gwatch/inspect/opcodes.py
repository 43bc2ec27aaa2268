"""What an opcode's name says: which unit runs it, and for memory instructions space, width and cache modifiers.

Names and groups follow the instruction-set tables of NVIDIA's binary-utilities manual; widths are per thread.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

_UNITS: dict[str, str] = {
    "tensor": "HMMA IMMA DMMA BMMA HGMMA IGMMA QGMMA BGMMA QMMA OMMA UTCHMMA UTCIMMA UTCQMMA UTCOMMA UTCMXQMMA",
    "tma": "UTMALDG UTMASTG UTMAPF UTMAREDG UTMACCTL UTMACMDFLUSH UBLKCP UBLKPF UBLKRED",
    "tensor-memory": "LDTM LDT STTM STT UTCCP UTCSHIFT UTCATOMSWS UTCBAR UTCBARX",
    "fp32": (
        "FADD FADD2 FADD32I FCHK FFMA FFMA2 FFMA32I FMNMX FMNMX3 FMUL FMUL2 FMUL32I FSEL FSET FSETP "
        "FSWZADD FSWZ FHFMA FHADD"
    ),
    "fp16": "HADD2 HADD2_32I HFMA2 HFMA2_32I HMNMX2 HMUL2 HMUL2_32I HSET2 HSETP2 VHMNMX",
    "fp64": "DADD DFMA DMUL DSETP DMNMX DSET",
    "special-function": "MUFU",
    "integer": (
        "BMSK BREV FLO IABS IADD IADD3 IADD32I IDP IDP4A IMAD IMMAD IMNMX IMUL IMUL32I ISCADD ISCADD32I "
        "ISETP ISET LEA LOP LOP3 LOP32I POPC SHF SHL SHR VABSDIFF VABSDIFF4 VIADD VIADDMNMX VIMNMX "
        "VIMNMX3 SGXT ISBEWR VADD VMAD VIMAD"
    ),
    "conversion": "F2F F2I F2IP I2F I2I I2IP I2FP F2FP FRND",
    "move": "MOV MOV32I MOVM PRMT SEL SHFL CS2R S2R S2UR R2UR UR2R UMOV USEL UPRMT CS2UR R2B B2R",
    "predicate": "PLOP3 PSETP P2R R2P VOTE VOTEU MATCH UP2UR UR2UP UPLOP3 UPSETP UR2P ELECT REDUX CREDUX R2UP",
    "uniform": (
        "UBMSK UBREV UCLEA UFLO UIADD3 UIMAD UIMNMX UISETP ULEA ULOP ULOP3 ULOP32I UPOPC USGXT USHF USHL "
        "USHR UFADD UFFMA UFMUL UFMNMX UFRND UFSEL UFSET UFSETP UF2F UF2FP UF2I UF2IP UI2F UI2FP UI2I "
        "UI2IP UVIADD UVIMNMX UVIRTCOUNT UIABS UGETNEXTWORKID UCGABAR_ARV UCGABAR_WAIT UMEMSETS USTGR "
        "UREDGR UFSWZADD USETSHMSZ UVOTE"
    ),
    "memory": (
        "LD LDC LDCU LDG LDGDEPBAR LDGMC LDGSTS LDL LDS LDSM STSM ST STG STL STS STAS SYNCS ATOM ATOMG "
        "ATOMS RED REDG REDAS REDS CCTL CCTLL CCTLT ERRBAR MEMBAR FENCE QSPC ULDC CCTLG ARRIVES SUQ TXQ "
        "UCCTL LDSS MULTIMEM"
    ),
    "texture": "TEX TLD TLD4 TMML TXD TXA",
    "surface": "SUATOM SULD SURED SUST",
    "control": (
        "BMOV BPT BRA BREAK BRX BRXU BSSY BSYNC CALL EXIT JMP JMX JMXU KILL NANOSLEEP RET RPCMOV RTT "
        "WARPSYNC YIELD LEPC ULEPC ACQBULK ENDCOLLECTIVE PREEXIT WARPGROUP WARPGROUPSET ACQSHMINIT"
    ),
    "barrier": "BAR DEPBAR UCGABAR CGABAR UBAR BARSYNC",
    "register-budget": "USETMAXREG",
    "other": (
        "NOP CGAERRBAR PMTRIG SETCTAID SETLMEMBASE GETLMEMBASE UPREEXIT AL2P OUT PIXLD VILD ISBERD IPA "
        "AST ALD"
    ),
}
_UNIT_OF = {name: unit for unit, names in _UNITS.items() for name in names.split()}

_SPACES: dict[str, tuple[str, str]] = {
    "LDG": ("global", "load"), "STG": ("global", "store"), "LD": ("generic", "load"), "ST": ("generic", "store"),
    "LDS": ("shared", "load"), "STS": ("shared", "store"), "LDSM": ("shared", "load"), "STSM": ("shared", "store"),
    "LDL": ("local", "load"), "STL": ("local", "store"), "LDC": ("constant", "load"), "LDCU": ("constant", "load"),
    "ULDC": ("constant", "load"), "LDGSTS": ("global", "copy to shared"), "ATOM": ("generic", "atomic"),
    "ATOMG": ("global", "atomic"), "ATOMS": ("shared", "atomic"), "RED": ("global", "atomic"),
    "REDG": ("global", "atomic"), "REDS": ("shared", "atomic"), "STAS": ("distributed shared", "store"),
    "REDAS": ("distributed shared", "atomic"), "LDTM": ("tensor memory", "load"), "LDT": ("tensor memory", "load"),
    "STTM": ("tensor memory", "store"), "STT": ("tensor memory", "store"), "LDGMC": ("global", "load"),
    "TLD": ("texture", "load"), "TEX": ("texture", "load"), "TLD4": ("texture", "load"),
    "SULD": ("surface", "load"), "SUST": ("surface", "store"), "SUATOM": ("surface", "atomic"),
    "SURED": ("surface", "atomic"),
}  # fmt: skip

_WIDTH = re.compile(r"[USBF]?(8|16|32|64|128|256)|x([0-9]+)")
_MATRIX = re.compile(r"(?:[MT]T?88|MT?168|M816)")
_TENSOR = re.compile(r"U?T?C?[A-Z]*MMA")


class Access(NamedTuple):
    """A memory instruction's opcode: ``space``, ``action`` (load, store, atomic, copy to shared), ``bits`` per
    thread, and the remaining modifiers (cache and ordering) in the order written."""

    opcode: str
    space: str
    action: str
    bits: int
    modifiers: tuple[str, ...]


@lru_cache(maxsize=1 << 13)
def unit_of(opcode: str) -> str:
    """The unit that runs an opcode (with or without modifiers); "other" for names not in the table."""
    mnemonic = opcode.split(".")[0]
    if is_tensor(mnemonic):
        return "tensor"
    return _UNIT_OF.get(mnemonic, "other")


def is_tensor(mnemonic: str) -> bool:
    """Whether a mnemonic is a matrix multiply-accumulate."""
    return _TENSOR.fullmatch(mnemonic) is not None


@lru_cache(maxsize=1 << 13)
def access_of(opcode: str) -> Access | None:
    """What a memory instruction accesses; None for opcodes that access no memory by address."""
    mnemonic, *modifiers = opcode.split(".")
    known = _SPACES.get(mnemonic)
    if known is None:
        return None
    space, action = known
    bits = 32
    rest = []
    tiles = 0
    for word in modifiers:
        width = _WIDTH.fullmatch(word)
        if _MATRIX.fullmatch(word):
            tiles = max(tiles, 1)
        elif tiles and word in ("1", "2", "4"):
            tiles = int(word)
        elif width:  # LDTM.x32: 32 registers a thread
            bits = int(width[1]) if width[1] else 32 * int(width[2])
        elif word not in ("E", "ENL2"):
            rest.append(word)
    if tiles:  # 8x8 tiles of 16-bit elements: each thread holds one 32-bit register a tile
        bits = 32 * tiles
    return Access(opcode, space, action, bits, tuple(rest))
