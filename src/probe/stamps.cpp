#include "xstage/stamps.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "core/file.hpp"
#include "core/json.hpp"
#include "probe/clock_judge.hpp"
#include "trace/measurement_json.hpp"
#include "xstage/error.hpp"
#include "xstage/version.hpp"

namespace xstage {
namespace {

bool written(const Stamp& stamp) {
    return stamp.issue_end_ns != 0;
}

struct Span {
    std::uint64_t first_cycles = ~std::uint64_t{0}, last_cycles = 0;
    std::uint64_t first_ns = ~std::uint64_t{0}, last_ns = 0;
};

}  // namespace

std::vector<UserBurst> read_stamps(std::span<const Stamp> slots) {
    std::uint64_t origin = ~std::uint64_t{0};
    // A producer stays on one SM, so its first and last stamp give that SM's clock over the kernel.
    std::map<std::uint32_t, Span> spans;
    for (std::size_t i = 0; i < slots.size(); ++i) {
        const Stamp& s = slots[i];
        if (!written(s)) continue;
        if (s.issue_end_cycles < s.issue_start_cycles || s.issue_end_ns < s.issue_start_ns) {
            throw Error(ErrorKind::kBadInput,
                        fmt::format("stamp slot {}: the burst ends before it starts", i));
        }
        origin = std::min(origin, s.issue_start_ns);
        Span& span = spans[s.producer];
        span.first_cycles = std::min(span.first_cycles, s.issue_start_cycles);
        span.last_cycles = std::max(span.last_cycles, s.issue_end_cycles);
        span.first_ns = std::min(span.first_ns, s.issue_start_ns);
        span.last_ns = std::max(span.last_ns, s.issue_end_ns);
    }
    const auto clock = [](std::uint64_t cycles, std::uint64_t ns) {
        return probe::ClockJudge::clock(Cycles{static_cast<double>(cycles)},
                                        Nanoseconds{static_cast<double>(ns)});
    };
    std::vector<UserBurst> bursts;
    for (const Stamp& s : slots) {
        if (!written(s)) continue;
        const std::uint64_t cycles = s.issue_end_cycles - s.issue_start_cycles;
        UserBurst burst;
        burst.producer = static_cast<int>(s.producer);
        burst.destination = static_cast<int>(s.destination);
        burst.bytes = Bytes{static_cast<double>(s.bytes)};
        burst.start = Nanoseconds{static_cast<double>(s.issue_start_ns - origin)};
        burst.issue = Cycles{static_cast<double>(cycles)};
        burst.clock = clock(cycles, s.issue_end_ns - s.issue_start_ns);
        if (!burst.clock) {
            const Span& span = spans[s.producer];
            burst.clock = clock(span.last_cycles - span.first_cycles, span.last_ns - span.first_ns);
        }
        bursts.push_back(burst);
    }
    std::stable_sort(bursts.begin(), bursts.end(),
                     [](const UserBurst& a, const UserBurst& b) { return a.start < b.start; });
    return bursts;
}

Measurements stamp_document(std::span<const Stamp> slots, std::uint32_t dropped,
                            Provenance provenance) {
    Measurements document;
    document.provenance = std::move(provenance);
    if (document.provenance.tool_version.empty()) document.provenance.tool_version = kVersion;
    if (dropped > 0) {
        document.provenance.warnings.push_back(
            fmt::format("{} burst(s) found no room in the stamp buffer and are missing", dropped));
    }
    document.user_bursts = read_stamps(slots);
    return document;
}

void write_stamp_document(const std::string& path, std::span<const Stamp> slots,
                          std::uint32_t dropped, Provenance provenance) {
    const Measurements document = stamp_document(slots, dropped, std::move(provenance));
    core::write_file_atomic(path, core::dump_json(trace::to_json(document)));
}

}  // namespace xstage
