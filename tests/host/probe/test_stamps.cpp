#include <gtest/gtest.h>

#include "expect_error.hpp"
#include "xstage/stamps.hpp"

namespace xstage {
namespace {

constexpr std::uint64_t kNow = 1'790'000'000'000'000'000;  // a global timer's order of magnitude

Stamp stamp(std::uint32_t producer, std::uint64_t start_ns, std::uint64_t span_ns, double ghz) {
    const auto cycles = [&](std::uint64_t ns) {
        return 500 + static_cast<std::uint64_t>(static_cast<double>(ns) * ghz);
    };
    return {.issue_start_cycles = cycles(start_ns),
            .issue_end_cycles = cycles(start_ns + span_ns),
            .issue_start_ns = kNow + start_ns,
            .issue_end_ns = kNow + start_ns + span_ns,
            .producer = producer,
            .sm = producer + 10,
            .bytes = 32768,
            .destination = 1};
}

TEST(Stamps, BurstsComeInOrderCountedFromTheEarliest) {
    const std::vector<Stamp> slots{stamp(0, 9000, 4000, 2.0), Stamp{}, stamp(1, 1000, 4000, 1.5)};
    const auto bursts = read_stamps(slots);
    ASSERT_EQ(bursts.size(), 2u) << "an empty slot is no burst";
    EXPECT_EQ(bursts[0].producer, 1);
    EXPECT_EQ(bursts[0].start.value(), 0);
    EXPECT_EQ(bursts[0].issue.value(), 6000);
    EXPECT_DOUBLE_EQ(bursts[0].clock->value(), 1.5);
    EXPECT_EQ(bursts[1].start.value(), 8000);
    EXPECT_EQ(bursts[1].bytes.value(), 32768);
    EXPECT_EQ(bursts[1].destination, 1);
}

TEST(Stamps, AShortBurstHasItsProducersClock) {
    // 512 ns are 16 timer steps; from first to last stamp there are 20 512.
    const auto bursts =
        read_stamps(std::vector<Stamp>{stamp(3, 0, 512, 1.98), stamp(3, 20'000, 512, 1.98)});
    ASSERT_EQ(bursts.size(), 2u);
    EXPECT_NEAR(bursts[0].clock->value(), 1.98, 0.001);
    EXPECT_FALSE(read_stamps(std::vector<Stamp>{stamp(3, 0, 512, 1.98)})[0].clock);
}

TEST(Stamps, ASlotThatEndsBeforeItStartsIsRefused) {
    Stamp broken = stamp(0, 100, 100, 2.0);
    std::swap(broken.issue_start_cycles, broken.issue_end_cycles);
    EXPECT_THAT(test::bad_input([&] {
                    read_stamps(std::vector<Stamp>{stamp(0, 0, 9, 2.0), broken});
                }),
                testing::HasSubstr("slot 1"));
}

TEST(Stamps, LostStampsAreSaidInTheDocument) {
    const Measurements document = stamp_document(std::vector<Stamp>{stamp(0, 0, 4000, 2.0)}, 7, {});
    ASSERT_EQ(document.provenance.warnings.size(), 1u);
    EXPECT_THAT(document.provenance.warnings[0], testing::HasSubstr("7 burst(s)"));
    EXPECT_TRUE(stamp_document({}, 0, {}).provenance.warnings.empty());
}

}  // namespace
}  // namespace xstage
