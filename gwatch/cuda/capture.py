"""Seeing and steering what a program loads and launches, through CUPTI's API-enter callbacks.

Rules this module keeps, because each has broken something: one subscription per process, taken only while
needed and always given back (a live one crashes the interpreter at exit), and given back only after its
callbacks are off and have drained (taking it away under a launching thread crashes too); launch callbacks are
on only inside :meth:`Hooks.observe`; a callback never loads, allocates or waits (an
observer may as the launch call is entered, where the driver holds no lock); the first exception in a
callback is stored and raised again by the code that asked for the observation, but Ctrl-C and what else ends a
program (raised in a callback because a signal came then) goes on to the program; the MODULE_LOADED resource
callback, made with the driver's locks held, copies bytes and returns, and does so without Python where it can
(:mod:`gwatch.cuda.catcher`).
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from typing import Protocol

from gwatch.cuda import cupti
from gwatch.cuda.images import ImageStore, container_at, elf_extent
from gwatch.cuda.launchview import LAYOUTS, LaunchView
from gwatch.errors import ToolError

# Loads whose image is handed over in memory: offset of the image pointer in the argument structure.
_LOADS = {"cuModuleLoadData": 8, "cuModuleLoadDataEx": 8, "cuModuleLoadFatBinary": 8, "cuLibraryLoadData": 8}
# Loads from a file, and unloads: only their handles matter.
_FILE_LOADS = ("cuModuleLoad", "cuLibraryLoadFromFile")
_DRAIN_SECONDS = 0.03
_ALONE_SECONDS = 30.0
"""A kernel may be waiting for what another thread does: it is not kept for ever."""
_AGAIN, _AGAIN_SECONDS = signal.SIGURG, 0.001
_UNLOADS = ("cuModuleUnload", "cuLibraryUnload")


class Observer(Protocol):
    """Someone interested in launches; every method is called inside a driver call and must be quick."""

    def wants(self, symbol: str) -> bool:
        """Whether launches of this mangled name matter; asked once per name."""

    def enter(self, view: LaunchView) -> None:
        """A wanted launch is about to be made; may redirect it."""

    def leave(self, view: LaunchView, status: int) -> None:
        """The launch call returned ``status`` (0 = success)."""


class Hooks:
    """The process's one CUPTI subscription. Made once (:data:`hooks`); holders are counted."""

    def __init__(self) -> None:
        self.images = ImageStore()
        self.errors: list[BaseException] = []
        self._lock = threading.RLock()
        self._cupti: cupti.Cupti | None = None
        self._holders = 0
        self._process = os.getpid()
        self._names: dict[int, str] = {}
        self._launch_ids: frozenset[int] = frozenset()
        self._observer: Observer | None = None
        self._wanted: dict[bytes, bool] = {}
        self._open: dict[int, LaunchView] = {}
        self._loading: dict[int, list[_Load]] = {}
        self._inside = threading.local()
        self._taking = threading.Lock()
        self._alone: tuple[int, threading.Event] | None = None  # thread, and when it has finished
        self._one_alone = threading.Lock()
        self._unraisable_before = sys.unraisablehook
        self.images.refresh = self._take

    @property
    def installed(self) -> bool:
        """Whether the subscription is held."""
        return self._holders > 0

    def acquire(self) -> None:
        """Take (or share) the subscription and watch module loads from now on.

        Raises ToolError ``[cupti-missing]``, ``[cupti-held]`` or ``[cupti-failed]``; nothing is left behind.
        """
        with self._lock:
            if self._holders == 0:
                self._subscribe()
            self._holders += 1

    def release(self) -> None:
        """Undo one :meth:`acquire`; the last one gives the subscription back."""
        with self._lock:
            if self._holders == 0:
                return
            self._holders -= 1
            if self._holders == 0 and self._cupti is not None and self._cupti.subscribed:
                self._switch(frozenset(self._names), False)
                self._cupti.enable(cupti.DOMAIN_RESOURCE, cupti.RESOURCE_MODULE_LOADED, False)
                # Threads that passed CUPTI's check before the switch may still be on their way into the
                # callback.
                time.sleep(_DRAIN_SECONDS)
                self._cupti.unsubscribe()

    def release_all(self) -> None:
        """Give the subscription back whoever holds it; runs at interpreter exit.

        A forked child that ends has nothing to give back: the subscription is its parent's.
        """
        if os.getpid() != self._process:
            return
        with self._lock:
            self._holders = min(self._holders, 1)
            self.release()

    def _subscribe(self) -> None:
        if self._cupti is None:
            self._cupti = cupti.load()
            ids = self._cupti.callback_ids()
            self._names = {
                ids[name]: name for name in (*LAYOUTS, *_LOADS, *_FILE_LOADS, *_UNLOADS) if name in ids
            }
            self._launch_ids = frozenset(ids[name] for name in LAYOUTS if name in ids)
            if not self._launch_ids:
                raise ToolError(
                    "cupti-failed",
                    f"{self._cupti.path} knows none of the driver's launch calls",
                    "use the CUPTI that belongs to the driver's major version",
                )
        self._process, self._loading = os.getpid(), {}
        self._cupti.subscribe(self._callback)
        try:
            self._switch(frozenset(self._names) - self._launch_ids, True)
            self._cupti.enable(cupti.DOMAIN_RESOURCE, cupti.RESOURCE_MODULE_LOADED, True)
        except BaseException:
            self._cupti.unsubscribe()
            raise

    def _switch(self, callback_ids: frozenset[int], on: bool) -> None:
        assert self._cupti is not None
        for callback_id in callback_ids:
            self._cupti.enable(cupti.DOMAIN_DRIVER, callback_id, on)

    @contextlib.contextmanager
    def observe(self, observer: Observer) -> Iterator[None]:
        """Show every launch made by any thread to ``observer`` while the block runs.

        Raises again, at the end of the block, the first exception that a callback met (unless the block
        itself failed). One observation at a time: ToolError ``[trace-active]``.
        """
        with self._lock:
            if self._observer is not None:
                raise ToolError(
                    "trace-active",
                    "another trace is observing this process's launches",
                    "wait for it to return; traces run one at a time",
                )
            self.acquire()
            self._wanted, self._open, self.errors = {}, {}, []
            self._observer = observer
            self._unraisable_before, sys.unraisablehook = sys.unraisablehook, self._unraisable
            try:
                self._switch(self._launch_ids, True)
            except BaseException:
                self._end_observation()
                self.release()
                raise
        try:
            yield
        finally:
            with self._lock:
                self._end_observation()
                if self._cupti is not None and self._cupti.subscribed:
                    self._switch(self._launch_ids, False)
                self.release()
        if self.errors:
            raise self.errors[0]

    def _end_observation(self) -> None:
        self._observer = None
        if sys.unraisablehook == self._unraisable:  # else it is the program's own, which may call ours
            sys.unraisablehook = self._unraisable_before

    def replace_observer(self, before: Observer, after: Observer) -> None:
        """Let ``after`` see the launches that ``before`` is observing; for a process that forked off."""
        with self._lock:
            if self._observer is before:
                self._observer, self._wanted, self._open = after, {}, {}
                # Another thread may have held them when the process forked.
                self._taking, self._one_alone, self._alone = threading.Lock(), threading.Lock(), None
                self._process = os.getpid()

    @contextlib.contextmanager
    def quiet(self) -> Iterator[None]:
        """Take no notice of what the calling thread loads and launches: it is gwatch's own."""
        with self._flag("own"), self._flag("busy"):
            yield

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Keep the launches of other threads waiting while the block runs, for :data:`_ALONE_SECONDS` at most."""
        with self._one_alone:
            finished = threading.Event()
            self._alone = threading.get_ident(), finished
            try:
                time.sleep(_DRAIN_SECONDS)  # a thread may have looked just before, and be on its way to the driver
                yield
            finally:
                self._alone = None
                finished.set()

    @contextlib.contextmanager
    def _flag(self, name: str) -> Iterator[None]:
        before = getattr(self._inside, name, False)
        setattr(self._inside, name, True)
        try:
            yield
        finally:
            setattr(self._inside, name, before)

    # callbacks: run on whatever thread makes the driver call

    def _callback(self, _user: int | None, domain: int, callback_id: int, address: int) -> None:
        try:
            if domain != cupti.DOMAIN_DRIVER:
                if not getattr(self._inside, "own", False):
                    self._module_loaded(address)
                return
            data = cupti.CallbackData.from_address(address)
            if callback_id not in self._launch_ids:
                if not getattr(self._inside, "own", False):
                    self._load(self._names[callback_id], data)
            elif data.site == cupti.SITE_ENTER:
                alone = self._alone
                if alone is not None and alone[0] != threading.get_ident():
                    alone[1].wait(_ALONE_SECONDS)
                observer = self._observer
                if observer is not None and self._is_wanted(observer, callback_id, data):
                    self._enter(observer, callback_id, data)
            elif self._open:
                view = self._open.pop(data.correlation_id, None)
                if view is not None:
                    self._leave(view, data)
        except BaseException as error:
            # Nothing may escape into the driver's frames.
            if not (from_signal(error) and _raise_later(error)):
                self._note(error)

    def _unraisable(self, what: sys.UnraisableHookArgs) -> None:
        """Python looks for signals before a function's first line, where no ``try`` is around it."""
        ours = what.object == self._callback or repr(self._callback) in (what.err_msg or "")
        if not (ours and what.exc_value is not None and _raise_later(what.exc_value)):
            self._unraisable_before(what)

    def _note(self, error: BaseException) -> None:
        if not self.errors:  # observe() raises the first; a program may launch for ever
            self.errors.append(error)

    def _is_wanted(self, observer: Observer, callback_id: int, data: cupti.CallbackData) -> bool:
        symbol: bytes | None = data.symbol_name
        if symbol is None:  # graph-node calls carry no name: the observer asks the driver
            return LaunchView.is_kernel(self._names[callback_id], data.params)
        wanted = self._wanted.get(symbol)
        if wanted is None:
            wanted = self._wanted[symbol] = observer.wants(symbol.decode(errors="replace"))
        return wanted

    def _enter(self, observer: Observer, callback_id: int, data: cupti.CallbackData) -> None:
        if getattr(self._inside, "busy", False):
            return  # a launch that the observer itself makes
        # What an observer asks about a kernel may make the driver load it: its image is the program's, not ours.
        with self._flag("busy"):
            symbol = data.symbol_name
            view = LaunchView(
                self._names[callback_id],
                data.params,
                data.context or 0,
                symbol.decode(errors="replace") if symbol else "",
            )
            try:
                observer.enter(view)
            finally:
                # Whatever happened in there, the call is put back. Not before: calls that the observer makes in there
                # end under the same id.
                self._open[data.correlation_id] = view

    def _leave(self, view: LaunchView, data: cupti.CallbackData) -> None:
        view.restore()
        observer = self._observer
        if observer is None:
            return
        with self._flag("busy"):
            status = ctypes.c_int.from_address(data.return_value).value if data.return_value else 0
            observer.leave(view, status)

    def _load(self, api: str, data: cupti.CallbackData) -> None:
        thread = threading.get_ident()
        if api in _UNLOADS:
            if data.site == cupti.SITE_ENTER:
                self.images.forget(ctypes.c_uint64.from_address(data.params).value)
            return
        self._take()
        stack = self._loading.setdefault(thread, [])
        if data.site == cupti.SITE_ENTER:
            load = _Load()
            stack.append(load)
            if api in _LOADS:
                place = data.params + _LOADS[api]
                pointer = load.address = ctypes.c_uint64.from_address(place).value
                size = elf_extent(pointer)
                if size:
                    load.image = ctypes.string_at(pointer, size)
                    replacement = self.images.replacement(load.image)
                    if replacement is not None:
                        load.place, load.original = place, pointer
                        ctypes.c_uint64.from_address(place).value = replacement
                else:
                    load.container = container_at(pointer)
        elif stack:
            load = stack.pop()
            if load.place:
                ctypes.c_uint64.from_address(load.place).value = load.original
            if not stack:
                self._loading.pop(thread, None)
            failed = data.return_value and ctypes.c_int.from_address(data.return_value).value
            handle_at = ctypes.c_uint64.from_address(data.params).value
            if not failed and handle_at:
                handle = ctypes.c_uint64.from_address(handle_at).value
                image = load.image or load.seen
                self.images.loaded(handle, image, swapped=bool(load.place), address=load.address)
                if load.container is not None:
                    self.images.contained(handle, load.container)

    def _take(self) -> None:
        """Note the images that machine code caught since the last look."""
        with self._taking:
            for item in self._cupti.caught() if self._cupti is not None else ():
                self._saw(item.thread, item.image)

    def _module_loaded(self, address: int) -> None:
        descriptor = cupti.ResourceData.from_address(address).descriptor
        if not descriptor:
            return
        module = cupti.ModuleResourceData.from_address(descriptor)
        if not module.image or not module.size:
            return
        self._saw(threading.get_ident(), ctypes.string_at(module.image, module.size))

    def _saw(self, thread: int, image: bytes) -> None:
        stack = self._loading.get(thread)
        if stack:
            stack[-1].seen = stack[-1].seen or image
        self.images.seen(image)


