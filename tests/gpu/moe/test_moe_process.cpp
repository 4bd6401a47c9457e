// The layer over one process per rank. This process never touches CUDA, so that it can fork. Where
// there are fewer GPUs than ranks, processes share one by turns, which is slow but the same.

#include <poll.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include <filesystem>

#include "fabric_suite.hpp"
#include "host/fabric/groups.hpp"
#include "moe_on_gpu.hpp"
#include "xstage/error.hpp"

namespace xstage::moe {
namespace {

using fabric::testing::run_processes;

constexpr int kMostTokens = 200;

fabric::FabricOptions options_of(const std::string& name, int rank, int world, int seconds) {
    fabric::FabricOptions o = fabric::testing::host_options(name, rank, world);
    o.backend = fabric::Backend::kProcess;
    o.devices = {};
    o.wait_timeout = std::chrono::seconds(seconds);
    return o;
}

/// A device of compute capability 9.0, found out by a child.
std::string missing() {
    if (!std::filesystem::exists("/dev/nvidia0")) return "no CUDA device";
    return run_processes(1, [](int) {
        if (const std::string why = suite::missing_gpu(); !why.empty())
            throw std::runtime_error(why);
    })[0];
}

class MegaMoeProcesses : public testing::TestWithParam<Type> {
  protected:
    void SetUp() override {
        if (const std::string why = missing(); !why.empty()) GTEST_SKIP() << why;
    }
    /// `body` is given the layer of this process's rank.
    static void everywhere(const Case& c, int seconds,
                           const std::function<void(GpuLayer&, int)>& body) {
        const std::string name = fabric::testing::fresh_name();
        const int world = c.problem.ranks;
        const auto errors = run_processes(world, [&](int rank) {
            GpuLayer layer(c, {}, options_of(name, rank, world, seconds));
            body(layer, rank);
            layer.group().agree("done");
        });
        for (const std::string& e : errors) EXPECT_EQ(e, "");
    }
};
INSTANTIATE_TEST_SUITE_P(Types, MegaMoeProcesses, testing::Values(Type::kBf16, Type::kFp8),
                         [](const auto& info) {
                             return info.param == Type::kFp8 ? "fp8" : "bf16";
                         });

TEST_P(MegaMoeProcesses, ComputeTheLayerUnderEveryOrder) {
    for (const bool shared : {false, true}) {
        Problem p = problem_of(GetParam(), 2, kMostTokens);
        p.shared = shared;
        const Case c(p, {150, 200}, 31);
        const auto oracle = c.reference(Rounding::kKernel);
        everywhere(c, 20, [&](GpuLayer& layer, int rank) {
            const auto first = layer.run();
            const auto r = static_cast<std::size_t>(rank);
            SUITE_REQUIRE(suite::distance(first, {oracle[r]}) < tolerance(GetParam()));
            for (const char* name :
                 {"wave:1", "alternate+264/16", "lead:3", "ratio", "wave:all*2"}) {
                layer.moe().set_order(parse_order(name));
                SUITE_REQUIRE(layer.run() == first);
            }
        });
    }
}

// Rank 0's kernel is running before rank 1 so much as knows of it.
TEST_P(MegaMoeProcesses, APeerMayBeLate) {
    const Case c(problem_of(GetParam(), 2, kMostTokens), {64, 0}, 32);
    const auto oracle = c.reference(Rounding::kKernel);
    everywhere(c, 20, [&](GpuLayer& layer, int rank) {
        if (rank == 0) layer.launch();
        layer.group().agree("rank 0 has launched");
        if (rank == 1) layer.launch();
        SUITE_REQUIRE(suite::distance(layer.results(), {oracle[static_cast<std::size_t>(rank)]}) <
                      3e-3);
    });
}

// A rank that never comes: the others' results are NaN, and the group says who it was.
TEST_P(MegaMoeProcesses, APeerThatNeverComesLeavesABrokenGroup) {
    const Case c(problem_of(GetParam(), 2, kMostTokens), {64, 64}, 33);
    const std::string name = fabric::testing::fresh_name();
    int gate[2];
    ASSERT_EQ(::pipe(gate), 0);
    const auto errors = run_processes(2, [&](int rank) {
        GpuLayer layer(c, {}, options_of(name, rank, 2, 2));
        if (rank == 1) {  // silent but alive until rank 0 has given up; a broken group cannot agree
            pollfd done{gate[0], POLLIN, 0};
            SUITE_REQUIRE(::poll(&done, 1, 30'000) == 1);
        } else {
            layer.launch();
            const auto y = layer.read();
            for (const double v : y[0]) SUITE_REQUIRE(std::isnan(v));
            SUITE_REQUIRE(layer.group().failure().has_value());
            SUITE_REQUIRE(layer.group().failure()->ranks == 1U << 1);
            bool refused = false;
            try {
                layer.launch();
            } catch (const Error&) {
                refused = true;
            }
            SUITE_REQUIRE(refused);
            SUITE_REQUIRE(::write(gate[1], "", 1) == 1);
        }
    });
    ::close(gate[0]);
    ::close(gate[1]);
    for (const std::string& e : errors) EXPECT_EQ(e, "");
}

}  // namespace
}  // namespace xstage::moe
