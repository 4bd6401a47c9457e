#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>

#include "probe/clock_judge.hpp"
#include "probe/statistics.hpp"

namespace xstage::probe {
namespace {

TEST(Percentile, InterpolatesBetweenRanks) {
    // Ranks of five values are 0, 25, 50, 75 and 100 percent.
    const std::vector<double> values{50, 10, 40, 20, 30};
    EXPECT_DOUBLE_EQ(percentile(values, 0), 10);
    EXPECT_DOUBLE_EQ(percentile(values, 50), 30);
    EXPECT_DOUBLE_EQ(percentile(values, 100), 50);
    EXPECT_DOUBLE_EQ(percentile(values, 5), 12);  // a fifth of the way from 10 to 20
    EXPECT_DOUBLE_EQ(percentile(values, 95), 48);
    EXPECT_DOUBLE_EQ(median({1, 2, 3, 10}), 2.5);
    EXPECT_DOUBLE_EQ(percentile({7}, 95), 7);
    EXPECT_THROW(median({}), std::invalid_argument);
}

TEST(Percentile, RobustDeviationIgnoresAnOutlier) {
    // Distances from the median 3 are 2, 1, 0, 1 and 997: their median is 1.
    EXPECT_DOUBLE_EQ(robust_deviation({1, 2, 3, 4, 1000}), 1.4826);
    EXPECT_EQ(robust_deviation({4}), 0);
    EXPECT_EQ(robust_deviation({4, 4, 4}), 0);
}

RC_GTEST_PROP(Percentile, OrderedAndWithinTheData, (std::vector<double> values)) {
    std::erase_if(values, [](double v) { return !std::isfinite(v) || std::abs(v) > 1e100; });
    RC_PRE(!values.empty());
    const Spread spread = spread_of(values);
    RC_ASSERT(spread.p5->value() >= *std::min_element(values.begin(), values.end()));
    RC_ASSERT(*spread.p5 <= spread.p50);
    RC_ASSERT(spread.p50 <= *spread.p95);
    RC_ASSERT(*spread.p95 <= spread.max);
    RC_ASSERT(spread.max.value() == *std::max_element(values.begin(), values.end()));
}

StoreSample sample(std::vector<std::vector<double>> issue, double total) {
    StoreSample out;
    const std::size_t workers = issue.front().size();
    out.issue = std::move(issue);
    out.total.assign(workers, total);
    out.fence.assign(workers, total + 100);
    out.elapsed_ns = total;
    return out;
}

TEST(Summarise, EveryBurstKeepsItsOwnIssueTimes) {
    StoreConfig config;
    config.mode = BurstMode::kGap2;
    config.bursts = 2;
    config.producers = 2;
    config.bytes = 4096;
    config.gap_cycles = 8000;
    // Three launches; per burst the medians of the launches' medians and slowest.
    const BurstRow row =
        summarise(config, {sample({{10, 20}, {1, 3}}, 900), sample({{30, 50}, {5, 5}}, 1000),
                           sample({{20, 90}, {2, 4}}, 1010)});
    ASSERT_EQ(row.issue.size(), 2u);
    EXPECT_DOUBLE_EQ(row.issue[0].cycles.p50.value(), 40);  // of 15, 40, 55
    EXPECT_DOUBLE_EQ(row.issue[0].cycles.max.value(), 50);  // of 20, 50, 90
    EXPECT_EQ(row.issue[1].burst, 1);
    EXPECT_DOUBLE_EQ(row.issue[1].cycles.p50.value(), 3);  // of 2, 5, 3
    EXPECT_DOUBLE_EQ(row.issue[1].cycles.max.value(), 4);
    EXPECT_DOUBLE_EQ(row.total.max.value(), 1000);
    EXPECT_DOUBLE_EQ(row.fence->p50.value(), 1100);
    EXPECT_DOUBLE_EQ(row.elapsed->value(), 1000);
    EXPECT_EQ(row.samples, 3);
    EXPECT_EQ(row.gap.value(), 8000);
    EXPECT_DOUBLE_EQ(*row.noise, 1.4826 * 10 / 1000);  // distances 100, 0, 10
    EXPECT_FALSE(row.beside_rate);
}

TEST(Summarise, WorkBesideIsComparedWithItsOwnPaceBefore) {
    StoreConfig config;
    config.beside = Beside::kMma;
    StoreSample s = sample({{1}}, 100);
    s.beside_quiet = 50;
    s.beside_storing = 40;
    EXPECT_DOUBLE_EQ(*summarise(config, {s}).beside_rate, 0.8);
}

TEST(Summarise, StaleWordsAddUpOverAllRounds) {
    VisibleSample a, b;
    a.stale_words = 3;
    a.echo_ns = 4000;
    b.stale_words = 1;
    b.echo_ns = 6000;
    const VisibleRow row = summarise(VisibleConfig{}, {a, b});
    EXPECT_EQ(row.stale_words, 4);
    EXPECT_DOUBLE_EQ(row.echo_ns.value(), 5000);
}

TEST(SpeedGroups, SplitWhereNeighboursInTimeAreFarApart) {
    std::vector<std::optional<Cycles>> issue(7);
    issue[0] = Cycles{720};
    issue[1] = Cycles{520};
    issue[2] = Cycles{700};
    issue[4] = Cycles{530};
    issue[6] = Cycles{710};
    const auto groups = speed_groups(issue, 0.15);
    ASSERT_EQ(groups.size(), 2u);
    EXPECT_EQ(groups[0], (std::vector<int>{1, 4}));
    EXPECT_EQ(groups[1], (std::vector<int>{0, 2, 6}));
    EXPECT_TRUE(speed_groups({}, 0.1).empty());
}

TEST(ClockJudge, TellsTheClockOnlyFromSpansLongEnough) {
    EXPECT_FALSE(ClockJudge::clock(Cycles{1980}, Nanoseconds{1000}));
    EXPECT_FALSE(ClockJudge::clock(Cycles{0}, Nanoseconds{10000}));
    EXPECT_DOUBLE_EQ(ClockJudge::clock(Cycles{19800}, Nanoseconds{10000})->value(), 1.98);
}

TEST(ClockJudge, ACardAtFourteenHundredMegahertzIsShifted) {
    const ClockJudge judge(GigaHertz{1.98});
    EXPECT_TRUE(judge.shifted(GigaHertz{1.4}));
    EXPECT_TRUE(judge.shifted(GigaHertz{2.05}));
    EXPECT_FALSE(judge.shifted(GigaHertz{1.97}));
    EXPECT_FALSE(judge.shifted(GigaHertz{1.99}));
    EXPECT_FALSE(judge.shifted(std::nullopt));
}

}  // namespace
}  // namespace xstage::probe
