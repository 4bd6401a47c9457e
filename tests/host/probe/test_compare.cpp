#include <gtest/gtest.h>

#include "probe/compare.hpp"

namespace xstage::probe {
namespace {

BurstRow row(double bytes, double slowest, double noise) {
    BurstRow out;
    out.path = "st16";
    out.producers = 8;
    out.warps = 4;
    out.bytes_per_producer = Bytes{bytes};
    out.samples = 10;
    out.total = {Cycles{slowest / 2}, Cycles{slowest / 2}, Cycles{slowest}, Cycles{slowest}};
    out.noise = noise;
    return out;
}

Measurements document(std::vector<BurstRow> rows) {
    Measurements out;
    out.provenance.driver = "580";
    out.provenance.gpus = {{"H200", "", 132, {}}};
    out.bursts = std::move(rows);
    return out;
}

TEST(Compare, DifferencesWithinTheNoiseAreNone) {
    // Three deviations of hypot(3%, 4%) are 15%.
    const Comparison same =
        compare(document({row(1024, 1000, 0.03)}), document({row(1024, 1140, 0.04)}));
    ASSERT_EQ(same.rows.size(), 1u);
    EXPECT_NEAR(same.rows[0].tolerance, 0.15, 1e-12);
    EXPECT_FALSE(same.rows[0].slower());
    EXPECT_FALSE(same.regressed());
    EXPECT_TRUE(
        compare(document({row(1024, 1000, 0.03)}), document({row(1024, 1160, 0.04)})).regressed());
}

TEST(Compare, QuietRowsAreStillAllowedFivePercent) {
    const Comparison c = compare(document({row(1024, 1000, 0)}), document({row(1024, 1049, 0)}));
    EXPECT_FALSE(c.rows[0].slower());
    EXPECT_TRUE(
        compare(document({row(1024, 1000, 0)}), document({row(1024, 1051, 0)})).regressed());
    EXPECT_TRUE(
        compare(document({row(1024, 1051, 0)}), document({row(1024, 1000, 0)})).rows[0].faster());
}

TEST(Compare, AFewSlowRowsOfManyAreChance) {
    std::vector<BurstRow> base, now;
    for (int i = 0; i < 40; ++i) {
        base.push_back(row(1024 * (i + 1), 1000, 0));
        now.push_back(row(1024 * (i + 1), i < 2 ? 2000 : 1000, 0));
    }
    EXPECT_DOUBLE_EQ(compare(document(base), document(now)).share_slower(), 0.05);
    EXPECT_FALSE(compare(document(base), document(now)).regressed());
    now[2] = row(1024 * 3, 2000, 0);
    EXPECT_TRUE(compare(document(base), document(now)).regressed());
}

TEST(Compare, MarkedRowsAndRowsOfOneSideAreLeftOut) {
    BurstRow marked = row(2048, 9000, 0);
    marked.marked = true;
    const Comparison c =
        compare(document({row(1024, 1000, 0), row(2048, 1000, 0), row(4096, 1, 0)}),
                document({row(1024, 1000, 0), marked, row(8192, 1, 0)}));
    EXPECT_EQ(c.rows.size(), 1u);
    EXPECT_EQ(c.only_in_base, 2);
    EXPECT_EQ(c.only_now, 1);
    EXPECT_FALSE(c.regressed());
}

TEST(Compare, TheSameBytesByAnotherWayAreAnotherConfiguration) {
    const BurstRow plain = row(1024, 1000, 0);
    BurstRow rewritten = plain, local = plain, beside = plain, both = plain, all = plain;
    rewritten.addresses = Addresses::kRewritten;
    local.target = Target::kLocal;
    beside.beside = "mma";
    both.both_directions = true;
    all.gap_from = GapFrom::kAll;
    for (const BurstRow& other : {rewritten, local, beside, both, all}) {
        EXPECT_TRUE(compare(document({plain}), document({other})).rows.empty());
    }
}

TEST(Compare, OtherHardwareIsACaution) {
    Measurements now = document({});
    now.provenance.driver = "590";
    now.provenance.loopback = true;
    EXPECT_EQ(compare(document({}), now).cautions.size(), 2u);
}

}  // namespace
}  // namespace xstage::probe
