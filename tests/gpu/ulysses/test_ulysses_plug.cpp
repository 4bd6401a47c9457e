// xstage's own attention kernel behind UlyssesAttention: stitched or with a destination per rank,
// bit-identical to the same kernel over everything.

#include <gtest/gtest.h>

#include "bit_identical.hpp"
#include "xstage/ulysses/xstage_plug.hpp"

namespace xstage::ulysses {
namespace {

using suite::Case;
using suite::GpuDevice;

class OwnAttention : public ::testing::TestWithParam<std::tuple<int, Layout>> {
  protected:
    void SetUp() override {
        if (suite::gpu_count() == 0) GTEST_SKIP() << "no CUDA device";
    }
    int world() const { return std::get<0>(GetParam()); }

    Problem problem(std::int64_t rows, int heads, int dim) const {
        return suite::problem_of(world(), rows, heads, dim);
    }
    void expect_bit_identical(const Problem& p, const char* instance) {
        Options options;
        options.plug = xstage_plug(instance);
        options.plan.layout = std::get<1>(GetParam());
        options.plan.max_memory_ratio = 1e9;
        suite::expect_bit_identical(p, options, true);
    }
};

TEST_P(OwnAttention, EvenRows) {
    expect_bit_identical(problem(1024, 8, 128), "bf16_d128_192x80");
    expect_bit_identical(problem(1024, 8, 64), "bf16_d64_128x128");
}

// Tiles straddle chunks, and an empty rank takes part with its heads.
TEST_P(OwnAttention, UnevenRowsAndHeads) {
    if (std::get<1>(GetParam()) == Layout::kBatched)
        GTEST_SKIP() << "a foreign Q does not stretch to uneven chunks";
    expect_bit_identical(problem(1107, 10, 128), "bf16_d128_128x128");
    Problem p = problem(421, 8, 64);
    p.rows_q[0] += p.rows_q.back();
    if (world() > 1) p.rows_q.back() = 0;
    expect_bit_identical(p, "bf16_d64_192x128");
}

TEST_P(OwnAttention, TextLengthsGroupsAndTwoSamples) {
    Problem p = problem(600, 16, 64);
    p.batch = 2;
    p.heads_kv = 4;
    p.text_q = p.text_kv = 77;
    p.with_lengths = true;
    expect_bit_identical(p, "bf16_d64_192x128");
}

TEST_P(OwnAttention, TextFirst) {
    Problem p = problem(517, 9, 128);
    p.text_q = p.text_kv = 33;
    p.text_place = TextPlace::kFront;
    if (std::get<1>(GetParam()) == Layout::kBatched) p.rows_q.assign(p.rows_q.size(), 129);
    expect_bit_identical(p, "bf16_d128_192x80");
}

INSTANTIATE_TEST_SUITE_P(Ranks, OwnAttention,
                         ::testing::Combine(::testing::Values(1, 2, 4, 8),
                                            ::testing::Values(Layout::kPeers, Layout::kPages,
                                                              Layout::kBatched, Layout::kScatter)),
                         [](const auto& info) {
                             return std::string(name_of(std::get<1>(info.param))) +
                                    std::to_string(std::get<0>(info.param));
                         });

TEST(OwnAttentionBound, WithinTheDtypesBoundOfFloat64) {
    if (suite::gpu_count() == 0) GTEST_SKIP() << "no CUDA device";
    Problem p;
    p.heads_q = 4;
    p.head_dim = 64;
    p.rows_q = {67, 66};
    Case c(p, 3);
    const std::vector<double> exact = suite::whole_f64(c);
    GpuDevice device;
    fabric::Fabric group(suite::local_options(2));
    Options options;
    options.plug = xstage_plug();
    UlyssesAttention attention(group, p, options);
    EXPECT_EQ(attention.plan().layout, Layout::kPeers);
    const auto results = attention.attend({suite::shard(device, c, 0), suite::shard(device, c, 1)},
                                          device.streams());
    for (int r = 0; r < 2; ++r) {
        const auto i = static_cast<std::size_t>(r);
        const auto bytes = suite::download(device, r, results[i].samples[0], p.rows_q[i], 4, 64, 2);
        const auto first = static_cast<std::size_t>(r) * 67 * 4 * 64;
        for (std::size_t e = 0; e * 2 < bytes.size(); ++e) {
            Bf16 x;
            std::memcpy(&x, &bytes[e * 2], 2);
            // Half a unit of bf16 below 2, once for P and once for the result.
            ASSERT_NEAR(x.value(), exact[first + e], 2.0 / 128)
                << "rank " << r << ", element " << e;
        }
    }
    group.synchronize(device.streams());
}

}  // namespace
}  // namespace xstage::ulysses
