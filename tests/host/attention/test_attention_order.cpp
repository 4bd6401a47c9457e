#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <set>
#include <tuple>
#include <vector>

#include "xstage/plan/attention_order.hpp"

namespace xstage::plan {
namespace {

constexpr TileOrder kOrders[] = {TileOrder::kHeadMajor, TileOrder::kInterleaved,
                                 TileOrder::kRotated, TileOrder::kRemoteFirst,
                                 TileOrder::kLongestFirst};

AttentionGrid grid_of(const std::vector<int>& tiles_per_destination, int heads, int batches,
                      TileOrder order, int rank = 0) {
    AttentionGrid grid;
    grid.heads = heads;
    grid.batches = batches;
    grid.destinations = static_cast<int>(tiles_per_destination.size());
    grid.rank = rank;
    grid.order = order;
    for (std::size_t d = 0; d < tiles_per_destination.size(); ++d) {
        grid.tile_begin[d] = grid.tiles;
        grid.tiles += tiles_per_destination[d];
    }
    grid.tile_begin[grid.destinations] = grid.tiles;
    return grid;
}

int destination_of(const AttentionGrid& grid, int tile) {
    int d = 0;
    while (tile >= grid.tile_begin[d + 1]) ++d;
    return d;
}

std::vector<AttentionTile> walk(const AttentionGrid& grid) {
    std::vector<AttentionTile> tiles;
    for (std::int32_t i = 0; i < grid.size(); ++i) tiles.push_back(tile_at(grid, i));
    return tiles;
}

std::vector<int> destinations_of_first_head(const AttentionGrid& grid) {
    std::vector<int> all;
    for (const AttentionTile& t : walk(grid)) {
        if (t.head == 0 && t.batch == 0) all.push_back(destination_of(grid, t.tile));
    }
    return all;
}

AttentionGrid any_grid() {
    const auto destinations = *rc::gen::inRange<std::size_t>(1, kMaxDestinations + 1);
    const auto tiles = *rc::gen::container<std::vector<int>>(destinations, rc::gen::inRange(0, 40));
    AttentionGrid grid =
        grid_of(tiles, *rc::gen::inRange(1, 6), *rc::gen::inRange(1, 4),
                *rc::gen::elementOf(std::vector<TileOrder>(std::begin(kOrders), std::end(kOrders))),
                *rc::gen::inRange(0, static_cast<int>(destinations)));
    grid.descending = *rc::gen::arbitrary<bool>();
    grid.group = *rc::gen::inRange(1, 30);
    if (*rc::gen::arbitrary<bool>()) set_rounds(grid);
    return grid;
}

RC_GTEST_PROP(AttentionOrder, EveryTileComesExactlyOnce, ()) {
    const AttentionGrid grid = any_grid();
    std::set<std::tuple<int, int, int>> seen;
    for (const AttentionTile& t : walk(grid)) {
        RC_ASSERT(t.tile >= 0 && t.tile < grid.tiles);
        RC_ASSERT(t.head >= 0 && t.head < grid.heads);
        RC_ASSERT(t.batch >= 0 && t.batch < grid.batches);
        RC_ASSERT(seen.insert({t.tile, t.head, t.batch}).second);
    }
    RC_ASSERT(static_cast<std::int64_t>(seen.size()) == grid.size());
}

RC_GTEST_PROP(AttentionOrder, HeadsStayTogether, ()) {
    AttentionGrid grid = any_grid();
    if (grid.order == TileOrder::kLongestFirst) grid.group = 1;
    // K and V of a head are read from L2 once: a head's tiles are one run, or two when the local
    // ones come last.
    std::vector<std::pair<int, int>> runs;
    for (const AttentionTile& t : walk(grid)) {
        if (runs.empty() || runs.back() != std::pair{t.batch, t.head}) {
            runs.emplace_back(t.batch, t.head);
        }
    }
    const auto heads = static_cast<std::size_t>(grid.heads * grid.batches);
    RC_ASSERT(runs.size() <= (grid.order == TileOrder::kRemoteFirst ? 2 * heads : heads));
}

RC_GTEST_PROP(AttentionOrder, InterleavingNeverFallsBehindARound, ()) {
    AttentionGrid grid = any_grid();
    grid.order = *rc::gen::element(TileOrder::kInterleaved, TileOrder::kRotated);
    grid.heads = grid.batches = 1;
    // At every moment a destination with tiles left has been served as often as any other, or once
    // less: no link idles while another gets a burst.
    std::vector<int> served(static_cast<std::size_t>(grid.destinations), 0);
    for (const AttentionTile& t : walk(grid)) {
        ++served[static_cast<std::size_t>(destination_of(grid, t.tile))];
        const int most = *std::max_element(served.begin(), served.end());
        for (int d = 0; d < grid.destinations; ++d) {
            const int total = grid.tile_begin[d + 1] - grid.tile_begin[d];
            const int got = served[static_cast<std::size_t>(d)];
            RC_ASSERT(got == total || got >= most - 1);
        }
    }
}

RC_GTEST_PROP(AttentionOrder, RemoteFirstEndsWithAllLocalTiles, ()) {
    AttentionGrid grid = any_grid();
    grid.order = TileOrder::kRemoteFirst;
    bool local_began = false;
    for (const AttentionTile& t : walk(grid)) {
        const bool local = destination_of(grid, t.tile) == grid.rank;
        RC_ASSERT(local || !local_began);
        local_began = local_began || local;
    }
}

TEST(AttentionOrder, HeadMajorIsRowOrder) {
    const AttentionGrid grid = grid_of({2, 1}, 2, 1, TileOrder::kHeadMajor);
    std::vector<std::pair<int, int>> got;
    for (const AttentionTile& t : walk(grid)) got.emplace_back(t.head, t.tile);
    EXPECT_EQ(got,
              (std::vector<std::pair<int, int>>{{0, 0}, {0, 1}, {0, 2}, {1, 0}, {1, 1}, {1, 2}}));
}

TEST(AttentionOrder, InterleavedServesUnevenChunksInTurn) {
    const AttentionGrid grid = grid_of({3, 1, 2}, 1, 1, TileOrder::kInterleaved);
    EXPECT_EQ(destinations_of_first_head(grid), (std::vector<int>{0, 1, 2, 0, 2, 0}));
}

TEST(AttentionOrder, RanksBeginWithDifferentDestinations) {
    // Four ranks start at four destinations, each its right neighbour, so no receiver gets two.
    std::set<int> first;
    for (int rank = 0; rank < 4; ++rank) {
        const auto order =
            destinations_of_first_head(grid_of({2, 2, 2, 2}, 1, 1, TileOrder::kRotated, rank));
        first.insert(order.front());
        EXPECT_EQ(order.front(), (rank + 1) % 4);
        EXPECT_EQ(order.back(), rank);
    }
    EXPECT_EQ(first.size(), 4U);
}

TEST(AttentionOrder, RemoteFirstRotatesAmongRemoteDestinations) {
    const AttentionGrid grid = grid_of({2, 2, 2}, 1, 1, TileOrder::kRemoteFirst, 1);
    EXPECT_EQ(destinations_of_first_head(grid), (std::vector<int>{2, 0, 2, 0, 1, 1}));
}

TEST(AttentionOrder, LongestFirstTakesTheLastTilesOfAGroupOfHeads) {
    AttentionGrid grid = grid_of({3}, 3, 1, TileOrder::kLongestFirst);
    grid.group = 2;
    std::vector<std::pair<int, int>> got;
    for (const AttentionTile& t : walk(grid)) got.emplace_back(t.head, t.tile);
    EXPECT_EQ(got, (std::vector<std::pair<int, int>>{
                       {0, 2}, {1, 2}, {0, 1}, {1, 1}, {0, 0}, {1, 0}, {2, 2}, {2, 1}, {2, 0}}));
}

RC_GTEST_PROP(AttentionOrder, ShortcutsDoNotChangeTheOrder, ()) {
    AttentionGrid grid = any_grid();
    grid.even_rounds = grid.rounds = 0;
    const std::vector<AttentionTile> searched = walk(grid);
    set_rounds(grid);
    const std::vector<AttentionTile> quick = walk(grid);
    for (std::size_t i = 0; i < quick.size(); ++i) RC_ASSERT(quick[i].tile == searched[i].tile);
}

RC_GTEST_PROP(TaskIndex, WorkersShareAllTasksAndRunOutOnlyAtTheEnd, ()) {
    const auto workers = *rc::gen::inRange(1, 200);
    const auto tasks = *rc::gen::inRange(0, 1000);
    const auto back_and_forth = *rc::gen::arbitrary<bool>();
    std::vector<int> taken(static_cast<std::size_t>(tasks), 0);
    for (std::int32_t w = 0; w < workers; ++w) {
        // The kernel stops a worker at its first index past the end.
        for (std::int32_t round = 0;; ++round) {
            const std::int32_t index = task_index(w, workers, round, back_and_forth);
            if (index >= tasks) break;
            ++taken[static_cast<std::size_t>(index)];
        }
    }
    RC_ASSERT(std::all_of(taken.begin(), taken.end(), [](int n) { return n == 1; }));
}

TEST(TaskIndex, BackAndForthEvensOutShrinkingTasks) {
    // Tasks 0..7 of lengths 8..1 on two workers: 8+5+4+1 against 7+6+3+2.
    int load[2] = {0, 0};
    for (int w = 0; w < 2; ++w) {
        for (int round = 0; round < 4; ++round) {
            load[w] += 8 - static_cast<int>(task_index(w, 2, round, true));
        }
    }
    EXPECT_EQ(load[0], load[1]);
}

// The kernel's own use: a constant expression.
static_assert(tile_at(AttentionGrid{.tiles = 2, .heads = 1, .batches = 1, .tile_begin = {0, 2}}, 1)
                  .tile == 1);

}  // namespace
}  // namespace xstage::plan
