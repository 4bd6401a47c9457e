// Attention over ranks of several nodes: all-to-alls stitched within a node and by puts between
// them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "host/fabric/groups.hpp"
#include "ulysses_suite.hpp"
#include "xstage/error.hpp"

namespace xstage::ulysses {
namespace {

using fabric::Fabric;
using suite::Case;
using suite::HostDevice;
using suite::Whole;

struct Shape {
    const char* name;
    std::vector<int> node;  ///< of each rank
};

std::ostream& operator<<(std::ostream& out, const Shape& shape) {
    return out << shape.name;
}

std::vector<std::string> run(const std::vector<int>& node,
                             const std::function<void(Fabric&, HostDevice&, int)>& body) {
    const std::string name = fabric::testing::fresh_name();
    const int world = static_cast<int>(node.size());
    return fabric::testing::run_threads(world, [&](int rank) {
        fabric::FabricOptions options = fabric::testing::host_options(name, rank, world);
        options.host_page_bytes = 16384;
        options.node = node[rank];
        options.put_chunk_bytes = 700;  // several chunks of every block
        Fabric group(options);
        HostDevice device;
        body(group, device, rank);
        group.barrier();  // nobody's memory goes while a peer still stores
    });
}

class UlyssesNodes : public ::testing::TestWithParam<std::tuple<Layout, Shape>> {
  protected:
    const Shape& shape() const { return std::get<1>(GetParam()); }

    Problem problem(std::vector<std::int64_t> rows, int heads) const {
        Problem p;
        p.heads_q = heads;
        p.head_dim = 16;
        rows.resize(shape().node.size(), rows.back());
        p.rows_q = std::move(rows);
        return p;
    }

    /// Both entries, several calls, bit by bit as one rank with everything computes it.
    void expect_bit_identical(const Problem& problem) const {
        Options options;
        options.plan.layout = std::get<0>(GetParam());
        options.plan.max_memory_ratio = 1e9;
        if (options.plan.layout == Layout::kPeers)
            options.plug = {suite::with_peers(reference_attention), "peers", true, 128, true};
        Case c(problem, 11);
        const Whole whole = suite::whole(c, reference_attention);
        const auto errors = run(shape().node, [&](Fabric& group, HostDevice& device, int rank) {
            UlyssesAttention attention(group, problem, options);
            for (int call = 0; call < 3; ++call) {
                const auto results = attention.attend({suite::shard(device, c, rank)});
                const std::string differs = suite::compare(device, c, whole, results[0], rank);
                if (!differs.empty()) throw std::runtime_error("attend: " + differs);
            }
            Options scatter = options;
            scatter.attend = false;
            UlyssesAttention half(group, problem, scatter);
            for (int call = 0; call < 3; ++call) {
                const auto results =
                    half.attend_and_scatter({suite::gather(device, c, half.plan().heads, rank)});
                const std::string differs = suite::compare(device, c, whole, results[0], rank);
                if (!differs.empty()) throw std::runtime_error("attend_and_scatter: " + differs);
            }
        });
        for (const std::string& e : errors) EXPECT_EQ(e, "");
    }
};

TEST_P(UlyssesNodes, EvenRowsAndUnevenHeads) {
    expect_bit_identical(problem({24}, 5));
}

TEST_P(UlyssesNodes, TwoSamplesWithGroupedKeysAndText) {
    Problem p = problem({17}, 8);
    p.batch = 2;
    p.heads_kv = 4;
    p.text_kv = 5;
    for (std::size_t r = 0; r < shape().node.size(); ++r)
        p.rows_kv.push_back(9 + static_cast<std::int64_t>(r));
    expect_bit_identical(p);
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, UlyssesNodes,
    ::testing::Combine(::testing::Values(Layout::kBatched, Layout::kPadded, Layout::kPages,
                                         Layout::kScatter, Layout::kPeers),
                       ::testing::Values(Shape{"OneEach", {0, 1}}, Shape{"TwoAndTwo", {0, 0, 1, 1}},
                                         Shape{"Around", {0, 1, 0}})),
    [](const auto& info) {
        return std::string(name_of(std::get<0>(info.param))) + std::get<1>(info.param).name;
    });

TEST(UlyssesNodesRefusal, WhatDoesNotTravelIsRefusedOnAllRanks) {
    for (const bool lse : {false, true}) {
        const auto errors = run({0, 1}, [&](Fabric& group, HostDevice&, int) {
            Problem p;
            p.heads_q = 4;
            p.head_dim = 16;
            p.rows_q = {8, 8};
            p.with_lse = lse;
            p.text_q = p.text_kv = lse ? 0 : 3;
            UlyssesAttention attention(group, p, {});
        });
        for (const std::string& e : errors)
            EXPECT_THAT(e, ::testing::HasSubstr("do not travel between nodes"));
    }
}

}  // namespace
}  // namespace xstage::ulysses
