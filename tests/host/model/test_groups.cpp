#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <numeric>

#include "model/groups.hpp"

namespace {

using namespace xstage;
using namespace xstage::model;

using Clusters = std::vector<std::vector<int>>;

// 8 SMs in groups of 4 and 12 in groups of 6 share a link of one byte per cycle: 4 groups, each
// 1/4. A favoured SM gets 1/16 and ends at 16; the others have 1/24 until then, 1/12 after: 20.
Measurements recorded(double favoured, double others, bool with_idle) {
    SmRow row;
    row.name = "all", row.path = "st16";
    for (int i = 0; i < 20; ++i) row.issue.push_back(Cycles{i % 5 < 2 ? favoured : others});
    if (with_idle) row.issue.push_back(Cycles{1});
    Measurements m;
    m.per_sm = {row};
    return m;
}

TEST(Topology, SizesFollowFromWhoEndsEarly) {
    std::string reason;
    const Topology t = find_topology(recorded(16000, 20000, false), 20, reason);
    EXPECT_TRUE(reason.empty()) << reason;
    EXPECT_EQ(t.clusters, (Clusters{{6, 4}, {6, 4}}));
}

// SM ids 0-9 and 10-19 were seen together in clusters; of each, four end early.
TEST(Topology, ClustersFollowFromWhoWasSeenTogether) {
    Measurements m = recorded(16000, 20000, false);
    m.sm_groups.resize(2);
    for (int i = 0; i < 20; ++i) m.sm_groups[i / 10].push_back(i);
    m.per_sm[0].issue[5] = m.per_sm[0].issue[6] = Cycles{20000};
    std::string reason;
    const Topology t = find_topology(m, 20, reason);
    EXPECT_TRUE(reason.empty()) << reason;
    EXPECT_EQ(t.clusters, (Clusters{{4, 4, 2}, {4, 3, 3}}));
}

// 44 SMs in clusters of 18, 16 and 10, none seen beyond 16. A cluster without favoured SMs has full
// groups, so two of the four SMs left over are its own; the others belong to the small one.
TEST(Topology, SmsThatNoLaunchCoveredFillTheirClusters) {
    Measurements m;
    SmRow row;
    row.name = "all", row.path = "st16";
    m.sm_groups = {{}, {}, {}, {40, 41}, {42, 43}};
    for (int i = 0; i < 44; ++i) {
        row.issue.push_back(Cycles{i >= 28 && i < 32 ? 16000.0 : 20000.0});
        if (i < 40) m.sm_groups[i < 16 ? 0 : i < 32 ? 1 : 2].push_back(i);
    }
    m.per_sm = {row};
    std::string reason;
    const Topology t = find_topology(m, 44, reason);
    EXPECT_TRUE(reason.empty()) << reason;
    EXPECT_EQ(t.clusters, (Clusters{{6, 6, 6}, {6, 6, 4}, {5, 5}}));
}

TEST(Topology, SaysWhyThereIsNone) {
    std::string reason;
    EXPECT_TRUE(find_topology({}, 132, reason).clusters.empty());
    EXPECT_NE(reason.find("by SM id"), std::string::npos);
    EXPECT_TRUE(find_topology(recorded(20000, 20000, false), 20, reason).clusters.empty());
    EXPECT_NE(reason.find("no groups"), std::string::npos);
    // An SM that did not store is not a favoured one.
    EXPECT_TRUE(find_topology(recorded(16000, 20000, true), 21, reason).clusters.empty());
    EXPECT_NE(reason.find("not recorded with all"), std::string::npos);
}

// An H200: two clusters of 18 SMs and six of 16.
const Topology kNode{
    132,
    {{6, 6, 6}, {6, 6, 6}, {6, 6, 4}, {6, 6, 4}, {6, 6, 4}, {6, 6, 4}, {6, 6, 4}, {6, 6, 4}},
    {}};

int stored(const Clusters& used) {
    int sum = 0;
    for (const auto& cluster : used) sum += std::accumulate(cluster.begin(), cluster.end(), 0);
    return sum;
}

RC_GTEST_PROP(Topology, EveryOrderPlacesEveryCtaOnce, (unsigned seed)) {
    Topology t = kNode;
    const int kind = *rc::gen::inRange(0, 4);
    t.order = kind == 0   ? even_order(t)
              : kind == 1 ? most_free_order(t)
              : kind == 2 ? tied_order(t, seed)
                          : scattered_order(t, seed);
    const int n = *rc::gen::inRange(0, 133);
    const Clusters used = place(t, n);
    RC_ASSERT(stored(used) == n);
    for (std::size_t c = 0; c < used.size(); ++c) {
        for (std::size_t g = 0; g < used[c].size(); ++g) {
            RC_ASSERT(used[c][g] <= t.clusters[c][g]);
        }
    }
    RC_ASSERT(place(t, 132) == t.clusters);
}

// 132 SMs in two halves of 66; of 12, 16, 16, 16, 18, 18, 18, 18 only one split is as even.
TEST(Topology, HalvesHoldAsManySms) {
    const std::vector<int> half = equal_halves(kNode);
    int first = 0;
    for (std::size_t c = 0; c < half.size(); ++c) {
        first += half[c] == 0 ? stored({kNode.clusters[c]}) : 0;
    }
    EXPECT_EQ(first, 66);
    Topology t = kNode;
    t.clusters = {{6, 6}, {6, 6, 4}, {6, 6, 4}, {6, 6, 4}, {6, 6, 6}, {6, 6, 6}, {6, 6, 6}};
    t.clusters.push_back({6, 6, 6});
    const std::vector<int> odd = equal_halves(t);
    EXPECT_EQ(odd[1], odd[2]);
    EXPECT_EQ(odd[1], odd[3]);
    EXPECT_NE(odd[0], odd[1]);
}

// Ties only: whatever the seed, no cluster has fewer SMs left than another has left beside its
// last.
RC_GTEST_PROP(Topology, TiedOrdersGoWhereMostIsFree, (unsigned seed)) {
    Topology t = kNode;
    t.order = tied_order(t, seed);
    const Clusters used = place(t, *rc::gen::inRange(0, 133));
    int most = 0, least = 18;
    for (std::size_t c = 0; c < used.size(); ++c) {
        const int all = stored({t.clusters[c]}), taken = stored({used[c]});
        most = std::max(most, all - taken);
        if (taken > 0) least = std::min(least, all - taken);
    }
    RC_ASSERT(least + 1 >= most);
}

TEST(Topology, OrdersPlaceAsTheySay) {
    Topology t = kNode;
    EXPECT_EQ(place(t, 16), (Clusters(8, {1, 1, 0})));  // no order known: evenly
    t.order = most_free_order(t);
    EXPECT_EQ(place(t, 4), (Clusters{{1, 1, 0},
                                     {1, 1, 0},
                                     {0, 0, 0},
                                     {0, 0, 0},
                                     {0, 0, 0},
                                     {0, 0, 0},
                                     {0, 0, 0},
                                     {0, 0, 0}}));
    EXPECT_NE(scattered_order(t, 1), scattered_order(t, 2));
    EXPECT_EQ(scattered_order(t, 7), scattered_order(t, 7));
}

}  // namespace
