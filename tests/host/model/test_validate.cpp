#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "xstage/error.hpp"
#include "xstage/model.hpp"

namespace {

using namespace xstage;
using namespace xstage::model;

Measurements one_row(double fence_cycles) {
    Measurements m;
    m.provenance.line_rate = BytesPerNanosecond{450};
    BurstRow row;
    row.path = "st16", row.producers = 132, row.warps = 4;
    row.bytes_per_producer = Bytes{262144};
    row.clock = GigaHertz{2.0};
    row.issue = {{0, {std::nullopt, Cycles{100000}, std::nullopt, Cycles{120000}}}};
    row.total = row.issue[0].cycles;
    row.fence = Spread{std::nullopt, Cycles{fence_cycles}, std::nullopt, Cycles{fence_cycles}};
    m.bursts = {row};
    return m;
}

// 132 * 256 KiB = 34.6 MB. In 180 000 cycles at 2 GHz, 90 us: 384 GB/s. In 70 000, 35 us: 989 GB/s.
TEST(Validate, ARateAboveTheLineIsAnAccountingError) {
    EXPECT_TRUE(accounting_errors(one_row(180000)).empty());
    const auto errors = accounting_errors(one_row(70000));
    ASSERT_EQ(errors.size(), 1u);
    EXPECT_THAT(errors[0], testing::HasSubstr("bursts[0]: 989 GB/s is above the line rate of 450"));
    EXPECT_THROW(fit(one_row(70000)), Error);
}

TEST(Validate, LocalStoresAndUnknownLinesAreNotChecked) {
    Measurements m = one_row(70000);
    m.bursts[0].target = Target::kLocal;
    EXPECT_TRUE(accounting_errors(m).empty());
    m = one_row(70000);
    m.provenance.line_rate.reset();
    EXPECT_TRUE(accounting_errors(m).empty());
}

TEST(Validate, AnAnswerFasterThanTheLineIsOneToo) {
    Measurements m;
    m.provenance.line_rate = BytesPerNanosecond{450};
    VisibleRow row;
    row.path = "st16", row.producers = 132, row.bytes_per_producer = Bytes{65536};
    row.echo_ns = Nanoseconds{10000};  // 8.65 MB in 10 us
    m.visible = {row};
    EXPECT_EQ(accounting_errors(m).size(), 1u);
}

TEST(Validate, NothingToFitIsBadInput) {
    try {
        fit(Measurements{});
        FAIL() << "expected an error";
    } catch (const Error& e) {
        EXPECT_EQ(e.kind(), ErrorKind::kBadInput);
    }
}

}  // namespace
