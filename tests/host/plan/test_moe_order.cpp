#include "xstage/plan/moe_order.hpp"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <map>
#include <set>
#include <vector>

namespace xstage::plan {
namespace {

struct Case {
    std::vector<std::int32_t> begin;
    MoeGrid grid;
    MoeOrder order;
};

Case random_case() {
    Case out;
    out.grid.experts = *rc::gen::inRange(1, 12);
    out.grid.n1 = *rc::gen::inRange(1, 9);
    out.grid.n2 = *rc::gen::inRange(1, 9);
    out.begin = {0};
    for (int e = 0; e < out.grid.experts; ++e) {
        out.begin.push_back(out.begin.back() +
                            *rc::gen::inRange(0, 6));  // experts without rows too
    }
    out.grid.row_begin = out.begin.data();
    out.order.kind = *rc::gen::element(MoeOrderKind::kWave, MoeOrderKind::kAlternate,
                                       MoeOrderKind::kLead, MoeOrderKind::kRatio);
    out.order.wave = *rc::gen::inRange(0, 14);
    out.order.lead = *rc::gen::inRange(0, 40);
    out.order.slack = *rc::gen::inRange(0, 60);
    out.order.band = *rc::gen::inRange(0, 7);
    return out;
}

std::vector<MoeTile> walk(const Case& c) {
    const MoeTurns turns = turns_of(c.grid, c.order);
    std::vector<MoeTile> tiles;
    for (std::int64_t i = 0; i < c.grid.size(); ++i) {
        tiles.push_back(moe_tile_at(c.grid, c.order, turns, i));
    }
    return tiles;
}

RC_GTEST_PROP(MoeOrder, CoversEveryTileOnce, ()) {
    const Case c = random_case();
    std::set<std::pair<std::int32_t, std::int32_t>> first, second;
    for (const MoeTile& tile : walk(c)) {
        RC_ASSERT(tile.row >= 0 && tile.row < c.grid.rows());
        RC_ASSERT(tile.n >= 0 && tile.n < (tile.second ? c.grid.n2 : c.grid.n1));
        RC_ASSERT((tile.second ? second : first).insert({tile.row, tile.n}).second);
    }
    RC_ASSERT(static_cast<std::int64_t>(first.size()) == c.grid.rows() * c.grid.n1);
    RC_ASSERT(static_cast<std::int64_t>(second.size()) == c.grid.rows() * c.grid.n2);
}

// What makes the order free of deadlock when tasks are claimed in order.
RC_GTEST_PROP(MoeOrder, LinearTwoComesAfterAllLinearOneOfItsRow, ()) {
    const Case c = random_case();
    std::map<std::int32_t, int> done;
    for (const MoeTile& tile : walk(c)) {
        if (tile.second) {
            RC_ASSERT(done[tile.row] == c.grid.n1);
        } else {
            ++done[tile.row];
        }
    }
}

RC_GTEST_PROP(MoeOrder, LeadKeepsItsDistance, ()) {
    Case c = random_case();
    c.order.kind = MoeOrderKind::kLead;
    c.order.lead = *rc::gen::inRange(1, 10);
    c.order.band = 1;
    std::int64_t ones = 0;
    for (const MoeTile& tile : walk(c)) {
        if (!tile.second) {
            ++ones;
            continue;
        }
        const std::int64_t ahead = std::min<std::int64_t>(tile.row + c.order.lead, c.grid.rows());
        RC_ASSERT(ones >= ahead * c.grid.n1);
        // and not a whole row more than the turn asks for
        RC_ASSERT(ones <= (ahead + 1) * c.grid.n1);
    }
}

RC_GTEST_PROP(MoeOrder, ABandIsWalkedColumnByColumn, ()) {
    Case c = random_case();
    c.order.kind = MoeOrderKind::kWave;
    c.order.wave = *rc::gen::inRange(1, 6);
    c.order.band = *rc::gen::inRange(2, 7);
    // By hand: per wave and kind, expert by expert, bands of rows, columns, rows.
    std::vector<MoeTile> expected;
    for (int first = 0; first < c.grid.experts; first += c.order.wave)
        for (const bool second : {false, true})
            for (int e = first; e < std::min(first + c.order.wave, c.grid.experts); ++e)
                for (int row = c.begin[static_cast<std::size_t>(e)];
                     row < c.begin[static_cast<std::size_t>(e) + 1]; row += c.order.band)
                    for (int n = 0; n < (second ? c.grid.n2 : c.grid.n1); ++n)
                        for (int r = row; r < std::min(row + c.order.band,
                                                       c.begin[static_cast<std::size_t>(e) + 1]);
                             ++r)
                            expected.push_back({second, r, n});
    const std::vector<MoeTile> got = walk(c);
    RC_ASSERT(got.size() == expected.size());
    for (std::size_t i = 0; i < got.size(); ++i)
        RC_ASSERT(got[i].second == expected[i].second && got[i].row == expected[i].row &&
                  got[i].n == expected[i].n);
}

RC_GTEST_PROP(MoeOrder, TheRingIsLargeEnough, ()) {
    Case c = random_case();
    c.order.kind = MoeOrderKind::kLead;
    c.order.lead = *rc::gen::inRange(1, 10);
    const std::int32_t ring = least_ring(c.order);
    std::map<std::int32_t, int> done;
    for (const MoeTile& tile : walk(c)) {
        if (tile.second) {
            ++done[tile.row];
        } else if (tile.row >= ring) {
            RC_ASSERT(done[tile.row - ring] == c.grid.n2);
        }
    }
}

RC_GTEST_PROP(MoeOrder, WavesDoNotMix, ()) {
    Case c = random_case();
    c.order.kind = MoeOrderKind::kWave;
    c.order.wave = *rc::gen::inRange(1, 6);
    const auto wave_of = [&](std::int32_t row) {
        int expert = 0;
        while (c.begin[static_cast<std::size_t>(expert) + 1] <= row) ++expert;
        return expert / c.order.wave;
    };
    int wave = 0;
    bool second = false;
    for (const MoeTile& tile : walk(c)) {
        const int now = wave_of(tile.row);
        RC_ASSERT(now >= wave);
        if (now == wave) RC_ASSERT(tile.second || !second);
        wave = now;
        second = tile.second;
    }
}

RC_GTEST_PROP(MoeOrder, LeastWarmupIsTheLeast, ()) {
    Case c = random_case();
    const std::int32_t ones = *rc::gen::inRange(1, 5), twos = *rc::gen::inRange(1, 5);
    // By hand: the most Linear-1 tiles that any Linear-2 tile finds missing.
    std::int64_t needed = 0;
    for (std::int64_t j = 0; j < c.grid.rows() * c.grid.n2; ++j) {
        needed = std::max(needed, (j / c.grid.n2 + 1) * c.grid.n1 - j / twos * ones);
    }
    RC_ASSERT(least_warmup(c.grid, ones, twos) == std::min(needed, c.grid.rows() * c.grid.n1));
}

TEST(MoeOrder, AlternatesOneToOne) {
    const std::vector<std::int32_t> begin{0, 3};
    const MoeGrid grid{1, 2, 2, begin.data()};
    const MoeOrder order{MoeOrderKind::kAlternate, 0, 0, 0};
    std::string text;
    for (std::int64_t i = 0; i < grid.size(); ++i) {
        text += moe_tile_at(grid, order, turns_of(grid, order), i).second ? '2' : '1';
    }
    EXPECT_EQ(text, "112121212122");
}

// Usable in device code and at compile time.
constexpr std::int32_t kRows[] = {0, 2, 4};
constexpr MoeGrid kGrid{2, 3, 2, kRows};
constexpr MoeOrder kWaves{MoeOrderKind::kWave, 1, 0, 0};
static_assert(moe_tile_at(kGrid, kWaves, turns_of(kGrid, kWaves), 6).second);
static_assert(moe_tile_at(kGrid, kWaves, turns_of(kGrid, kWaves), 10).row == 2);

}  // namespace
}  // namespace xstage::plan
