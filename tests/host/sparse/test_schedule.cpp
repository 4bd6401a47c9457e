// The order of the masked kernel's tiles: every query block once, long ones first, workers even.

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <random>
#include <set>
#include <tuple>

#include "xstage/error.hpp"
#include "xstage/plan/sparse_order.hpp"
#include "xstage/sparse/mask.hpp"

namespace xstage::plan {
namespace {

using sparse::BlockMask;

BlockMask random_mask(std::int64_t batches, std::int64_t heads, std::int64_t q_rows,
                      std::int64_t kv_rows, double density, unsigned seed) {
    BlockMask mask(batches, heads, q_rows, kv_rows);
    std::mt19937 random(seed);
    std::bernoulli_distribution keep(density);
    for (std::int64_t b = 0; b < batches; ++b)
        for (std::int64_t h = 0; h < heads; ++h)
            for (std::int64_t u = 0; u < mask.q_blocks(); ++u)
                for (std::int64_t v = 0; v < mask.key_blocks(); ++v)
                    if (keep(random)) mask.set(b, h, u, v);
    return mask;
}

RC_GTEST_PROP(SparseSchedule, EveryQueryBlockIsComputedOnceWithAllItsKeys, ()) {
    const auto mask_heads = *rc::gen::element<std::int64_t>(1, 2, 4);
    const auto mask_batches = *rc::gen::element<std::int64_t>(1, 2);
    const auto rows = *rc::gen::inRange<std::int64_t>(1, 2500);
    const auto keys = *rc::gen::inRange<std::int64_t>(1, 2500);
    const auto workers = *rc::gen::inRange(1, 40);
    const auto percent = *rc::gen::inRange(0, 101);
    const BlockMask mask = random_mask(mask_batches, mask_heads, rows, keys, percent / 100.0, 7);
    const SparseSchedule schedule = sparse_schedule(mask, 2, 4, 2, workers);

    RC_ASSERT(schedule.begin.size() == static_cast<std::size_t>(workers) + 1);
    RC_ASSERT(schedule.begin.front() == 0);
    RC_ASSERT(schedule.begin.back() == static_cast<std::int32_t>(schedule.tiles.size()));
    std::set<std::tuple<int, int, int>> seen;
    for (const SparseTile& t : schedule.tiles) {
        RC_ASSERT(seen.emplace(t.batch, t.head, t.tile).second);
        RC_ASSERT(t.keys ==
                  mask.keys(mask_batches == 1 ? 0 : t.batch, t.head / (4 / mask_heads), t.tile));
    }
    RC_ASSERT(seen.size() == static_cast<std::size_t>(2 * 4 * mask.q_blocks()));
}

TEST(SparseSchedule, WorkersAreEvenWhereRowsAreNot) {
    BlockMask mask = random_mask(1, 12, 32768, 32768, 0.25, 3);
    for (std::int64_t u = 0; u < 40; ++u) {
        for (std::int64_t v = 0; v < mask.key_blocks(); ++v) mask.set(0, 5, u, v);
    }
    const SparseSchedule s = sparse_schedule(mask, 1, 12, 12, 132);
    EXPECT_LT(s.longest, 1.04 * s.mean);
}

TEST(SparseSchedule, TheLongestRowsOfAHeadComeFirst) {
    BlockMask mask(1, 1, 1280, 1280);
    for (std::int64_t u = 0; u < 10; ++u) {
        for (std::int64_t v = 0; v <= u; ++v) mask.set(0, 0, u, v);
    }
    const SparseSchedule s = sparse_schedule(mask, 1, 1, 1, 1);
    ASSERT_EQ(s.tiles.size(), 10U);
    for (std::int32_t i = 0; i < 10; ++i) EXPECT_EQ(s.tiles[i].tile, 9 - i);
}

TEST(SparseSchedule, AMaskThatDoesNotDivideTheHeadsIsRefused) {
    EXPECT_THROW(sparse_schedule(BlockMask(1, 3, 256, 256), 1, 4, 4, 8), Error);
    EXPECT_THROW(sparse_schedule(BlockMask(2, 1, 256, 256), 3, 4, 4, 8), Error);
}

}  // namespace
}  // namespace xstage::plan
