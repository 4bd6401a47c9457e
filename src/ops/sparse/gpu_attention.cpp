#include <memory>

#include "ops/sparse/engine.hpp"
#include "ops/ulysses/kernel_arguments.hpp"
#include "xstage/error.hpp"

namespace xstage::ops {

MaskedAttention masked_on_gpu(const ulysses::AttentionCall& c) {
    if (c.dtype != fabric::DType::kF16 && c.dtype != fabric::DType::kBf16)
        throw Error(ErrorKind::kBadInput, "dtype must be F16 or BF16 on a GPU");
    const auto plan = std::make_shared<AttentionPlan>(ulysses::kernel_arguments(c));
    return [plan](const ulysses::AttentionCall& call) {
        plan->rebind(ulysses::kernel_view(call.q), ulysses::kernel_view(call.k),
                     ulysses::kernel_view(call.v), {{ulysses::kernel_view(call.out), call.rows_q}},
                     call.lse.data);
        plan->launch(call.stream);
    };
}

}  // namespace xstage::ops
