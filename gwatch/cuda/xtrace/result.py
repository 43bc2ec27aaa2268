"""What a trace hands back: a dict with the classic keys, whose bulky parts are made only when asked for."""

from __future__ import annotations

from collections.abc import ItemsView, Iterator, KeysView, ValuesView
from typing import Any

import numpy as np
import numpy.typing as npt

from gwatch.cuda.xtrace.decode import Decoded
from gwatch.rewrite.ring import LANES, RingLayout

_ROWS = "trace_results"


class TraceResult(dict[str, Any]):
    """One traced launch.

    Classic keys: ``kernel_prototype``, ``compile_results``, ``grid_dim``, ``block_dim``, ``trace_results`` (a
    list of one dict per record, built when first read), ``oe_results`` (always empty), ``splice_results``.

    More: ``records`` (structured array, RECORD_DTYPE of :mod:`gwatch.cuda.xtrace.decode`), ``sites``,
    ``clock_type``, ``launch``, ``registers`` and ``occupancy`` (``before``/``after``; CTAs per SM, and
    ``needed``: how many this grid can use), ``slowdown`` (None when the launch could not be timed),
    ``cost_per_record`` (extra SM cycles per record of one warp, or None), ``dropped`` (total), ``visits`` and
    ``lost`` ((CTA slot, warp, lane) counts),
    ``lost_after``, ``outputs`` and ``outputs_detail``, ``sampled`` (None, or the CTAs recorded), ``clock``
    (anchor fit or None), ``warnings``, and ``launches``: the results of all traced launches of the pass,
    this one included. A trace of scope markers has ``scopes`` (label by scope id) and ``analysis`` with the regions
    that its report shows.

    Every key can also be read as an attribute.
    """

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"a trace result has no {name!r}") from None

    def __missing__(self, key: str) -> Any:
        if key == _ROWS and "records" in self:
            make = scope_rows if "scopes" in self else record_rows
            rows = self[key] = make(self)
            return rows
        raise KeyError(key)

    def _complete(self) -> None:
        self[_ROWS]

    def __contains__(self, key: object) -> bool:
        return super().__contains__(key) or (key == _ROWS and super().__contains__("records"))

    def get(self, key: str, default: Any = None) -> Any:
        """Like ``dict.get``; knows the keys that are made when asked for."""
        try:
            return self[key]
        except KeyError:
            return default

    def __iter__(self) -> Iterator[str]:
        self._complete()
        return super().__iter__()

    def __len__(self) -> int:
        self._complete()
        return super().__len__()

    def keys(self) -> KeysView[str]:  # type: ignore[override]
        self._complete()
        return super().keys()

    def values(self) -> ValuesView[Any]:  # type: ignore[override]
        self._complete()
        return super().values()

    def items(self) -> ItemsView[str, Any]:  # type: ignore[override]
        self._complete()
        return super().items()

    def __repr__(self) -> str:
        records, dropped = len(self["records"]), self["dropped"]
        return f"<TraceResult {self['kernel_prototype']}: {records} records, {dropped} dropped>"


def _global_tids(result: TraceResult) -> npt.NDArray[np.int64]:
    """The linear CTA id times the CTA's threads plus the linear thread; for a warp-level record the launch-wide
    warp number times 32."""
    records, grid, block = result["records"], result["grid_dim"], result["block_dim"]
    threads = block[0] * block[1] * block[2]
    warps = (threads + LANES - 1) // LANES
    x, y, z = records["block"].astype(np.int64).T
    linear = x + grid[0] * (y + grid[1] * z)
    tid: npt.NDArray[np.int64] = np.where(
        records["warp_level"],
        (linear * warps + records["warp"]) * LANES,
        linear * threads + records["thread"],
    )
    return tid


