// The suite over ranks that share a machine and act as several nodes, which reach each other by
// puts alone.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "expect_error.hpp"
#include "fabric_suite.hpp"
#include "groups.hpp"

namespace xstage::fabric {
namespace {

using ::testing::AllOf;
using testing::fresh_name;
using ::testing::HasSubstr;
using testing::host_options;

struct Shape {
    const char* name;
    std::vector<int> node;    ///< of each rank
    std::size_t chunk_bytes;  ///< 0: planned
    bool processes;
};

std::ostream& operator<<(std::ostream& out, const Shape& shape) {
    return out << shape.name;
}

FabricOptions node_options(const std::string& name, int rank, const std::vector<int>& node,
                           std::size_t chunk_bytes = 0) {
    FabricOptions options = host_options(name, rank, static_cast<int>(node.size()));
    options.node = node[rank];
    options.put_chunk_bytes = chunk_bytes;
    return options;
}

class HostNodes : public ::testing::TestWithParam<Shape> {
  protected:
    void everywhere(const std::function<void(Fabric&, suite::Ops&)>& body) const {
        const std::string name = fresh_name();
        const Shape& shape = GetParam();
        const auto on_rank = [&](int rank) {
            Fabric fabric(node_options(name, rank, shape.node, shape.chunk_bytes));
            suite::HostOps ops;
            body(fabric, ops);
        };
        const int world = static_cast<int>(shape.node.size());
        const auto errors = shape.processes ? testing::run_processes(world, on_rank)
                                            : testing::run_threads(world, on_rank);
        for (const std::string& e : errors) EXPECT_EQ(e, "");
    }
};

TEST_P(HostNodes, SymmetricBuffer) {
    everywhere(suite::symmetric_buffer);
}
TEST_P(HostNodes, StitchedTensor) {
    everywhere(suite::stitched_tensor);
}
TEST_P(HostNodes, Puts) {
    everywhere(suite::puts);
}
TEST_P(HostNodes, AbandonedCalls) {
    everywhere(suite::abandoned_calls);
}
TEST_P(HostNodes, LocalAlias) {
    everywhere(suite::local_alias);
}
TEST_P(HostNodes, Barriers) {
    everywhere([](Fabric& fabric, suite::Ops& ops) { suite::barriers(fabric, ops, 100); });
}

TEST_P(HostNodes, PeersOfOtherNodesAreNotMapped) {
    everywhere([](Fabric& fabric, suite::Ops&) {
        SymmetricBuffer buffer(fabric, 4096);
        const int me = fabric.local_ranks().front();
        for (int r = 0; r < fabric.world(); ++r)
            SUITE_REQUIRE((buffer.at(r) == nullptr) == (fabric.nodes()[r] != fabric.nodes()[me]));
    });
}

// What a rank stores for a rank of another node stays at home until it is published.
TEST_P(HostNodes, NothingCrossesBeforePublish) {
    everywhere([](Fabric& fabric, suite::Ops& ops) {
        const int world = fabric.world();
        const int me = fabric.local_ranks().front();
        StitchedOptions options;
        options.rows.assign(world, 20);
        options.row_bytes = static_cast<std::size_t>(world) * 512;
        StitchedTensor tensor(fabric, options);
        tensor.begin(0);
        suite::store_columns(fabric, ops, tensor, 0, 7);
        fabric.barrier();
        for (int p = 0; p < world; ++p) {
            const std::uint64_t differing =
                ops.differing(me, static_cast<std::byte*>(tensor.receive(0, me)) + 512 * p,
                              tensor.layout().row_stride, 20, 128, 7000 + p * 16 + me, 0);
            SUITE_REQUIRE((differing == 0) == (fabric.nodes()[p] == fabric.nodes()[me]));
        }
        tensor.publish(0);
        tensor.acquire(0);
        suite::verify_columns(fabric, ops, tensor, 0, 7);
        fabric.barrier();
    });
}

INSTANTIATE_TEST_SUITE_P(Shapes, HostNodes,
                         ::testing::Values(Shape{"OneEach", {0, 1}, 0, false},
                                           Shape{"OneEachOtherNumbers", {7, 3}, 0, true},
                                           Shape{"TwoAndTwo", {0, 0, 1, 1}, 100'000, true},
                                           Shape{"Interleaved", {0, 1, 0, 1}, 30'000, false},
                                           Shape{"TwoAndOne", {5, 5, 6}, 1, false},
                                           Shape{"ThreeNodes", {0, 1, 2, 1}, 0, false}),
                         [](const auto& info) { return info.param.name; });

TEST(HostNodesParts, UnevenPartsCrossAsTheyAreSaid) {
    const std::string name = fresh_name();
    const auto errors = testing::run_threads(2, [&](int rank) {
        Fabric fabric(node_options(name, rank, {0, 1}, 700));
        suite::HostOps ops;
        StitchedOptions options;
        options.rows = {50, 31};
        options.row_bytes = 1024;
        options.parts = {{256, 768}, {0, 256}};
        StitchedTensor tensor(fabric, options);
        for (int call = 1; call < 4; ++call) {
            tensor.begin(0);
            for (int owner = 0; owner < 2; ++owner)
                ops.store(rank,
                          static_cast<std::byte*>(tensor.range(0)) +
                              tensor.layout().offset_of(owner, 0) + options.parts[rank].offset,
                          tensor.layout().row_stride, options.rows[owner],
                          options.parts[rank].bytes / 4, call * 100 + rank * 10 + owner, 0);
            tensor.exchange(0);
            for (int source = 0; source < 2; ++source)
                SUITE_REQUIRE(ops.differing(rank,
                                            static_cast<std::byte*>(tensor.receive(0, rank)) +
                                                options.parts[source].offset,
                                            tensor.layout().row_stride, options.rows[rank],
                                            options.parts[source].bytes / 4,
                                            call * 100 + source * 10 + rank, 0) == 0);
        }
        fabric.barrier();
    });
    for (const std::string& e : errors) EXPECT_EQ(e, "");
}

TEST(HostNodesParts, WrongPartsAreRefusedOnAllRanks) {
    const std::vector<std::vector<plan::RowPart>> wrong{
        {{0, 512}, {256, 512}}, {{0, 512}, {512, 513}}, {{0, 512}}, {{2000, 16}, {0, 16}}};
    for (const auto& parts : wrong) {
        const std::string name = fresh_name();
        const auto errors = testing::run_threads(2, [&](int rank) {
            Fabric fabric(node_options(name, rank, {0, 1}));
            StitchedOptions options;
            options.rows = {8, 8};
            options.row_bytes = 1024;
            options.parts = parts;
            StitchedTensor tensor(fabric, options);
        });
        for (const std::string& e : errors) EXPECT_THAT(e, HasSubstr("part"));
    }
}

TEST(HostNodesPuts, WhatLiesOutsideIsRefused) {
    Fabric fabric(host_options("", 0, 1));
    SymmetricBuffer a(fabric, 100), b(fabric, 50);
    a.put(0, 0, 50, b, 0, 50);
    test::bad_input([&] { a.put(0, 0, 51, b, 0, 50); });
    test::bad_input([&] { a.put(0, 0, 0, b, 1, 50); });
    test::bad_input([&] { a.put(0, 0, ~std::size_t{0}, b, 0, 2); });
    test::bad_input([&] { a.put(0, 1, 0, b, 0, 2); });
    test::bad_input([&] { a.put(1, 0, 0, b, 0, 2); });
}

TEST(HostNodesFailures, ASilentNodeIsNamedAndTheOutputSpoilt) {
    const std::string name = fresh_name();
    const auto errors = testing::run_threads(2, [&](int rank) {
        FabricOptions fabric_options = node_options(name, rank, {0, 1});
        if (rank == 0) fabric_options.wait_timeout = std::chrono::milliseconds(200);
        Fabric fabric(fabric_options);
        suite::HostOps ops;
        StitchedOptions options;
        options.rows = {20, 20};
        options.row_bytes = 1024;
        StitchedTensor tensor(fabric, options);
        if (rank == 0) {
            tensor.begin(0);
            tensor.publish(0);
            std::string reason;
            try {
                tensor.acquire(0);
                fabric.check();
            } catch (const Error& e) {
                reason = e.what();
            }
            SUITE_REQUIRE(
                ops.not_poison(0, tensor.receive(0, 0), tensor.layout().chunk_bytes[0] / 4) == 0);
            throw std::runtime_error(reason);
        }
        // It has what rank 0 sent and publishes nothing; its own wait ends by the other's word.
        tensor.begin(0);
        tensor.acquire(0);
        fabric.barrier();
        fabric.check();
    });
    EXPECT_THAT(errors[0], AllOf(HasSubstr("rank 1: no signal for the data of buffer 0, epoch 1"),
                                 HasSubstr("200 ms")));
    EXPECT_THAT(errors[1], HasSubstr("rank 1: no signal for the data of buffer 0, epoch 1"));
}

TEST(HostNodesFailures, RanksThatDisagreeAboutTheirNodesAreTold) {
    const std::string name = fresh_name();
    const auto errors = testing::run_threads(2, [&](int rank) {
        FabricOptions options = host_options(name, rank, 2);
        options.node = rank == 0 ? 0 : -1;
        Fabric fabric(options);
    });
    for (const std::string& e : errors) EXPECT_THAT(e, HasSubstr("does not say its node"));
}

TEST(HostNodesFailures, ProcessKnowsNoNodes) {
    const std::string name = fresh_name();
    const auto errors = testing::run_threads(2, [&](int rank) {
        FabricOptions options = node_options(name, rank, {0, 1});
        options.backend = Backend::kProcess;
        Fabric fabric(options);
    });
    for (const std::string& e : errors) EXPECT_THAT(e, HasSubstr("knows no nodes"));
}

}  // namespace
}  // namespace xstage::fabric
