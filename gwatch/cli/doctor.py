"""``gwatch doctor``: what of gwatch's outside world is here, in which version, and where it was looked
for.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import platform
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from gwatch.errors import GWatchError, ToolError

# Distributions by what they are for; any of the names will do.
_OPTIONAL = {
    "torch": ("torch",),
    "triton": ("triton", "pytorch-triton"),
    "cupy": ("cupy-cuda13x", "cupy-cuda12x", "cupy"),
    "cutlass (CuTeDSL)": ("nvidia-cutlass-dsl",),
    "tilelang": ("tilelang",),
    "lz4": ("lz4",),
    "zstandard": ("zstandard",),
}
_READING, _RUNNING = "reading and changing cubins", "running and tracing kernels"
_KEYS = {_READING: "reads_cubins", _RUNNING: "runs_kernels"}
_OWN_DISTRIBUTION, _FOREIGN_DISTRIBUTIONS = "gwatch-sass", ("gwatch", "gwatch-cu128")


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report. ``state``: "ok", "missing", "problem" or "absent" (optional, not there)."""

    name: str
    state: str
    version: str
    where: str
    needed_for: str
    advice: str = ""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument("--json", action="store_true", help="print the findings and the two verdicts as JSON")
    parser.add_argument("--gpu", action="store_true", help="exit code 2 also where kernels cannot be run and traced")


def run(args: argparse.Namespace) -> int:
    """Print the findings; 0 when cubins can be read and changed (under ``--gpu`` also run and traced), else 2."""
    findings = examine()
    lacking = {
        _READING: [f for f in findings if f.state == "problem" or (f.state == "missing" and f.name in _REQUIRED)],
        _RUNNING: [f for f in findings if f.state in ("missing", "problem")],
    }
    if args.json:
        verdicts = {_KEYS[what]: not found for what, found in lacking.items()}
        print(json.dumps({**verdicts, "findings": [asdict(finding) for finding in findings]}, indent=1))
    else:
        width = max(len(finding.name) for finding in findings)
        for finding in findings:
            version = f" {finding.version}" if finding.version else ""
            print(f"{finding.state:8} {finding.name:{width}}{version}  {finding.where}")
            if finding.state in ("missing", "problem"):
                print(
                    f"{'':9}{'':{width}} needed for: {finding.needed_for}"
                    + (f"; {finding.advice}" if finding.advice else "")
                )
        for what, found in lacking.items():
            names = ", ".join(finding.name for finding in found)
            print(f"{what}: {f'no ({names})' if found else 'yes'}")
    broken = next((what for what in ((_READING, _RUNNING) if args.gpu else (_READING,)) if lacking[what]), None)
    if broken is not None:
        names = ", ".join(finding.name for finding in lacking[broken])
        print(f"gwatch: [not-ready] {broken} does not work here: {names}; the list says what to do", file=sys.stderr)
    return 0 if broken is None else 2


def examine() -> list[Finding]:
    """All findings, in the order they are needed; no look-up can fail the others."""
    findings = [_python()]
    for check in (_own, _foreign, _nvdisasm, _tables, _ptxas, _driver_library, _bindings, _gpus, _cupti):
        try:
            findings += check()
        except (GWatchError, OSError, subprocess.SubprocessError, ImportError, ValueError) as error:
            name = check.__name__.strip("_").replace("_", " ")
            findings.append(Finding(name, "problem", "", str(error), "looking at it"))
    return findings + [_optional(name, distributions) for name, distributions in _OPTIONAL.items()]


def _python() -> Finding:
    return Finding(
        "python", "ok", platform.python_version(), f"{platform.machine()} {platform.system()}", "everything"
    )


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _own() -> list[Finding]:
    from gwatch import __version__

    folder = str(Path(__file__).resolve().parent.parent)
    found = [Finding("gwatch", "ok", __version__, folder, "everything")]
    for distribution in ("numpy", "lark", "pyelftools", "msgpack", "rich"):
        version = _version(distribution)
        found.append(
            Finding(
                distribution,
                "ok" if version else "missing",
                version or "",
                "installed" if version else "not installed",
                "reading and changing cubins",
                "" if version else f"pip install {distribution}",
            )
        )
    return found


def _foreign() -> list[Finding]:
    found = []
    for distribution in _FOREIGN_DISTRIBUTIONS:
        version = _version(distribution)
        if version is not None:
            # Both packages own the import name `gwatch`: which one wins depends on the order of installation.
            found.append(
                Finding(
                    f"foreign {distribution}",
                    "problem",
                    version,
                    "installed in this environment",
                    f"{_OWN_DISTRIBUTION} has the same import name",
                    f"pip uninstall {distribution}, then reinstall {_OWN_DISTRIBUTION}",
                )
            )
    return found or [Finding("foreign gwatch", "ok", "", "none in this environment", "a clean import name")]


