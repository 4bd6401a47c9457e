#include <memory>

#include "ops/sparse/engine.hpp"
#include "xstage/attention.hpp"
#include "xstage/error.hpp"

namespace xstage::ops {

namespace {

AttentionView view_of(const ulysses::View& v) {
    return {v.data, v.batch_stride, v.row_stride, v.head_stride};
}

}  // namespace

MaskedAttention masked_on_gpu(const ulysses::AttentionCall& c) {
    AttentionArguments a;
    if (c.dtype != fabric::DType::kF16 && c.dtype != fabric::DType::kBf16)
        throw Error(ErrorKind::kBadInput, "dtype must be F16 or BF16 on a GPU");
    a.type = c.dtype == fabric::DType::kF16 ? AttentionType::kFp16 : AttentionType::kBf16;
    a.head_dim = c.head_dim;
    a.batches = c.batch;
    a.heads = c.heads_q;
    a.kv_heads = c.heads_kv;
    a.q_rows = c.rows_q;
    a.kv_rows = c.rows_kv;
    a.q = view_of(c.q);
    a.k = view_of(c.k);
    a.v = view_of(c.v);
    a.out = {{view_of(c.out), c.rows_q}};
    a.lse = c.lse.data;
    a.scale = c.scale;
    a.mask = c.mask;
    const auto plan = std::make_shared<AttentionPlan>(a);
    return [plan](const ulysses::AttentionCall& call) {
        plan->rebind(view_of(call.q), view_of(call.k), view_of(call.v),
                     {{view_of(call.out), call.rows_q}}, call.lse.data);
        plan->launch(call.stream);
    };
}

}  // namespace xstage::ops
