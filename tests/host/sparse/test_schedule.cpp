// The order functions of the masked kernel: every row once, and a ring that its loaders and its
// readers step through alike.

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <map>
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

constexpr SparseTiling kTall{true, 80};
constexpr SparseTiling kLow{false, 128};

RC_GTEST_PROP(SparseSchedule, EveryHalfBlockIsComputedOnceWithAllItsKeys, ()) {
    const auto mask_heads = *rc::gen::element<std::int64_t>(1, 2, 4);
    const auto mask_batches = *rc::gen::element<std::int64_t>(1, 2);
    const auto rows = *rc::gen::inRange<std::int64_t>(1, 2500);
    const auto keys = *rc::gen::inRange<std::int64_t>(1, 2500);
    const auto workers = *rc::gen::inRange(1, 40);
    const auto percent = *rc::gen::inRange(0, 101);
    const SparseTiling tiling = *rc::gen::element(0, 1) == 0 ? kTall : kLow;
    const BlockMask mask = random_mask(mask_batches, mask_heads, rows, keys, percent / 100.0, 7);
    const SparseSchedule schedule = sparse_schedule(mask, 2, 4, 2, workers, tiling);

    RC_ASSERT(schedule.begin.size() == static_cast<std::size_t>(workers) + 1);
    RC_ASSERT(schedule.begin.back() == static_cast<std::int32_t>(schedule.tiles.size()));
    std::map<std::tuple<int, int, int>, int> keys_of;
    const auto none = static_cast<std::int32_t>(2 * mask.q_blocks());
    for (const SparseTile& t : schedule.tiles) {
        for (const int half : {2 * t.block, 2 * t.block + 1}) {
            RC_ASSERT(
                keys_of.emplace(std::tuple{t.batch, t.head, half}, t.common_keys + t.first_keys)
                    .second);
        }
        if (t.half == none) continue;
        RC_ASSERT(tiling.three_groups);
        RC_ASSERT(keys_of.emplace(std::tuple{t.batch, t.head, t.half}, t.common_keys + t.second_keys)
                      .second);
    }
    RC_ASSERT(keys_of.size() == static_cast<std::size_t>(2 * 4 * none));
    for (const auto& [where, count] : keys_of) {
        const auto [batch, head, half] = where;
        RC_ASSERT(count == mask.keys(mask_batches == 1 ? 0 : batch, head / (4 / mask_heads),
                                     half / 2));
    }
}

/// Steps through a tile's rounds as loaders and readers do, and compares slot by slot.
void expect_ring_agrees(const SparseTile& tile, std::int32_t keys) {
    const SparseSteps steps = steps_of(tile, keys);
    struct Slot {
        bool value, second;
        std::int32_t step;
        bool operator==(const Slot&) const = default;
    };
    std::vector<Slot> loaded;
    for (std::int32_t round = 0; round < steps.rounds(); ++round) {
        for (int loader = 0; loader < 4; ++loader) {
            if (!steps.loads(loader, round)) continue;
            loaded.push_back(
                {loader >= 2, loader % 2 == 1, SparseSteps::step_of(loader, round)});
        }
    }
    ASSERT_EQ(loaded.size(), static_cast<std::size_t>(steps.slots()));

    std::set<std::size_t> taken;
    for (const bool second : {false, true}) {
        const SparseReader reader{steps.common, second ? steps.first : steps.second, second};
        const std::int32_t total = steps.common + (second ? steps.second : steps.first);
        std::size_t at = 0;
        const auto take = [&](std::int32_t step, bool value) {
            ASSERT_LT(at, loaded.size());
            const Slot want{value, second && step >= steps.common, step};
            ASSERT_EQ(loaded[at], want) << "slot " << at << " step " << step;
            taken.insert(at++);
        };
        for (std::int32_t n = 0; n <= total && total > 0; ++n) {
            at += static_cast<std::size_t>(reader.before_key(n));
            if (n < total) take(n, false);
            at += static_cast<std::size_t>(reader.before_value(n));
            if (n > 0) take(n - 1, true);
        }
        at += static_cast<std::size_t>(reader.after_last(total - steps.common));
        ASSERT_EQ(at, loaded.size());
    }
    ASSERT_EQ(taken.size(), loaded.size()) << "a slot that nobody reads";
}

TEST(SparseRing, LoadersAndReadersAgreeForAllLengths) {
    for (std::int32_t common = 0; common < 5; ++common) {
        for (std::int32_t first = 0; first < 6; ++first) {
            for (std::int32_t second = 0; second < 6; ++second) {
                SCOPED_TRACE(testing::Message() << common << ' ' << first << ' ' << second);
                SparseTile t;
                t.common_keys = common * 80;
                t.first_keys = first * 80;
                t.second_keys = second * 80;
                expect_ring_agrees(t, 80);
            }
        }
    }
}

TEST(SparseSchedule, WorkersAreEvenWhereRowsAreNot) {
    BlockMask mask = random_mask(1, 12, 32768, 32768, 0.25, 3);
    for (std::int64_t u = 0; u < 40; ++u) {
        for (std::int64_t v = 0; v < mask.key_blocks(); ++v) mask.set(0, 5, u, v);
    }
    for (const SparseTiling tiling : {kTall, kLow}) {
        const SparseSchedule s = sparse_schedule(mask, 1, 12, 12, 132, tiling);
        EXPECT_LT(s.longest, 1.04 * s.mean);
    }
}

TEST(SparseSchedule, TheLongestRowsOfAHeadComeFirst) {
    BlockMask mask(1, 1, 1280, 1280);
    for (std::int64_t u = 0; u < 10; ++u) {
        for (std::int64_t v = 0; v <= u; ++v) mask.set(0, 0, u, v);
    }
    const SparseSchedule s = sparse_schedule(mask, 1, 1, 1, 1, kLow);
    ASSERT_EQ(s.tiles.size(), 10U);
    for (std::int32_t i = 0; i < 10; ++i) EXPECT_EQ(s.tiles[i].block, 9 - i);
}

TEST(SparseSchedule, NeighboursShareTheirKeysInABand) {
    BlockMask mask(1, 1, 128 * 60, 128 * 60);
    for (std::int64_t u = 0; u < 60; ++u) {
        for (std::int64_t v = std::max<std::int64_t>(0, u - 8); v < std::min<std::int64_t>(60, u + 9);
             ++v) {
            mask.set(0, 0, u, v);
        }
    }
    std::int64_t common = 0;
    std::int64_t own = 0;
    for (const SparseTile& t : sparse_schedule(mask, 1, 1, 1, 132, kTall).tiles) {
        common += t.common_keys;
        own += t.first_keys + t.second_keys;
    }
    EXPECT_GT(common, 7 * own);  // 16 of 18 blocks are common
}

TEST(SparseSchedule, AMaskThatDoesNotDivideTheHeadsIsRefused) {
    EXPECT_THROW(sparse_schedule(BlockMask(1, 3, 256, 256), 1, 4, 4, 8, kLow), Error);
    EXPECT_THROW(sparse_schedule(BlockMask(2, 1, 256, 256), 3, 4, 4, 8, kLow), Error);
}

}  // namespace
}  // namespace xstage::plan
