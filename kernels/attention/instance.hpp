#pragma once

#include <vector>

#include "config.hpp"
#include "xstage/attention.hpp"

namespace xstage::attention {

/// What the host must know of a compiled kernel.
struct Instance {
    const char* name;
    AttentionType type;
    int head_dim;
    MaskKind mask;
    int rows, keys;
    int threads;
    std::size_t shared_bytes;
    const void* kernel;
};

/// One list per translation unit, so that they compile side by side.
std::vector<Instance> instances_dense_bf16();
std::vector<Instance> instances_dense_fp16();
std::vector<Instance> instances_causal_bf16();
std::vector<Instance> instances_causal_fp16();
std::vector<Instance> instances_blocks_bf16();
std::vector<Instance> instances_blocks_fp16();

const std::vector<Instance>& all_instances();

}  // namespace xstage::attention
