// Block masks: what is refused before any device is asked for.

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>

#include "choice.hpp"
#include "xstage/attention.hpp"
#include "xstage/error.hpp"
#include "xstage/plan/sparse_order.hpp"
#include "xstage/sparse/mask.hpp"

namespace xstage {
namespace {

TEST(BlockSparsePlan, MasksOfOtherShapesAndWithOtherMasksAreRefused) {
    static int memory;
    AttentionArguments a;
    a.batches = 1;
    a.heads = a.kv_heads = 4;
    a.q_rows = a.kv_rows = 256;
    a.q = a.k = a.v = {&memory, 256 * 512, 512, 128};
    a.out = {{a.q, 256}};
    const sparse::BlockMask fits(1, 4, 256, 256);
    const sparse::BlockMask longer(1, 4, 256, 300);
    const auto refused = [](const AttentionArguments& arguments, const std::string& why) {
        try {
            const AttentionPlan plan(arguments);
            ADD_FAILURE() << "accepted: " << why;
        } catch (const Error& error) {
            // Without a Hopper GPU the plan ends there; the mask's shape is judged first.
            EXPECT_EQ(error.kind(), ErrorKind::kBadInput) << error.what();
            EXPECT_NE(std::string(error.what()).find(why), std::string::npos) << error.what();
        }
    };
    a.mask = &longer;
    refused(a, "is for 256 query rows and 300 keys");
    a.mask = &fits;
    a.causal = true;
    refused(a, "neither with causal");
    a.causal = false;
    a.order = plan::TileOrder::kRotated;
    refused(a, "its own order");
}

/// Public fault: sparse kernels that are slower than dense ones at little sparsity. The plan
/// decides it: tiles that are all started, evenly spread, against whole waves of the dense kernel's
/// tall ones. The times are bench/attention/sparse.py's.
TEST(BlockSparsePlan, AFifthLessWorkIsPlannedToBeFasterThanDense) {
    using attention::MaskKind;
    constexpr std::int64_t kRows = 6656;
    constexpr std::int64_t kHeads = 24;
    constexpr int kSms = 132;
    sparse::BlockMask mask(1, kHeads, kRows, kRows);
    std::mt19937 random(14);
    std::bernoulli_distribution keep(0.8);
    for (std::int64_t h = 0; h < kHeads; ++h)
        for (std::int64_t u = 0; u < mask.q_blocks(); ++u)
            for (std::int64_t v = 0; v < mask.key_blocks(); ++v)
                if (keep(random)) mask.set(0, h, u, v);
    for (const AttentionType type : {AttentionType::kBf16, AttentionType::kFp16}) {
        const AttentionTypeAndShape whole{type, 128, MaskKind::kDense, kRows, kRows, kHeads};
        const double dense =
            attention::predicted_cost(attention::choose(whole, kSms, ""), whole, kSms);
        const attention::Instance& masked =
            attention::choose({type, 128, MaskKind::kBlocks, kRows, kRows, kHeads}, kSms, "");
        const plan::SparseSchedule schedule = plan::sparse_schedule(mask, 1, kHeads, kHeads, kSms);
        double longest = 0;
        for (std::size_t w = 0; w < kSms; ++w) {
            double cost = 0;
            for (std::int32_t i = schedule.begin[w]; i < schedule.begin[w + 1]; ++i) {
                const plan::SparseTile& tile = schedule.tiles[static_cast<std::size_t>(i)];
                // One tile on one SM: a launch with the keys that its row keeps.
                cost += attention::predicted_cost(
                    masked, {type, 128, MaskKind::kBlocks, 128, tile.keys, 1}, kSms);
            }
            longest = std::max(longest, cost);
        }
        EXPECT_LE(longest, dense);
    }
}

}  // namespace
}  // namespace xstage
