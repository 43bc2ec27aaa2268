"""The driver's launch structures, laid out by hand from cuda.h, read and redirected."""

from __future__ import annotations

import ctypes
import struct

import pytest
from fakes import packed

from gwatch.cuda.launchview import LaunchView, Replacement

DIMS = (3, 4, 5, 32, 2, 1, 4096)
TO = Replacement(kernel=0xAAA0, function=0xBBB0)


def direct(params: int, extra: int = 0, stream: int = 0x51) -> ctypes.Array[ctypes.c_char]:
    raw = struct.pack("<Q7I4xQQQ", 0x1234, *DIMS, stream, params, extra)
    assert len(raw) == 64
    return ctypes.create_string_buffer(raw, len(raw))


def node(params: int, function: int, kernel: int = 0, size: int = 72) -> ctypes.Array[ctypes.c_char]:
    raw = struct.pack("<Q7I4xQQQQ", function, *DIMS, params, 0, kernel, 0)
    return ctypes.create_string_buffer(raw[:size], size)


HELD: list[object] = []  # a view keeps addresses, not the structures


def view(api: str, arguments: ctypes.Array[ctypes.c_char]) -> LaunchView:
    HELD.append(arguments)
    return LaunchView(api, ctypes.addressof(arguments), 0x99, "kernel")


def test_a_direct_launch_is_recorded_with_its_packed_parameters() -> None:
    values = packed(ctypes.c_uint64(0xDEADBEEF00), ctypes.c_int(-2), ctypes.c_double(1.5))
    launch = view("cuLaunchKernel", direct(ctypes.addressof(values))).record(7, [(0, 8), (8, 4), (16, 8)])
    assert (launch.grid, launch.block, launch.shared_bytes) == ((3, 4, 5), (32, 2, 1), 4096)
    assert (launch.handle, launch.stream, launch.context, launch.ordinal) == (0x1234, 0x51, 0x99, 7)
    assert launch.parameters == struct.pack("<Qi4xd", 0xDEADBEEF00, -2, 1.5)
    assert (launch.threads, launch.ctas, launch.cluster, launch.graph_node) == (64, 60, None, False)


def test_parameters_passed_in_one_buffer_are_read() -> None:
    blob = ctypes.create_string_buffer(struct.pack("<Qi", 11, 12), 12)
    size = ctypes.c_uint64(12)
    extra = struct.pack("<5Q", 1, ctypes.addressof(blob), 2, ctypes.addressof(size), 0)
    array = ctypes.create_string_buffer(extra, len(extra))
    seen = view("cuLaunchKernel", direct(0, ctypes.addressof(array)))
    assert seen.parameters([(0, 8), (8, 4)]) == struct.pack("<Qi", 11, 12)
    assert view("cuLaunchKernel", direct(0)).parameters([(0, 8)]) is None
    assert view("cuLaunchKernel", direct(0)).parameters([]) == b""


def test_a_cooperative_launch_has_no_extra_field_to_read() -> None:
    # What follows kernelParams in memory is not part of the structure.
    assert view("cuLaunchCooperativeKernel", direct(0, 0xBAD)).parameters([(0, 8)]) is None


def test_a_config_launch_tells_cluster_and_attributes() -> None:
    attributes = struct.pack("<I4x3I52x", 4, 2, 1, 1) + struct.pack("<I4xi60x", 2, 1)
    held = ctypes.create_string_buffer(attributes, len(attributes))
    config = struct.pack("<7I4xQQI4x", *DIMS, 0x52, ctypes.addressof(held), 2)
    held_config = ctypes.create_string_buffer(config, len(config))
    arguments = struct.pack("<4Q", ctypes.addressof(held_config), 0x4321, 0, 0)
    launch = view("cuLaunchKernelEx", ctypes.create_string_buffer(arguments, 32)).record(0)
    assert (launch.handle, launch.cluster, launch.attributes) == (0x4321, (2, 1, 1), (4, 2))
    assert (launch.grid, launch.block, launch.stream) == ((3, 4, 5), (32, 2, 1), 0x52)


def test_stream_zero_of_the_per_thread_calls_is_the_threads_own_stream() -> None:
    assert view("cuLaunchKernel_ptsz", direct(0, stream=0)).stream == 2
    assert view("cuLaunchKernel", direct(0, stream=0)).stream == 0


def test_redirecting_swaps_the_handle_and_restoring_brings_it_back() -> None:
    arguments = direct(0)
    before = bytes(arguments)
    seen = view("cuLaunchKernel", arguments)
    seen.redirect(TO)
    assert struct.unpack_from("<Q", arguments)[0] == TO.kernel
    assert bytes(arguments)[8:] == before[8:]
    seen.restore()
    assert bytes(arguments) == before


@pytest.mark.parametrize(
    ("api", "at", "size"),
    [
        ("cuGraphAddKernelNode_v2", 32, 72),
        ("cuGraphAddKernelNode", 32, 56),
        ("cuGraphExecKernelNodeSetParams_v2", 16, 72),
        ("cuGraphKernelNodeSetParams", 8, 56),
    ],
)
def test_a_graph_node_is_redirected_through_a_copy(api: str, at: int, size: int) -> None:
    described = node(0, 0x777, size=size)
    arguments = bytearray(48)
    struct.pack_into("<Q", arguments, at, ctypes.addressof(described))
    held = ctypes.create_string_buffer(bytes(arguments), 48)
    before = bytes(described)
    seen = view(api, held)
    assert seen.handle == 0x777
    assert seen.record(0).graph_node and seen.record(0).grid == (3, 4, 5)
    seen.redirect(TO)
    place = struct.unpack_from("<Q", held, at)[0]
    assert place != ctypes.addressof(described)
    assert struct.unpack_from("<Q", ctypes.string_at(place, 8))[0] == TO.function
    assert ctypes.string_at(place + 8, size - 8) == before[8:]
    assert bytes(described) == before  # the program's own structure is untouched
    seen.restore()
    assert struct.unpack_from("<Q", held, at)[0] == ctypes.addressof(described)


def test_a_graph_node_by_kernel_handle_is_understood() -> None:
    described = node(0, 0, kernel=0x888)
    held = ctypes.create_string_buffer(
        bytes(32) + struct.pack("<Q", ctypes.addressof(described)) + bytes(8), 48
    )
    assert view("cuGraphAddKernelNode_v2", held).handle == 0x888


def test_a_generic_node_counts_only_when_it_is_a_kernel() -> None:
    body = bytes(node(0, 0x999))
    for kind, expected in ((0, True), (1, False)):
        generic = ctypes.create_string_buffer(struct.pack("<i12x", kind) + body.ljust(240, b"\0"), 256)
        held = ctypes.create_string_buffer(bytes(32) + struct.pack("<Q", ctypes.addressof(generic)), 40)
        assert LaunchView.is_kernel("cuGraphAddNode", ctypes.addressof(held)) is expected
        if expected:
            seen = view("cuGraphAddNode", held)
            assert (seen.handle, seen.dimensions()[0]) == (0x999, (3, 4, 5))
            seen.redirect(TO)
            place = struct.unpack_from("<Q", held, 32)[0]
            assert struct.unpack_from("<Q", ctypes.string_at(place + 16, 8))[0] == TO.function
