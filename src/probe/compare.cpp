#include "probe/compare.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "trace/enum_names.hpp"

namespace xstage::probe {
namespace {

using trace::enum_name;

std::string key(const BurstRow& row) {
    return fmt::format("{} {} {}{} {}x{} warps {} B x{} gap {} from {}{}{}{}", enum_name(row.mode),
                       row.path, enum_name(row.target), row.both_directions ? " both" : "",
                       row.producers, row.warps, row.bytes_per_producer.value(), row.bursts,
                       row.gap.value(), enum_name(row.gap_from),
                       row.destinations > 1 ? fmt::format(" to {}", row.destinations) : "",
                       row.addresses == Addresses::kRewritten ? " rewritten" : "",
                       row.beside == "nothing" ? "" : " beside " + row.beside);
}

std::map<std::string, const BurstRow*> by_key(const Measurements& document) {
    std::map<std::string, const BurstRow*> rows;
    for (const BurstRow& row : document.bursts) {
        if (!row.marked) rows[key(row)] = &row;
    }
    return rows;
}

void caution(std::vector<std::string>& out, const char* what, const std::string& base,
             const std::string& now) {
    if (base != now) out.push_back(fmt::format("{}: '{}' in the base, '{}' now", what, base, now));
}

}  // namespace

Comparison compare(const Measurements& base, const Measurements& now) {
    Comparison out;
    const Provenance &b = base.provenance, &n = now.provenance;
    caution(out.cautions, "driver", b.driver, n.driver);
    if (!b.gpus.empty() && !n.gpus.empty()) {
        caution(out.cautions, "GPU", b.gpus.front().name, n.gpus.front().name);
    }
    if (b.loopback != n.loopback) out.cautions.push_back("one of the two is a loopback run");

    const auto base_rows = by_key(base);
    const auto now_rows = by_key(now);
    for (const auto& [name, row] : base_rows) {
        const auto found = now_rows.find(name);
        if (found == now_rows.end()) {
            ++out.only_in_base;
            continue;
        }
        const BurstRow& other = *found->second;
        if (row->total.max.value() <= 0) continue;
        const double noise = std::hypot(row->noise.value_or(0), other.noise.value_or(0));
        out.rows.push_back({name, row->total.max.value(), other.total.max.value(),
                            std::max(kLeastTolerance, 3 * noise)});
    }
    out.only_now = static_cast<int>(now_rows.size() - out.rows.size());
    return out;
}

double Comparison::share_slower() const {
    if (rows.empty()) return 0;
    const auto slower =
        std::count_if(rows.begin(), rows.end(), [](const RowChange& row) { return row.slower(); });
    return static_cast<double>(slower) / static_cast<double>(rows.size());
}

bool Comparison::regressed() const {
    return share_slower() > kMostSlower;
}

}  // namespace xstage::probe