def _nvdisasm() -> list[Finding]:
    from gwatch.sass import nvdisasm

    use = "a second opinion, and architectures without an ISA table (optional)"
    try:
        path = nvdisasm.find()
        return [Finding("nvdisasm", "ok", nvdisasm.version(), str(path), use)]
    except GWatchError as error:
        return [Finding("nvdisasm", "absent", "", error.message, use, error.hint)]


def _tables() -> list[Finding]:
    from gwatch._resources import resource

    try:
        folder = resource("isa", ".")
    except GWatchError as error:
        return [Finding("ISA tables", "missing", "", error.message, "encoding and decoding", error.hint)]
    names = sorted({path.name.split(".")[0] for path in folder.iterdir() if path.name.startswith("sm_")})
    return [
        Finding(
            "ISA tables", "ok" if names else "missing", ", ".join(names), str(folder), "encoding and decoding"
        )
    ]


def _ptxas() -> list[Finding]:
    """The one that the PTX tier would take: the newest."""
    from gwatch.cuda.trace.ptxas import find_ptxas

    use = "scopes on the PTX tier (optional)"
    try:
        found = find_ptxas()
    except ToolError as error:
        return [Finding("ptxas", "absent", "", error.message, use, error.hint)]
    return [Finding("ptxas", "ok", ".".join(map(str, found.version)), str(found.path), use)]


def _driver_library() -> list[Finding]:
    import ctypes

    use = "running kernels"
    for name in ("libcuda.so.1", "libcuda.so"):
        try:
            library = ctypes.CDLL(name)
        except OSError:
            continue
        number = ctypes.c_int()
        status = library.cuDriverGetVersion(ctypes.byref(number))
        version = f"CUDA {number.value // 1000}.{number.value % 1000 // 10}" if status == 0 else ""
        release = Path("/proc/driver/nvidia/version")
        where = release.read_text().splitlines()[0].strip() if release.is_file() else name
        return [
            Finding(
                "driver",
                "ok" if status == 0 else "problem",
                version,
                where,
                use,
                "" if status == 0 else f"cuDriverGetVersion returned {status}",
            )
        ]
    return [
        Finding(
            "driver",
            "missing",
            "",
            "libcuda.so.1 is not on the loader path",
            use,
            "install the NVIDIA driver; everything up to the patched cubin works without it",
        )
    ]


def _bindings() -> list[Finding]:
    version = _version("cuda-bindings") or _version("cuda-python")
    return [
        Finding(
            "cuda-python",
            "ok" if version else "missing",
            version or "",
            "installed" if version else "not installed",
            "running kernels",
            "" if version else "pip install 'gwatch-sass[gpu]'",
        )
    ]


def _gpus() -> list[Finding]:
    from gwatch.cuda.driver import driver

    try:
        found = driver()
        return [
            Finding(
                f"GPU {number}",
                "ok",
                "sm_{}{}".format(*found.device_capability(number)),
                found.device_name(number),
                "running kernels",
            )
            for number in range(found.device_count())
        ]
    except GWatchError as error:
        return [Finding("GPU", "missing", "", str(error), "running kernels")]


def _cupti() -> list[Finding]:
    from gwatch.cuda import cupti

    places = cupti.candidates()
    present = [place for place in places if place.found]
    use = "tracing the launches of a running program"
    found = []
    for major in (13, 12):
        mine = [place for place in present if f".so.{major}" in place.path]
        if not mine:
            folders = ", ".join(dict.fromkeys(str(Path(place.path).parent) for place in places)) or "nowhere"
            other = any(f".so.{25 - major}" in place.path for place in present)
            found.append(
                Finding(
                    f"CUPTI {major}",
                    "absent" if other else "missing",
                    "",
                    f"looked in {folders}",
                    use,
                    "pip install nvidia-cuda-cupti",
                )
            )
            continue
        try:
            version = str(cupti.Cupti(mine[0].path).version)
            found.append(Finding(f"CUPTI {major}", "ok", version, f"{mine[0].path} ({mine[0].origin})", use))
        except (OSError, GWatchError) as error:
            found.append(Finding(f"CUPTI {major}", "problem", "", f"{mine[0].path}: {error}", use))
    return found


def _optional(name: str, distributions: tuple[str, ...]) -> Finding:
    for distribution in distributions:
        version = _version(distribution)
        if version is not None:
            return Finding(name, "ok", version, f"distribution {distribution}", "optional")
    return Finding(name, "absent", "", f"no distribution {' or '.join(distributions)}", "optional")


_REQUIRED = {"gwatch", "numpy", "lark", "pyelftools", "msgpack", "rich", "ISA tables"}
