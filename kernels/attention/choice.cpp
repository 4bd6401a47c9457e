#include "choice.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "causal_order.hpp"
#include "xstage/error.hpp"

namespace xstage::attention {

const std::vector<Instance>& all_instances() {
    static const std::vector<Instance> all = [] {
        std::vector<Instance> list;
        for (auto part :
             {instances_dense_bf16(), instances_dense_fp16(), instances_causal_bf16(),
              instances_causal_fp16(), instances_blocks_bf16(), instances_blocks_fp16()}) {
            list.insert(list.end(), part.begin(), part.end());
        }
        return list;
    }();
    return all;
}

double predicted_cost(const Instance& instance, const AttentionTypeAndShape& shape, int sms) {
    // A tall tile reads each key block for 192 rows instead of 128. On a GPU at its power limit
    // that saves 7% of the time of a long launch at head size 128 (700 against 650 TFLOP/s).
    constexpr double kLowTile = 1.07;
    const double rate = instance.rows < 192 ? kLowTile : 1.0;

    if (shape.mask == MaskKind::kCausal) {
        const CausalTiles tiles{instance.rows, instance.keys, shape.q_rows, shape.kv_rows};
        plan::AttentionGrid grid;
        grid.tiles = tiles.count();
        grid.heads = static_cast<std::int32_t>(shape.sequences);
        grid.batches = 1;
        grid.order = plan::TileOrder::kLongestFirst;
        grid.group =
            causal_group(grid, tiles, std::max(1, sms), heads_in_l2(shape.kv_rows, shape.head_dim));
        return longest_share(grid, tiles, std::max(1, sms)) * rate;
    }
    const auto divide_up = [](std::int64_t a, std::int64_t b) { return (a + b - 1) / b; };
    const std::int64_t units = divide_up(shape.q_rows, instance.rows) * shape.sequences;
    const auto waves = static_cast<double>(divide_up(units, std::max(1, sms)));
    const auto keys = static_cast<double>(divide_up(shape.kv_rows, instance.keys) * instance.keys);
    return waves * instance.rows * (keys + kTileOverheadKeys) * rate;
}

const Instance& choose(const AttentionTypeAndShape& shape, int sms, const std::string& name) {
    const Instance* best = nullptr;
    double least = 0;
    for (const Instance& i : all_instances()) {
        if (i.type != shape.type || i.head_dim != shape.head_dim || i.mask != shape.mask) continue;
        if (!name.empty()) {
            if (name == i.name) return i;
            continue;
        }
        const double cost = predicted_cost(i, shape, sms);
        if (best == nullptr || cost < least) {
            best = &i;
            least = cost;
        }
    }
    if (best == nullptr) {
        throw Error(ErrorKind::kBadInput,
                    fmt::format("attention: no compiled instance '{}' for this type, head_dim {} "
                                "and mask",
                                name, shape.head_dim));
    }
    return *best;
}

}  // namespace xstage::attention
