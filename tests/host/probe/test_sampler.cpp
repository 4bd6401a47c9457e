#include <gtest/gtest.h>

#include "fake_node.hpp"
#include "probe/sampler.hpp"

namespace xstage::probe {
namespace {

using test::FakeNode;

const SamplePolicy kPolicy{.samples = 10, .retries = 2, .warm_up_ms = 1};

StoreConfig burst(std::int64_t bytes) {
    StoreConfig config;
    config.producers = 4;
    config.bytes = bytes;
    return config;
}

TEST(Sampler, GoodSamplesAreTakenOnce) {
    FakeNode node;
    Tally tally;
    const BurstRow row = measure(node, burst(1024), kPolicy, ClockJudge(GigaHertz{2.0}), tally);
    EXPECT_EQ(row.samples, 10);
    EXPECT_FALSE(row.marked);
    EXPECT_EQ(row.marked_samples, 0);
    EXPECT_NEAR(row.clock->value(), 2.0, 1e-9);
    EXPECT_EQ(node.launches, 1);
    EXPECT_EQ(node.warm_ups, 0);
    EXPECT_EQ(tally.taken, 10);
    EXPECT_EQ(tally.marked_share(), 0);
}

TEST(Sampler, ShiftedSamplesAreReplacedAndStillCounted) {
    FakeNode node;
    node.clock_of = [](int sample) { return sample < 3 ? 1.4 : 2.0; };
    Tally tally;
    const BurstRow row = measure(node, burst(1024), kPolicy, ClockJudge(GigaHertz{2.0}), tally);
    EXPECT_EQ(row.samples, 10);
    EXPECT_FALSE(row.marked);
    EXPECT_EQ(row.marked_samples, 3);
    EXPECT_EQ(node.launches, 2);
    EXPECT_EQ(node.warm_ups, 1) << "the clock is brought up before a retry";
    EXPECT_EQ(tally.taken, 13) << "only the missing ones are taken again";
    EXPECT_EQ(tally.marked, 3);
    EXPECT_EQ(tally.marked_rows, 0);
    EXPECT_NEAR(row.clock->value(), 2.0, 1e-9);
}

TEST(Sampler, RetriesAreBoundedAndAMarkedRowKeepsAllSamples) {
    FakeNode node;
    node.clock_ghz = 1.4;
    Tally tally;
    const BurstRow row = measure(node, burst(1024), kPolicy, ClockJudge(GigaHertz{2.0}), tally);
    EXPECT_TRUE(row.marked);
    EXPECT_EQ(node.launches, 3);
    EXPECT_EQ(row.samples, 30);
    EXPECT_EQ(row.marked_samples, 30);
    EXPECT_NEAR(row.clock->value(), 1.4, 1e-9) << "the clock it had, not the one it should have";
    EXPECT_EQ(tally.marked_share(), 1);
    EXPECT_EQ(tally.marked_rows, 1);
}

TEST(Sampler, ThrottlingMarksWhateverTheClock) {
    FakeNode node;
    node.throttled = true;
    Tally tally;
    EXPECT_TRUE(measure(node, burst(1024), kPolicy, ClockJudge(GigaHertz{2.0}), tally).marked);
}

TEST(Sampler, TheClockThatTheNodeHoldsIsTheReference) {
    FakeNode node;
    node.clock_of = [](int sample) { return sample == 0 ? 1.2 : 1.755; };
    EXPECT_NEAR(settle_clock(node, 4, Beside::kNothing, 10).value(), 1.755, 1e-9);
    EXPECT_EQ(node.warm_ups, 1);
}

TEST(Sampler, WorkBesideIsHeldToItsOwnClock) {
    FakeNode node;
    node.clock_ghz = 1.8;
    ClockJudge judge(GigaHertz{2.0});
    judge.hold(Beside::kMma, settle_clock(node, 4, Beside::kMma, 1));
    Tally tally;
    StoreConfig config = burst(1024);
    EXPECT_TRUE(measure(node, config, kPolicy, judge, tally).marked);
    config.beside = Beside::kMma;
    EXPECT_FALSE(measure(node, config, kPolicy, judge, tally).marked);
}

}  // namespace
}  // namespace xstage::probe
