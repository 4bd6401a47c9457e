import importlib.util
import pathlib
import sys
import threading
import uuid

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent))


def pytest_configure(config):
    config.addinivalue_line("markers", "gpu: needs a CUDA device and torch")
    config.addinivalue_line("markers", "torch: needs torch (2.6 or later; CPU is enough)")
    config.addinivalue_line("markers", "diffusers: needs diffusers and torch")


def _cuda_device() -> bool:
    if importlib.util.find_spec("torch") is None:
        return False
    import torch

    return torch.cuda.is_available()


def pytest_collection_modifyitems(config, items):
    missing = {}
    if importlib.util.find_spec("torch") is None:
        missing["torch"] = missing["diffusers"] = "torch is not installed"
    elif importlib.util.find_spec("diffusers") is None:
        missing["diffusers"] = "diffusers is not installed"
    if any("gpu" in item.keywords for item in items) and not _cuda_device():
        missing["gpu"] = "torch is not installed" if "torch" in missing else "there is no CUDA device"
    for item in items:
        for mark, reason in missing.items():
            if mark in item.keywords:
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture
def ranks():
    """ranks(world, body): body(group) in a thread per rank on the host backend; results in rank order."""
    import xstage

    def run(world, body, **options):
        name = f"test-{uuid.uuid4().hex}"
        results, errors = [None] * world, [None] * world

        def rank(r):
            try:
                options_of = {"backend": "host", "host_page_bytes": 16384, "setup_timeout": 20, "wait_timeout": 20}
                with xstage.Group(name, r, world, **{**options_of, **options}) as group:
                    results[r] = body(group)
                    group.barrier()  # a peer may still read what this rank has lent
            except BaseException as error:
                errors[r] = error

        threads = [threading.Thread(target=rank, args=(r,)) for r in range(world)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        for error in errors:
            if error is not None:
                raise error
        return results

    return run
