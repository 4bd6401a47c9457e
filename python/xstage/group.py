"""Groups of ranks that share memory, and how they find each other."""

from __future__ import annotations

import atexit
import ctypes
import itertools
import os
import sys
import uuid
import warnings
from ctypes import c_int32, c_void_p
from typing import Sequence

from xstage import _abi
from xstage._errors import BadInput, Closed

_BACKEND_NAMES = ("auto", *_abi.BACKENDS)
_by_name: dict[str, "Group"] = {}
_counter = itertools.count()


def _driver_found() -> bool:
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


class Child:
    """Something built on a group: closed with it, by hand, or at the end of a `with` block."""

    group: "Group"

    def close(self) -> None:
        raise NotImplementedError

    def _join(self) -> None:
        self.group._children.append(self)

    def _leave(self) -> None:
        if self in self.group._children:
            self.group._children.remove(self)

    def __enter__(self):
        return self

    def __exit__(self, *_) -> None:
        self.close()


class Group:
    """Ranks of one node that share memory: every rank constructs it with the same arguments but `rank`.

    name: the same on all ranks and unlike that of any other live group.
    backend: "process" (one GPU per process), "host" (no GPU: threads or processes, slow and correct),
        "local" (all ranks virtual, in this process; see `Group.local`), or "auto": "process" where a CUDA
        driver loads, falling back to "host" with a warning when the group cannot be built there; the
        environment's XSTAGE_BACKEND decides for "auto" when it is set, on all ranks alike.
    devices: CUDA ordinals of this process's ranks. setup_timeout, wait_timeout: seconds.

    Raises BadInput, Unsupported, EnvironmentBroken or TimedOut, the same on all ranks.
    """

    def __init__(
        self,
        name: str = "",
        rank: int = 0,
        world: int = 1,
        *,
        backend: str = "auto",
        devices: Sequence[int] | None = None,
        setup_timeout: float = 30,
        wait_timeout: float = 30,
        host_page_bytes: int = 0,
    ):
        if backend not in _BACKEND_NAMES:
            raise BadInput(f"backend {backend!r}: choose one of {', '.join(_BACKEND_NAMES)}")
        self._handle = c_void_p()
        self.name, self.rank = name, rank
        self._children: list = []
        self._contexts: dict = {}
        asked = backend
        forced = os.environ.get("XSTAGE_BACKEND", "") if backend == "auto" else ""
        if forced and forced not in _BACKEND_NAMES:
            raise BadInput(f"XSTAGE_BACKEND={forced}: choose one of {', '.join(_BACKEND_NAMES)}")
        if backend == "auto" and forced in ("", "auto"):
            backend = "process" if _driver_found() else "host"
        backend = forced if forced not in ("", "auto") else backend
        if devices is None and backend == "process":
            torch = sys.modules.get("torch")
            if torch is not None and torch.cuda.is_available():
                devices = [torch.cuda.current_device()]
        options = _abi.FabricOptions(
            backend=_abi.BACKENDS.index(backend),
            world=world,
            rank=rank,
            name=name.encode(),
            setup_timeout_ms=int(setup_timeout * 1000),
            wait_timeout_ms=int(wait_timeout * 1000),
            allow_fallback=int(asked == "auto"),
            host_page_bytes=host_page_bytes,
        )
        if devices is not None:
            options.devices = (c_int32 * len(devices))(*devices)
            options.device_count = len(devices)
        _abi.check(_abi.lib.xstage_fabric_create(ctypes.byref(options), ctypes.byref(self._handle)))
        self.world: int = world
        self.backend: str = _abi.BACKENDS[_abi.lib.xstage_fabric_backend(self._handle)]
        self.local_ranks: list[int] = list(range(world)) if self.backend == "local" else [rank]
        self.devices: list[int] = list(devices or [])
        self._order = list(dict.fromkeys(self.devices or [0]))
        self._streams = (c_void_p * len(self._order))()
        self._streams_at, self._raw_stream = ctypes.cast(self._streams, c_void_p), None
        self.fallback_reason: str = _abi.lib.xstage_fabric_fallback_reason(self._handle).decode()
        if asked == "auto" and backend == "host" and not self.fallback_reason:
            no_driver = "no CUDA driver (libcuda.so.1) can be loaded here"
            self.fallback_reason = "XSTAGE_BACKEND=host" if forced == "host" else no_driver
        if self.fallback_reason:
            warnings.warn(
                f"xstage runs on the host, slowly: {self.fallback_reason}", RuntimeWarning, stacklevel=2
            )
        _by_name[name or f"local-{next(_counter)}"] = self

    @classmethod
    def local(cls, world: int, devices: Sequence[int] | None = None, **options) -> "Group":
        """`world` virtual ranks in this process on the GPUs there are; several may share one.

        Calls take a list with one tensor per rank. For tests on one GPU; the stores cross no link.
        """
        return cls(f"local-{uuid.uuid4().hex}", 0, world, backend="local", devices=devices or [0] * world, **options)

    @classmethod
    def from_torch(cls, process_group=None, **options) -> "Group":
        """The ranks of a torch process group (the default one if None). Collective on it, by its store.

        Close it before the process group is destroyed: it is found again by that group's name.
        """
        import torch.distributed as dist

        pg = process_group if process_group is not None else dist.group.WORLD
        if pg is None:
            raise BadInput("torch.distributed has no process group: call init_process_group first, or use Group(...)")
        store = dist.distributed_c10d._get_process_group_store(pg)
        rank, world = dist.get_rank(pg), dist.get_world_size(pg)
        turn = _turns[pg.group_name] = _turns.get(pg.group_name, -1) + 1
        key = f"xstage/{turn}"
        if rank == 0:
            store.set(key, uuid.uuid4().hex)
        group = cls(store.get(key).decode(), rank, world, **options)
        _by_name[pg.group_name] = group
        return group

    @property
    def handle(self) -> c_void_p:
        if not self._handle:
            raise Closed(f"the group {self.name!r} is closed: build a new Group")
        return self._handle

    def barrier(self) -> None:
        """All ranks, on their current streams."""
        streams, count = self.streams()
        _abi.check(_abi.lib.xstage_fabric_barrier(self.handle, streams, count))

    def check(self) -> None:
        """Raises when the group is broken (a rank died, or did not come)."""
        _abi.check(_abi.lib.xstage_fabric_check(self.handle))

    def streams(self):
        """The current CUDA stream of each device of this process's ranks, for a C call."""
        if self.backend == "host":
            return None, 0
        if self._raw_stream is None:
            torch = sys.modules.get("torch")
            if torch is None:
                return None, 0
            self._raw_stream = torch._C._cuda_getCurrentRawStream
        for i, device in enumerate(self._order):
            self._streams[i] = self._raw_stream(device)
        return self._streams_at, len(self._order)

    def device_of(self, local: int) -> tuple[int, int]:
        """DLPack's (type, id) of a local rank's memory."""
        if self.backend == "host":
            return (1, 0)
        return (2, self.devices[local] if self.devices else 0)

    def close(self) -> None:
        """Frees everything built on the group. Results that it lent must not be read afterwards."""
        for child in self._children[:]:
            child.close()
        self._contexts.clear()
        if self._handle:
            _abi.lib.xstage_fabric_destroy(self._handle)
            self._handle = c_void_p()
        for name in [n for n, g in _by_name.items() if g is self]:
            del _by_name[name]

    def __enter__(self) -> "Group":
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<xstage.Group {self.name!r} rank {self.rank} of {self.world} on {self.backend}>"


_turns: dict[str, int] = {}


def resolve(group) -> Group:
    """A Group from one, from a torch process group, from the name of either, or None for torch's default."""
    if isinstance(group, Group):
        return group
    if isinstance(group, str):
        found = _by_name.get(group)
        if found is not None:
            return found
        if "torch" not in sys.modules:
            raise BadInput(f"there is no group {group!r}: build xstage.Group(name, rank, world) first")
        from torch.distributed.distributed_c10d import _resolve_process_group

        return Group.from_torch(_resolve_process_group(group))
    import torch.distributed as dist

    pg = group if group is not None else dist.group.WORLD
    if pg is None:
        raise BadInput("group=None means torch's default process group, and there is none: init_process_group first")
    return _by_name.get(pg.group_name) or Group.from_torch(pg)


def name_of(group) -> str:
    """What `resolve` finds the group by: a string, so that it can be an argument of a torch operator."""
    if isinstance(group, str):
        return group
    if isinstance(group, Group):
        return group.name
    import torch.distributed as dist

    return (group if group is not None else dist.group.WORLD).group_name


@atexit.register
def _close_all() -> None:
    for group in list(dict.fromkeys(_by_name.values())):
        group.close()
