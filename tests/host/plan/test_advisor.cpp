#include "plan/advisor.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cmath>
#include <map>

namespace xstage::plan {
namespace {

using testing::HasSubstr;

constexpr StoreLimits kLimits{100, 1e6, 0, 0.05, 0.15};

std::vector<Candidate> wave_and_mixed() {
    return {{"wave", {{"Linear-1", 20000, 0}, {"Linear-2", 10000, 2.5e6}}, 0},
            {"mixed", {{"mixed", 30000, 2.5e6}}, 1}};
}

RC_GTEST_PROP(Estimate, OnePhaseIsTheClosedForm, ()) {
    const double compute = *rc::gen::inRange(1, 100000), bytes = *rc::gen::inRange(0, 10000000);
    const Estimate e = estimate({{"burst", compute, bytes}}, kLimits);
    const double issue = std::max(compute, (bytes - kLimits.room) / kLimits.rate);
    RC_ASSERT(std::abs(e.stall_ns - (issue - compute)) < 1e-6);
    RC_ASSERT(std::abs(e.total_ns - std::max(compute, bytes / kLimits.rate)) < 1e-6);
    RC_ASSERT(e.peak_bytes <= kLimits.room + 1e-6);
}

RC_GTEST_PROP(Estimate, NeverBeatsComputationOrLink, ()) {
    std::vector<Phase> phases;
    double compute = 0, bytes = 0;
    for (int i = *rc::gen::inRange(1, 12); i > 0; --i) {
        phases.push_back({"p", static_cast<double>(*rc::gen::inRange(0, 30000)),
                          static_cast<double>(*rc::gen::inRange(0, 4000000))});
        compute += phases.back().compute_ns;
        bytes += phases.back().bytes;
    }
    const Estimate e = estimate(phases, kLimits);
    RC_ASSERT(e.total_ns >= compute - 1e-6);
    RC_ASSERT(e.total_ns >= bytes / kLimits.rate - 1e-6);
    RC_ASSERT(e.total_ns <= compute + bytes / kLimits.rate + 1e-6);
    RC_ASSERT(std::abs(e.total_ns - compute - e.stall_ns - e.tail_ns) < 1e-3);
}

TEST(Advise, ChoosesTheOrderWithoutTheStall) {
    const Advice advice = advise(wave_and_mixed(), 0, kLimits, nullptr);
    EXPECT_EQ(advice.choice, 1);
    // Wave: 20 us, then 2.5 MB at 100 GB/s = 25 us; mixed: 30 us, which hide the stores.
    EXPECT_NEAR(advice.gain, 45.0 / 30.0, 1e-9);
    EXPECT_LT(advice.gain_low, advice.gain);
    EXPECT_GT(advice.gain_high, advice.gain);
    EXPECT_THAT(advice.reason, HasSubstr("Linear-2 bursts of 2.5 MB"));
    EXPECT_THAT(advice.reason, HasSubstr("room of 1.0 MB"));
    EXPECT_THAT(advice.reason, HasSubstr("a gap of 15 us would hide the drain"));
}

TEST(Advise, ACandidateMayHaveLimitsOfItsOwn) {
    std::vector<Candidate> candidates = wave_and_mixed();
    // 33 us of computation for 30, and a buffer in memory instead of the room.
    candidates[1] = {
        "8 SMs copy", {{"Linear-1", 22000, 0}, {"Linear-2", 11000, 2.5e6}}, 1, 50, true};
    const Advice advice = advise(candidates, 0, kLimits, nullptr);
    EXPECT_EQ(advice.ranked[0].closed_form.total_ns, 45000);
    const Ranked& split = advice.ranked[1];
    EXPECT_EQ(split.candidate, 1);
    EXPECT_EQ(split.closed_form.stall_ns, 0);
    EXPECT_EQ(split.closed_form.total_ns, 22000 + 2.5e6 / 50);
    candidates[1].rate = 1000;  // more than the node's: 100
    EXPECT_EQ(limits_for(candidates[1], kLimits).rate, 100);
    const Advice faster = advise(candidates, 0, kLimits, nullptr);
    EXPECT_EQ(faster.choice, 0) << "22 + 25 us are no better than 20 + 25";
}

TEST(Advise, SimulatesTheFinalistsAndTheBaselineOnly) {
    std::vector<Candidate> candidates = wave_and_mixed();
    for (int i = 2; i < 8; ++i) candidates.push_back({"slower", {{"p", 60000.0 + i, 0}}, i});
    std::map<int, int> calls;
    const Advice advice = advise(candidates, 7, kLimits, [&](const Candidate& c) {
        ++calls[c.tag];
        return c.tag == 0 ? 1000.0 : 2000.0;
    });
    EXPECT_EQ(calls, (std::map<int, int>{{0, 1}, {1, 1}, {2, 1}, {7, 1}}));
    EXPECT_EQ(advice.choice, 0) << "the simulation has the last word";
    EXPECT_NEAR(advice.gain, 2, 1e-9);
    EXPECT_EQ(advice.ranked.size(), 8u);
}

TEST(Advise, OfEqualOrdersTheFirstIsTaken) {
    const std::vector<Candidate> same{{"a", {{"p", 100.0, 0}}, 0}, {"b", {{"p", 99.9, 0}}, 1}};
    const Advice advice = advise(same, 0, kLimits, nullptr);
    EXPECT_EQ(advice.choice, 0);
    EXPECT_THAT(advice.reason, HasSubstr("No phase of a exceeds the room"));
}

}  // namespace
}  // namespace xstage::plan
