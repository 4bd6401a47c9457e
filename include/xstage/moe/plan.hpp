#pragma once

// What a MegaMoE layer is asked to do, and where its memory lies. Everything here is worked out on
// the host from numbers alone, so that a size can be asked for, and a fault found, with no GPU.

#include <cstddef>
#include <cstdint>
#include <string>

#include "xstage/plan/moe_order.hpp"

namespace xstage::moe {

enum class Type : std::uint8_t {
    kBf16,
    kFp8,  ///< e4m3; activations scaled by 1x128, weights by 128x128 elements
};

/// y[t] = sum over the slots s of weight[t][s] * W2_e (silu(Wgate_e x) * (Wup_e x)), e =
/// expert[t][s]. Rank r holds experts [r, r+1) * experts / ranks. All ranks name the same problem.
/// With a shared expert, which every rank holds, W2 (silu(Wgate x[t]) * (Wup x[t])) of it is added
/// to every token, after the slots.
struct Problem {
    int ranks = 1;
    int max_tokens = 0;    ///< per rank and call
    int hidden = 0;        ///< a multiple of 256
    int intermediate = 0;  ///< a multiple of 128
    int experts = 0;       ///< of all ranks, a multiple of them
    int top_k = 0;         ///< slots of a token, with the shared expert at most 32
    Type type = Type::kBf16;
    /// Upper bound of the gate and bound of the magnitude of up, before SwiGLU; 0: none.
    float clamp = 0;
    bool shared = false;  ///< every rank holds one more expert, which all its tokens go through

    int local_experts() const { return experts / ranks; }
    /// Experts of a rank's weights: the shared one first, since its rows need no peer.
    int held_experts() const { return local_experts() + (shared ? 1 : 0); }
    int slots() const { return top_k + (shared ? 1 : 0); }  ///< results that a token waits for
    int element_bytes() const { return type == Type::kFp8 ? 1 : 2; }
};

/// How Linear-2 rows travel to the rank that owns their token.
enum class StorePath : std::uint8_t {
    kSt16,  ///< 16-byte stores of a warp, 128 bytes of each of four rows
    kBulk,  ///< one bulk copy of 128 bytes a row
};

struct Options {
    plan::MoeOrder order;
    /// Blocks of 128 rows that the pools hold; 0: as many as any routing can fill. Less is possible
    /// with the order `lead` only: its rows are bounded whatever the routing.
    int ring_blocks = 0;
    /// Most that a rank's workspace may take; 0: no limit.
    std::size_t workspace_limit = 0;
    StorePath store = StorePath::kSt16;
    int blocks = 0;  ///< CTAs per rank; 0: all SMs of its device, shared among its ranks
    /// Every call meets the other ranks on the host first, so that a fault of one is an Error on
    /// all of them before anything is launched. Such calls cannot be captured.
    bool agree_on_calls = false;
};

inline constexpr int kTileRows = 128;     ///< rows of one expert in a block
inline constexpr int kTileColumns = 256;  ///< of Linear-1 half gate, half up
inline constexpr int kScaleGroup = 128;   ///< elements of a row under one scale
inline constexpr int kMaxTopK = 32;
inline constexpr int kMaxExperts = 4096;

/// Byte offsets into a rank's workspace, the same on all ranks. The first part is read and written
/// by peers.
struct Layout {
    std::int64_t x, x_scale, experts, weights;  ///< a call's input
    std::int64_t sorted;  ///< this rank's routes (token * top_k + slot) by expert
    std::int64_t
        arrived;  ///< [rank][local experts + 1]: where in `sorted` their routes to here lie
    std::int64_t combine;               ///< bf16 [token][slots()][hidden]
    std::int64_t pool_x, pool_x_scale;  ///< rows in blocks; scales [block][group][row]
    std::int64_t act, act_scale;        ///< Linear-1's output, the same way
    std::int64_t row_weight, row_route;
    std::int64_t row_begin, row_count;             ///< per held expert: first block, rows
    std::int64_t pair_begin;                       ///< per held expert: first pair of its blocks
    std::int64_t pulled, first_done, second_done;  ///< per block: what is finished of it
    std::int64_t sent;                             ///< per expert: routes of this rank
    std::int64_t control;                          ///< kernels/moe/params.hpp
    std::int64_t bytes;
    std::int32_t max_blocks;   ///< that any routing can fill
    std::int32_t ring_blocks;  ///< that the pools hold
};

/// Throws Error (kBadInput), naming the value, for a problem or options that make no layer, or a
/// workspace above the limit.
Layout make_layout(const Problem& problem, const Options& options = {});

/// Bytes that each rank needs.
std::size_t workspace_bytes(const Problem& problem, const Options& options = {});

/// Fewest blocks that the pools may hold under an order, whatever the routing.
std::int32_t least_ring(const Problem& problem, const plan::MoeOrder& order);

/// Throws Error (kBadInput) for an order that makes no sense or needs a larger ring.
void check_order(const Problem& problem, const Layout& layout, const plan::MoeOrder& order);

/// "wave:4", "wave:all", "alternate", "lead:8", "ratio"; then perhaps "+SLACK" (alternate, ratio),
/// "/BAND" and "*2". Throws Error (kBadInput).
plan::MoeOrder parse_order(const std::string& text);
std::string name_of(const plan::MoeOrder& order);

/// The order to take when nobody says: interleaved where the link would hold Linear-2 up by more
/// than interleaving was seen to cost on one GPU, else one wave (docs/moe.md has the rule).
plan::MoeOrder choose_order(const Problem& problem);

}  // namespace xstage::moe
