"""Objects that a program can reach, found without the garbage collector's list.

``gc.get_objects`` hands out every tracked object, also a tuple that another thread is still filling: that thread
then fails with ``SystemError: bad argument to internal function`` (seen with autograd, CuPy and Triton threads beside a
trace). Walking from modules and from the caller's frames meets only finished objects.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterator, Set
from types import FunctionType, MethodType, ModuleType
from typing import Any

MOST_OBJECTS = 400_000
"""Objects looked at; the walk is breadth-first, so what lies near a module's surface is met first."""

_ATOMS = (str, bytes, bytearray, int, float, complex, bool, type(None), ModuleType, type)


def reachable(class_names: Set[str], most: int = MOST_OBJECTS) -> Iterator[Any]:
    """Instances of classes with these names, reached from module globals and the calling thread's frames.

    Followed: containers, instance dictionaries, closures and bound methods.
    """
    queue: deque[Any] = deque()
    frame = sys._getframe(1)
    while frame is not None:
        queue.extend(list(frame.f_locals.values()))
        frame = frame.f_back  # type: ignore[assignment]
    for module in list(sys.modules.values()):
        names = getattr(module, "__dict__", None)
        if isinstance(names, dict):
            queue.extend(list(names.values()))
    seen: set[int] = set()
    while queue and len(seen) < most:
        item = queue.popleft()
        if isinstance(item, _ATOMS) or id(item) in seen:
            continue
        seen.add(id(item))
        if type(item).__name__ in class_names:
            yield item
        queue.extend(_inside(item))


def _inside(item: Any) -> list[Any]:
    if isinstance(item, dict):
        return list(item.values())
    if isinstance(item, (list, tuple, set, frozenset, deque)):
        return list(item)
    if isinstance(item, FunctionType):
        return [cell.cell_contents for cell in item.__closure__ or () if _filled(cell)]
    if isinstance(item, MethodType):
        return [item.__self__, item.__func__]
    try:
        names = object.__getattribute__(item, "__dict__")
    except (AttributeError, TypeError):
        return []
    return list(names.values()) if isinstance(names, dict) else []


def _filled(cell: Any) -> bool:
    try:
        _ = cell.cell_contents
    except ValueError:
        return False
    return True
