#include "xstage/fabric/layout.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "xstage/error.hpp"

namespace xstage::fabric {
namespace {

std::size_t round_up(std::size_t value, std::size_t unit) {
    return (value + unit - 1) / unit * unit;
}

std::int64_t ceil_div(std::int64_t a, std::int64_t b) {
    return (a + b - 1) / b;
}

[[noreturn]] void bad(const std::string& message) {
    throw Error(ErrorKind::kBadInput, message);
}

std::vector<int> checked_order(const LayoutSpec& spec) {
    const int world = static_cast<int>(spec.rows.size());
    std::vector<int> order = spec.rank_order;
    if (order.empty()) {
        order.resize(world);
        std::iota(order.begin(), order.end(), 0);
    }
    std::vector<int> sorted = order;
    std::sort(sorted.begin(), sorted.end());
    for (int i = 0; i < static_cast<int>(sorted.size()); ++i)
        if (sorted[i] != i || static_cast<int>(sorted.size()) != world)
            bad(fmt::format("rank_order must name each of the {} ranks once", world));
    return order;
}

void check_spec(const LayoutSpec& spec) {
    if (spec.rows.empty()) bad("a stitched tensor needs at least one rank");
    if (spec.row_bytes == 0 || spec.page_bytes == 0) bad("row_bytes and page_bytes must not be 0");
    if (spec.tile_rows <= 0) bad("tile_rows must be positive");
    std::int64_t total = 0;
    for (std::int64_t rows : spec.rows) {
        if (rows < 0) bad("a rank cannot hold a negative number of rows");
        // 2^48 bytes is more than any address space has; below it no product here overflows.
        if (rows > (std::int64_t{1} << 48) / static_cast<std::int64_t>(spec.row_bytes))
            bad(fmt::format("{} rows of {} bytes do not fit an address space", rows,
                            spec.row_bytes));
        total += rows;
    }
    if (total == 0) bad("a stitched tensor needs at least one row");
}

void append(std::vector<Segment>& segments, Segment next) {
    if (next.bytes == 0) return;
    if (!segments.empty()) {
        Segment& last = segments.back();
        if (last.owner == next.owner && last.owner_offset + last.bytes == next.owner_offset) {
            last.bytes += next.bytes;
            return;
        }
    }
    segments.push_back(next);
}

void place_batched(StitchedLayout& layout, const std::vector<int>& order) {
    const LayoutSpec& spec = layout.spec;
    if (spec.order == ChunkOrder::kPages)
        bad("page by page needs rows that divide a page: use the padded layout");
    // "Last" is the last along the range, which is where a kernel's batch loop can stop early.
    const std::int64_t rows = spec.rows[order.front()];
    for (std::size_t i = 0; i + 1 < order.size(); ++i)
        if (spec.rows[order[i]] != rows)
            bad(fmt::format(
                "batched needs equal rows on all ranks but the last: rank {} has {}, rank {} "
                "has {}; use the padded layout",
                order.front(), rows, order[i], spec.rows[order[i]]));
    const std::int64_t last = spec.rows[order.back()];
    if (rows == 0 || last == 0) bad("batched needs at least one row on every rank");
    layout.last_apart = last != rows;
    layout.row_stride = spec.row_bytes;
    layout.batch_stride =
        round_up(static_cast<std::size_t>(rows) * spec.row_bytes, spec.page_bytes);
    layout.chunk_bytes.assign(order.size(), layout.batch_stride);
    layout.chunk_bytes[order.back()] =
        round_up(static_cast<std::size_t>(last) * spec.row_bytes, spec.page_bytes);
    std::size_t at = 0;
    for (int rank : order) {
        // Two ranks never merge into one segment: each is an allocation of its own.
        append(layout.segments, {rank, 0, at, layout.chunk_bytes[rank]});
        at += layout.chunk_bytes[rank];
        layout.tiles += ceil_div(spec.rows[rank], spec.tile_rows);
    }
    layout.range_bytes = at;
    layout.axis_rows = std::accumulate(spec.rows.begin(), spec.rows.end(), std::int64_t{0});
}

void place_padded(StitchedLayout& layout, const std::vector<int>& order) {
    const LayoutSpec& spec = layout.spec;
    layout.row_stride = padded_row_stride(spec.row_bytes, spec.page_bytes);
    // A unit holds whole rows and is whole pages: one page, or one row when rows are longer.
    const std::size_t unit = std::max(layout.row_stride, spec.page_bytes);
    const auto rows_per_unit = static_cast<std::int64_t>(unit / layout.row_stride);
    layout.chunk_bytes.resize(order.size());
    for (std::size_t r = 0; r < order.size(); ++r)
        layout.chunk_bytes[r] =
            static_cast<std::size_t>(ceil_div(spec.rows[r], rows_per_unit)) * unit;

    std::size_t at = 0;
    std::size_t data_end = 0;
    auto place = [&](int rank, std::size_t offset, std::size_t bytes) {
        if (bytes == 0) return;
        const auto first = static_cast<std::int64_t>(offset / layout.row_stride);
        const std::int64_t in_run = static_cast<std::int64_t>(bytes / layout.row_stride);
        const std::int64_t rows_here = std::min(in_run, spec.rows[rank] - first);
        append(layout.segments, {rank, offset, at, bytes});
        data_end = at + static_cast<std::size_t>(rows_here) * layout.row_stride;
        at += bytes;
    };
    if (spec.order == ChunkOrder::kWhole) {
        for (int rank : order) place(rank, 0, layout.chunk_bytes[rank]);
    } else {
        const std::size_t longest =
            *std::max_element(layout.chunk_bytes.begin(), layout.chunk_bytes.end());
        for (std::size_t offset = 0; offset < longest; offset += unit)
            for (int rank : order)
                if (offset < layout.chunk_bytes[rank]) place(rank, offset, unit);
    }
    layout.range_bytes = at;
    layout.axis_rows = static_cast<std::int64_t>(data_end / layout.row_stride);
    layout.tiles = ceil_div(layout.axis_rows, spec.tile_rows);
}

const Segment* segment_of_owner(const StitchedLayout& layout, int rank, std::size_t offset) {
    for (const Segment& s : layout.segments)
        if (s.owner == rank && offset >= s.owner_offset && offset < s.owner_offset + s.bytes)
            return &s;
    return nullptr;
}

}  // namespace

std::size_t padded_row_stride(std::size_t row_bytes, std::size_t page_bytes) {
    if (row_bytes == 0 || page_bytes == 0) bad("row_bytes and page_bytes must not be 0");
    if (row_bytes > page_bytes) return round_up(row_bytes, page_bytes);
    // Rows per page, from the most that fit downwards; 1 always divides.
    std::size_t per_page = page_bytes / row_bytes;
    while (page_bytes % per_page != 0) --per_page;
    return page_bytes / per_page;
}

StitchedLayout make_layout(const LayoutSpec& spec) {
    check_spec(spec);
    StitchedLayout layout;
    layout.spec = spec;
    layout.spec.rank_order = checked_order(spec);
    const std::vector<int>& order = layout.spec.rank_order;
    if (spec.kind == LayoutKind::kBatched) {
        place_batched(layout, order);
    } else {
        place_padded(layout, order);
    }
    const std::int64_t total = std::accumulate(spec.rows.begin(), spec.rows.end(), std::int64_t{0});
    layout.tiles_dense = ceil_div(total, spec.tile_rows);
    return layout;
}

double StitchedLayout::tiles_added_share() const {
    return static_cast<double>(tiles_added()) / static_cast<double>(tiles_dense);
}

double StitchedLayout::memory_ratio() const {
    double memory = 0;
    double data = 0;
    for (std::size_t r = 0; r < chunk_bytes.size(); ++r) {
        memory += static_cast<double>(chunk_bytes[r]);
        data += static_cast<double>(spec.rows[r]) * static_cast<double>(spec.row_bytes);
    }
    return memory / data;
}

std::size_t StitchedLayout::receive_offset(int rank, std::int64_t row) const {
    if (rank < 0 || rank >= world() || row < 0 || row >= spec.rows[rank])
        bad(fmt::format("row {} of rank {} is outside the tensor", row, rank));
    return static_cast<std::size_t>(row) * row_stride;
}

std::size_t StitchedLayout::offset_of(int rank, std::int64_t row) const {
    const std::size_t offset = receive_offset(rank, row);
    const Segment* s = segment_of_owner(*this, rank, offset);
    return s->range_offset + (offset - s->owner_offset);
}

std::optional<RowPlace> StitchedLayout::owner_at(std::size_t range_offset) const {
    for (const Segment& s : segments) {
        if (range_offset < s.range_offset || range_offset >= s.range_offset + s.bytes) continue;
        const std::size_t offset = s.owner_offset + (range_offset - s.range_offset);
        if (offset % row_stride != 0) return std::nullopt;
        const auto row = static_cast<std::int64_t>(offset / row_stride);
        if (row >= spec.rows[s.owner]) return std::nullopt;
        return RowPlace{s.owner, row};
    }
    return std::nullopt;
}

}  // namespace xstage::fabric
