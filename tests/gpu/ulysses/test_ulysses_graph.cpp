// The whole of attend in one CUDA graph: an odd number of calls, changing inputs, eager calls
// between.

#include <gtest/gtest.h>

#include "gpu_device.hpp"

namespace xstage::ulysses {
namespace {

using suite::Case;
using suite::GpuDevice;
using suite::Whole;

TEST(UlyssesGraph, ThousandReplaysOfThreeCallsWithEagerCallsBetween) {
    if (suite::gpu_count() == 0) GTEST_SKIP() << "no CUDA device";
    constexpr int kWorld = 2;
    constexpr int kInputs = 5;
    Problem p;
    p.heads_q = 4;
    p.head_dim = 64;
    p.rows_q = {49, 48};
    p.text_q = p.text_kv = 8;
    GpuDevice device;
    fabric::FabricOptions fo;
    fo.backend = fabric::Backend::kLocal;
    fo.world = kWorld;
    fo.devices = {0, 0};
    fabric::Fabric group(fo);
    Options o;
    o.plug = {suite::naive_attention, "naive", true, 128};
    UlyssesAttention attention(group, p, o);

    // The graph reads fixed inputs; each replay copies one of five sets there, and the expected
    // rows.
    const std::size_t row = 4 * 64 * 2;
    std::vector<std::vector<ShardedInput>> sets(kInputs);
    std::vector<const std::byte*> expected;
    for (unsigned i = 0; i < kInputs; ++i) {
        Case c(p, i + 20);
        const Whole w = suite::whole_on_gpu(device, c);
        expected.push_back(static_cast<const std::byte*>(
            device.upload(0, w.out.bytes.data(), w.out.bytes.size())));
        for (int r = 0; r < kWorld; ++r) sets[i].push_back(suite::shard(device, c, r));
    }
    Case scratch(p, 1);
    std::vector<ShardedInput> fixed;
    for (int r = 0; r < kWorld; ++r) fixed.push_back(suite::shard(device, scratch, r));
    const std::size_t expected_bytes = (97 + 8) * row;
    auto* want = static_cast<std::byte*>(device.allocate(expected_bytes));

    const auto choose = [&](int set) {
        for (int r = 0; r < kWorld; ++r) {
            const auto i = static_cast<std::size_t>(r);
            const std::size_t image = static_cast<std::size_t>(p.rows_q[i]) * row;
            const ShardedInput& from = sets[static_cast<std::size_t>(set)][i];
            device.copy(fixed[i].q.image.data, from.q.image.data, image);
            device.copy(fixed[i].k.image.data, from.k.image.data, image);
            device.copy(fixed[i].v.image.data, from.v.image.data, image);
            device.copy(fixed[i].q.text.data, from.q.text.data, 8 * row);
            device.copy(fixed[i].k.text.data, from.k.text.data, 8 * row);
            device.copy(fixed[i].v.text.data, from.v.text.data, 8 * row);
        }
        device.copy(want, expected[static_cast<std::size_t>(set)], expected_bytes);
    };
    const auto call_and_compare = [&] {
        const auto results = attention.attend(fixed, device.streams());
        for (int r = 0; r < kWorld; ++r) {
            const Result& result = results[static_cast<std::size_t>(r)];
            device.count_differences(result.out, p.rows_q[static_cast<std::size_t>(r)], row, 2,
                                     want + r * 49 * row);
            device.count_differences(result.text_out, 8, row, 2, want + 97 * row);
        }
    };
    choose(0);
    call_and_compare();
    device.synchronize();
    device.replay(
        [&] {
            for (int i = 0; i < 3; ++i) call_and_compare();
        },
        1000,
        [&](int i) {
            choose((i + 1) % kInputs);
            if (i % 7 == 0) call_and_compare();
        });
    EXPECT_EQ(device.differences(), 0u);
    // The comparison does see a difference.
    choose(1);
    device.copy(want, expected[2], expected_bytes);
    call_and_compare();
    EXPECT_GT(device.differences(), 0u);
    group.synchronize(device.streams());
}

}  // namespace
}  // namespace xstage::ulysses
