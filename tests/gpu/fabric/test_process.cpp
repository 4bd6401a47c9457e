// The suite over one process per rank. This process never touches CUDA, so that it can fork.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

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

FabricOptions process_options(const std::string& name, int rank, int world, int device) {
    FabricOptions options = testing::host_options(name, rank, world);
    options.backend = Backend::kProcess;
    options.devices = {device};
    options.wait_timeout = std::chrono::seconds(10);
    return options;
}

/// How two ranks find their GPUs.
struct Placement {
    const char* name;
    int gpus;
    int devices[2];          ///< ordinal as each rank sees it
    const char* visible[2];  ///< CUDA_VISIBLE_DEVICES of each rank; null leaves it alone
};

std::ostream& operator<<(std::ostream& out, const Placement& p) {
    return out << p.name;
}

class ProcessFabric : public ::testing::TestWithParam<Placement> {
  protected:
    void SetUp() override {
        if (devices_by_file() < GetParam().gpus)
            GTEST_SKIP() << "needs " << GetParam().gpus << " CUDA devices";
    }
    void everywhere(const std::function<void(Fabric&, GpuOps&)>& body) {
        const std::string name = fresh_name();
        const Placement place = GetParam();
        const auto errors = testing::run_processes(2, [&](int rank) {
            if (place.visible[rank]) ::setenv("CUDA_VISIBLE_DEVICES", place.visible[rank], 1);
            Fabric fabric(process_options(name, rank, 2, place.devices[rank]));
            GpuOps ops(fabric, {place.devices[rank]});
            body(fabric, ops);
        });
        for (const std::string& e : errors) EXPECT_EQ(e, "");
    }
};

TEST_P(ProcessFabric, KnowsGpusByTheirUuid) {
    const bool two = GetParam().gpus == 2;
    everywhere([two](Fabric& f, GpuOps&) {
        SUITE_REQUIRE((f.device_ids()[0] != f.device_ids()[1]) == two);
        SUITE_REQUIRE(f.device_ids()[0].rfind("GPU-", 0) == 0);
        SUITE_REQUIRE(f.handle_type() == HandleType::kPosixDescriptor);
    });
}
TEST_P(ProcessFabric, SymmetricBuffer) {
    everywhere(suite::symmetric_buffer);
}
TEST_P(ProcessFabric, StitchedTensor) {
    everywhere(suite::stitched_tensor);
}
TEST_P(ProcessFabric, AbandonedCalls) {
    everywhere(suite::abandoned_calls);
}
TEST_P(ProcessFabric, LocalAlias) {
    everywhere(suite::local_alias);
}
TEST_P(ProcessFabric, Barriers) {
    const int count =
        GetParam().gpus == 2 ? 5000 : 20;  // ranks on one GPU take turns by time slices
    everywhere([count](Fabric& f, GpuOps& ops) { suite::barriers(f, ops, count); });
}
TEST_P(ProcessFabric, GraphReplaysMixedWithEagerCalls) {
    const int count = GetParam().gpus == 2 ? 1000 : 5;
    everywhere([count](Fabric& f, GpuOps& ops) { suite::graph_replays(f, ops, count); });
}

INSTANTIATE_TEST_SUITE_P(Placements, ProcessFabric,
                         ::testing::Values(Placement{"OneGpu", 1, {0, 0}, {nullptr, nullptr}},
                                           Placement{"TwoGpus", 2, {0, 1}, {nullptr, nullptr}},
                                           Placement{"ReverseOrder", 2, {1, 0}, {nullptr, nullptr}},
                                           Placement{"EachSeesItsOwn", 2, {0, 0}, {"0", "1"}},
                                           Placement{"OtherNumbering", 2, {0, 0}, {"0,1", "1,0"}}),
                         [](const auto& info) { return info.param.name; });

