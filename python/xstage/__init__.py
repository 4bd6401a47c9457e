"""xstage: attention over several GPUs whose second all-to-all is gone. See docs/python.md.

Importing costs little: neither torch nor CUDA is touched until something needs it.
"""

from xstage._errors import (
    BadInput,
    Closed,
    EnvironmentBroken,
    TimedOut,
    Unsupported,
    XstageError,
)

__version__ = "0.1.0"

_WHERE = {
    "Group": "xstage.group",
    "Ulysses": "xstage.ulysses",
    "ulysses_attention": "xstage.functional",
    "attend_and_scatter": "xstage.functional",
    "register_attention": "xstage.attention",
    "MegaMoe": "xstage.moe",
    "mega_moe": "xstage.moe",
    "BlockMask": "xstage.block_sparse",
    "block_sparse_attention": "xstage.block_sparse",
    "Norm": "xstage.transforms",
    "Rotary": "xstage.transforms",
    "stitch": "xstage.stitched",
    "Stitched": "xstage.stitched",
}
__all__ = [
    *_WHERE,
    "BadInput",
    "Closed",
    "EnvironmentBroken",
    "TimedOut",
    "Unsupported",
    "XstageError",
]


def __getattr__(name: str):
    # PEP 562: a module comes with the first use of what is in it.
    if name in _WHERE:
        import importlib

        found = getattr(importlib.import_module(_WHERE[name]), name)
        globals()[name] = found
        return found
    raise AttributeError(f"module 'xstage' has no attribute {name!r}")


def __dir__():
    return sorted({*globals(), *__all__})
