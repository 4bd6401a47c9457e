// UlyssesAttention over virtual ranks on one GPU: bit-identical to the same kernel over everything.

#include <gtest/gtest.h>

#include "bit_identical.hpp"
#include "xstage/error.hpp"

namespace xstage::ulysses {
namespace {

using suite::Case;
using suite::expect_bit_identical;
using suite::GpuDevice;
using suite::Whole;

Options naive(Layout layout) {
    Options o;
    o.plug = {suite::naive_attention, "naive", true, 128};
    o.plan.layout = layout;
    o.plan.max_memory_ratio = 1e9;
    return o;
}

class GpuUlysses : public ::testing::TestWithParam<int> {
  protected:
    void SetUp() override {
        if (suite::gpu_count() == 0) GTEST_SKIP() << "no CUDA device";
    }
    int world() const { return GetParam(); }

    Problem problem(std::int64_t rows, int heads, int dim) const {
        return suite::problem_of(world(), rows, heads, dim);
    }
};

TEST_P(GpuUlysses, EveryLayout) {
    for (Layout layout :
         {Layout::kBatched, Layout::kPadded, Layout::kPages, Layout::kSplit, Layout::kScatter})
        expect_bit_identical(problem(1024, 8, 128), naive(layout));
}

TEST_P(GpuUlysses, UnevenRowsAndHeads) {
    for (Layout layout : {Layout::kPadded, Layout::kPages, Layout::kSplit})
        expect_bit_identical(problem(1107, 10, 64), naive(layout));
}

TEST_P(GpuUlysses, TextLengthsGroupsAndTwoSamples) {
    Problem p = problem(600, 16, 64);
    p.batch = 2;
    p.heads_kv = 4;
    p.text_q = p.text_kv = 77;
    p.with_lengths = true;
    for (Layout layout : {Layout::kAuto, Layout::kPages}) expect_bit_identical(p, naive(layout));
}

TEST_P(GpuUlysses, TextFirstAndOtherKeyRowsInFp16) {
    Problem p = problem(517, 9, 32);
    p.dtype = fabric::DType::kF16;
    p.text_q = 33;
    p.text_kv = 65;
    p.text_place = TextPlace::kFront;
    p.rows_kv = split_rows(300, world());
    expect_bit_identical(p, naive(Layout::kAuto));
}

TEST_P(GpuUlysses, KernelsThatReturnAPackedResult) {
    Options o = naive(Layout::kAuto);
    o.plug.stores_to_out = false;
    Problem p = problem(403, 11, 64);
    p.text_q = p.text_kv = 19;
    expect_bit_identical(p, o);
}

TEST_P(GpuUlysses, OddDimensionTakesTheGenericKernel) {
    expect_bit_identical(problem(300, 8, 20), naive(Layout::kSplit));
}

INSTANTIATE_TEST_SUITE_P(Ranks, GpuUlysses, ::testing::Values(1, 2, 4, 8));

TEST(GpuUlyssesSize, ResultPastTwoGibiElements) {
    if (suite::gpu_count() == 0) GTEST_SKIP() << "no CUDA device";
    // 300 000 rows of 56 x 128 pass 2^31 elements; one key keeps the kernel short, and then every
    // row of a head is that key's value.
    Problem p;
    p.heads_q = 56;
    p.head_dim = 128;
    p.rows_q = {300000};
    p.rows_kv = {1};
    Case small(Problem{1, 56, 0, 128, {1}, {1}}, 4);
    GpuDevice device;
    fabric::Fabric group(suite::local_options(1));
    Options o = naive(Layout::kBatched);
    o.buffers = 1;
    o.attend = false;
    UlyssesAttention attention(group, p, o);
    GatheredInput in;
    // Every query row is the same memory.
    in.q = suite::upload(device, 0, small.q);
    in.q.row_stride = 0;
    in.k = suite::upload(device, 0, small.k);
    in.v = suite::upload(device, 0, small.v);
    const Result r = attention.attend_and_scatter({in}, device.streams())[0];
    View last = r.out;
    last.data = static_cast<std::uint16_t*>(last.data) + std::int64_t{299999} * last.row_stride;
    const auto got = suite::download(device, 0, last, 1, 56, 128, 2);
    EXPECT_EQ(std::memcmp(got.data(), small.v.bytes.data(), got.size()), 0);
    group.synchronize(device.streams());
}

// Rows must be whole when the signal is seen, also beside copies that fill the memory system.
TEST(UlyssesOrdering, ResultsAreWholeUnderConcurrentCopies) {
    if (suite::gpu_count() == 0) GTEST_SKIP() << "no CUDA device";
    Problem p;
    p.heads_q = 8;
    p.head_dim = 128;
    p.rows_q = {128, 128};
    Case c(p, 6);
    GpuDevice device;
    const Whole w = suite::whole_on_gpu(device, c);
    const std::size_t row = 8 * 128 * 2;
    const auto* expected =
        static_cast<const std::byte*>(device.upload(0, w.out.bytes.data(), w.out.bytes.size()));
    fabric::Fabric group(suite::local_options(2));
    UlyssesAttention attention(group, p, naive(Layout::kBatched));
    const std::vector<ShardedInput> inputs = {suite::shard(device, c, 0),
                                              suite::shard(device, c, 1)};
    for (int round = 0; round < 100; ++round) {
        device.load(8);
        for (int r = 0; r < 2; ++r)
            device.spoil(attention.out_memory(round % 2, r).data, 128 * row);
        attention.use_buffer(round % 2);
        const auto results = attention.attend(inputs, device.streams());
        for (int r = 0; r < 2; ++r)
            device.count_differences(results[static_cast<std::size_t>(r)].out, 128, row, 2,
                                     expected + static_cast<std::size_t>(r) * 128 * row);
    }
    EXPECT_EQ(device.differences(), 0u);
    group.synchronize(device.streams());
}

}  // namespace
}  // namespace xstage::ulysses
