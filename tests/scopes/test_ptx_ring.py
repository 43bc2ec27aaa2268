"""What the PTX tier's records write is decoded: instrumented kernels run in an interpreter."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from ptxsim import Machine, parameters

from gwatch.cuda.binary.ptx import PtxModule
from gwatch.cuda.trace.ptxplan import choose_ptx_format, instrument, ptx_scopes
from gwatch.cuda.xtrace.decode import Decoded, decode_ring
from gwatch.rewrite.ring import HEADER_BYTES, Keep, RecordKind, RingLayout
from gwatch.rewrite.sitemap import MappedSite, SiteMap

SYMBOL = "gwatch_ring_k"
RING = 0x7F00_0010_0000
# Scope 1 once a thread, its end with the thread's number as payload; 2 in a loop that threads leave after tid % 4 + 1
# trips; 3 by odd threads alone, at its end by a predicate; 4 as three moves.
KERNEL = """
.version 8.0
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 k_param_0)
{
    .reg .pred %p<4>;
    .reg .b32 %r<9>;
    mov.u32 %r1, %tid.x;
    pmevent.mask 0xa001;
    { .reg .pred %gwatch_p; .reg .b32 %gwatch_n; mov.u32 %gwatch_n, %nctaid.x; setp.eq.u32 %gwatch_p, %gwatch_n, 0;
      mov.u32 %gwatch_n, 0; @%gwatch_p st.shared.b32 [%gwatch_n+423280], %r1; pmevent.mask 0xb801; }
    and.b32 %r2, %r1, 3;
    mov.u32 %r3, 0;
again:
    pmevent.mask 0xa002;
    pmevent.mask 0xb002;
    setp.ge.u32 %p1, %r3, %r2;
    add.u32 %r3, %r3, 1;
    @!%p1 bra again;
    and.b32 %r4, %r1, 1;
    setp.eq.u32 %p2, %r4, 0;
    @%p2 bra even;
    pmevent.mask 0xa003;
even:
    @!%p2 pmevent.mask 0xb003;
    mov.u32 %r5, 0x53544757;
    mov.u32 %r5, 4;
    mov.u32 %r5, 0x47574348;
    mov.u32 %r5, 0x45444757;
    mov.u32 %r5, 4;
    mov.u32 %r5, 0x47574348;
    ret;
}
"""


def traced(
    clock: str = "gpu",
    depth: int = 16,
    keep: str = "newest",
    duration: float | None = None,
    warp_level: bool = False,
    grid: tuple[int, int, int] = (2, 1, 1),
    block: tuple[int, int, int] = (48, 1, 1),
    ctas: int | None = None,
    armed: bool = True,
    payload: bool = True,
) -> tuple[Decoded, Machine]:
    source = KERNEL if payload else KERNEL.replace("pmevent.mask 0xb801", "pmevent.mask 0xb001")
    found = ptx_scopes(PtxModule(source), "k", {}, warp_level)
    fmt = choose_ptx_format(found, clock, depth, keep, duration)
    machine = Machine(instrument(found, clock, fmt, SYMBOL), "k")
    layout = RingLayout(fmt, grid, block, ctas or int(np.prod(grid)))
    place = layout.place(RING, layout.allocation_bytes)
    if armed:
        machine.write(machine.symbols[SYMBOL], layout.descriptor(place))
    if layout.sampled:
        machine.write(place.table, layout.table().tobytes())
    machine.launch(grid, block, parameters(0))
    sites = tuple(
        MappedSite(i, i, 0, 0, m.text, None, None, "R0" if m.payload else "none", warp_level, False, False)
        for i, m in enumerate(found.markers)
    )
    site_map = SiteMap("k", "sm_90a", clock, fmt, SYMBOL, 0, sites, 16, 24, False)
    data = machine.read(place.ring, layout.data_bytes)
    written = {at for at in machine.memory if at < RING + layout.allocation_bytes and at >= RING}
    inside = range(place.ring, place.ring + layout.data_bytes + layout.table_bytes)
    assert all(at in inside for at in written), "a store outside the ring"
    return decode_ring(data, layout, site_map, duration_ns=duration or 1e6), machine


def expected_visits(threads: int) -> list[int]:
    """Records of each thread of a CTA."""
    return [2 + 2 * (t % 4 + 1) + 2 * (t % 2) + 2 for t in range(threads)]


@pytest.mark.parametrize(
    ("clock", "keep", "duration", "kind"),
    [
        ("gpu", "newest", None, RecordKind.WIDE),
        ("sm", "first", None, RecordKind.WIDE),
        ("gpu", "newest", 3e9, RecordKind.LONG),
        ("sm", "first", 1e9, RecordKind.LONG),
    ],
)
def test_every_thread_leaves_its_records_in_order(
    clock: str, keep: str, duration: float | None, kind: RecordKind
) -> None:
    decoded, _ = traced(clock, keep=keep, duration=duration)
    assert decoded.dropped_total == 0
    for cta, thread in itertools.product(range(2), range(48)):
        records = decoded.records
        mine = records[(records["block"][:, 0] == cta) & (records["thread"] == thread)]
        trips = thread % 4 + 1
        wanted = [0, 1, *([2, 3] * trips), *([4, 5] * (thread % 2)), 6, 7]
        assert mine["site"].tolist() == wanted
        assert mine["sequence"].tolist() == list(range(len(wanted)))
        assert (np.diff(mine["time"]) >= 0).all()
        assert mine["value"].tolist() == [thread if site == 1 else 0 for site in wanted]
        assert set(mine["smid"].tolist()) == {3}


def test_narrow_records_without_payloads() -> None:
    decoded, _ = traced(payload=False)
    assert len(decoded.records) == 2 * sum(expected_visits(48))
    assert not decoded.records["value"].any()


@pytest.mark.parametrize("keep", ["newest", "first"])
def test_what_does_not_fit_is_counted(keep: str) -> None:
    decoded, _ = traced(keep=keep, depth=4)
    wanted = np.zeros((2, 2, 32), np.int64)
    wanted[:] = np.array([*expected_visits(48), *[0] * 16]).reshape(2, 32)
    assert (decoded.visits == wanted).all()
    assert (decoded.dropped == np.maximum(wanted - 4, 0)).all()
    first = decoded.records["sequence"].max() if keep == "first" else decoded.records["sequence"].min()
    assert first == (3 if keep == "first" else 2)


def test_a_warp_makes_one_record_per_group_of_its_lanes() -> None:
    decoded, _ = traced(warp_level=True)
    records = decoded.records
    assert (records["thread"] == -1).all()
    for cta, warp in itertools.product(range(2), range(2)):
        mine = records[(records["block"][:, 0] == cta) & (records["warp"] == warp)]
        counts = np.bincount(mine["site"], minlength=8).tolist()
        assert counts[:2] == [1, 1] and counts[2:4] == [4, 4] and counts[4:] == [1, 1, 1, 1]
        # Lanes leave the loop one after another: the lowest one still there records.
        assert mine["lane"][mine["site"] == 2].tolist() == [0, 1, 2, 3]
        assert mine["lane"][(mine["site"] == 4) | (mine["site"] == 5)].tolist() == [1, 1]
        assert mine["value"][mine["site"] == 1].tolist() == [32 * warp]


def test_ctas_without_a_slot_and_unarmed_kernels_write_nothing() -> None:
    decoded, _ = traced(grid=(5, 1, 1), ctas=2)
    assert set(decoded.records["block"][:, 0].tolist()) == {0, 2}
    with pytest.raises(Exception, match=r"\[not-run\]"):
        traced(armed=False)


def test_threads_are_numbered_in_three_dimensions() -> None:
    decoded, _ = traced(grid=(2, 2, 2), block=(8, 3, 2), payload=False)
    records = decoded.records
    assert len(np.unique(records["block"], axis=0)) == 8
    assert set(records["thread"].tolist()) == set(range(48))
    headers: Any = decoded.headers
    assert headers["lanes"].tolist() == [[0xFFFFFFFF, 0xFFFF]] * 8 and HEADER_BYTES == 64
    assert Keep.NEWEST.value == "newest"
