"""Reports: what a trace says, as a JSON file, an HTML page, or text."""

from gwatch.common.format.file import File, Section, Section_IntraKernelTrace, Section_Overview

__all__ = ["File", "Section", "Section_IntraKernelTrace", "Section_Overview"]
