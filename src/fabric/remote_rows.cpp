#include "fabric/remote_rows.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "xstage/error.hpp"

namespace xstage::fabric {
namespace {

std::size_t aligned(std::size_t bytes) {
    return (bytes + 255) / 256 * 256;
}

std::vector<plan::RowPart> row_parts(const StitchedOptions& options) {
    const std::size_t world = options.rows.size();
    std::vector<plan::RowPart> parts = options.parts;
    if (parts.empty()) {
        if (options.row_bytes % world != 0)
            throw Error(ErrorKind::kBadInput,
                        fmt::format("rows of {} bytes have no {} equal parts: say who stores which "
                                    "bytes of a row",
                                    options.row_bytes, world));
        const std::size_t part = options.row_bytes / world;
        for (std::size_t r = 0; r < world; ++r) parts.push_back({r * part, part});
    }
    if (parts.size() != world)
        throw Error(ErrorKind::kBadInput,
                    fmt::format("{} parts of a row for {} ranks", parts.size(), world));
    std::vector<plan::RowPart> sorted = parts;
    std::sort(sorted.begin(), sorted.end(),
              [](const auto& a, const auto& b) { return a.offset < b.offset; });
    std::size_t end = 0;
    for (const plan::RowPart& part : sorted) {
        if (part.bytes == 0) continue;
        if (part.offset < end || part.offset > options.row_bytes ||
            part.bytes > options.row_bytes - part.offset)
            throw Error(ErrorKind::kBadInput,
                        fmt::format("the part of {} bytes at {} leaves a row of {} or meets "
                                    "another's",
                                    part.bytes, part.offset, options.row_bytes));
        end = part.offset + part.bytes;
    }
    return parts;
}

}  // namespace

plan::StoredBlocks stored_blocks(const StitchedOptions& options, const StitchedLayout& layout) {
    if (!options.stored)
        return plan::stored_parts(layout.spec.rows, layout.row_stride, row_parts(options));
    for (int s = 0; s < layout.world(); ++s)
        for (int d = 0; d < layout.world(); ++d)
            for (const plan::PutBlock& b : options.stored(s, d)) {
                const std::size_t size = layout.chunk_bytes[d];
                const auto last = static_cast<std::size_t>(std::max<std::int64_t>(b.rows, 1) - 1);
                // By division, so that no product can overflow.
                const bool fits = b.rows >= 0 && b.offset <= size && b.bytes <= size - b.offset &&
                                  (b.stride == 0 || last <= (size - b.offset - b.bytes) / b.stride);
                if (!fits)
                    throw Error(ErrorKind::kBadInput,
                                fmt::format("{} rows of {} bytes every {} from {} are not in the "
                                            "{} bytes of rank {}",
                                            b.rows, b.bytes, b.stride, b.offset, size, d));
            }
    return options.stored;
}

RemoteRows::RemoteRows(Fabric::Impl& group, const StitchedLayout& layout,
                       const plan::StoredBlocks& stored, std::vector<Range>& ranges,
                       const std::vector<std::byte*>& receives, const std::string& call)
    : group_(group),
      layout_(layout),
      plan_(plan::plan_puts(
          {group.nodes, stored, group.options.put_chunk_bytes, group.options.puts})),
      outbox_bytes_(aligned(plan_.outbox_bytes)),
      inbox_bytes_(aligned(plan_.inbox_bytes)),
      signal_bytes_(aligned(plan_.signals * sizeof(std::uint64_t))) {
    const std::size_t buffers = ranges.size();
    boxes_ = HeapMemory(
        group.heap,
        std::max<std::size_t>(256, buffers * (outbox_bytes_ + inbox_bytes_ + signal_bytes_)),
        call + " boxes");
    group.agree(call + " staging", attempt([&] {
                    for (std::size_t b = 0; b < buffers; ++b) {
                        Buffer& buffer = buffers_.emplace_back();
                        stage(ranges[b], buffer);
                        const int number = static_cast<int>(b);
                        buffer.sends = table(true, buffer, number, nullptr);
                        buffer.receives = table(false, buffer, number, receives[b]);
                    }
                }));
}

void RemoteRows::stage(Range& range, Buffer& buffer) const {
    const int world = group_.options.world;
    buffer.staged.resize(world);
    for (int r = 0; r < world; ++r)
        if (!group_.same_node(r) && layout_.chunk_bytes[r] > 0)
            buffer.staged[r] = Range(group_.memory, layout_.chunk_bytes[r]);
    for (const Segment& s : layout_.segments) {
        if (group_.same_node(s.owner)) continue;
        const Memory::Handle handle = group_.memory->allocate(s.bytes, group_.options.rank);
        const Outcome mapped = attempt([&] {
            range.map(s.range_offset, s.bytes, handle);
            buffer.staged[s.owner].map(s.owner_offset, s.bytes, handle);
        });
        group_.memory->release(handle);
        if (!mapped.ok) throw Error(mapped.kind, mapped.reason);
    }
}

PutTable RemoteRows::table(bool sending, const Buffer& buffer, int number,
                           std::byte* receive) const {
    const std::size_t stride = outbox_bytes_ + inbox_bytes_ + signal_bytes_;
    const std::size_t outbox = static_cast<std::size_t>(number) * stride;
    const std::size_t inbox = outbox + outbox_bytes_;
    const std::size_t signals = inbox + inbox_bytes_;
    PutTable table;
    for (const plan::PutMessage& m :
         sending ? plan_.from(group_.options.rank) : plan_.to(group_.options.rank)) {
        if (table.entries == kMaxPutEntries)
            throw Error(ErrorKind::kUnsupported,
                        fmt::format("a rank sends or receives more than {} blocks between nodes",
                                    kMaxPutEntries));
        PutEntry& e = table.entry[table.entries++];
        e.peer = sending ? m.dest : m.source;
        e.rows = m.block.rows;
        e.rows_per_chunk = m.rows_per_chunk;
        e.row_stride = m.block.stride;
        e.part_bytes = m.block.bytes;
        const std::size_t signal = signals + m.first_signal * sizeof(std::uint64_t);
        if (sending) {
            std::byte* const peer = boxes_.target(m.dest);
            e.rows_at = buffer.staged[m.dest].data() + m.block.offset;
            e.packed = boxes_.data() + outbox + m.outbox_offset;
            e.target = peer + inbox + m.inbox_offset;
            e.signals = reinterpret_cast<std::uint64_t*>(peer + signal);
        } else {
            e.rows_at = receive + m.block.offset;
            e.packed = boxes_.data() + inbox + m.inbox_offset;
            e.target = nullptr;
            e.signals = reinterpret_cast<std::uint64_t*>(boxes_.data() + signal);
        }
        table.most_chunks = std::max(table.most_chunks, m.chunks);
    }
    return table;
}

void RemoteRows::send(int buffer, const CallShape& call, const Streams& streams) const {
    const PutTable& table = buffers_[static_cast<std::size_t>(buffer)].sends;
    if (table.entries > 0) group_.engine->send(call, table, streams);
}

void RemoteRows::receive(int buffer, const CallShape& call, const Streams& streams) const {
    const PutTable& table = buffers_[static_cast<std::size_t>(buffer)].receives;
    if (table.entries > 0) group_.engine->receive(call, table, streams);
}

}  // namespace xstage::fabric
