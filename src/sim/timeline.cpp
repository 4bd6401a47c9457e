#include "sim/timeline.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "trace/svg.hpp"

namespace xstage::sim {

std::string activity_name(Activity activity) {
    switch (activity) {
        case Activity::kCompute:
            return "compute";
        case Activity::kIssue:
            return "issue";
        case Activity::kStall:
            return "stall";
        case Activity::kDrain:
            return "drain";
    }
    return "";
}

std::vector<TimelineRow> timeline(const Result& result, int rank, int first, int count) {
    std::vector<TimelineRow> rows;
    std::vector<std::pair<double, double>> draining;
    std::map<int, double> stored_until;
    std::set<int> overlapping;
    for (const Span& span : result.spans) {
        if (span.rank != rank) continue;
        if (span.bytes > 0) draining.emplace_back(span.issue_ns, span.drained_ns);
        const auto last = stored_until.find(span.producer);
        if (last != stored_until.end() && span.start_ns < last->second - 1e-6)
            overlapping.insert(span.producer);
        stored_until[span.producer] = span.issued_ns;
    }
    for (const Span& span : result.spans) {
        if (span.rank != rank || span.producer < first || span.producer - first >= count) continue;
        const std::string sm = fmt::format("GPU {} SM {}", rank, span.producer);
        const std::string stores = overlapping.count(span.producer) > 0 ? sm + " stores" : sm;
        const auto add = [&](const std::string& track, double from, double to, Activity kind) {
            if (to > from) rows.push_back({rank, span.producer, track, from, to, kind, span.role});
        };
        add(sm, span.start_ns, span.issue_ns, Activity::kCompute);
        add(stores, span.issue_ns, span.issued_ns, Activity::kIssue);
        add(stores, span.issued_ns - span.stall_ns, span.issued_ns, Activity::kStall);
    }
    // The link's track is busy while any burst is being issued or drained.
    std::sort(draining.begin(), draining.end());
    const std::string link = fmt::format("GPU {} link", rank);
    for (std::size_t i = 0; i < draining.size();) {
        auto [from, to] = draining[i];
        for (++i; i < draining.size() && draining[i].first <= to; ++i)
            to = std::max(to, draining[i].second);
        rows.push_back({rank, -1, link, from, to, Activity::kDrain, Role::kBurst});
    }
    return rows;
}

trace::ChromeTrace chrome_trace(const Result& result) {
    trace::ChromeTrace out;
    for (std::size_t r = 0; r < result.ranks.size(); ++r) {
        const int rank = static_cast<int>(r);
        out.process(rank, fmt::format("GPU {}", rank));
        std::map<std::string, int> tracks;
        for (const TimelineRow& row : timeline(result, rank)) {
            const bool stores =
                row.track.size() > 6 && row.track.compare(row.track.size() - 6, 6, "stores") == 0;
            const int tid = row.producer < 0 ? 0 : 1 + 2 * row.producer + (stores ? 1 : 0);
            if (tracks.emplace(row.track, tid).second) out.track(rank, tid, row.track);
            const std::string name = row.kind == Activity::kCompute
                                         ? std::string(role_name(row.role))
                                         : activity_name(row.kind);
            out.slice(rank, tid, name, row.start_ns, row.end_ns);
        }
        for (const Occupancy& sample : result.ranks[r].occupancy) {
            out.counter(rank, "bytes in flight", sample.time_ns, sample.bytes);
        }
    }
    return out;
}

std::string compare_svg(const std::string& title, const std::string& first_name,
                        const std::vector<TimelineRow>& first, const std::string& second_name,
                        const std::vector<TimelineRow>& second) {
    trace::Chart chart(title, {"time (us)", trace::Scale::kLinear}, {"SM", trace::Scale::kLinear});
    // Heat stands for the kind: a stall is what the eye must find.
    const auto heat = [](Activity kind) {
        switch (kind) {
            case Activity::kCompute:
                return 0.25;
            case Activity::kIssue:
                return 0.6;
            case Activity::kDrain:
                return 0.45;
            case Activity::kStall:
                return 1.0;
        }
        return 0.0;
    };
    double base = 0;
    for (const bool upper : {false, true}) {
        const std::vector<TimelineRow>& rows = upper ? first : second;
        std::map<std::string, int> line;
        for (const TimelineRow& row : rows) line.emplace(row.track, static_cast<int>(line.size()));
        for (const TimelineRow& row : rows) {
            const double y = base + line[row.track];
            chart.cell(row.start_ns / 1e3, row.end_ns / 1e3, y + 0.1, y + 0.9, heat(row.kind),
                       fmt::format("{}, {}: {} {:.1f} to {:.1f} us",
                                   upper ? first_name : second_name, row.track,
                                   activity_name(row.kind), row.start_ns / 1e3, row.end_ns / 1e3));
        }
        base += static_cast<double>(line.size()) + 1;
    }
    chart.y_range(0, base);
    return chart.svg();
}

}  // namespace xstage::sim
