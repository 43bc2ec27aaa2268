"""The report section for traces, under the name that tracing code imports it by."""

from gwatch.common.format import Section_IntraKernelTrace

__all__ = ["Section_IntraKernelTrace"]
