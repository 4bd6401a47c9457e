// Block masks: what is refused before any device is asked for.

#include <gtest/gtest.h>

#include <string>

#include "xstage/attention.hpp"
#include "xstage/error.hpp"
#include "xstage/sparse/mask.hpp"

namespace xstage {
namespace {

TEST(BlockSparsePlan, MasksOfOtherShapesAndWithOtherMasksAreRefused) {
    static int memory;
    AttentionArguments a;
    a.batches = 1;
    a.heads = a.kv_heads = 4;
    a.q_rows = a.kv_rows = 256;
    a.q = a.k = a.v = {&memory, 256 * 512, 512, 128};
    a.out = {{a.q, 256}};
    const sparse::BlockMask fits(1, 4, 256, 256);
    const sparse::BlockMask longer(1, 4, 256, 300);
    const auto refused = [](const AttentionArguments& arguments, const std::string& why) {
        try {
            const AttentionPlan plan(arguments);
            ADD_FAILURE() << "accepted: " << why;
        } catch (const Error& error) {
            // Without a Hopper GPU the plan ends there; the mask's shape is judged first.
            EXPECT_EQ(error.kind(), ErrorKind::kBadInput) << error.what();
            EXPECT_NE(std::string(error.what()).find(why), std::string::npos) << error.what();
        }
    };
    a.mask = &longer;
    refused(a, "is for 256 query rows and 300 keys");
    a.mask = &fits;
    a.causal = true;
    refused(a, "neither with causal");
    a.causal = false;
    a.order = plan::TileOrder::kRotated;
    refused(a, "its own order");
}

}  // namespace
}  // namespace xstage
