#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>

#include "xstage/device/fabric_group.hpp"
#include "xstage/moe/plan.hpp"
#include "xstage/stamp_layout.hpp"

namespace xstage::moe::kernels {

/// Warps of a CTA that store Linear-2's rows.
inline constexpr int kStoringWarps = 8;

/// Words of one rank's CTAs, zero before the first launch and after every one (all but `epoch` and
/// `broken`).
struct Control {
    std::uint32_t met;        ///< CTAs at the meeting point
    std::uint32_t epoch;      ///< meetings that took place
    std::uint32_t next_task;  ///< claimed so far
    std::uint32_t broken;     ///< a barrier failed: the call's output is NaN
};

/// What differs between the ranks of one launch.
struct RankArgs {
    CUtensorMap x, act, w1, w2;     ///< rows of 128 bytes, swizzled
    const float* s1;                ///< fp8: [expert][2 * intermediate / 128][hidden / 128]
    const float* s2;                ///< fp8: [expert][hidden / 128][intermediate / 128]
    void* y;                        ///< bf16 [tokens][hidden]
    const std::int32_t* tokens_at;  ///< on the device, or null: `tokens`
    std::int32_t tokens;
    std::int32_t rank;
    StampBuffer stamps;  ///< of the stamping kernels
};

/// By value: tensor maps must lie in parameter memory.
struct KernelParams {
    device::FabricGroup group;
    fabric::CallShape call;
    Layout at;
    plan::MoeOrder order;
    std::int32_t world, max_tokens, hidden, intermediate, experts, top_k;
    std::int32_t local_experts;  ///< that tokens are routed to
    std::int32_t held_experts;   ///< with the shared one, which is the first then
    std::int32_t slots;          ///< top_k, and one for the shared expert
    std::int32_t blocks;         ///< CTAs per rank
    float clamp;                 ///< infinity: none
    StorePath store;
    std::byte* workspace[fabric::kMaxRanks];  ///< every rank's, as this process maps them
    RankArgs rank[fabric::kMaxRanks];         ///< of this device, by block / blocks
};

}  // namespace xstage::moe::kernels
