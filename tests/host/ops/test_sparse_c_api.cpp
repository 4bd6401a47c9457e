// The C ABI of block masks, masked attention and threshold maps, in host memory.

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "xstage/sparse/west.hpp"
#include "xstage/ulysses.hpp"
#include "xstage/xstage_sparse.h"

namespace xstage {
namespace {

class Mask {
  public:
    Mask(int batches, int heads, std::int64_t rows_q, std::int64_t rows_kv,
         const std::uint32_t* bits = nullptr) {
        EXPECT_EQ(xstage_block_mask_create(batches, heads, rows_q, rows_kv, bits, &mask_),
                  XSTAGE_OK)
            << xstage_last_error();
    }
    ~Mask() { xstage_block_mask_destroy(mask_); }
    Mask(const Mask&) = delete;
    Mask& operator=(const Mask&) = delete;
    operator const xstage_block_mask*() const { return mask_; }

  private:
    xstage_block_mask* mask_ = nullptr;
};

std::vector<float> normal(std::size_t count, unsigned seed) {
    std::mt19937 random(seed);
    std::normal_distribution<float> distribution;
    std::vector<float> values(count);
    for (float& x : values) x = distribution(random);
    return values;
}

xstage_block_sparse_options options_of(const xstage_block_mask* mask) {
    static float memory;  // never read
    xstage_block_sparse_options o{};
    o.struct_size = sizeof o;
    o.dtype = XSTAGE_BF16;
    o.head_dim = 128;
    o.batch = 2;
    o.heads_q = 4;
    o.heads_kv = 2;
    o.rows_q = o.rows_kv = 256;
    o.tensors.q = o.tensors.k = o.tensors.v = o.tensors.out = {&memory, 256 * 512, 512, 128};
    o.mask = mask;
    return o;
}

TEST(BlockSparseC, MisuseIsNamed) {
    const Mask mask(1, 1, 256, 256);
    const Mask heads(1, 3, 256, 256);
    const Mask batches(3, 1, 256, 256);
    const Mask longer(1, 1, 256, 300);
    const std::vector<std::pair<std::string, std::function<void(xstage_block_sparse_options&)>>>
        cases = {
            {"dtype", [](auto& o) { o.dtype = XSTAGE_U8; }},
            {"head_dim 0", [](auto& o) { o.head_dim = 0; }},
            {"over 3 key heads", [](auto& o) { o.heads_kv = 3; }},
            {"struct_size", [](auto& o) { o.struct_size = sizeof o + 8; }},
            {"mask must not be NULL", [](auto& o) { o.mask = nullptr; }},
            {"has 3 heads, not 1, 2 or 4", [&](auto& o) { o.mask = heads; }},
            {"has 3 batches, not 1 or 2", [&](auto& o) { o.mask = batches; }},
            {"for 256 query rows and 300 keys, not 256 and 256", [&](auto& o) { o.mask = longer; }},
            {"scale", [](auto& o) { o.scale = -1; }},
            {"must not be NULL", [](auto& o) { o.tensors.v.data = nullptr; }},
        };
    for (const auto& [message, spoil] : cases) {
        xstage_block_sparse_options o = options_of(mask);
        o.on_host = 1;
        spoil(o);
        xstage_block_sparse* plan = nullptr;
        EXPECT_EQ(xstage_block_sparse_create(&o, &plan), XSTAGE_BAD_INPUT) << message;
        EXPECT_NE(std::string(xstage_last_error()).find(message), std::string::npos)
            << xstage_last_error();
        EXPECT_EQ(plan, nullptr);
    }
    EXPECT_EQ(xstage_block_sparse_create(nullptr, nullptr), XSTAGE_BAD_INPUT);
    EXPECT_EQ(xstage_block_sparse_attention(nullptr, nullptr, nullptr), XSTAGE_BAD_INPUT);
    const std::vector<std::uint32_t> behind(2, 4);  // key block 2 of 2
    xstage_block_mask* made = nullptr;
    EXPECT_EQ(xstage_block_mask_create(1, 1, 256, 256, behind.data(), &made), XSTAGE_BAD_INPUT);
    EXPECT_NE(std::string(xstage_last_error()).find("behind the last"), std::string::npos);
    EXPECT_EQ(xstage_block_mask_create(1, 0, 256, 256, nullptr, &made), XSTAGE_BAD_INPUT);
    EXPECT_EQ(made, nullptr);
}

TEST(BlockSparseC, AMaskWithoutAHoleHasTheBitsOfDenseAttentionOnTheHost) {
    constexpr std::int64_t kRows = 150;
    constexpr int kHeads = 2;
    constexpr int kDim = 8;
    constexpr std::size_t kCount = kRows * kHeads * kDim;
    std::vector<float> q = normal(kCount, 1), k = normal(kCount, 2), v = normal(kCount, 3);
    std::vector<float> dense(kCount), masked(kCount);
    ulysses::AttentionCall call;
    call.rows_q = call.rows_kv = kRows;
    call.heads_q = call.heads_kv = kHeads;
    call.head_dim = kDim;
    call.dtype = fabric::DType::kF32;
    call.scale = 1 / std::sqrt(static_cast<float>(kDim));
    const auto view = [](std::vector<float>& x) { return ulysses::packed(x.data(), kRows, 2, 8); };
    call.q = view(q);
    call.k = view(k);
    call.v = view(v);
    call.out = view(dense);
    ulysses::reference_attention(call);

    const Mask mask(1, 1, kRows, kRows);
    xstage_block_sparse_options o = options_of(mask);
    o.on_host = 1;
    o.dtype = XSTAGE_F32;
    o.batch = 1;
    o.heads_q = o.heads_kv = kHeads;
    o.head_dim = kDim;
    o.rows_q = o.rows_kv = kRows;
    const auto c_view = [](std::vector<float>& x) { return xstage_view{x.data(), 0, 16, 8}; };
    o.tensors = {c_view(q), c_view(k), c_view(v), c_view(masked), nullptr};
    xstage_block_sparse* plan = nullptr;
    ASSERT_EQ(xstage_block_sparse_create(&o, &plan), XSTAGE_OK) << xstage_last_error();
    ASSERT_EQ(xstage_block_sparse_attention(plan, nullptr, nullptr), XSTAGE_OK);
    EXPECT_EQ(masked, dense);
    xstage_block_sparse_destroy(plan);
}

TEST(SparseMapsC, AnIncompletePromptAndOtherMisuseAreNamed) {
    const xstage_token_layout layout{0, 2, 8, 16};  // 2 blocks a side
    xstage_sparse_maps* maps = nullptr;
    ASSERT_EQ(xstage_sparse_maps_create(&layout, 1, 2, 1, &maps), XSTAGE_OK);
    const auto expect_refused = [](int status, const std::string& what) {
        EXPECT_EQ(status, XSTAGE_BAD_INPUT) << what;
        EXPECT_NE(std::string(xstage_last_error()).find(what), std::string::npos)
            << xstage_last_error();
    };
    const std::vector<double> mass{0.75, 0.25, 0.5, 0.5};
    const std::vector<float> row_mass(16 * 2, 0.5F);
    xstage_block_mask* mask = nullptr;
    expect_refused(xstage_sparse_maps_mask(maps, 0, nullptr, 0.5, nullptr, &mask), "no prompt");
    expect_refused(xstage_sparse_maps_add(maps, 0, 2, mass.data(), nullptr),
                   "no layer 0 and step 2");
    ASSERT_EQ(xstage_sparse_maps_add(maps, 0, 0, mass.data(), row_mass.data()), XSTAGE_OK);
    expect_refused(xstage_sparse_maps_end_prompt(maps), "nothing was added for layer 0 step 1");
    ASSERT_EQ(xstage_sparse_maps_add(maps, 0, 1, mass.data(), nullptr), XSTAGE_OK);
    expect_refused(xstage_sparse_maps_end_prompt(maps), "no rows were given for layer 0 step 1");
    ASSERT_EQ(xstage_sparse_maps_add(maps, 0, 1, mass.data(), row_mass.data()), XSTAGE_OK);
    ASSERT_EQ(xstage_sparse_maps_end_prompt(maps), XSTAGE_OK);
    std::vector<float> top_p{0};
    expect_refused(xstage_sparse_maps_budgets(maps, 0, 0, top_p.data()), "not been tuned");
    expect_refused(xstage_sparse_maps_tune(maps, 0.1, 0.75, 1, 1), "least possible");

    // Block (0, 1) has a quarter of its row and needs 0.75; the two of row 1 have equal shares.
    std::vector<std::uint16_t> halves(4);
    ASSERT_EQ(xstage_sparse_maps_remainders(maps, 0, halves.data()), XSTAGE_OK);
    EXPECT_EQ(halves, (std::vector<std::uint16_t>{0x3c00, 0x3400, 0x3c00, 0x3c00}));
    top_p[0] = 0.7F;
    ASSERT_EQ(xstage_sparse_maps_mask(maps, 0, top_p.data(), 0, nullptr, &mask), XSTAGE_OK);
    std::vector<std::uint32_t> bits(2);
    ASSERT_EQ(xstage_block_mask_bits(mask, bits.data()), XSTAGE_OK);
    EXPECT_EQ(bits, (std::vector<std::uint32_t>{1, 3}));
    xstage_block_mask_destroy(mask);
    xstage_sparse_maps_destroy(maps);
}

}  // namespace
}  // namespace xstage
