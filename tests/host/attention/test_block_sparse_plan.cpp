// Block masks: what is refused before any device is asked for, by the C++ and by the C interface.

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "xstage/attention.hpp"
#include "xstage/error.hpp"
#include "xstage/sparse/mask.hpp"
#include "xstage/xstage_sparse.h"

namespace xstage {
namespace {

xstage_block_sparse_options valid(const std::vector<std::uint32_t>& mask) {
    static int memory;  // never read
    xstage_block_sparse_options o{};
    o.struct_size = sizeof o;
    o.dtype = XSTAGE_BF16;
    o.head_dim = 128;
    o.batch = 2;
    o.heads_q = 4;
    o.heads_kv = 2;
    o.rows_q = o.rows_kv = 256;
    o.q = o.k = o.v = o.out = {&memory, 256 * 512, 512, 128};
    o.mask = mask.data();
    o.mask_batch = 1;
    o.mask_heads = 1;
    return o;
}

TEST(BlockSparseC, MisuseIsNamed) {
    const std::vector<std::uint32_t> mask(64, 1);
    const std::vector<std::uint32_t> behind(64, 4);  // key block 2 of 2
    const std::vector<std::pair<std::string, std::function<void(xstage_block_sparse_options&)>>>
        cases = {
            {"dtype", [](auto& o) { o.dtype = XSTAGE_F32; }},
            {"head_dim", [](auto& o) { o.head_dim = 96; }},
            {"struct_size", [](auto& o) { o.struct_size -= 1; }},
            {"mask must not be NULL", [](auto& o) { o.mask = nullptr; }},
            {"has 3 heads, not 1, 2 or 4", [](auto& o) { o.mask_heads = 3; }},
            {"has 3 batches, not 1 or 2", [](auto& o) { o.mask_batch = 3; }},
            {"at least 1", [](auto& o) { o.mask_heads = 0; }},
            {"behind the last key block", [&](auto& o) { o.mask = behind.data(); }},
        };
    for (const auto& [message, spoil] : cases) {
        xstage_block_sparse_options o = valid(mask);
        spoil(o);
        xstage_block_sparse* plan = nullptr;
        EXPECT_EQ(xstage_block_sparse_create(&o, &plan), XSTAGE_BAD_INPUT) << message;
        EXPECT_NE(std::string(xstage_last_error()).find(message), std::string::npos)
            << xstage_last_error();
        EXPECT_EQ(plan, nullptr);
    }
    EXPECT_EQ(xstage_block_sparse_create(nullptr, nullptr), XSTAGE_BAD_INPUT);
    EXPECT_EQ(xstage_block_sparse_attention(nullptr, nullptr), XSTAGE_BAD_INPUT);
}

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
