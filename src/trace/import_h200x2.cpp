#include "trace/import_h200x2.hpp"

#include <fmt/format.h>

#include <filesystem>
#include <map>
#include <tuple>

#include "core/csv.hpp"
#include "core/file.hpp"
#include "xstage/version.hpp"

namespace xstage::trace {
namespace {

constexpr int kSms = 132;
constexpr double kBytesPerWarpInstruction = 32 * 16;  // every lane stores 16 bytes

core::CsvTable table(const std::string& path) {
    return core::CsvTable::parse(core::read_file(path), path);
}

Target target(const core::CsvTable& csv, std::size_t row) {
    const std::string_view text = csv.text(row, "target");
    if (text != "remote" && text != "local") csv.fail(row, "target", "remote or local");
    return text == "remote" ? Target::kRemote : Target::kLocal;
}

std::string path(const core::CsvTable& csv, std::size_t row) {
    const std::string_view text = csv.text(row, "path");
    if (text == "st16") return "st16";
    if (text == "bulk4k") return "bulk";  // bulk copies of 4 KiB, the only size recorded
    csv.fail(row, "path", "st16 or bulk4k");
}

Spread spread(const core::CsvTable& csv, std::size_t row, const char* p50, const char* max) {
    return {std::nullopt, Cycles{csv.number(row, p50)}, std::nullopt, Cycles{csv.number(row, max)}};
}

BurstRow burst_row(const core::CsvTable& csv, std::size_t i) {
    static const std::map<std::string_view, std::pair<BurstMode, bool>> kModes = {
        {"isolated", {BurstMode::kIsolated, false}}, {"gap2", {BurstMode::kGap2, false}},
        {"periodic", {BurstMode::kPeriodic, false}}, {"bidir", {BurstMode::kIsolated, true}},
        {"bidirper", {BurstMode::kPeriodic, true}},
    };
    const auto mode = kModes.find(csv.text(i, "mode"));
    if (mode == kModes.end()) {
        csv.fail(i, "mode", "isolated, gap2, periodic, bidir or bidirper");
    }
    BurstRow row;
    std::tie(row.mode, row.both_directions) = mode->second;
    row.path = path(csv, i);
    row.target = target(csv, i);
    row.producers = csv.integer(i, "ctas", 1);  // one CTA per SM
    row.warps = csv.integer(i, "warps", 1);
    row.bytes_per_producer = Bytes{csv.number(i, "bytes_per_cta_burst", 1)};
    row.bursts = csv.integer(i, "bursts", 1);
    row.gap = Cycles{csv.number(i, "gap_cyc")};
    // Warps did not wait for one another between bursts; a bulk path has one thread to wait for.
    if (row.path == "st16") row.gap_from = GapFrom::kWarp;
    // 0 says that the sample was too short to tell its clock.
    if (const double ghz = csv.number(i, "ghz"); ghz > 0) row.clock = GigaHertz{ghz};
    row.samples = 6;
    row.issue.push_back({0, spread(csv, i, "first_cyc", "first_max")});
    if (row.bursts > 1) {
        row.issue.push_back({row.bursts - 1, spread(csv, i, "last_cyc", "last_max")});
    }
    row.total = spread(csv, i, "total_cyc", "total_max");
    row.fence = spread(csv, i, "fence_cyc", "fence_max");
    if (const double ns = csv.number(i, "ns"); ns > 0) row.elapsed = Nanoseconds{ns};
    return row;
}

VisibleRow visible_row(const core::CsvTable& csv, std::size_t i) {
    VisibleRow row;
    row.path = "st16";
    row.producers = csv.integer(i, "ctas", 1);
    row.warps = csv.integer(i, "warps", 1);
    row.bytes_per_producer = Bytes{kBytesPerWarpInstruction * row.warps * csv.integer(i, "n", 1)};
    row.fence = csv.integer(i, "fence") == 0 ? Fence::kOneThread : Fence::kAllThreads;
    row.addresses = csv.integer(i, "fresh") == 1 ? Addresses::kFresh : Addresses::kRewritten;
    row.issue = Cycles{csv.number(i, "issue_cyc")};
    row.fenced = Cycles{csv.number(i, "fence_cyc")};
    row.echo = Cycles{csv.number(i, "echo_cyc")};
    row.echo_ns = Nanoseconds{csv.number(i, "echo_ns", 1)};
    row.stale_words = csv.integer(i, "stale_words");
    return row;
}

/// Which SM ids stored in a case of per_sm.csv: the others ran an empty loop, and their few hundred
/// cycles are no issue time.
bool stored(std::string_view name, int sm) {
    if (name == "even") return sm % 2 == 0;
    if (name == "block0") return sm < 33;
    if (name == "block99") return sm >= 99;
    return true;
}

SmRow sm_row(const core::CsvTable& csv, std::size_t i) {
    const std::string_view name = csv.text(i, "case");
    SmRow row{std::string(name), "st16", 8, Bytes{8 * 256 * kBytesPerWarpInstruction}, {}};
    for (int sm = 0; sm < kSms; ++sm) {
        const Cycles cycles{csv.number(i, fmt::format("sm{}", sm))};
        row.issue.push_back(stored(name, sm) ? std::optional(cycles) : std::nullopt);
    }
    return row;
}

std::vector<IssueCurve> issue_curves(const core::CsvTable& csv) {
    std::vector<IssueCurve> curves;
    std::map<std::tuple<Target, int, int, int>, std::size_t> index;
    for (std::size_t i = 0; i < csv.rows(); ++i) {
        const auto key = std::tuple(target(csv, i), csv.integer(i, "ctas", 1),
                                    csv.integer(i, "warps", 1), csv.integer(i, "n", 1));
        const auto [at, fresh] = index.try_emplace(key, curves.size());
        if (fresh) {
            curves.push_back({"st16",
                              std::get<0>(key),
                              std::get<1>(key),
                              std::get<2>(key),
                              Bytes{32.0 * csv.integer(i, "width", 1)},
                              {}});
        }
        auto& points = curves[at->second].points;
        const int instruction = csv.integer(i, "i");
        if (!points.empty() && instruction <= points.back().first) {
            csv.fail(i, "i", "instructions of one curve in rising order");
        }
        points.emplace_back(instruction, Cycles{csv.number(i, "cyc")});
    }
    return curves;
}

Provenance provenance(const std::string& directory) {
    Provenance out;
    out.node = "h200x2";
    out.gpus.assign(2, {"NVIDIA H200", "", kSms, GigaHertz{1.98}});
    out.driver = "580.159";
    out.cuda = "13.0";
    out.topology = "2 GPUs of one host, 18 NVLinks of 26.6 GB/s raw per direction";
    out.tool_version = kVersion;
    out.argv = {"xstage", "import", std::filesystem::path(directory).filename().string()};
    out.date = "2026-11-30";
    out.line_rate = BytesPerNanosecond{450};
    out.warnings = {
        "UUIDs and the commit of the recording program were not kept.",
        "Medians of 6 launches after 2 discarded; of a sequence the first and the last burst only.",
        "Median and slowest SM differ: some SMs, always the same ids, get 1.4 times the share of "
        "the "
        "others, so the median SM can seem to store faster than the link.",
        "In periodic rows the last burst runs when the favoured SMs are done: compare the mean, "
        "total / "
        "bursts - gap.",
        "Stores to remote lines that nobody has read since can be merged before the link; a rate "
        "above the "
        "line rate is an accounting error.",
        "Issue curves (curves) come from an earlier recording that kept no clock; 1.98 GHz fits "
        "its rates.",
    };
    return out;
}

}  // namespace

Measurements import_h200x2(const std::string& directory) {
    namespace fs = std::filesystem;
    const std::string base = (fs::path(directory) / "").parent_path().string();
    Measurements out;
    out.provenance = provenance(base);
    const auto rows_of = [&](const char* name, auto&& each) {
        const core::CsvTable csv = table(base + "/" + name);
        for (std::size_t i = 0; i < csv.rows(); ++i) each(csv, i);
    };
    rows_of("stores.csv",
            [&](const auto& csv, auto i) { out.bursts.push_back(burst_row(csv, i)); });
    const auto present = [&](const char* name) { return fs::exists(base + "/" + name); };
    if (present("visible.csv")) {
        rows_of("visible.csv",
                [&](const auto& csv, auto i) { out.visible.push_back(visible_row(csv, i)); });
    }
    if (present("per_sm.csv")) {
        rows_of("per_sm.csv",
                [&](const auto& csv, auto i) { out.per_sm.push_back(sm_row(csv, i)); });
    }
    if (present("stamps.csv")) out.curves = issue_curves(table(base + "/stamps.csv"));
    return out;
}

}  // namespace xstage::trace
