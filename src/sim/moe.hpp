#pragma once

#include <cstdint>
#include <memory>

#include "sim/node.hpp"
#include "sim/routing.hpp"
#include "sim/workload.hpp"
#include "xstage/plan/moe_order.hpp"

namespace xstage::sim {

/// Whether the pull of the tokens is part of what is timed.
enum class Dispatch {
    kHidden,  ///< all tokens are there at the start
    kPull,    ///< rows come in expert order over the link that the results leave by
};

/// One MegaMoE layer: Linear-1, activation, Linear-2, whose rows are stored to the tokens' GPUs.
struct Moe {
    int hidden = 0;
    int intermediate = 0;
    int experts = 0;  ///< over all GPUs; must divide by the number of GPUs
    int top_k = 0;
    std::int64_t tokens = 0;  ///< per GPU
    double activation_bytes = 1;
    double weight_bytes = 1;
    int tile_rows = 128;
    int tile_columns1 = 256;  ///< of the 2 * intermediate columns of Linear-1
    int tile_columns2 = 256;  ///< of the hidden columns of Linear-2
    plan::MoeOrder order;
    /// SMs that compute nothing and carry the results of the others to their GPUs.
    int copying_sms = 0;
    Dispatch dispatch = Dispatch::kHidden;
    /// True where the epilogue has warps and an accumulator of its own, so that the next tile is
    /// computed while this one is stored.
    bool epilogue_apart = false;
    double tile1_ns = 0;  ///< compute time of a full tile; 0: roofline at the node's rates
    double tile2_ns = 0;
    double fixed_ns = 0;  ///< barriers, count exchange, combine: the same for every order
    std::shared_ptr<const Routing> routing;

    int columns1() const { return (2 * intermediate + tile_columns1 - 1) / tile_columns1; }
    int columns2() const { return (hidden + tile_columns2 - 1) / tile_columns2; }
};

/// Rows (blocks of tokens) of one GPU's experts, as the order functions want them.
struct MoeRows {
    std::vector<std::int32_t> begin;   ///< per expert of the GPU, and the end
    std::vector<std::int32_t> tokens;  ///< of each row
    std::vector<std::int32_t> expert;  ///< of each row, counted on the GPU
};
MoeRows moe_rows(const Moe& moe, int gpus, int rank);

struct TileTimes {
    double linear1_ns = 0, linear2_ns = 0;
};
/// Compute times of the tiles of an expert with `rows` rows: the larger of arithmetic and of the
/// expert's weights, which are read once for all its rows.
TileTimes moe_tile_times(const Node& node, const Moe& moe, int rows);

/// Throws kBadInput where the shape does not fit the cluster or the node gives no rates.
ProgramFactory moe_programs(const Cluster& cluster, const Moe& moe);

}  // namespace xstage::sim