// 300 allocations a rank, page by page, where 256 descriptors are allowed in all.
TEST(ProcessFabricDescriptors, TravelInBatchesThatFitTheLimit) {
    if (devices_by_file() == 0) GTEST_SKIP() << "no CUDA device";
    const std::string name = fresh_name();
    const auto errors = testing::run_processes(2, [&](int rank) {
        const rlimit limit{256, 256};
        SUITE_REQUIRE(::setrlimit(RLIMIT_NOFILE, &limit) == 0);
        const int device = rank % devices_by_file();
        Fabric fabric(process_options(name, rank, 2, device));
        GpuOps ops(fabric, {device});
        StitchedOptions options;
        options.order = ChunkOrder::kPages;
        options.rows = {300, 301};
        options.row_bytes = fabric.page_bytes() - 4096;
        options.buffers = 1;
        StitchedTensor tensor(fabric, options);
        // The longer rank's last two pages lie side by side and are one allocation.
        SUITE_REQUIRE(tensor.layout().segments.size() == 600);
        suite::one_call(fabric, ops, tensor, 0, 1);
        fabric.barrier(ops.streams());
        fabric.synchronize(ops.streams());
    });
    for (const std::string& e : errors) EXPECT_EQ(e, "");
}

// The reader looks right after the signal, while copies saturate both memories: a signal that came
// before its data would be seen here or nowhere.
TEST(ProcessFabricUnderLoad, NoReaderIsAheadOfTheData) {
    if (devices_by_file() < 2) GTEST_SKIP() << "needs two CUDA devices";
    const std::string name = fresh_name();
    const auto errors = testing::run_processes(2, [&](int rank) {
        Fabric fabric(process_options(name, rank, 2, rank));
        GpuOps ops(fabric, {rank});
        StitchedOptions options;
        options.rows = {2304, 2301};
        options.row_bytes = 8192;
        StitchedTensor tensor(fabric, options);
        for (int round = 0; round < 100; ++round) {
            ops.load(8);
            suite::one_call(fabric, ops, tensor, round % 3 == 0, round);
        }
        fabric.barrier(ops.streams());
        fabric.synchronize(ops.streams());
    });
    for (const std::string& e : errors) EXPECT_EQ(e, "");
}

class ProcessFailures : public ::testing::Test {
  protected:
    void SetUp() override {
        if (devices_by_file() == 0) GTEST_SKIP() << "no CUDA device";
    }
    static int device(int rank) { return rank % devices_by_file(); }

    void expect_new_group_works(const std::string& name) {
        const auto errors = testing::run_processes(2, [&](int rank) {
            Fabric fabric(process_options(name, rank, 2, device(rank)));
            GpuOps ops(fabric, {device(rank)});
            suite::barriers(fabric, ops, 3);
        });
        for (const std::string& e : errors) EXPECT_EQ(e, "");
    }
};

TEST_F(ProcessFailures, AWaitRunsOutAndANewGroupStartsInTheSameProcess) {
    const std::string name = fresh_name();
    int gate[2];
    ASSERT_EQ(::pipe(gate), 0);
    const auto errors = testing::run_processes(2, [&](int rank) {
        FabricOptions options = process_options(name, rank, 2, device(rank));
        options.wait_timeout = std::chrono::milliseconds(400);
        {
            Fabric fabric(options);
            GpuOps ops(fabric, {device(rank)});
            StitchedOptions small;
            small.rows = {8, 8};
            small.row_bytes = 1024;
            StitchedTensor tensor(fabric, small);
            suite::one_call(fabric, ops, tensor, 0, 1);
            std::string reason;
            try {
                if (rank == 0) {
                    tensor.begin(1, ops.streams());
                    suite::store_columns(fabric, ops, tensor, 1, 2);
                    tensor.publish(1, ops.streams());
                    tensor.acquire(1, ops.streams());
                    const std::size_t words = tensor.layout().chunk_bytes[rank] / 4;
                    SUITE_REQUIRE(ops.not_poison(rank, tensor.receive(1, rank), words) == 0);
                    SUITE_REQUIRE(::write(gate[1], "", 1) == 1);
                } else {
                    // Silent but alive until rank 0 has given up.
                    char byte;
                    SUITE_REQUIRE(::read(gate[0], &byte, 1) == 1);
                    fabric.barrier(ops.streams());
                }
                fabric.synchronize(ops.streams());
            } catch (const Error& e) {
                reason = e.what();
            }
            SUITE_REQUIRE(reason.find("rank 1: no signal for the data of buffer 1") == 0);
        }
        options.name += "-again";
        Fabric fabric(options);
        GpuOps ops(fabric, {device(rank)});
        suite::barriers(fabric, ops, 3);
    });
    ::close(gate[0]);
    ::close(gate[1]);
    for (const std::string& e : errors) EXPECT_EQ(e, "");
}

