#include "sim/ulysses.hpp"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cmath>

#include "expect_error.hpp"
#include "host/sim/nodes.hpp"
#include "sim/engine.hpp"

namespace xstage::sim {
namespace {

double total_ns(const Cluster& cluster, const Ulysses& shape) {
    return run(cluster, ulysses_programs(cluster, shape), {false, 1, 4000}).total_ns;
}

RC_GTEST_PROP(Ulysses, EveryRowGoesToItsOwner, ()) {
    const int gpus = *rc::gen::inRange(1, 7);
    Ulysses shape;
    shape.sequence = *rc::gen::inRange(gpus, 3000);
    shape.heads = gpus * *rc::gen::inRange(1, 4);
    shape.head_dim = 64;
    shape.batch = *rc::gen::inRange(1, 3);
    shape.layout =
        *rc::gen::element(Layout::kPeers, Layout::kPadded, Layout::kPages, Layout::kBatched);
    shape.copying_sms = *rc::gen::element(0, 0, 5);
    shape.page_bytes = shape.pitch() * *rc::gen::element(128, 256, 512);
    shape.first = *rc::gen::element(FirstChunk::kRankZero, FirstChunk::kOwn, FirstChunk::kPeer);
    shape.order = *rc::gen::element(plan::TileOrder::kHeadMajor, plan::TileOrder::kInterleaved,
                                    plan::TileOrder::kRotated, plan::TileOrder::kRemoteFirst);
    shape.attention_ns = 1e5;
    // Chunks of at least two tiles and pages of one: no tile then has rows of three owners.
    RC_PRE(shape.sequence >= 256 * gpus);
    const Cluster cluster{test::h200_node(true), gpus, 0};
    const Result result = run(cluster, ulysses_programs(cluster, shape), {false, 1, 4000});
    for (int rank = 0; rank < gpus; ++rank) {
        const double own =
            static_cast<double>(shape.sequence / gpus + (rank < shape.sequence % gpus ? 1 : 0));
        const double row = 64.0 * 2 * shape.heads / gpus * shape.batch;
        const RankResult& r = result.ranks[static_cast<std::size_t>(rank)];
        RC_ASSERT(std::abs(r.bytes_drained - (static_cast<double>(shape.sequence) - own) * row) <
                  1e-3);
        RC_ASSERT(std::abs(r.bytes_arrived - own * row * (gpus - 1)) < 1e-3);
    }
}

// Sender-visible times of the paper, 8 GPUs, in us: attention alone and fused.
struct PaperRow {
    int sequence;
    double attention, fused;
};

class PaperUlysses : public testing::TestWithParam<PaperRow> {};

TEST_P(PaperUlysses, FusedTimeFromTheAttentionTime) {
    const Cluster cluster{test::paper_node(), 8, 0};
    Ulysses shape;
    shape.sequence = GetParam().sequence;
    shape.heads = 32;  // not told; 4 heads per GPU make it 660 to 700 TFLOP/s
    shape.attention_ns = GetParam().attention * 1e3;
    const double predicted = total_ns(cluster, shape) / 1e3;
    RecordProperty("predicted_us", std::to_string(predicted));
    EXPECT_NEAR(predicted, GetParam().fused, 0.05 * GetParam().fused);
    EXPECT_GT(predicted, GetParam().attention) << "some of the stores come after the last tile";
}
INSTANTIATE_TEST_SUITE_P(Rows, PaperUlysses,
                         testing::Values(PaperRow{8192, 195.2, 207.0},
                                         PaperRow{16384, 785.5, 795.5},
                                         PaperRow{32768, 3236.7, 3241.5},
                                         PaperRow{49152, 7275.6, 7285.7},
                                         PaperRow{65536, 13249.4, 13218.3}));

// FlashAttention-3 with stitched outputs on the recorded pair, kernel time over the plain call.
// Measured in interleaved repetitions; the card's power limit moves them by about a point.
struct Stitched {
    int heads, sequence;
    double plain_us;
    double own_first, peer_first, alternating, all_remote;  // alternating 0: batched layout
};

void PrintTo(const Stitched& row, std::ostream* out) {
    *out << row.heads << " heads, S " << row.sequence << (row.alternating > 0 ? "" : ", batched");
}

class StitchedOrders : public testing::TestWithParam<Stitched> {
  protected:
    struct Pair {
        const char* name;
        double measured, predicted;
    };

