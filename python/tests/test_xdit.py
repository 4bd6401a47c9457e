"""xDiT's own USP against the adapter, on two gloo ranks."""

import importlib.util
import types

import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch", reason="torch is not installed")
if importlib.util.find_spec("xfuser") is None:
    pytest.skip("xfuser is not installed", allow_module_level=True)

from processes import spawn  # noqa: E402


def body(rank, world):
    from xfuser.core.distributed import attention_backend
    from xfuser.model_executor.layers import usp
    from xstage.adapters import xdit

    # xDiT sets its groups up on accelerators only; its USP itself is indifferent.
    usp.PROCESS_GROUP = types.SimpleNamespace(ULYSSES_PG=torch.distributed.group.WORLD)
    usp.get_ulysses_parallel_world_size = usp.get_sequence_parallel_world_size = lambda: world
    usp.get_ulysses_parallel_rank = usp.get_sequence_parallel_rank = lambda: rank
    usp.get_ring_parallel_world_size = lambda: 1
    state = types.SimpleNamespace(
        fp8_comms=None,
        attention_backend=attention_backend.AttentionBackendType.SDPA,
        runtime_config=types.SimpleNamespace(use_spargeattn_head_balance=False),
    )
    usp.get_runtime_state = lambda: state
    attended = usp.ATTENTION_FUNCTION_REGISTRY[attention_backend.AttentionBackendType.SDPA]
    calls = []

    def counted(*args, **keywords):
        calls.append(1)
        return attended(*args, **keywords)

    usp.ATTENTION_FUNCTION_REGISTRY[attention_backend.AttentionBackendType.SDPA] = counted
    g = torch.Generator().manual_seed(0)
    image = [torch.randn(2, 4, 12, 16, generator=g).split(6, 2)[rank] for _ in range(3)]
    text = [torch.randn(2, 4, 3, 16, generator=g) for _ in range(3)]
    joint = dict(zip(("joint_query", "joint_key", "joint_value"), text))
    cases = [{}, dict(joint, joint_strategy="front"), dict(joint, joint_strategy="rear")]
    with torch.no_grad():
        expected = [usp.USP(*image, **case) for case in cases]
        assert len(calls) == 3
        assert xdit.install() >= 1
        for case, theirs in zip(cases, expected):
            torch.testing.assert_close(usp.USP(*image, **case), theirs, rtol=1e-4, atol=1e-5)
        assert len(calls) == 3, "the adapter has not been used"
        usp.USP(*image, dropout_p=0.1)
        assert len(calls) == 4, "a call that the adapter does not serve went astray"


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_usp():
    spawn(body, 2)