def record_rows(result: TraceResult) -> list[dict[str, Any]]:
    """Records as dicts: ``global_tid``, ``site_id``, ``value``, ``timestamp``; warp-level ones also ``smid``."""
    records = result["records"]
    columns = (
        _global_tids(result),
        records["site"],
        records["value"],
        records["time"],
        records["smid"],
        records["warp_level"],
    )
    rows = []
    for number, site, value, time, smid, warp_level in zip(*(c.tolist() for c in columns), strict=True):
        row = {"global_tid": number, "site_id": site, "value": value, "timestamp": time}
        if warp_level:
            row["smid"] = smid
        rows.append(row)
    return rows


def scope_rows(result: TraceResult) -> list[dict[str, Any]]:
    """Records of scope markers as dicts: ``global_tid``, ``type_id`` (1 start, 2 end), ``type_str``, ``scope_id``
    (from 1, in order of the ids), ``scope_str`` (the id in the source), ``scope_label``, ``payload``, ``value``
    (the time).
    """
    records = result["records"]
    scopes = list(result["scopes"].items())
    rows = []
    columns = (_global_tids(result), records["site"], records["value"], records["time"])
    for number, site, payload, time in zip(*(c.tolist() for c in columns), strict=True):
        rank, end = divmod(site, 2)
        scope, label = scopes[rank]
        rows.append(
            {
                "global_tid": number,
                "type_id": 1 + end,
                "type_str": "SCOPE_END" if end else "SCOPE_START",
                "scope_id": rank + 1,
                "scope_str": str(scope),
                "scope_label": label,
                "payload": payload,
                "value": time,
            }
        )
    return rows


def lost_after(decoded: Decoded) -> npt.NDArray[np.void]:
    """(warp, lane, lost) of every lane that made records after its last kept one, for ``keep="first"``.

    ``warp`` counts over the launch.
    """
    slot, warp, lane = np.nonzero(decoded.dropped)
    table = np.zeros(len(slot), [("warp", "<i8"), ("lane", "<i4"), ("lost", "<i8")])
    cta = decoded.headers["cta"][slot, warp].astype(np.int64)
    table["warp"] = cta * decoded.dropped.shape[1] + warp
    table["lane"], table["lost"] = lane, decoded.dropped[slot, warp, lane]
    return table


def cycles_per_ns(decoded: Decoded) -> float | None:
    """SM clock in GHz, from the clock pairs at entry and exit of the warps; None without usable pairs."""
    headers = decoded.headers[decoded.headers["ns_out"] != 0]
    ns = (headers["ns_out"] - headers["ns_in"].astype(np.uint32)).astype(np.float64)
    cycles = (headers["clock_out"] - headers["clock_in"].astype(np.uint32)).astype(np.float64)
    good = (ns > 2000) & (ns < 1e9)  # the ns timer steps by 32: shorter spans say too little
    return float(np.median(cycles[good] / ns[good])) if good.any() else None


def cost_per_record(
    decoded: Decoded, layout: RingLayout, resident_ctas: int, extra_ns: float, noise_ns: float, ghz: float
) -> float | None:
    """Extra SM cycles per record of one warp: the launch's extra time over the records made one after
    another.

    A record that several sites share is one. Warps resident together record side by side, so the number of records in
    a row is that of the busiest SM divided by the warps it holds at once. None when CTAs were sampled, nothing was
    recorded, or the extra time does not stand out of the noise.
    """
    if layout.sampled or extra_ns <= noise_ns or not decoded.written.any():
        return None
    per_warp = decoded.written.max(axis=2)
    if len(decoded.records) and decoded.records["warp_level"].all():
        per_warp = decoded.written.sum(axis=2)  # the elected lane differs from visit to visit
    smid = decoded.headers["smid"].reshape(-1).astype(np.int64)
    total = np.bincount(smid, weights=per_warp.reshape(-1).astype(np.float64))
    warps = np.bincount(smid)
    at_once = np.minimum(warps, max(resident_ctas, 1) * layout.warps_per_cta)
    in_a_row = float((total[warps > 0] / at_once[warps > 0]).max())
    return extra_ns * ghz / in_a_row