def from_signal(error: BaseException) -> bool:
    """Whether a signal's handler raised this, which the program set up and waits for; Ctrl-C and exits always are."""
    if not isinstance(error, Exception):
        return True
    handlers = [getattr(signal.getsignal(number), "__code__", None) for number in signal.valid_signals()]
    frame = error.__traceback__
    while frame is not None:
        if frame.tb_frame.f_code in handlers:
            return True
        frame = frame.tb_next
    return False


def _raise_later(error: BaseException) -> bool:
    """Raise in the main thread, once it has left the driver call, what a signal's handler raised in a callback; False
    where that can't be done. Should the thread be inside a callback again by then, all this happens again.
    """
    before = signal.getsignal(_AGAIN)
    if threading.current_thread() is not threading.main_thread() or before is None:
        return False

    def again(_number: int, _frame: object) -> None:
        signal.signal(_AGAIN, before)
        raise error

    def wake() -> None:
        time.sleep(_AGAIN_SECONDS)
        signal.pthread_kill(main, _AGAIN)

    main = threading.get_ident()
    signal.signal(_AGAIN, again)
    threading.Thread(target=wake, name="gwatch interrupt", daemon=True).start()
    return True


class _Load:
    """A load call in flight on one thread."""

    __slots__ = ("address", "container", "image", "original", "place", "seen")

    def __init__(self) -> None:
        self.address = 0  # what the call was handed
        self.image: bytes | None = None  # copied from the call's own argument
        self.container: bytes | None = None  # where that was a fat binary or PTX
        self.seen: bytes | None = None  # what the driver said it loaded
        self.place = 0  # where the image pointer was replaced
        self.original = 0


hooks = Hooks()
atexit.register(hooks.release_all)
