#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <vector>

#include "probe/compare.hpp"
#include "probe/probe.hpp"
#include "probe/statistics.hpp"
#include "trace/enum_names.hpp"

namespace xstage::probe {
namespace {

/// Neighbours in the order of time that are further apart than this belong to different groups.
constexpr double kShareGap = 0.08;

struct Knee {
    double bytes = 0;       ///< the largest burst that all producers issue as fast as locally
    double next_bytes = 0;  ///< the smallest larger one that they do not; 0: none was measured
};

/// By number of producers, for isolated `path` bursts with the middle number of warps.
std::map<int, Knee> knees(const Measurements& document, const std::string& path) {
    std::map<std::pair<int, double>, double> local;
    std::map<std::pair<int, double>, double> remote;
    for (const BurstRow& row : document.bursts) {
        if (row.mode != BurstMode::kIsolated || row.path != path || row.both_directions ||
            row.beside != "nothing" || row.addresses != Addresses::kFresh || row.warps != 4) {
            continue;
        }
        auto& rows = row.target == Target::kLocal ? local : remote;
        rows[{row.producers, row.bytes_per_producer.value()}] = row.total.max.value();
    }
    std::map<int, Knee> out;
    for (const auto& [at, cycles] : remote) {
        const auto control = local.find(at);
        if (control == local.end()) continue;
        Knee& knee = out[at.first];
        if (knee.next_bytes == 0 && cycles <= 1.3 * control->second) {
            knee.bytes = at.second;
        } else if (knee.next_bytes == 0) {
            knee.next_bytes = at.second;
        }
    }
    return out;
}

/// Which SMs are done early when all store at once: arbitration shares a path by group first.
void print_shares(const SmRow& row, std::FILE* out) {
    const auto groups = speed_groups(row.issue, kShareGap);
    if (groups.size() < 2) {
        fmt::print(out, "all SMs store at about the same pace\n");
        return;
    }
    for (const auto& group : groups) {
        std::vector<double> times;
        for (const int id : group)
            times.push_back(row.issue[static_cast<std::size_t>(id)]->value());
        fmt::print(out, "{:>4} SMs done after {:.0f} cycles (median)", group.size(), median(times));
        if (group.size() <= 40) fmt::print(out, ": ids {}", fmt::join(group, " "));
        fmt::print(out, "\n");
    }
}

}  // namespace

void print_summary(const Measurements& document, std::FILE* out) {
    const Provenance& p = document.provenance;
    fmt::print(out, "node {}: {}, driver {}, {}{}\n", p.node,
               p.gpus.empty() ? "?" : p.gpus.front().name, p.driver, p.topology,
               p.loopback ? "; LOOPBACK: no link was measured" : "");
    for (const std::string path : {"st16", "bulk"}) {
        for (const auto& [sms, knee] : knees(document, path)) {
            if (knee.bytes == 0) continue;
            fmt::print(out, "{:>5} {:>4} SMs: bursts up to {:.0f} KiB per SM are issued as locally",
                       path, sms, knee.bytes / 1024);
            if (knee.next_bytes > 0)
                fmt::print(out, ", {:.0f} KiB are not", knee.next_bytes / 1024);
            fmt::print(out, "\n");
        }
    }
    if (document.flag_round_trip) {
        fmt::print(out, "bare flag and answer: {:.2f} us\n",
                   document.flag_round_trip->ns.value() / 1000);
    }
    for (const VisibleRow& row : document.visible) {
        if (row.fence != Fence::kOneThread || row.addresses != Addresses::kFresh) continue;
        if (p.gpus.empty() || row.producers != p.gpus.front().sms || row.path != "st16") continue;
        fmt::print(out, "visible: {:>5.1f} KiB x {} SMs answered after {:.2f} us, {} stale words\n",
                   row.bytes_per_producer.value() / 1024, row.producers, row.echo_ns.value() / 1000,
                   row.stale_words);
    }
    for (const SmRow& row : document.per_sm) {
        if (row.name == "all") print_shares(row, out);
    }
    for (const RateRow& row : document.rates) {
        fmt::print(out, "rate: {} ({}) {:.1f} GB/s", row.engine, row.direction, row.rate.value());
        if (row.counted) {
            fmt::print(out, ", link counters saw {:.3f} of the payload",
                       row.counted->value() / row.bytes.value());
        }
        fmt::print(out, "\n");
    }
    for (const LitmusRow& row : document.litmus) {
        fmt::print(out, "ordering: {:>4} {:<34} {:<6} {} stale in {:.2e} trials{}\n", row.path,
                   row.fence, row.load, row.stale, static_cast<double>(row.trials),
                   row.formally_required ? ""
                                         : (row.stale > 0 ? "; formally broken"
                                                          : "; formally broken, not seen here"));
    }
}

int print_comparison(const Measurements& base, const Measurements& now, std::FILE* out) {
    Comparison comparison = compare(base, now);
    for (const std::string& caution : comparison.cautions) {
        fmt::print(out, "compare: caution, {}\n", caution);
    }
    std::sort(comparison.rows.begin(), comparison.rows.end(),
              [](const RowChange& a, const RowChange& b) { return a.ratio() > b.ratio(); });
    int slower = 0, faster = 0;
    for (const RowChange& row : comparison.rows) {
        slower += row.slower();
        faster += row.faster();
        if (row.slower() && slower <= 10) {
            fmt::print(out, "compare: slower {:.2f}x (noise allows {:.2f}x): {}\n", row.ratio(),
                       1 + row.tolerance, row.configuration);
        }
    }
    fmt::print(
        out,
        "compare: {} rows in both, {} slower, {} faster, {} only in the base, {} only now: {}\n",
        comparison.rows.size(), slower, faster, comparison.only_in_base, comparison.only_now,
        comparison.regressed() ? "SLOWER" : "no regression");
    return comparison.regressed() ? 1 : 0;
}

}  // namespace xstage::probe
