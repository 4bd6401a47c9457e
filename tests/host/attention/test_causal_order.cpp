// How the tiles of a causal launch are shared out among its CTAs.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <vector>

#include "attention/causal_order.hpp"

namespace xstage::attention {
namespace {

constexpr int kSms = 132;

plan::AttentionGrid grid_of(const CausalTiles& tiles, std::int32_t heads) {
    plan::AttentionGrid grid;
    grid.tiles = tiles.count();
    grid.heads = heads;
    grid.batches = 1;
    grid.order = plan::TileOrder::kLongestFirst;
    return grid;
}

double mean_share(const plan::AttentionGrid& grid, const CausalTiles& tiles) {
    double sum = 0;
    for (std::int32_t t = 0; t < grid.tiles; ++t) sum += tiles.cost(t) * grid.heads;
    return sum / kSms;
}

TEST(CausalOrder, ATileCostsTheKeyBlocksThatItsRowsSee) {
    // Rows 0-63 see up to 64 keys, one block of 80; the next 64 see 128, two blocks; then 192: 3,
    // 256: 4, 320: 4. The last 64 rows of the second tile do not exist.
    const CausalTiles tiles{192, 80, 320, 320};
    ASSERT_EQ(tiles.count(), 2);
    EXPECT_DOUBLE_EQ(tiles.cost(0), 64 * (80 + 160 + 240 + 3 * kTileOverheadKeys));
    EXPECT_DOUBLE_EQ(tiles.cost(1), 64 * (320 + 320 + 2 * kTileOverheadKeys));
}

TEST(CausalOrder, TheLongestShareIsThatOfTheFullestCta) {
    // Three tiles of 128 rows and one head on two CTAs: back and forth, CTA 1 takes tiles 1 and 0.
    const CausalTiles tiles{128, 128, 384, 384};
    plan::AttentionGrid grid = grid_of(tiles, 1);
    EXPECT_DOUBLE_EQ(longest_share(grid, tiles, 2),
                     std::max(tiles.cost(2), tiles.cost(1) + tiles.cost(0)));
    EXPECT_DOUBLE_EQ(longest_share(grid, tiles, 1), tiles.cost(0) + tiles.cost(1) + tiles.cost(2));
}

TEST(CausalOrder, LongLaunchesAreSharedOutEvenly) {
    for (const std::int64_t rows : {8192, 16384, 32768}) {
        for (const std::int32_t heads : {16, 24, 40}) {
            const CausalTiles tiles{192, 80, rows, rows};
            plan::AttentionGrid grid = grid_of(tiles, heads);
            const std::int64_t in_l2 = heads_in_l2(rows, 128);
            grid.group = causal_group(grid, tiles, kSms, in_l2);
            EXPECT_LT(longest_share(grid, tiles, kSms), 1.06 * mean_share(grid, tiles))
                << rows << " x " << heads;
        }
    }
}

TEST(CausalOrder, AGroupIsNoLargerThanTheHeadsAndWhatCtasShare) {
    const CausalTiles tiles{128, 128, 2048, 2048};
    for (const std::int32_t heads : {1, 3, 33, 34, 200, 5000}) {
        for (const std::int64_t in_l2 : {0, 4, 64}) {
            const std::int32_t group = causal_group(grid_of(tiles, heads), tiles, kSms, in_l2);
            EXPECT_GE(group, 1);
            EXPECT_LE(group, heads);
            EXPECT_LE(group, std::max<std::int64_t>(in_l2, kSms / 3));
        }
    }
}

}  // namespace
}  // namespace xstage::attention
