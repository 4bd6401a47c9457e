#include <gtest/gtest.h>

#include <tuple>

#include "fabric_suite.hpp"
#include "groups.hpp"

namespace xstage::fabric {
namespace {

using testing::Body;
using testing::fresh_name;
using testing::host_options;

enum class How { kThreads, kProcesses };

class HostFabric : public ::testing::TestWithParam<std::tuple<How, int>> {
  protected:
    int world() const { return std::get<1>(GetParam()); }

    void everywhere(const std::function<void(Fabric&, suite::Ops&)>& body) const {
        const std::string name = fresh_name();
        const Body rank_body = [&](int rank) {
            Fabric fabric(host_options(name, rank, world()));
            suite::HostOps ops;
            body(fabric, ops);
        };
        const auto errors = std::get<0>(GetParam()) == How::kThreads
                                ? testing::run_threads(world(), rank_body)
                                : testing::run_processes(world(), rank_body);
        for (int r = 0; r < world(); ++r) EXPECT_EQ(errors[r], "") << "rank " << r;
    }
};

TEST_P(HostFabric, SymmetricBuffer) {
    everywhere(suite::symmetric_buffer);
}
TEST_P(HostFabric, StitchedTensor) {
    everywhere(suite::stitched_tensor);
}
TEST_P(HostFabric, Puts) {
    everywhere(suite::puts);
}
TEST_P(HostFabric, AbandonedCalls) {
    everywhere(suite::abandoned_calls);
}
TEST_P(HostFabric, LocalAlias) {
    everywhere(suite::local_alias);
}
TEST_P(HostFabric, Barriers) {
    everywhere([](Fabric& fabric, suite::Ops& ops) { suite::barriers(fabric, ops, 100); });
}

INSTANTIATE_TEST_SUITE_P(Ranks, HostFabric,
                         ::testing::Combine(::testing::Values(How::kThreads, How::kProcesses),
                                            ::testing::Values(1, 2, 3, 4)),
                         [](const auto& info) {
                             return std::string(std::get<0>(info.param) == How::kThreads
                                                    ? "Threads"
                                                    : "Processes") +
                                    std::to_string(std::get<1>(info.param));
                         });

TEST(HostFabricSoak, TenThousandBarriersWithRandomDelays) {
    const std::string name = fresh_name();
    const auto errors = testing::run_processes(2, [&](int rank) {
        Fabric fabric(host_options(name, rank, 2));
        suite::HostOps ops;
        suite::barriers(fabric, ops, 5000);  // two barriers a round
    });
    for (const std::string& e : errors) EXPECT_EQ(e, "");
}

TEST(HostFabricLayout, StoresThroughTheRangeLandOnTheOwnersPages) {
    const std::string name = fresh_name();
    const auto errors = testing::run_threads(2, [&](int rank) {
        Fabric fabric(host_options(name, rank, 2));
        StitchedOptions options;
        options.rows = {3, 3};
        options.row_bytes = fabric.page_bytes() / 2;
        options.order = ChunkOrder::kPages;
        StitchedTensor tensor(fabric, options);
        auto* range = static_cast<unsigned char*>(tensor.range(0));
        SUITE_REQUIRE(reinterpret_cast<std::uintptr_t>(range) % fabric.page_bytes() == 0);
        // Pages alternate 0, 1, 0, 1: rank 0 writes a byte to the third page of the range.
        if (rank == 0) range[2 * fabric.page_bytes() + 17] = 0xa5;
        fabric.barrier();
        auto* mine = static_cast<unsigned char*>(tensor.receive(0, rank));
        SUITE_REQUIRE(mine[fabric.page_bytes() + 17] == (rank == 0 ? 0xa5 : 0));
        SUITE_REQUIRE(range[2 * fabric.page_bytes() + 17] == 0xa5);
        fabric.barrier();
    });
    for (const std::string& e : errors) EXPECT_EQ(e, "");
}

}  // namespace
}  // namespace xstage::fabric