TEST_F(ProcessFailures, ASilentRankIsNamedAndItsPeersHearOfIt) {
    const std::string name = fresh_name();
    Processes processes(2, [&](int rank) {
        FabricOptions options = process_options(name, rank, 2, device(rank));
        options.wait_timeout = std::chrono::milliseconds(300);
        Fabric fabric(options);
        GpuOps ops(fabric, {device(rank)});
        Processes::mark();
        if (rank == 1) ::pause();
        fabric.barrier(ops.streams());
        fabric.synchronize(ops.streams());
    });
    EXPECT_TRUE(processes.wait_mark(0));
    EXPECT_TRUE(processes.wait_mark(1));
    EXPECT_THAT(processes.finish(0),
                AllOf(HasSubstr("rank 1: no signal for the barrier"), HasSubstr("300 ms")));
    processes.kill(1);
    EXPECT_EQ(processes.finish(1), "killed");
}

TEST_F(ProcessFailures, TrapsWhenAskedFor) {
    const std::string name = fresh_name();
    Processes processes(2, [&](int rank) {
        FabricOptions options = process_options(name, rank, 2, device(rank));
        options.wait_timeout = std::chrono::milliseconds(300);
        options.trap_on_timeout = true;
        Fabric fabric(options);
        GpuOps ops(fabric, {device(rank)});
        Processes::mark();
        if (rank == 1) ::pause();
        fabric.barrier(ops.streams());
        fabric.synchronize(ops.streams());
    });
    EXPECT_TRUE(processes.wait_mark(1));
    EXPECT_THAT(processes.finish(0), HasSubstr("waiting for a stream"));
    processes.kill(1);
    processes.finish(1);
}

TEST_F(ProcessFailures, RanksInDifferentCallsAreTold) {
    const std::string name = fresh_name();
    const auto errors = testing::run_processes(2, [&](int rank) {
        Fabric fabric(process_options(name, rank, 2, device(rank)));
        GpuOps ops(fabric, {device(rank)});
        StitchedOptions small;
        small.rows = {8, 8};
        small.row_bytes = 1024;
        StitchedTensor tensor(fabric, small);
        for (int b : {rank, 1 - rank}) suite::one_call(fabric, ops, tensor, b, 1);
        fabric.synchronize(ops.streams());
    });
    for (const std::string& e : errors) EXPECT_NE(e, "");
    EXPECT_THAT(errors[0] + errors[1], ::testing::Not(HasSubstr("within")));
}

TEST_F(ProcessFailures, KilledRanksAreNamedAndANewGroupStarts) {
    const std::string name = fresh_name();
    for (int round = 0; round < 6; ++round) {
        const int victim = round % 2;
        Processes processes(2, [&](int rank) {
            Fabric fabric(process_options(name, rank, 2, device(rank)));
            GpuOps ops(fabric, {device(rank)});
            fabric.barrier(ops.streams());
            fabric.synchronize(ops.streams());
            Processes::mark();
            if (rank == victim) ::pause();
            if (round < 4) fabric.barrier(ops.streams());
            fabric.synchronize(ops.streams());
            SymmetricBuffer buffer(fabric, 4096);
        });
        for (int r = 0; r < 2; ++r) EXPECT_TRUE(processes.wait_mark(r)) << processes.finish(r);
        processes.kill(victim);
        EXPECT_THAT(processes.finish(1 - victim), HasSubstr("rank " + std::to_string(victim)));
        EXPECT_EQ(processes.finish(victim), "killed");
    }
    expect_new_group_works(name);
}

}  // namespace
}  // namespace xstage::fabric
