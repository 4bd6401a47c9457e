// xstage's own attention kernel behind UlyssesAttention: stitched or with a destination per rank,
// bit-identical to the same kernel over everything.

#include <gtest/gtest.h>

#include "gpu_device.hpp"
#include "xstage/ulysses/xstage_plug.hpp"

namespace xstage::ulysses {
namespace {

using suite::Case;
using suite::GpuDevice;
using suite::Whole;

fabric::FabricOptions local_options(int world) {
    fabric::FabricOptions o;
    o.backend = fabric::Backend::kLocal;
    o.world = world;
    o.devices.assign(static_cast<std::size_t>(world), 0);
    o.wait_timeout = std::chrono::seconds(10);
    return o;
}

class OwnAttention : public ::testing::TestWithParam<std::tuple<int, Layout>> {
  protected:
    void SetUp() override {
        if (suite::gpu_count() == 0) GTEST_SKIP() << "no CUDA device";
    }
    int world() const { return std::get<0>(GetParam()); }

    Problem problem(std::int64_t rows, int heads, int dim) const {
        Problem p;
        p.heads_q = heads;
        p.head_dim = dim;
        p.rows_q = split_rows(rows, world());
        p.with_lse = true;
        return p;
    }

    void expect_bit_identical(const Problem& p, const char* instance) {
        Case c(p, 3);
        GpuDevice device;
        Options options;
        options.plug = xstage_plug(instance);
        options.plan.layout = std::get<1>(GetParam());
        options.plan.max_memory_ratio = 1e9;
        const Whole w = suite::whole_on_gpu(device, c, options.plug.run);
        fabric::Fabric group(local_options(world()));
        {
            UlyssesAttention attention(group, p, options);
            std::vector<ShardedInput> inputs;
            for (int r = 0; r < world(); ++r) inputs.push_back(suite::shard(device, c, r, true));
            // Pad rows of an axis stay NaN and must not show.
            for (int r = 0; r < world(); ++r)
                device.spoil(attention.query_memory(r).data,
                             static_cast<std::size_t>(
                                 p.batch * attention.plan().q_rows *
                                 attention.plan().heads.q[static_cast<std::size_t>(r)].count() *
                                 p.head_dim) *
                                 2);
            for (int call = 0; call < 3; ++call) {
                const auto results = attention.attend(inputs, device.streams());
                for (int r = 0; r < world(); ++r)
                    ASSERT_EQ(suite::compare(device, c, w, results[static_cast<std::size_t>(r)], r),
                              "");
            }
            group.synchronize(device.streams());
        }
        options.attend = false;
        UlyssesAttention half(group, p, options);
        std::vector<GatheredInput> inputs;
        for (int r = 0; r < world(); ++r)
            inputs.push_back(suite::gather(device, c, half.plan().heads, r));
        const auto results = half.attend_and_scatter(inputs, device.streams());
        for (int r = 0; r < world(); ++r)
            ASSERT_EQ(suite::compare(device, c, w, results[static_cast<std::size_t>(r)], r), "");
        group.synchronize(device.streams());
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
    fabric::Fabric group(local_options(2));
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
