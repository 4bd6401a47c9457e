#pragma once

#include <functional>
#include <vector>

#include "xstage/sparse/mask.hpp"
#include "xstage/ulysses.hpp"

namespace xstage::ops {

/// Runs one attention with a mask; the call's tensors may differ from time to time, its shapes not.
using MaskedAttention = std::function<void(const ulysses::AttentionCall&)>;

/// On the current device; `call` is checked and its mask copied. Throws Error, kUnsupported where
/// this build or the device cannot.
MaskedAttention masked_on_gpu(const ulysses::AttentionCall& call);

/// One sample's queries and keys on the current device, for the attention mass by block.
struct MassCall {
    ulysses::View q, k;
    fabric::DType dtype = fabric::DType::kBf16;
    int head_dim = 0, heads_q = 0, heads_kv = 0;
    std::int64_t rows = 0;
    float scale = 0;             ///< 0: 1/sqrt(head_dim)
    const float* lse = nullptr;  ///< [head][row]; null: found in a pass of its own
    std::vector<std::int64_t> sampled_rows;
    void* stream = nullptr;
};

/// [head][query block][key block], and [head][sampled row][key block].
struct Mass {
    std::vector<float> blocks, rows;
};

/// Waits for the stream. Throws Error as above.
Mass mass_on_gpu(const MassCall& call);

}  // namespace xstage::ops