    std::vector<Pair> pairs() const {
        const Stitched& row = GetParam();
        const Cluster cluster{test::h200_node(true), 2, 0};
        Ulysses shape;
        shape.sequence = row.sequence;
        shape.heads = 2 * row.heads;
        shape.attention_ns = row.plain_us * 1e3;
        shape.layout = row.alternating > 0 ? Layout::kPadded : Layout::kBatched;
        Ulysses variant = shape;
        variant.all_local = true;
        const double plain = total_ns(cluster, variant);
        const auto overhead = [&](const Ulysses& v) { return total_ns(cluster, v) / plain; };
        std::vector<Pair> out;
        variant = shape;
        variant.first = FirstChunk::kOwn;
        out.push_back({"own first", row.own_first, overhead(variant)});
        variant.first = FirstChunk::kPeer;
        out.push_back({"peer first", row.peer_first, overhead(variant)});
        variant.all_remote = true;
        out.push_back({"all remote", row.all_remote, overhead(variant)});
        if (row.alternating > 0) {
            variant = shape;
            variant.layout = Layout::kPeers;
            variant.order = plan::TileOrder::kInterleaved;
            variant.row_pitch = 16384;
            out.push_back({"alternating", row.alternating, overhead(variant)});
        }
        return out;
    }
};

const Stitched kPadded[] = {
    {12, 1024, 30.2, 1.084, 1.094, 1.095, 1.221},   {12, 2048, 64.6, 1.056, 1.074, 1.051, 1.170},
    {20, 2048, 90.1, 1.041, 1.043, 1.046, 1.158},   {12, 4096, 162.2, 1.014, 1.015, 1.011, 1.084},
    {20, 4096, 257.1, 1.021, 1.012, 1.017, 1.059},  {12, 8192, 612.7, 0.992, 0.993, 0.992, 1.025},
    {20, 8192, 1038.7, 0.999, 1.001, 1.000, 1.009}, {20, 16384, 4110, 0.999, 1.000, 0.999, 0.999}};
const Stitched kBatched[] = {
    {12, 2048, 65.2, 1.085, 1.129, 0, 1.230},  {12, 4096, 159.8, 1.062, 1.094, 0, 1.141},
    {20, 4096, 253.7, 1.040, 1.054, 0, 1.064}, {12, 4608, 228.8, 1.051, 1.072, 0, 1.095},
    {12, 8192, 616.4, 1.025, 1.034, 0, 1.033}, {20, 8192, 1054.9, 1.009, 1.012, 0, 1.012},
    {20, 16384, 4207, 1.002, 1.002, 0, 1.002}};

TEST_P(StitchedOrders, OverheadWithinTwoPointsFromS4096On) {
    for (const Pair& pair : pairs()) {
        RecordProperty(pair.name, std::to_string(pair.predicted));
        if (GetParam().sequence < 4096) continue;
        EXPECT_NEAR(pair.predicted, pair.measured, 0.020) << pair.name;
    }
}

// The control beside these measurements, the same kernel with all rows local under two batch
// indices, should be 1.000 and was 0.989 to 1.005: orders closer than that were not told apart.
constexpr double kNoise = 0.0111;

TEST_P(StitchedOrders, RankingWhereTheMeasurementTellsOrdersApart) {
    const std::vector<Pair> all = pairs();
    for (const Pair& a : all) {
        for (const Pair& b : all) {
            if (a.measured < b.measured - kNoise) {
                EXPECT_LT(a.predicted, b.predicted) << a.name << " and " << b.name;
            } else if (a.measured < b.measured && a.predicted > b.predicted) {
                // What is not told apart by the measurement must be close here, too.
                EXPECT_LT(a.predicted - b.predicted, 0.020) << a.name << " and " << b.name;
            }
        }
    }
}

INSTANTIATE_TEST_SUITE_P(Padded, StitchedOrders, testing::ValuesIn(kPadded));
INSTANTIATE_TEST_SUITE_P(Batched, StitchedOrders, testing::ValuesIn(kBatched));

// The lever: the same bytes, spread within a head or in one run.
TEST(Orders, AlternatingBeatsOneRunOfRemoteTiles) {
    const Cluster cluster{test::h200_node(true), 2, 0};
    for (const int heads : {12, 20}) {
        Ulysses shape;
        shape.sequence = 4096;
        shape.heads = 2 * heads;
        shape.attention_ns = heads == 12 ? 160e3 : 255e3;
        shape.order = plan::TileOrder::kInterleaved;
        const double alternating = total_ns(cluster, shape);
        shape.layout = Layout::kBatched;
        shape.first = FirstChunk::kOwn;
        EXPECT_LT(alternating, total_ns(cluster, shape));
        shape.first = FirstChunk::kPeer;
        EXPECT_LT(alternating, total_ns(cluster, shape));
    }
}

// Where every rank begins with the same destination its ingress link is overrun.
TEST(Orders, RotationAvoidsIncast) {
    Node node = test::paper_node();
    const Cluster cluster{node, 8, 0};
    Ulysses shape;
    shape.sequence = 8192;
    shape.heads = 8 * 16;
    shape.attention_ns = 60e3;
    const Result head_major = run(cluster, ulysses_programs(cluster, shape));
    shape.order = plan::TileOrder::kRotated;
    const Result rotated = run(cluster, ulysses_programs(cluster, shape));
    EXPECT_TRUE(head_major.incast);
    EXPECT_LT(rotated.total_ns, head_major.total_ns);
}

// Pages of 128 rows are tiles: pages in turn are the interleaved order of a kernel that knows its
// peers.
TEST(Ulysses, PagesInTurnAreInterleavedTiles) {
    const Cluster cluster{test::h200_node(true), 2, 0};
    Ulysses shape;
    shape.sequence = 4096;
    shape.heads = 40;
    shape.attention_ns = 255e3;
    shape.layout = Layout::kPages;
    EXPECT_EQ(shape.pitch(), 16384);
    EXPECT_EQ(shape.page_rows(), 128);
    const double pages = total_ns(cluster, shape);
    shape.layout = Layout::kPeers;
    shape.order = plan::TileOrder::kInterleaved;
    EXPECT_EQ(shape.pitch(), 10240);
    shape.row_pitch = 16384;
    EXPECT_NEAR(total_ns(cluster, shape), pages, 1e-6 * pages);
}

// An owner's last page is a whole page of the axis however few rows it has: 515 rows of one owner
// and 514 of the other take five pages each.
TEST(Ulysses, LastPagesAreWholeOnTheAxis) {
    Cluster cluster{test::h200_node(true), 2, 0};
    Ulysses shape;
    shape.sequence = 1029;
    shape.heads = 2;
    shape.layout = Layout::kPages;
    shape.page_bytes = 128 * shape.pitch();
    EXPECT_EQ(shape.tiles(cluster), 10);
    shape.layout = Layout::kPadded;
    EXPECT_EQ(shape.tiles(cluster), 9);
}

// SMs that only copy: the others store to their own GPU and never wait; the link gets what so many
// SMs can drain.
TEST(Split, ComputingSmsDoNotWaitForTheLink) {
    const Cluster cluster{test::h200_node(true), 2, 0};
    Ulysses shape;
    shape.sequence = 4096;
    shape.heads = 24;
    shape.attention_ns = 160e3;
    shape.layout = Layout::kBatched;
    shape.all_remote = true;
    const double bytes = 4096.0 * 12 * 128 * 2;
    for (const int copying : {2, 16}) {
        shape.copying_sms = copying;
        const Result result = run(cluster, ulysses_programs(cluster, shape), {false, 1, 4000});
        const RankResult& rank = result.ranks[0];
        EXPECT_NEAR(rank.bytes_drained, bytes, 1);
        ASSERT_EQ(rank.producers.size(), 132u);
        for (int p = 0; p < 132 - copying; ++p)
            EXPECT_LT(rank.producers[static_cast<std::size_t>(p)].stall_ns, 1e-6);
        for (int p = 132 - copying; p < 132; ++p)
            EXPECT_EQ(rank.producers[static_cast<std::size_t>(p)].busy_ns, 0);
        const double rate = std::min(copying * cluster.node.producer_rate, cluster.node.link_rate);
        EXPECT_GE(rank.drained_ns, shape.tile_ns(cluster) * 0.98 + bytes / rate);
    }
    shape.copying_sms = 132;
    EXPECT_THAT(xstage::test::bad_input([&] { ulysses_programs(cluster, shape); }),
                testing::HasSubstr("/ulysses/copying_sms: expected fewer than the 132 SMs"));
}

TEST(Ulysses, ShapesThatDoNotFitAreRefused) {
    const Cluster cluster{test::h200_node(true), 4, 0};
    Ulysses shape;
    shape.sequence = 1024;
    shape.heads = 38;
    EXPECT_THAT(xstage::test::bad_input([&] { ulysses_programs(cluster, shape); }),
                testing::HasSubstr("/ulysses/heads: expected a multiple of the 4 GPUs, found 38"));
}

}  // namespace
}  // namespace xstage::sim
