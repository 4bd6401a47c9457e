#pragma once

#include <gtest/gtest.h>

#include "gpu_device.hpp"

namespace xstage::ulysses::suite {

/// Virtual ranks, all on the first GPU.
inline fabric::FabricOptions local_options(int world) {
    fabric::FabricOptions o;
    o.backend = fabric::Backend::kLocal;
    o.world = world;
    o.devices.assign(static_cast<std::size_t>(world), 0);
    o.wait_timeout = std::chrono::seconds(10);
    return o;
}

inline Problem problem_of(int world, std::int64_t rows, int heads, int dim) {
    Problem p;
    p.heads_q = heads;
    p.head_dim = dim;
    p.rows_q = split_rows(rows, world);
    p.with_lse = true;
    return p;
}

/// The ranks' results against the options' kernel over everything: `attend` and
/// `attend_and_scatter`, three calls each. `spoil`: Q's pad rows are NaN and must not show.
inline void expect_bit_identical(const Problem& p, Options options, bool spoil = false) {
    const int world = static_cast<int>(p.rows_q.size());
    Case c(p, 3);
    GpuDevice device;
    const Whole w = whole_on_gpu(device, c, options.plug.run);
    fabric::Fabric group(local_options(world));
    const auto expect_results = [&](const auto& call) {
        for (int i = 0; i < 3; ++i) {
            const auto results = call();
            for (int r = 0; r < world; ++r)
                ASSERT_EQ(compare(device, c, w, results[static_cast<std::size_t>(r)], r), "");
        }
        group.synchronize(device.streams());
    };
    {
        UlyssesAttention attention(group, p, options);
        std::vector<ShardedInput> inputs;
        for (int r = 0; r < world; ++r) inputs.push_back(shard(device, c, r, true));
        for (int r = 0; spoil && r < world; ++r) {
            const auto heads = attention.plan().heads.q[static_cast<std::size_t>(r)].count();
            device.spoil(
                attention.query_memory(r).data,
                static_cast<std::size_t>(p.batch * attention.plan().q_rows * heads * p.head_dim) *
                    fabric::bytes_of(p.dtype));
        }
        expect_results([&] { return attention.attend(inputs, device.streams()); });
    }
    options.attend = false;
    UlyssesAttention half(group, p, options);
    std::vector<GatheredInput> inputs;
    for (int r = 0; r < world; ++r) inputs.push_back(gather(device, c, half.plan().heads, r));
    expect_results([&] { return half.attend_and_scatter(inputs, device.streams()); });
}

}  // namespace xstage::ulysses::suite
