"""Ranks as processes: a gloo group, a body, and the first rank's error in the parent."""

import os
import tempfile
import traceback
import warnings

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def _rank(rank, world, body, path, errors, backend):
    torch.set_num_threads(1)
    os.environ["XSTAGE_BACKEND"] = backend
    dist.init_process_group("cpu:gloo,cuda:gloo", init_method=f"file://{path}", rank=rank, world_size=world)
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            body(rank, world)
        dist.barrier()
        errors.put((rank, None, [str(w.message) for w in caught if issubclass(w.category, RuntimeWarning)]))
    except BaseException:
        errors.put((rank, traceback.format_exc(), []))
    finally:
        import xstage.group

        xstage.group._close_all()
        dist.destroy_process_group()


def spawn(body, world, timeout=240, backend="host"):
    """body(rank, world) in `world` processes. Warnings of rank 0 are warned again here."""
    context = mp.get_context("spawn")
    errors = context.Queue()
    with tempfile.TemporaryDirectory() as folder:
        args = (world, body, os.path.join(folder, "store"), errors, backend)
        processes = [context.Process(target=_rank, args=(r, *args)) for r in range(world)]
        for p in processes:
            p.start()
        found = {}
        try:
            for _ in processes:
                rank, error, texts = errors.get(timeout=timeout)
                found[rank] = (error, texts)
        finally:
            for p in processes:
                p.join(timeout=20)
                if p.is_alive():
                    p.terminate()
    for rank in sorted(found):
        if found[rank][0] is not None:
            raise AssertionError(f"rank {rank}:\n{found[rank][0]}")
    for text in found[0][1]:
        warnings.warn(text, RuntimeWarning, stacklevel=2)
