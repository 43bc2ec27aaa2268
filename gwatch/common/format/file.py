"""A report: a titled list of sections, rendered to one JSON or HTML file and read back from JSON."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

from gwatch._files import write_atomically
from gwatch.common.format.iket import is_iket, read_iket
from gwatch.common.format.jsonin import read_run
from gwatch.common.format.jsonout import ROW_FORM_LIMIT, dump, run_chunks
from gwatch.common.format.run import Run, run_of
from gwatch.common.format.statements import check_numbers
from gwatch.errors import GWatchError, TraceError, UsageError

DEFAULT_TITLE = "G-Watch Report"
FORMATS = {".json": "json", ".html": "html", ".htm": "html", ".gwatch": "archive",
           ".pftrace": "perfetto", ".perfetto": "perfetto", ".chrome.json": "chrome", ".chrome": "chrome"}


def form_of(path: str | os.PathLike[str], fmt: str | None = None) -> str:
    """The form that ``File.render(path, fmt)`` writes; RenderError ``[unknown-format]`` where there is none."""
    target = Path(path)
    name = f".{fmt.lower().lstrip('.')}" if fmt else "".join(target.suffixes[-2:]).lower()
    kind = FORMATS.get(name) or FORMATS.get(f".{name.rsplit('.', 1)[-1]}")
    if kind is None:
        raise RenderError("unknown-format", f"cannot write a report as {fmt or target.suffix or target.name!r}",
                          "name the file .json, .gwatch, .html, .pftrace or .chrome.json")
    return kind


class RenderError(GWatchError, ValueError):
    """A report cannot be written in the form asked for."""


class Section:
    """One part of a report: a title, and data that JSON can hold. Subclasses tell themselves better."""

    def __init__(self, title: str, data: Any = None, type_name: str | None = None) -> None:
        self.title = title
        self._data = data
        self.type = type_name or type(self).__name__

    def json_chunks(self) -> Iterator[str]:
        """The JSON text of the section's data, in pieces."""
        yield dump(self._data)


class Section_Overview(Section):
    """The first section of every report: its title, when it was made, and what it contains."""

    def __init__(self, report_title: str, generated_at: str, sections: list[str]) -> None:
        super().__init__("Overview", {"report_title": report_title, "generated_at": generated_at,
                                      "sections": sections})


class Section_IntraKernelTrace(Section):
    """Traced launches ("runs") of kernels, with their regions and roles.

    ``row_form`` says whether the JSON report also holds each record as an object of its own under
    ``trace_results``: True, False, or "auto" (traces of up to 50,000 records).
    """

    def __init__(self, title: str = "Intra-Kernel Trace", row_form: bool | str = "auto") -> None:
        super().__init__(title)
        if row_form not in (True, False, "auto"):
            raise RenderError("bad-row-form", f"row_form is {row_form!r}", 'use True, False or "auto"')
        self.row_form = row_form
        self.runs: list[Run] = []

    def add_run(self, result: Any, site_regions: Iterable[Any] | None = None,
                scope_roles: Mapping[str, str] | None = None) -> Run:
        """Add what ``do_trace`` returned, or a dict with the same keys.

        ``site_regions``: ``(enter site, leave site[, label[, "nested"|"fifo"]])`` entries. A site may end
        one region and begin the next, and begin several. ``scope_roles``: role name per label.

        Raises TraceError ``[empty-result]``, ``[bad-records]``, ``[bad-dimension]``, ``[bad-role]`` and
        SiteError ``[bad-region]`` (a ValueError).
        """
        run = run_of(result, site_regions, scope_roles)
        self.runs.append(run)
        return run

    def json_chunks(self) -> Iterator[str]:
        yield '{"runs":['
        for i, run in enumerate(self.runs):
            yield "," if i else ""
            wanted = len(run.trace) <= ROW_FORM_LIMIT if self.row_form == "auto" else bool(self.row_form)
            yield from run_chunks(run, wanted)
        yield "]}"


