// Where the benchmark's tokens go, and what it makes of times.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "ops/bench_processes.hpp"
#include "ops/bench_statistics.hpp"
#include "ops/moe/bench_routing.hpp"
#include "xstage/error.hpp"

namespace xstage::moe {
namespace {

using testing::ElementsAre;

Problem problem_of(int ranks, int local_experts, int top_k) {
    Problem p;
    p.ranks = ranks;
    p.max_tokens = 4000;
    p.hidden = 256;
    p.intermediate = 128;
    p.experts = ranks * local_experts;
    p.top_k = top_k;
    return p;
}

std::vector<Load> loads(const Problem& p, Routing routing) {
    std::vector<std::vector<std::int32_t>> all;
    for (int r = 0; r < p.ranks; ++r) all.push_back(routes_of(p, p.max_tokens, r, routing, 1));
    return loads_of(p, all);
}

TEST(MoeRouting, TokensHaveDistinctExpertsThatExist) {
    const Problem p = problem_of(2, 8, 8);
    for (const Routing routing : kRoutings) {
        const auto routes = routes_of(p, 500, 1, routing, 3);
        ASSERT_EQ(routes.size(), 500U * 8);
        for (std::size_t t = 0; t < 500; ++t) {
            std::set<std::int32_t> seen;
            int routed = 0;
            for (std::size_t s = 8 * t; s < 8 * t + 8; ++s) {
                ASSERT_LT(routes[s], 16);
                if (routes[s] < 0) continue;
                ++routed;
                seen.insert(routes[s]);
            }
            ASSERT_EQ(seen.size(), static_cast<std::size_t>(routed)) << name_of(routing);
            ASSERT_TRUE(routed == 8 || routing == Routing::kMasked) << name_of(routing);
        }
        EXPECT_EQ(routes, routes_of(p, 500, 1, routing, 3));
        EXPECT_NE(routes, routes_of(p, 500, 0, routing, 3));
    }
}

TEST(MoeRouting, SharesAreThoseOfTheirNames) {
    const Problem p = problem_of(2, 32, 6);
    const double all = 4000.0 * 6;
    const auto away = [&](Routing routing, std::size_t rank) {
        return static_cast<double>(loads(p, routing)[rank].away) / all;
    };
    const double bound = 0.01;  // 24,000 draws: 3.3 standard deviations
    for (const std::size_t r : {0, 1}) {
        EXPECT_NEAR(away(Routing::kBalanced, r), 0.5, bound);
        EXPECT_NEAR(away(Routing::kAway, r), 7.0 / 8, bound);
        EXPECT_EQ(away(Routing::kHome, r), 0);
    }
    EXPECT_NEAR(static_cast<double>(loads(p, Routing::kRank0)[0].routes) / (2 * all), 0.8, bound);
    EXPECT_NEAR(static_cast<double>(loads(p, Routing::kHot)[0].most) / (2 * all), 0.1 + 0.9 / 64,
                bound);
    const std::vector<Load> masked = loads(p, Routing::kMasked);
    EXPECT_NEAR(static_cast<double>(masked[0].routes + masked[1].routes) / (2 * all), 0.7, bound);
}

TEST(MoeRouting, ADeckThatIsUsedUpHandsOver) {
    // Seven of eight slots would go away, and only four experts are there.
    const auto routes = routes_of(problem_of(2, 4, 8), 20, 0, Routing::kAway, 1);
    EXPECT_EQ(std::count_if(routes.begin(), routes.end(), [](int e) { return e >= 4; }), 20 * 4);
}

TEST(MoeRouting, LoadsCountBlocksAndExperts) {
    const Problem p = problem_of(2, 2, 1);
    std::vector<std::int32_t> first(129, 0);
    first.push_back(3);
    const std::vector<Load> found = loads_of(p, {first, {0, 2, -1}});
    EXPECT_EQ(found[0].routes, 130);
    EXPECT_EQ(found[0].blocks, 2);
    EXPECT_EQ(found[0].experts_hit, 1);
    EXPECT_EQ(found[0].most, 130);
    EXPECT_EQ(found[0].away, 1);
    EXPECT_EQ(found[1].routes, 2);
    EXPECT_EQ(found[1].blocks, 2);
    EXPECT_EQ(found[1].away, 1);
}

TEST(BenchStatistics, RatiosAreOfRepetitionsInPairs) {
    // Every pair has the ratio 2, although the medians of both would give another.
    const auto found = bench::ratio({2, 20, 200}, {1, 10, 100});
    EXPECT_EQ(found["median"], 2);
    EXPECT_EQ(found["interval95"][0], 2);
    EXPECT_EQ(found["interval95"][1], 2);
    const auto spread = bench::ratio({1, 2, 3, 4, 5}, {1, 1, 1, 1, 1});
    EXPECT_EQ(spread["median"], 3);
    EXPECT_LT(spread["interval95"][0], 3);
    EXPECT_GT(spread["interval95"][1], 3);
}

TEST(BenchProcesses, GiveBackWhatTheyWrote) {
    const std::string large(300000, 'x');  // more than a pipe holds
    EXPECT_THAT(bench::in_processes(2, [&](int r) { return large + std::to_string(r); }),
                ElementsAre(large + "0", large + "1"));
}

TEST(BenchProcesses, PassOnTheFirstFailure) {
    try {
        bench::in_processes(3, [](int r) -> std::string {
            if (r == 1) throw Error(ErrorKind::kUnsupported, "no GPU");
            return "";
        });
        ADD_FAILURE();
    } catch (const Error& e) {
        EXPECT_EQ(e.kind(), ErrorKind::kUnsupported);
        EXPECT_THAT(e.what(), testing::HasSubstr("no GPU"));
    }
    EXPECT_THROW(bench::in_processes(1, [](int) -> std::string { ::_exit(4); }), Error);
}

}  // namespace
}  // namespace xstage::moe
