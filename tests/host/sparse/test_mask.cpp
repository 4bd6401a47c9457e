#include <gtest/gtest.h>

#include "expect_error.hpp"
#include "xstage/error.hpp"
#include "xstage/sparse/mask.hpp"

namespace xstage::sparse {
namespace {

TEST(BlockMask, BitsLieWhereTheKernelReadsThem) {
    BlockMask mask(2, 3, 300, 128 * 70);  // 3 query blocks, 70 key blocks: 3 words
    ASSERT_EQ(mask.words(), 3);
    mask.set(1, 2, 1, 0);
    mask.set(1, 2, 1, 33);
    mask.set(1, 2, 1, 69);
    const std::size_t row = ((1 * 3 + 2) * 3 + 1) * 3;
    for (std::size_t i = 0; i < mask.bits().size(); ++i) {
        const std::uint32_t want = i == row       ? 1U
                                   : i == row + 1 ? 1U << 1
                                   : i == row + 2 ? 1U << 5
                                                  : 0U;
        EXPECT_EQ(mask.bits()[i], want) << i;
    }
    mask.set(1, 2, 1, 33, false);
    EXPECT_FALSE(mask.test(1, 2, 1, 33));
    EXPECT_TRUE(mask.test(1, 2, 1, 69));
}

TEST(BlockMask, AFullMaskHasNoBitBehindTheLastBlock) {
    const BlockMask mask(1, 1, 129, 257, true);  // 2 x 3 blocks
    EXPECT_EQ(mask.bits(), (std::vector<std::uint32_t>{7, 7}));
    EXPECT_EQ(mask.keys(0, 0, 0), 257);
    EXPECT_DOUBLE_EQ(mask.density(), 1.0);
    const BlockMask whole_word(1, 1, 1, 128 * 32, true);
    EXPECT_EQ(whole_word.bits(), (std::vector<std::uint32_t>{0xffffffffU}));
}

TEST(BlockMask, DensityCountsPairsNotBlocks) {
    BlockMask mask(1, 1, 129, 257);
    mask.set(0, 0, 1, 2);  // one row, one key
    EXPECT_DOUBLE_EQ(mask.density(), 1.0 / (129 * 257));
    mask.set(0, 0, 0, 0);
    EXPECT_DOUBLE_EQ(mask.density(), (1.0 + 128 * 128) / (129 * 257));
    EXPECT_EQ(mask.keys(0, 0, 1), 1);
}

TEST(BlockMask, TextRowsAndColumnsAreKeptWhole) {
    BlockMask mask(1, 2, 1000, 1000);
    mask.keep_dense(0, 77);      // block 0
    mask.keep_dense(900, 2000);  // block 7, clipped
    for (std::int64_t u = 0; u < 8; ++u) {
        for (std::int64_t v = 0; v < 8; ++v) {
            const bool text = u == 0 || u == 7 || v == 0 || v == 7;
            EXPECT_EQ(mask.test(0, 1, u, v), text) << u << ' ' << v;
        }
    }
    BlockMask untouched(1, 1, 1000, 1000);
    untouched.keep_dense(500, 500);
    untouched.keep_dense(1000, 1100);
    EXPECT_EQ(untouched.density(), 0.0);
}

TEST(BlockMask, NestingIsBitwise) {
    BlockMask small(1, 1, 512, 512);
    small.set(0, 0, 1, 3);
    BlockMask large = small;
    large.set(0, 0, 2, 2);
    EXPECT_TRUE(small.within(large));
    EXPECT_FALSE(large.within(small));
    EXPECT_THROW((void)small.within(BlockMask(1, 1, 512, 640)), Error);
}

TEST(BlockMask, PackedWordsComeBackOrAreRefused) {
    BlockMask mask(2, 1, 300, 5000);
    mask.set(1, 0, 2, 39);
    mask.set(0, 0, 0, 5);
    EXPECT_EQ(mask_from_bits(2, 1, 300, 5000, mask.bits()), mask);
    std::vector<std::uint32_t> bits = mask.bits();
    bits[1] |= 1U << 8;  // block 40 of 40
    EXPECT_THROW((void)mask_from_bits(2, 1, 300, 5000, bits), Error);
    bits = mask.bits();
    bits.pop_back();
    EXPECT_THROW((void)mask_from_bits(2, 1, 300, 5000, bits), Error);
    EXPECT_THROW(BlockMask(0, 1, 1, 1), Error);
    EXPECT_THROW(BlockMask(1, 1, std::int64_t{1} << 40, 1), Error);
}

}  // namespace
}  // namespace xstage::sparse
