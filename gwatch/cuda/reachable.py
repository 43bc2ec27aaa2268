"""Objects that a program can reach, found without the garbage collector's list.

``gc.get_objects`` hands out every tracked object, also a tuple that another thread is still filling: that thread
then fails with ``SystemError: bad argument to internal function`` (seen with autograd, CuPy and Triton threads beside a
trace). Walking from modules and from the caller's frames meets only finished objects.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterator, Set
from types import FunctionType, MethodType
from typing import Any

MOST_OBJECTS = 1_000_000
"""Objects looked at; the walk is breadth-first, so what lies near a module's surface is met first."""

_ATOMS = (str, bytes, bytearray, int, float, complex, bool, type(None), type)
_SEQUENCES: tuple[Any, ...] = (list, tuple, set, frozenset, deque)


def reachable(class_names: Set[str], most: int = MOST_OBJECTS) -> Iterator[Any]:
    """Instances of classes with these names, reached from module globals and the calling thread's frames.

    Followed: containers, instance dictionaries, modules, functions' globals and closures, and bound methods. Types are
    asked of the interpreter, not of the object: ``isinstance`` would run the ``__class__`` property of lazy stand-ins.
    """
    queue: deque[Any] = deque()
    frame = sys._getframe(1)
    while frame is not None:
        queue.extend(list(frame.f_locals.values()))
        frame = frame.f_back  # type: ignore[assignment]
    queue.extend(list(sys.modules.values()))
    seen: set[int] = set()
    while queue and len(seen) < most:
        item = queue.popleft()
        kind = type(item)
        if issubclass(kind, _ATOMS) or id(item) in seen:
            continue
        seen.add(id(item))
        if kind.__name__ in class_names:
            yield item
        queue.extend(_inside(item, kind))


def _inside(item: Any, kind: type) -> list[Any]:
    if issubclass(kind, dict):
        return list(dict.values(item))
    for container in _SEQUENCES:
        if issubclass(kind, container):
            return list(container.__iter__(item))
    if issubclass(kind, FunctionType):
        return [item.__globals__, *(cell.cell_contents for cell in item.__closure__ or () if _filled(cell))]
    if issubclass(kind, MethodType):
        return [item.__self__, item.__func__]
    try:
        names = object.__getattribute__(item, "__dict__")
    except (AttributeError, TypeError):
        return []
    return [names] if type(names) is dict else []


def _filled(cell: Any) -> bool:
    try:
        _ = cell.cell_contents
    except ValueError:
        return False
    return True
