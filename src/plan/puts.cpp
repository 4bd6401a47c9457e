#include "xstage/plan/puts.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "xstage/error.hpp"

namespace xstage::plan {
namespace {

// A message starts on a line of its own, and 16-byte copies stay aligned.
constexpr std::size_t kAlignment = 128;

std::size_t aligned(std::size_t bytes) {
    return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

void check(const PutCosts& costs) {
    if (!(costs.rate > 0) || !(costs.copy_rate > 0) || !(costs.put_ns >= 0))
        throw Error(ErrorKind::kBadInput,
                    fmt::format("a network of {} bytes/ns with copies of {} bytes/ns and {} ns a "
                                "put is none",
                                costs.rate, costs.copy_rate, costs.put_ns));
}

}  // namespace

double put_message_ns(std::size_t bytes, std::size_t chunk_bytes, const PutCosts& costs) {
    check(costs);
    if (bytes == 0) return 0;
    const std::size_t chunk = std::clamp<std::size_t>(chunk_bytes, 1, bytes);
    const std::size_t whole = bytes / chunk, rest = bytes % chunk;
    const auto step = [&](std::size_t size) {
        return size == 0 ? 0 : std::max(costs.put_ns, static_cast<double>(size) / costs.rate);
    };
    const std::size_t last = rest == 0 ? chunk : rest;
    return static_cast<double>(chunk + last) / costs.copy_rate +
           static_cast<double>(whole) * step(chunk) + step(rest);
}

std::size_t put_chunk_bytes(std::size_t bytes, const PutCosts& costs) {
    check(costs);
    const double hidden = costs.put_ns * costs.rate;
    const double balanced =
        std::sqrt(static_cast<double>(bytes) * costs.put_ns * costs.copy_rate / 2);
    const double chunk = std::ceil(std::min(hidden, balanced));
    return std::clamp<std::size_t>(static_cast<std::size_t>(std::max(chunk, 1.0)), 1,
                                   std::max<std::size_t>(bytes, 1));
}

std::vector<PutMessage> PutPlan::from(int rank) const {
    std::vector<PutMessage> found;
    std::copy_if(messages.begin(), messages.end(), std::back_inserter(found),
                 [&](const PutMessage& m) { return m.source == rank; });
    return found;
}

std::vector<PutMessage> PutPlan::to(int rank) const {
    std::vector<PutMessage> found;
    std::copy_if(messages.begin(), messages.end(), std::back_inserter(found),
                 [&](const PutMessage& m) { return m.dest == rank; });
    return found;
}

StoredBlocks stored_parts(std::vector<std::int64_t> rows, std::size_t row_stride,
                          std::vector<RowPart> parts) {
    return [rows = std::move(rows), row_stride, parts = std::move(parts)](int source, int dest) {
        const RowPart part = parts.at(static_cast<std::size_t>(source));
        return std::vector<PutBlock>{
            {part.offset, row_stride, rows.at(static_cast<std::size_t>(dest)), part.bytes}};
    };
}

PutPlan plan_puts(const PutShape& shape) {
    const std::size_t world = shape.node.size();
    PutPlan plan;
    std::vector<std::size_t> inbox(world), signals(world);
    for (std::size_t s = 0; s < world; ++s) {
        std::size_t outbox = 0;
        // Everybody starts with another destination, so that no port is met by all at once.
        for (std::size_t step = 1; step < world; ++step) {
            const std::size_t d = (s + step) % world;
            if (shape.node[s] == shape.node[d]) continue;
            for (const PutBlock& block : shape.stored(static_cast<int>(s), static_cast<int>(d))) {
                if (block.rows == 0 || block.bytes == 0) continue;
                const std::size_t bytes = static_cast<std::size_t>(block.rows) * block.bytes;
                const std::size_t chunk = shape.chunk_bytes != 0
                                              ? shape.chunk_bytes
                                              : put_chunk_bytes(bytes, shape.costs);
                PutMessage m;
                m.source = static_cast<int>(s);
                m.dest = static_cast<int>(d);
                m.block = block;
                m.rows_per_chunk = std::clamp<std::int64_t>(
                    static_cast<std::int64_t>(chunk / block.bytes), 1, block.rows);
                m.chunks = (block.rows + m.rows_per_chunk - 1) / m.rows_per_chunk;
                m.outbox_offset = outbox;
                m.inbox_offset = inbox[d];
                m.first_signal = signals[d];
                outbox += aligned(bytes);
                inbox[d] += aligned(bytes);
                signals[d] += static_cast<std::size_t>(m.chunks);
                plan.messages.push_back(m);
            }
        }
        plan.outbox_bytes = std::max(plan.outbox_bytes, outbox);
    }
    for (std::size_t r = 0; r < world; ++r) {
        plan.inbox_bytes = std::max(plan.inbox_bytes, inbox[r]);
        plan.signals = std::max(plan.signals, signals[r]);
    }
    return plan;
}

}  // namespace xstage::plan