class File:
    """A report. ``generated_at`` ("YYYY-MM-DD HH:MM:SS") is the time of rendering unless given."""

    def __init__(self, title: str | None = None, generated_at: str | None = None) -> None:
        self.title = title or DEFAULT_TITLE
        self.generated_at = generated_at
        self.sections: list[Section] = []

    def add_section(self, section: Section) -> None:
        """Append a section; TypeError for anything else."""
        if not isinstance(section, Section):
            raise TypeError(f"add_section takes a Section, not {type(section).__name__}")
        self.sections.append(section)

    @property
    def traces(self) -> list[Section_IntraKernelTrace]:
        """The sections that hold traces."""
        return [s for s in self.sections if isinstance(s, Section_IntraKernelTrace)]

    @property
    def runs(self) -> list[Run]:
        """The runs of all trace sections, in order: ``gwatch show --run N`` is ``runs[N]``."""
        return [run for section in self.traces for run in section.runs]

    def to_pandas(self, what: str = "intervals") -> Any:
        """A ``pandas.DataFrame`` of all runs' "intervals" or "records"; see :mod:`gwatch.common.format.frames`."""
        from gwatch.common.format.frames import frame_of
        return frame_of(self.runs, what)

    @classmethod
    def merge(cls, reports: Iterable[File], names: Iterable[str] = (), title: str | None = None) -> File:
        """One report with the runs of several (launches, ranks, before and after), in order, in one trace section.

        ``names`` says where each report is from; it is kept with its runs (``Run.source``, ``launch["source"]``).
        Each run keeps its own time axis: clocks of different GPUs are not compared. Other sections follow.
        """
        parts, sources = list(reports), list(names)
        merged, section = cls(title or " + ".join(dict.fromkeys(p.title for p in parts))), Section_IntraKernelTrace()
        for i, part in enumerate(parts):
            for run in part.runs:
                source = run.source or (sources[i] if i < len(sources) else "")
                section.runs.append(replace(run, launch={**run.launch, **({"source": source} if source else {})}))
        merged.add_section(section)
        for part in parts:
            for other in part.sections:
                if not isinstance(other, Section_IntraKernelTrace):
                    merged.add_section(other)
        return merged

    def render(self, path: str | os.PathLike[str], fmt: str | None = None) -> None:
        """Write the report; ``fmt`` ("json", "html", "gwatch", "pftrace", "chrome") or else the file name
        decides the form.

        ``.json`` is the report, ``.gwatch`` the same as a binary archive, ``.html`` the page,
        ``.pftrace`` Perfetto's own form (needs the extra ``perfetto``),
        ``.chrome.json`` events for chrome://tracing. An existing file is replaced only once the
        new one is complete; folders that are missing are made. Raises RenderError ``[unknown-format]``
        (a ValueError) for any other form, UsageError ``[write-failed]``, ToolError ``[perfetto-missing]``.
        """
        target, kind = Path(path), form_of(path, fmt)
        chunks: Iterable[str | bytes]
        if kind == "json":
            chunks = self.json_chunks()
        elif kind == "archive":
            from gwatch.common.format.archive import archive_chunks
            chunks = archive_chunks(self)
        elif kind == "chrome":
            from gwatch.common.format.chrome import chrome_chunks
            chunks = chrome_chunks(self.runs)
        elif kind == "perfetto":
            from gwatch.common.format.perfetto import pftrace_chunks
            chunks = pftrace_chunks(self.runs)
        else:
            from gwatch.common.format.html import html_chunks
            chunks = html_chunks(self)
        _write(target, chunks)

    def overview(self) -> Section_Overview:
        """The section that opens the report."""
        return Section_Overview(self.title, self.stamp(), [s.title for s in self.sections])

    def stamp(self) -> str:
        """When the report was made: as given, or now."""
        return self.generated_at or datetime.now().strftime("%Y-%m-%d %H:%M:%S")

    def json_chunks(self) -> Iterator[str]:
        """The JSON text of the report, in pieces."""
        yield f'{{"title":{dump(self.title)},"sections":['
        for i, section in enumerate([self.overview(), *self.sections]):
            yield f'{"," if i else ""}{{"title":{dump(section.title)},"type":{dump(section.type)},"data":'
            yield from section.json_chunks()
            yield "}"
        yield "]}"

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> File:
        """Read a JSON report or an archive back; sections of unknown types are kept as they are.

        The JSON that NVIDIA IKET writes becomes a report of one trace section. Raises TraceError ``[no-file]``,
        ``[bad-json]``, ``[bad-archive]``, ``[bad-report]``, ``[bad-iket]``.
        """
        target = Path(path)
        try:
            raw = target.read_bytes()
        except OSError as error:
            raise TraceError("no-file", f"{target}: {error.strerror or error}",
                             "give a report that File.render wrote as .json or .gwatch") from None
        data = _parsed(raw, target)
        if is_iket(data):
            report, section = cls("IKET trace"), Section_IntraKernelTrace("IKET trace")
            section.runs = read_iket(data, str(target))
            report.add_section(section)
            return report
        sections = data.get("sections") if isinstance(data, dict) else None
        if not isinstance(sections, list):
            raise TraceError("bad-report", f"{target} is no gwatch report: it has no list of sections")
        report = cls(str(data.get("title") or DEFAULT_TITLE))
        for i, entry in enumerate(sections):
            if not isinstance(entry, dict) or not isinstance(entry.get("type"), str):
                raise TraceError("bad-report", f"{target}: sections[{i}] has no type")
            _load_section(report, entry, f"{target}: sections[{i}]")
        return report


def _parsed(raw: bytes, target: Path) -> Any:
    if raw[:7] == b"GWATCH\x01":
        from gwatch.common.format.archive import read_archive
        return read_archive(raw, str(target))
    try:
        return json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise TraceError("bad-json", f"{target} is no JSON: {error}",
                         "give a report that File.render wrote as .json or .gwatch") from None


def _load_section(report: File, entry: dict[str, Any], where: str) -> None:
    title, kind, data = str(entry.get("title", "")), entry["type"], entry.get("data")
    if kind == Section_Overview.__name__:
        when = data.get("generated_at") if isinstance(data, dict) else None
        report.generated_at = when if isinstance(when, str) else None
        return
    if kind != Section_IntraKernelTrace.__name__:
        check_numbers(data, where)
        report.add_section(Section(title, data, kind))
        return
    runs = data.get("runs") if isinstance(data, dict) else None
    if not isinstance(runs, list):
        raise TraceError("bad-report", f"{where} has no list of runs")
    section = Section_IntraKernelTrace(title)
    section.runs = [read_run(run, f"{where}.runs[{i}]") for i, run in enumerate(runs)]
    report.add_section(section)


def _write(target: Path, chunks: Iterable[str | bytes]) -> None:
    """Programs may count on the folder being made; commands refuse a folder that is not there before they begin."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError("write-failed", f"cannot make {target.parent}: {error.strerror}", "check the path") from error
    write_atomically(target, (chunk.encode("utf-8", "backslashreplace") if isinstance(chunk, str) else chunk
                              for chunk in chunks))
