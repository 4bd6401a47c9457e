#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "xstage/error.hpp"
#include "xstage/sparse/placement.hpp"

namespace xstage::sparse {
namespace {

double largest_of(const std::vector<double>& loads, const Placement& p, int ranks) {
    std::vector<double> sum(static_cast<std::size_t>(ranks));
    std::vector<std::size_t> count(sum.size());
    for (std::size_t h = 0; h < loads.size(); ++h) {
        sum.at(static_cast<std::size_t>(p.rank_of[h])) += loads[h];
        ++count[static_cast<std::size_t>(p.rank_of[h])];
    }
    for (const std::size_t n : count) EXPECT_EQ(n, loads.size() / sum.size());
    return *std::max_element(sum.begin(), sum.end());
}

RC_GTEST_PROP(Placement, IsTheBestThereIsForFewHeads, ()) {
    const auto loads = *rc::gen::container<std::vector<double>>(
        8, rc::gen::map(rc::gen::inRange(0, 1000), [](int x) { return x / 7.0; }));
    const Placement p = place_heads(loads, 2);
    RC_ASSERT(std::abs(largest_of(loads, p, 2) - p.largest) < 1e-9);
    RC_ASSERT(p.proven());
    double best = INFINITY;
    const double total = std::accumulate(loads.begin(), loads.end(), 0.0);
    for (unsigned subset = 0; subset < 256; ++subset) {
        if (__builtin_popcount(subset) != 4) continue;
        double sum = 0;
        for (unsigned h = 0; h < 8; ++h) {
            if (subset >> h & 1) sum += loads[h];
        }
        best = std::min(best, std::max(sum, total - sum));
    }
    RC_ASSERT(std::abs(best - p.largest) < 1e-9);
}

TEST(Placement, IsWithinFivePercentOfTheMeanForHeadsOfAModel) {
    std::mt19937 random(5);
    std::uniform_real_distribution<double> density(0.2, 1.0);
    for (const auto& [heads, ranks] : {std::pair{40, 8}, {40, 4}, {24, 8}, {12, 2}, {56, 8}}) {
        std::vector<double> loads(static_cast<std::size_t>(heads));
        for (double& x : loads) x = density(random);
        const Placement p = place_heads(loads, ranks);
        EXPECT_NEAR(largest_of(loads, p, ranks), p.largest, 1e-9);
        EXPECT_LE(p.largest, 1.05 * p.mean) << heads << " heads on " << ranks;
        EXPECT_LE(p.bound, p.largest + 1e-12);
        EXPECT_GE(p.bound, p.mean - 1e-9);
    }
}

TEST(Placement, TheBoundSaysWhereNoneCanBeEven) {
    const std::vector<double> loads = {10, 1, 1, 1};  // one head outweighs all others
    const Placement p = place_heads(loads, 2);
    EXPECT_EQ(p.largest, 11);
    EXPECT_EQ(p.bound, 11);
    EXPECT_TRUE(p.proven());
}

TEST(Placement, CutOffSearchesStillGiveAPlacementAndAnHonestBound) {
    std::vector<double> loads;
    for (int i = 0; i < 48; ++i) loads.push_back(100 + 37 * i % 101 + 0.01 * i);
    const Placement p = place_heads(loads, 8, 10);
    EXPECT_NEAR(largest_of(loads, p, 8), p.largest, 1e-9);
    EXPECT_LE(p.bound, p.largest);
}

TEST(Placement, MisuseIsRefused) {
    EXPECT_THROW((void)place_heads(std::vector<double>{1, 2, 3}, 2), Error);
    EXPECT_THROW((void)place_heads(std::vector<double>{}, 1), Error);
    EXPECT_THROW((void)place_heads(std::vector<double>{1, NAN}, 2), Error);
    EXPECT_THROW((void)place_heads(std::vector<double>{1, -1}, 2), Error);
}

}  // namespace
}  // namespace xstage::sparse
