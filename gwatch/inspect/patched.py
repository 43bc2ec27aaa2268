"""Kernels that gwatch patched: which part of their code is looked at."""

from __future__ import annotations

from gwatch.cuda.binary.constants import read_note
from gwatch.inspect.view import CubinView
from gwatch.rewrite.sitemap import NOTE_NAME, SiteMap
from gwatch.sass.cfg import word_at
from gwatch.sass.isa import Decoded, isa_for


def leave_out_copy(view: CubinView) -> dict[str, str]:
    """Of a kernel that gwatch patched, look only at the code that records: the untouched copy behind it, which runs
    where nothing is recorded, would count everything twice. Returns a text for that kernel. Raises CubinError
    [note-damaged], TraceError [site-map].
    """
    note = read_note(view.cubin.data, NOTE_NAME)
    if note is None:
        return {}
    site_map = SiteMap.from_bytes(note)
    kernel = next((item for item in view.kernels if item.name == site_map.kernel), None)
    if kernel is None:
        return {}
    count, size = len(site_map.sites), view.arch.instruction_size
    text = f"records {count} site{'s' * (count != 1)} (gwatch)"
    isa = isa_for(kernel.arch)

    def decoded(index: int) -> Decoded:
        return isa.decode(word_at(kernel.words, index), pc=index * size)

    # The first branch is the prologue's, taken where nothing is to be recorded; code compiled anew has no copy.
    branch = next(
        (found for found in map(decoded, range(len(kernel.words))) if found.mnemonic == "BRA"), None
    )
    copy = branch.target // size if branch is not None and branch.target is not None else 0
    places = [copy + site.index for site in site_map.sites]
    if not copy or any(
        place >= len(kernel.words) or decoded(place).opcode not in site.instruction.split()
        for place, site in zip(places, site_map.sites, strict=True)
    ):
        return {kernel.name: text}
    view.end(kernel, copy)
    return {kernel.name: f"{text}; the untouched copy of the code from {copy * size:#x} on is left out"}
