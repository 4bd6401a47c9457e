#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <set>

#include "xstage/error.hpp"
#include "xstage/fabric/layout.hpp"

namespace xstage::fabric {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

LayoutSpec any_padded_spec() {
    LayoutSpec spec;
    const int world = *rc::gen::inRange(1, 6);
    for (int r = 0; r < world; ++r) spec.rows.push_back(*rc::gen::inRange<std::int64_t>(0, 90));
    spec.rows[*rc::gen::inRange(0, world)] += 1;
    // Pages that are not powers of two keep the arithmetic from leaning on them.
    spec.page_bytes = *rc::gen::element<std::size_t>(4096, 6144, 65536, 10000);
    spec.row_bytes = *rc::gen::inRange<std::size_t>(1, 2 * spec.page_bytes);
    spec.order = *rc::gen::element(ChunkOrder::kWhole, ChunkOrder::kPages);
    spec.tile_rows = *rc::gen::inRange<std::int64_t>(1, 70);
    std::vector<int> order;
    for (int r = 0; r < world; ++r) order.insert(order.begin() + *rc::gen::inRange(0, r + 1), r);
    spec.rank_order = order;
    return spec;
}

void check_segments(const StitchedLayout& layout) {
    std::size_t at = 0;
    std::vector<std::size_t> covered(layout.spec.rows.size(), 0);
    for (const Segment& s : layout.segments) {
        RC_ASSERT(s.range_offset == at);
        RC_ASSERT(s.bytes > 0u);
        RC_ASSERT(s.range_offset % layout.spec.page_bytes == 0u);
        RC_ASSERT(s.owner_offset % layout.spec.page_bytes == 0u);
        RC_ASSERT(s.bytes % layout.spec.page_bytes == 0u);
        RC_ASSERT(s.owner_offset == covered[s.owner]);
        covered[s.owner] += s.bytes;
        at += s.bytes;
    }
    RC_ASSERT(at == layout.range_bytes);
    for (std::size_t r = 0; r < covered.size(); ++r) RC_ASSERT(covered[r] == layout.chunk_bytes[r]);
}

// Every row has one place, no two rows share bytes, and the way back finds the row again.
void check_rows(const StitchedLayout& layout) {
    std::set<std::size_t> starts;
    for (int rank = 0; rank < layout.world(); ++rank) {
        for (std::int64_t row = 0; row < layout.spec.rows[rank]; ++row) {
            const std::size_t at = layout.offset_of(rank, row);
            RC_ASSERT(at + layout.spec.row_bytes <= layout.range_bytes);
            RC_ASSERT(starts.insert(at).second);
            RC_ASSERT(layout.owner_at(at) == (RowPlace{rank, row}));
            const std::size_t mine = layout.receive_offset(rank, row);
            RC_ASSERT(mine + layout.spec.row_bytes <= layout.chunk_bytes[rank]);
        }
    }
    std::size_t previous_end = 0;
    for (std::size_t at : starts) {
        RC_ASSERT(at >= previous_end);
        previous_end = at + layout.spec.row_bytes;
    }
}

RC_GTEST_PROP(PaddedLayout, RowsAndSegmentsHold, ()) {
    const LayoutSpec spec = any_padded_spec();
    const StitchedLayout layout = make_layout(spec);
    check_segments(layout);
    check_rows(layout);
    RC_ASSERT(layout.row_stride >= spec.row_bytes);
    if (spec.row_bytes <= spec.page_bytes) {
        RC_ASSERT(spec.page_bytes % layout.row_stride == 0u);
        // No smaller divisor of the page would hold a row.
        for (std::size_t s = spec.row_bytes; s < layout.row_stride; ++s)
            RC_ASSERT(spec.page_bytes % s != 0u);
    } else {
        RC_ASSERT(layout.row_stride % spec.page_bytes == 0u);
        RC_ASSERT(layout.row_stride - spec.row_bytes < spec.page_bytes);
    }
}

RC_GTEST_PROP(PaddedLayout, AxisEndsAtItsLastRowAndTilesCoverIt, ()) {
    const StitchedLayout layout = make_layout(any_padded_spec());
    std::int64_t last = -1;
    std::int64_t rows = 0;
    for (int rank = 0; rank < layout.world(); ++rank) {
        rows += layout.spec.rows[rank];
        for (std::int64_t row = 0; row < layout.spec.rows[rank]; ++row)
            last = std::max<std::int64_t>(
                last, static_cast<std::int64_t>(layout.offset_of(rank, row) / layout.row_stride));
    }
    RC_ASSERT(layout.axis_rows == last + 1);
    const std::int64_t m = layout.spec.tile_rows;
    RC_ASSERT(layout.tiles * m >= layout.axis_rows && (layout.tiles - 1) * m < layout.axis_rows);
    RC_ASSERT(layout.tiles_dense * m >= rows && (layout.tiles_dense - 1) * m < rows);
    RC_ASSERT(layout.tiles_added() >= 0);
    RC_ASSERT(layout.memory_ratio() >= 1.0);
}

RC_GTEST_PROP(BatchedLayout, RowsAndSegmentsHold, ()) {
    LayoutSpec spec;
    spec.kind = LayoutKind::kBatched;
    const int world = *rc::gen::inRange(1, 6);
    spec.rows.assign(world, *rc::gen::inRange<std::int64_t>(1, 90));
    spec.rows.back() = *rc::gen::inRange<std::int64_t>(1, 90);
    spec.page_bytes = *rc::gen::element<std::size_t>(4096, 6144, 65536);
    spec.row_bytes = *rc::gen::inRange<std::size_t>(1, 9000);
    const StitchedLayout layout = make_layout(spec);
    check_segments(layout);
    check_rows(layout);
    RC_ASSERT(layout.row_stride == spec.row_bytes);
    RC_ASSERT(layout.last_apart == (spec.rows.front() != spec.rows.back() && world > 1));
    for (int rank = 0; rank < world; ++rank)
        RC_ASSERT(layout.offset_of(rank, 0) ==
                  static_cast<std::size_t>(rank) * layout.batch_stride);
}

// Flux at 1024^2 on two ranks: 4608 rows of 24 heads x 128 x 2 bytes = 6144 bytes.
TEST(BatchedLayout, FluxOnTwoRanks) {
    LayoutSpec spec{
        LayoutKind::kBatched, ChunkOrder::kWhole, {2304, 2304}, 6144, 2 * kMiB, 128, {}};
    const StitchedLayout layout = make_layout(spec);
    EXPECT_EQ(layout.batch_stride, 14u * kMiB);  // 2304 * 6144 = 13.5 MiB, to the next 2 MiB
    EXPECT_EQ(layout.range_bytes, 28u * kMiB);
    EXPECT_EQ(layout.tiles, 36);
    EXPECT_EQ(layout.tiles_added(), 0);
    EXPECT_NEAR(layout.memory_ratio(), 14.0 / 13.5, 1e-12);
}

// 40 heads x 128 x 2 bytes = 10240; the next divisor of 2 MiB is 16 KiB, 128 rows to a page.
TEST(PaddedLayout, WanOnTwoRanks) {
    LayoutSpec spec{
        LayoutKind::kPadded, ChunkOrder::kWhole, {16380, 16380}, 10240, 2 * kMiB, 128, {}};
    const StitchedLayout layout = make_layout(spec);
    EXPECT_EQ(layout.row_stride, 16384u);
    EXPECT_EQ(layout.chunk_bytes[0], 128u * 2 * kMiB);  // 16380 rows: 127.97 pages
    EXPECT_EQ(layout.offset_of(1, 0), 256u * kMiB);
    EXPECT_EQ(layout.axis_rows, 16384 + 16380);
    EXPECT_EQ(layout.tiles, 256);
    EXPECT_EQ(layout.tiles_added(), 0);
    EXPECT_NEAR(layout.memory_ratio(), 256.0 / 255.9375 * 1.6, 1e-9);
}

TEST(PaddedLayout, PagesTakeTurnsUntilOneRankHasNoneLeft) {
    // Four rows to a page; ranks hold 9, 2 and 5 rows: 3, 1 and 2 pages.
    LayoutSpec spec{LayoutKind::kPadded, ChunkOrder::kPages, {9, 2, 5}, 1000, 4096, 4, {2, 0, 1}};
    const StitchedLayout layout = make_layout(spec);
    // Rank 0's second and third page end up beside each other and make one segment.
    const int owners[] = {2, 0, 1, 2, 0};
    ASSERT_EQ(layout.segments.size(), 5u);
    for (std::size_t i = 0; i < 5; ++i) EXPECT_EQ(layout.segments[i].owner, owners[i]) << i;
    EXPECT_EQ(layout.owner_at(0), (RowPlace{2, 0}));
    EXPECT_EQ(layout.owner_at(2 * 4096), (RowPlace{1, 0}));
    EXPECT_EQ(layout.owner_at(2 * 4096 + 2 * 1024), std::nullopt);
    EXPECT_EQ(layout.axis_rows, 5 * 4 + 1);  // rank 0's third page holds its ninth row
}

TEST(PaddedLayout, OddLengthsOfTheField) {
    // 22177 tokens over two ranks, and the 144935 of a long clip over four.
    for (const auto& rows :
         std::vector<std::vector<std::int64_t>>{{11089, 11088}, {36234, 36234, 36234, 36233}}) {
        LayoutSpec spec{
            LayoutKind::kPadded, ChunkOrder::kWhole, rows, 56 * 128 * 2, 2 * kMiB, 128, {}};
        const StitchedLayout layout = make_layout(spec);
        EXPECT_EQ(layout.row_stride, 16384u);
        EXPECT_LT(layout.tiles_added_share(), 0.03);
        const int last = layout.world() - 1;
        EXPECT_EQ(layout.owner_at(layout.offset_of(last, rows.back() - 1)),
                  (RowPlace{last, rows.back() - 1}));
    }
}

TEST(Layout, RefusesWhatMakesNone) {
    LayoutSpec spec{LayoutKind::kBatched, ChunkOrder::kWhole, {3, 4, 4}, 64, 4096, 128, {}};
    EXPECT_THROW(make_layout(spec), Error);
    spec.rows = {4, 4, 3};
    EXPECT_NO_THROW(make_layout(spec));
    spec.order = ChunkOrder::kPages;
    EXPECT_THROW(make_layout(spec), Error);
    spec = {LayoutKind::kPadded, ChunkOrder::kWhole, {4, 4}, 64, 4096, 128, {0, 0}};
    EXPECT_THROW(make_layout(spec), Error);
    spec = {LayoutKind::kPadded, ChunkOrder::kWhole, {0, 0}, 64, 4096, 128, {}};
    EXPECT_THROW(make_layout(spec), Error);
    spec = {LayoutKind::kPadded, ChunkOrder::kWhole, {-1, 4}, 64, 4096, 128, {}};
    EXPECT_THROW(make_layout(spec), Error);
    spec = {LayoutKind::kPadded, ChunkOrder::kWhole, {1}, 0, 4096, 128, {}};
    EXPECT_THROW(make_layout(spec), Error);
}

}  // namespace
}  // namespace xstage::fabric
