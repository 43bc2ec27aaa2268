"""Runs as pandas data frames; the only module that imports ``pandas`` (the extra ``pandas`` of the package)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gwatch.common.format.run import Run
from gwatch.errors import ToolError, TraceError

KINDS = ("intervals", "records")


def _pandas() -> Any:
    try:
        import pandas
    except ImportError as error:
        raise ToolError("pandas-missing", f"pandas does not import: {error}",
                        "pip install 'gwatch-sass[pandas]'") from None
    return pandas


def frame_of(runs: Sequence[Run], what: str = "intervals") -> Any:
    """A ``pandas.DataFrame`` of all runs, one line per interval or per record, in (run, row, time) order.

    Both kinds have ``run``, ``kernel``, ``block``, ``warp`` (in its block), ``lane`` (-1: a warp's record), ``tid``,
    ``smid`` (-1 unknown). Intervals: ``scope``, ``role``, ``start``, ``end``, ``duration``, ``depth``, ``enter_site``,
    ``leave_site``, ``value_in``, ``value_out``. Records: ``site``, ``time``, ``value``, ``sequence`` (-1 unknown),
    ``gap`` (records were lost right before). Times are in the run's unit, column ``unit``.

    Raises TraceError ``[bad-kind]``, ToolError ``[pandas-missing]``.
    """
    if what not in KINDS:
        raise TraceError("bad-kind", f"there is no table of {what!r}", "use one of " + ", ".join(KINDS))
    pandas = _pandas()
    make = _intervals if what == "intervals" else _records
    parts = [make(pandas, run, number) for number, run in enumerate(runs)]
    frame = pandas.concat(parts, ignore_index=True) if parts else make(pandas, None, 0)
    for name in ("kernel", "unit", "scope", "role"):
        if name in frame:
            frame[name] = frame[name].astype("category")
    return frame


def _who(run: Run, row: NDArray[np.int64], number: int, pandas: Any) -> dict[str, Any]:
    rows = run.trace.rows

    def same(text: str) -> Any:
        return pandas.Categorical.from_codes(np.zeros(len(row), np.int8), [text])

    return {"run": np.full(len(row), number), "kernel": same(run.kernel), "unit": same(run.unit),
            "block": rows.block[row], "warp": rows.warp[row], "lane": rows.lane[row], "tid": rows.tid[row],
            "smid": rows.smid[row]}


def _intervals(pandas: Any, run: Run | None, number: int) -> Any:
    if run is None:
        return pandas.DataFrame({"run": [], "scope": [], "start": [], "end": [], "duration": []})
    iv, value = run.intervals, run.trace.value
    enter = np.array([r.enter for r in run.regions] or [0], np.int32)
    leave = np.array([r.leave for r in run.regions] or [0], np.int32)
    roles = [run.roles.get(label, "") for label in run.labels]
    kinds = list(dict.fromkeys(roles)) or [""]
    role = np.array([kinds.index(r) for r in roles] or [0], np.int32)
    return pandas.DataFrame({
        **_who(run, iv.row, number, pandas), "scope": pandas.Categorical.from_codes(run.scope, run.labels),
        "role": pandas.Categorical.from_codes(role[run.scope], kinds), "start": iv.start, "end": iv.end,
        "duration": iv.end - iv.start, "depth": iv.depth, "enter_site": enter[iv.region],
        "leave_site": leave[iv.region], "value_in": value[iv.opened], "value_out": value[iv.closed]})


def _records(pandas: Any, run: Run | None, number: int) -> Any:
    if run is None:
        return pandas.DataFrame({"run": [], "site": [], "time": [], "value": []})
    t = run.trace
    return pandas.DataFrame({**_who(run, t.row, number, pandas), "site": t.site, "time": t.time, "value": t.value,
                             "sequence": t.sequence, "gap": t.gap})
