// The suite over NVSHMEM: one rank, and several that share one GPU or have one each, on one node or
// acting as several. This process never touches CUDA, so that it can fork.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "gpu_ops.hpp"
#include "host/fabric/groups.hpp"

namespace xstage::fabric {
namespace {

using suite::devices_by_file;
using suite::GpuOps;
using ::testing::AllOf;
using testing::fresh_name;
using ::testing::HasSubstr;
using testing::Processes;

struct Placement {
    const char* name;
    int gpus;
    std::vector<int> node;  ///< of each rank
};

std::ostream& operator<<(std::ostream& out, const Placement& p) {
    return out << p.name;
}

FabricOptions options_of(const Placement& place, const std::string& name, int rank) {
    FabricOptions options = testing::host_options(name, rank, static_cast<int>(place.node.size()));
    options.backend = Backend::kNvshmem;
    options.node = place.node[rank];
    options.devices = {rank % place.gpus};
    options.wait_timeout = std::chrono::seconds(10);
    return options;
}

/// Why NVSHMEM cannot be used here; empty when it can.
const std::string& why_not() {
    static const std::string reason = [] {
        if (devices_by_file() == 0) return std::string("no CUDA device");
        return testing::run_processes(1, [](int) {
            try {
                Fabric fabric(options_of({"", 1, {0}}, "", 0));
            } catch (const Error& e) {
                if (e.kind() == ErrorKind::kUnsupported) throw;
            }
        })[0];
    }();
    return reason;
}

class NvshmemFabric : public ::testing::TestWithParam<Placement> {
  protected:
    void SetUp() override {
        if (!why_not().empty()) GTEST_SKIP() << why_not();
        if (devices_by_file() < GetParam().gpus)
            GTEST_SKIP() << "needs " << GetParam().gpus << " GPUs";
    }
    void everywhere(const std::function<void(Fabric&, GpuOps&)>& body) {
        const std::string name = fresh_name();
        const auto errors =
            testing::run_processes(static_cast<int>(GetParam().node.size()), [&](int rank) {
                const FabricOptions options = options_of(GetParam(), name, rank);
                Fabric fabric(options);
                GpuOps ops(fabric, options.devices);
                body(fabric, ops);
            });
        for (const std::string& e : errors) EXPECT_EQ(e, "");
    }
};

TEST_P(NvshmemFabric, SymmetricBuffer) {
    everywhere(suite::symmetric_buffer);
}
TEST_P(NvshmemFabric, StitchedTensor) {
    everywhere(suite::stitched_tensor);
}
TEST_P(NvshmemFabric, Puts) {
    everywhere(suite::puts);
}
TEST_P(NvshmemFabric, AbandonedCalls) {
    everywhere(suite::abandoned_calls);
}
TEST_P(NvshmemFabric, LocalAlias) {
    everywhere(suite::local_alias);
}
TEST_P(NvshmemFabric, Barriers) {
    // Ranks on one GPU take turns by time slices.
    const int count = GetParam().gpus > 1 || GetParam().node.size() == 1 ? 1000 : 20;
    everywhere([count](Fabric& f, GpuOps& ops) { suite::barriers(f, ops, count); });
}
TEST_P(NvshmemFabric, GraphReplaysMixedWithEagerCalls) {
    const int count = GetParam().gpus > 1 ? 1000 : 5;
    everywhere([count](Fabric& f, GpuOps& ops) { suite::graph_replays(f, ops, count); });
}

TEST_P(NvshmemFabric, OnlyPeersOfTheNodeAreMapped) {
    everywhere([](Fabric& fabric, GpuOps&) {
        SymmetricBuffer buffer(fabric, 4096);
        const int me = fabric.local_ranks().front();
        for (int r = 0; r < fabric.world(); ++r)
            SUITE_REQUIRE((buffer.at(r) == nullptr) == (fabric.nodes()[r] != fabric.nodes()[me]));
    });
}

// What a group leaves on NVSHMEM's heap goes back to the next one, which all ranks free together.
TEST_P(NvshmemFabric, AnotherGroupStartsInTheSameProcess) {
    const std::string name = fresh_name();
    const auto errors =
        testing::run_processes(static_cast<int>(GetParam().node.size()), [&](int rank) {
            FabricOptions options = options_of(GetParam(), name, rank);
            for (int round = 0; round < 3; ++round) {
                options.name = name + "-" + std::to_string(round);
                Fabric fabric(options);
                GpuOps ops(fabric, options.devices);
                suite::symmetric_buffer(fabric, ops);
            }
        });
    for (const std::string& e : errors) EXPECT_EQ(e, "");
}

INSTANTIATE_TEST_SUITE_P(Placements, NvshmemFabric,
                         ::testing::Values(Placement{"OneRank", 1, {0}},
                                           Placement{"TwoRanksOneGpu", 1, {0, 0}},
                                           Placement{"TwoNodesOneGpu", 1, {0, 1}},
                                           Placement{"TwoNodesOfTwoOneGpu", 1, {0, 0, 1, 1}},
                                           Placement{"TwoGpus", 2, {0, 0}},
                                           Placement{"TwoNodesTwoGpus", 2, {0, 1}}),
                         [](const auto& info) { return info.param.name; });

class NvshmemFailures : public ::testing::Test {
  protected:
    void SetUp() override {
        if (!why_not().empty()) GTEST_SKIP() << why_not();
    }
};

TEST_F(NvshmemFailures, ASilentRankOfAnotherNodeIsNamed) {
    const std::string name = fresh_name();
    Processes processes(2, [&](int rank) {
        FabricOptions options = options_of({"", 1, {0, 1}}, name, rank);
        options.wait_timeout = std::chrono::milliseconds(500);
        Fabric fabric(options);
        GpuOps ops(fabric, options.devices);
        StitchedOptions small;
        small.rows = {8, 8};
        small.row_bytes = 1024;
        StitchedTensor tensor(fabric, small);
        Processes::mark();
        if (rank == 1) ::pause();
        tensor.begin(0, ops.streams());
        tensor.publish(0, ops.streams());
        std::string reason;
        try {
            tensor.acquire(0, ops.streams());
            fabric.synchronize(ops.streams());
        } catch (const Error& e) {
            reason = e.what();
        }
        SUITE_REQUIRE(ops.not_poison(0, tensor.receive(0, 0), tensor.layout().chunk_bytes[0] / 4) ==
                      0);
        throw std::runtime_error(reason);
    });
    for (int r = 0; r < 2; ++r) EXPECT_TRUE(processes.wait_mark(r)) << processes.finish(r);
    EXPECT_THAT(processes.finish(0), AllOf(HasSubstr("rank 1: no signal for the data of buffer 0"),
                                           HasSubstr("500 ms")));
    processes.kill(1);
    EXPECT_EQ(processes.finish(1), "killed");
}

TEST_F(NvshmemFailures, AGroupOfOtherRanksIsRefused) {
    const std::string name = fresh_name();
    const auto errors = testing::run_processes(2, [&](int rank) {
        { Fabric both(options_of({"", 1, {0, 0}}, name, rank)); }
        Fabric alone(options_of({"", 1, {0}}, "", 0));
    });
    for (int r = 0; r < 2; ++r)
        EXPECT_THAT(errors[r], HasSubstr("rank " + std::to_string(r) + " of 2"));
}

}  // namespace
}  // namespace xstage::fabric
