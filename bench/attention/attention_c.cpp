// The attention plan behind a C interface, for the Python benchmark that also drives cuDNN.

#include <cstdint>
#include <cstdio>
#include <exception>

#include "xstage/attention.hpp"
#include "xstage/sparse/mask.hpp"

namespace {

xstage::AttentionView view(void* data, const std::int64_t* strides) {
    return {data, strides[0], strides[1], strides[2]};
}

}  // namespace

extern "C" {

struct xstage_attention_call {
    std::int64_t type, batches, heads, kv_heads, q_rows, kv_rows, head_dim;
    std::int64_t causal, order, rank, destinations, sm_limit;
    void *q, *k, *v, *lse, *key_lengths;
    std::int64_t q_strides[3], k_strides[3], v_strides[3];  // batch, row, head
    void* out[8];
    std::int64_t out_strides[8][3], out_rows[8];
    double scale;
    double rescale_above;
    const char* instance;
    const std::uint32_t* mask;  ///< null: none; else packed rows of bits, on the host
    std::int64_t mask_batches, mask_heads;
};

/// Null on failure, with the reason in `error`.
void* xstage_attention_create(const xstage_attention_call* call, char* error, std::size_t size) {
    try {
        xstage::AttentionArguments a;
        a.type = static_cast<xstage::AttentionType>(call->type);
        a.batches = call->batches;
        a.heads = call->heads;
        a.kv_heads = call->kv_heads;
        a.q_rows = call->q_rows;
        a.kv_rows = call->kv_rows;
        a.head_dim = static_cast<int>(call->head_dim);
        a.causal = call->causal != 0;
        a.order = static_cast<xstage::plan::TileOrder>(call->order);
        a.rank = static_cast<int>(call->rank);
        a.sm_limit = static_cast<int>(call->sm_limit);
        a.q = view(call->q, call->q_strides);
        a.k = view(call->k, call->k_strides);
        a.v = view(call->v, call->v_strides);
        for (std::int64_t d = 0; d < call->destinations; ++d) {
            a.out.push_back({view(call->out[d], call->out_strides[d]), call->out_rows[d]});
        }
        a.lse = static_cast<float*>(call->lse);
        a.key_lengths = static_cast<const std::int32_t*>(call->key_lengths);
        a.scale = static_cast<float>(call->scale);
        a.rescale_above = static_cast<float>(call->rescale_above);
        if (call->instance != nullptr) a.instance = call->instance;
        xstage::sparse::BlockMask mask;
        if (call->mask != nullptr) {
            const auto words = call->mask_batches * call->mask_heads *
                               xstage::sparse::blocks_of(a.q_rows) *
                               ((xstage::sparse::blocks_of(a.kv_rows) + 31) / 32);
            mask = xstage::sparse::mask_from_bits(call->mask_batches, call->mask_heads, a.q_rows,
                                                  a.kv_rows,
                                                  {call->mask, static_cast<std::size_t>(words)});
            a.mask = &mask;
        }
        return new xstage::AttentionPlan(a);
    } catch (const std::exception& failure) {
        std::snprintf(error, size, "%s", failure.what());
        return nullptr;
    }
}

int xstage_attention_launch(void* plan, void* stream) {
    try {
        static_cast<xstage::AttentionPlan*>(plan)->launch(stream);
        return 0;
    } catch (const std::exception&) {
        return 1;
    }
}

const char* xstage_attention_instance(void* plan) {
    return static_cast<xstage::AttentionPlan*>(plan)->instance().c_str();
}

void xstage_attention_destroy(void* plan) {
    delete static_cast<xstage::AttentionPlan*>(plan);
}
}
