#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <concepts>

#include "model/producers.hpp"
#include "xstage/burst_gap.hpp"
#include "xstage/model.hpp"

namespace {

using namespace xstage;
using namespace xstage::model;
using namespace xstage::literals;

template <class A, class B>
concept Addable = requires(A a, B b) {
    a + b;
};
template <class A, class B>
concept Comparable = requires(A a, B b) {
    a < b;
};
template <class Gap>
concept GapOfPeriod = requires(BurstGap m, Gap gap) {
    period(m, 1_KiB, gap);
};

// Issue is counted in SM cycles and drain in link time; a clock is needed between the two.
static_assert(Addable<Cycles, Cycles> && !Addable<Cycles, Nanoseconds>);
static_assert(!Comparable<Bytes, Nanoseconds>);
static_assert(GapOfPeriod<Nanoseconds> && !GapOfPeriod<Cycles> && !GapOfPeriod<double>);
static_assert(std::same_as<decltype(Cycles{} / GigaHertz{}), Nanoseconds>);

// The paper's node: V/R = 148 * 32 KiB / 717 B/ns = 6763.8 ns; the knee (Q + R T) / 148 = 33.8 KB.
constexpr BurstGap kPaper{Nanoseconds{760}, BytesPerNanosecond{717}, Bytes{4.25 * 1048576}};
constexpr Bytes kVolume{148.0 * 32768};

TEST(BurstGap, ClosedFormsOfThePapersNode) {
    EXPECT_NEAR(isolated_issue(kPaper, kVolume).value(), 760, 1e-9);
    EXPECT_NEAR(isolated_issue(kPaper, 2 * kVolume).value(), 7312.2, 0.1);
    EXPECT_NEAR(period(kPaper, kVolume, 2000_ns).value(), 6763.8, 0.1);
    EXPECT_NEAR(period(kPaper, kVolume, 8000_ns).value(), 8760, 1e-9);
    EXPECT_NEAR(periodic_issue(kPaper, kVolume, 2000_ns).value(), 4763.8, 0.1);
    EXPECT_NEAR(overhead(kPaper, kVolume, 2000_ns).value(), 4003.8, 0.1);
    EXPECT_NEAR(recovery_gap(kPaper, kVolume).value(), 6003.8, 0.1);
    EXPECT_NEAR((knee(kPaper) / 148).value(), 33793, 1);
    EXPECT_FALSE(free_of_backpressure(kPaper, kVolume, 2000_ns));
    EXPECT_TRUE(free_of_backpressure(kPaper, kVolume, 6100_ns));
}

// Equal producers, one shared room, no arbitration: the general model with three parameters.
FluidModel equal_producers(double count, double room_each, double drain) {
    FluidModel model;
    model.classes = {{0, count, room_each}};
    model.drain = drain;
    model.egress = 1e9;
    return model;
}

RC_GTEST_PROP(BurstGap, IsolatedBurstIsASpecialCaseOfTheFluidModel, ()) {
    const double count = *rc::gen::inRange(1, 200), bytes = *rc::gen::inRange(64, 200000);
    const double room = *rc::gen::inRange(1, 100000), drain = *rc::gen::inRange(10, 1000);
    const double free = *rc::gen::inRange(10, 5000);
    const FluidBurst burst{bytes, free, free, 0, 1};
    const FluidResult result = run_fluid(equal_producers(count, room, drain), std::span(&burst, 1));
    const BurstGap m{Nanoseconds{free}, BytesPerNanosecond{drain}, Bytes{room * count}};
    const double expected = isolated_issue(m, Bytes{count * bytes}).value();
    RC_ASSERT(std::abs(result.slowest[0] - expected) <= 1e-4 * expected);
}

RC_GTEST_PROP(BurstGap, SteadyPeriodIsASpecialCaseOfTheFluidModel, ()) {
    const double count = *rc::gen::inRange(1, 200), bytes = *rc::gen::inRange(64, 100000);
    const double drain = *rc::gen::inRange(10, 1000), free = *rc::gen::inRange(10, 5000);
    const double gap = *rc::gen::inRange(0, 20000);
    const double room = *rc::gen::inRange(1, 50000);
    const BurstGap m{Nanoseconds{free}, BytesPerNanosecond{drain}, Bytes{room * count}};
    const Bytes volume{count * bytes};
    // The closed form needs the room to hold the backlog that the gap hides.
    RC_PRE(volume - m.drain * m.issue <= m.capacity || gap * drain <= room * count);
    const std::vector<FluidBurst> bursts(400, {bytes, free, free, gap, 1});
    const FluidResult result = run_fluid(equal_producers(count, room, drain), bursts);
    const double steady = (result.begun[399] - result.begun[299]) / 100;
    const double expected = period(m, volume, Nanoseconds{gap}).value();
    RC_ASSERT(std::abs(steady - expected) <= 0.02 * expected);
}

}  // namespace
