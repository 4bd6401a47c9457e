#pragma once

#include <cstdint>

#include "params.hpp"
#include "xstage/moe/plan.hpp"

namespace xstage::moe::kernels {

inline constexpr int kGroupRows = 64;  ///< rows of a block that one math warpgroup computes
inline constexpr int kMathGroups = 2;
inline constexpr int kHalfColumns = 128;  ///< gate or up in Linear-1; one weight scale's columns
inline constexpr int kStageBytes = 128;   ///< of every row in one stage: the widest swizzle
inline constexpr int kStages = 4;
inline constexpr int kTaskSlots = 4;
inline constexpr int kMathThreads = 128 * kMathGroups;
inline constexpr int kThreads = kMathThreads + 128;  ///< the first 128 feed the others
// 168 registers a thread at launch are shared out anew. A math thread holds 128 sums, and with
// scales 64 more of the products that are not yet scaled.
inline constexpr int kFeederRegisters = 56;
inline constexpr int kMathRegisters = 224;

inline constexpr int kDispatchWarps = 2;
inline constexpr int kPullRows = 16;      ///< rows that a warp pulls at a time, at most
inline constexpr int kPieceColumns = 64;  ///< of an output tile, staged at a time by each warp
/// 128 bytes and one 16-byte piece, so that eight rows fall into different banks.
inline constexpr int kStagedPitch = 144;

inline constexpr int kGroupBytes = kGroupRows * kStageBytes;
inline constexpr int kHalfBytes = kHalfColumns * kStageBytes;

/// Named barriers; 0 is __syncthreads.
inline constexpr int kBarrierGroup = 1;  ///< + math group
inline constexpr int kBarrierMeet = 3;

template <Type kType_, bool kStamped_, int kCtas_>
struct Config {
    static constexpr Type kType = kType_;
    static constexpr bool kStamped = kStamped_;  ///< Linear-2's stores
    static constexpr int kCtas = kCtas_;         ///< of a cluster, plan::MoeOrder::ctas
    static constexpr bool kScaled = kType == Type::kFp8;
    static constexpr int kElementBytes = kScaled ? 1 : 2;
    static constexpr int kDepth = kStageBytes / kElementBytes;  ///< summed elements of a stage
};

struct Task {
    std::int32_t kind;  ///< 1 or 2: which Linear; 0: no more
    std::int32_t block;
    std::int32_t slot;  ///< of the pools
    std::int32_t n;
    std::int32_t expert;  ///< held
    std::int32_t rows;    ///< of the block that hold a token; 0: only the cluster's other CTA works

    /// Math groups that have rows.
    __host__ __device__ int groups() const { return (rows + kGroupRows - 1) / kGroupRows; }
};

/// What a stamping warp has no registers for.
struct BurstMark {
    std::uint64_t cycles, ns;  ///< when the current burst began
    std::uint32_t away;        ///< its rows that other ranks own
    std::uint32_t before;      ///< bursts of this warp before it
};

struct alignas(1024) SharedStorage {
    unsigned char a[kStages][kMathGroups][kGroupBytes];
    unsigned char b[kStages][2][kHalfBytes];
    unsigned char staged[kMathGroups * 4][16 * kStagedPitch];
    float scale[kStages][kTileRows];
    BurstMark burst[kMathGroups * 4];  ///< each warp's
    std::uint64_t full[kStages], empty[kStages];
    std::uint64_t task_full[kTaskSlots], task_empty[kTaskSlots];
    Task task[kTaskSlots];
    alignas(8) unsigned char place[32];  ///< RankPlace
    std::uint32_t broken;                ///< the cluster goes by what its first CTA saw
};

/// Lies over the stages until the first of them is filled.
struct RouteScratch {
    std::int32_t count[kMaxExperts];
    std::int32_t first[kMaxExperts];
    std::int32_t warp_sum[32];
};

inline constexpr std::size_t kSharedBytes = sizeof(SharedStorage) + 1024;
static_assert(kStoringWarps == kMathGroups * 4);
static_assert(kSharedBytes <= 232448, "what a CTA of sm_90 can have");
static_assert(sizeof(RouteScratch) <= sizeof(SharedStorage::a) + sizeof(SharedStorage::b));

}  // namespace xstage::moe::kernels
