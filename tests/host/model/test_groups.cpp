#include <gtest/gtest.h>

#include "model/groups.hpp"

namespace {

using namespace xstage;
using namespace xstage::model;

// 8 SMs in groups of 4 and 12 in groups of 6 share a link of one byte per cycle: 4 groups, each
// 1/4. A favoured SM gets 1/16 and ends at 16; the others have 1/24 until then, 1/12 after: 20.
SmRow row_of(double favoured, double others, bool with_idle) {
    SmRow row;
    row.name = "all", row.path = "st16";
    for (int i = 0; i < 20; ++i) row.issue.push_back(Cycles{i % 5 < 2 ? favoured : others});
    if (with_idle) row.issue.push_back(Cycles{1});
    return row;
}

TEST(Groups, SizesFollowFromWhoEndsEarly) {
    std::string reason;
    const Groups g = find_groups({row_of(16000, 20000, false)}, 20, reason);
    EXPECT_TRUE(reason.empty()) << reason;
    EXPECT_NEAR(g.light_share, 0.5, 1e-9);  // 2 of 4 groups
    EXPECT_NEAR(g.mean_size, 5, 1e-9);
    EXPECT_NEAR(g.light_size, 4.0 / 5, 1e-9);
}

TEST(Groups, SayWhyThereAreNone) {
    std::string reason;
    EXPECT_EQ(find_groups({}, 132, reason).light_share, 0);
    EXPECT_NE(reason.find("by SM id"), std::string::npos);
    EXPECT_EQ(find_groups({row_of(20000, 20000, false)}, 20, reason).light_share, 0);
    EXPECT_NE(reason.find("no groups"), std::string::npos);
    // An SM that did not store is not a favoured one.
    EXPECT_EQ(find_groups({row_of(16000, 20000, true)}, 21, reason).light_share, 0);
    EXPECT_NE(reason.find("not recorded with all"), std::string::npos);
}

}  // namespace
