#include "trace/measurement_json.hpp"

#include <fmt/format.h>

#include <set>
#include <stdexcept>
#include <tuple>

#include "trace/enum_names.hpp"
#include "xstage/error.hpp"

namespace xstage::trace {
namespace {

using core::Json;

template <class Q>
Q quantity(const Json& row, const char* key) {
    return Q{row.at(key).get<double>()};
}

template <class Q>
std::optional<Q> maybe(const Json& row, const char* key) {
    if (!row.contains(key) || row[key].is_null()) return std::nullopt;
    return quantity<Q>(row, key);
}

template <class Q>
Json number_or_null(const std::optional<Q>& value) {
    return value ? Json(value->value()) : Json(nullptr);
}

template <class Enum>
Enum choice(const Json& row, const char* key, Enum otherwise) {
    return row.contains(key) ? enum_value<Enum>(row[key].get<std::string>()) : otherwise;
}

Spread spread(const Json& row) {
    return {maybe<Cycles>(row, "p5"), quantity<Cycles>(row, "p50"), maybe<Cycles>(row, "p95"),
            quantity<Cycles>(row, "max")};
}

void put(Json& row, const Spread& cycles) {
    if (cycles.p5) row["p5"] = cycles.p5->value();
    row["p50"] = cycles.p50.value();
    if (cycles.p95) row["p95"] = cycles.p95->value();
    row["max"] = cycles.max.value();
}

Json to_json(const Spread& cycles) {
    Json row = Json::object();
    put(row, cycles);
    return row;
}

BurstRow burst_row(const Json& row) {
    BurstRow out;
    out.mode = enum_value<BurstMode>(row.at("mode").get<std::string>());
    out.path = row.at("path");
    out.target = enum_value<Target>(row.at("target").get<std::string>());
    out.both_directions = row.value("both_directions", false);
    out.producers = row.at("producers");
    out.warps = row.at("warps");
    out.destinations = row.value("destinations", 1);
    out.addresses = choice(row, "addresses", Addresses::kFresh);
    out.beside = row.value("beside", "nothing");
    out.bytes_per_producer = quantity<Bytes>(row, "bytes_per_producer");
    out.bursts = row.at("bursts");
    out.gap = quantity<Cycles>(row, "gap_cycles");
    out.gap_from = choice(row, "gap_from", GapFrom::kProducer);
    out.clock = maybe<GigaHertz>(row, "clock_ghz");
    out.samples = row.at("samples");
    out.marked = row.value("marked", false);
    for (const Json& issue : row.at("issue_cycles")) {
        out.issue.push_back({issue.at("burst"), spread(issue)});
    }
    out.total = spread(row.at("total_cycles"));
    if (row.contains("fence_cycles") && !row["fence_cycles"].is_null()) {
        out.fence = spread(row["fence_cycles"]);
    }
    out.elapsed = maybe<Nanoseconds>(row, "elapsed_ns");
    if (row.contains("posted_cycles")) out.posted = spread(row["posted_cycles"]);
    if (row.contains("noise")) out.noise = row["noise"].get<double>();
    if (row.contains("beside_rate")) out.beside_rate = row["beside_rate"].get<double>();
    out.marked_samples = row.value("marked_samples", 0);
    return out;
}

Json to_json(const BurstRow& row) {
    Json issue = Json::array();
    for (const BurstIssue& burst : row.issue) {
        Json item = {{"burst", burst.burst}};
        put(item, burst.cycles);
        issue.push_back(std::move(item));
    }
    Json out = {{"mode", enum_name(row.mode)},
                {"path", row.path},
                {"target", enum_name(row.target)},
                {"both_directions", row.both_directions},
                {"producers", row.producers},
                {"warps", row.warps},
                {"destinations", row.destinations},
                {"addresses", enum_name(row.addresses)},
                {"beside", row.beside},
                {"bytes_per_producer", row.bytes_per_producer.value()},
                {"bursts", row.bursts},
                {"gap_cycles", row.gap.value()},
                {"gap_from", enum_name(row.gap_from)},
                {"clock_ghz", number_or_null(row.clock)},
                {"samples", row.samples},
                {"marked", row.marked},
                {"issue_cycles", std::move(issue)},
                {"total_cycles", to_json(row.total)},
                {"fence_cycles", row.fence ? to_json(*row.fence) : Json(nullptr)},
                {"elapsed_ns", number_or_null(row.elapsed)}};
    if (row.posted) out["posted_cycles"] = to_json(*row.posted);
    if (row.noise) out["noise"] = *row.noise;
    if (row.beside_rate) out["beside_rate"] = *row.beside_rate;
    if (row.marked_samples > 0) out["marked_samples"] = row.marked_samples;
    return out;
}

VisibleRow visible_row(const Json& row) {
    return {row.at("path"),
            row.at("producers"),
            row.at("warps"),
            quantity<Bytes>(row, "bytes_per_producer"),
            enum_value<Fence>(row.at("fence").get<std::string>()),
            enum_value<Addresses>(row.at("addresses").get<std::string>()),
            quantity<Cycles>(row, "issue_cycles"),
            quantity<Cycles>(row, "fence_cycles"),
            quantity<Cycles>(row, "echo_cycles"),
            quantity<Nanoseconds>(row, "echo_ns"),
            row.at("stale_words")};
}

Json to_json(const VisibleRow& row) {
    return {{"path", row.path},
            {"producers", row.producers},
            {"warps", row.warps},
            {"bytes_per_producer", row.bytes_per_producer.value()},
            {"fence", enum_name(row.fence)},
            {"addresses", enum_name(row.addresses)},
            {"issue_cycles", row.issue.value()},
            {"fence_cycles", row.fenced.value()},
            {"echo_cycles", row.echo.value()},
            {"echo_ns", row.echo_ns.value()},
            {"stale_words", row.stale_words}};
}

SmRow sm_row(const Json& row) {
    SmRow out{row.at("name"),
              row.at("path"),
              row.at("warps"),
              quantity<Bytes>(row, "bytes_per_producer"),
              {}};
    for (const Json& cycles : row.at("issue_cycles")) {
        out.issue.push_back(cycles.is_null() ? std::nullopt
                                             : std::optional(Cycles{cycles.get<double>()}));
    }
    return out;
}

Json to_json(const SmRow& row) {
    Json issue = Json::array();
    for (const auto& cycles : row.issue) issue.push_back(number_or_null(cycles));
    return {{"name", row.name},
            {"path", row.path},
            {"warps", row.warps},
            {"bytes_per_producer", row.bytes_per_producer.value()},
            {"issue_cycles", std::move(issue)}};
}

IssueCurve issue_curve(const Json& row, const std::string& where) {
    IssueCurve out{row.at("path"),
                   enum_value<Target>(row.at("target").get<std::string>()),
                   row.at("producers"),
                   row.at("warps"),
                   quantity<Bytes>(row, "bytes_per_instruction"),
                   {}};
    const Json& instructions = row.at("instructions");
    const Json& cycles = row.at("cycles");
    if (instructions.size() != cycles.size()) {
        throw Error(ErrorKind::kBadInput,
                    fmt::format("{}/cycles: expected {} values, one per instruction, found {}",
                                where, instructions.size(), cycles.size()));
    }
    for (std::size_t i = 0; i < cycles.size(); ++i) {
        const int instruction = instructions[i];
        if (i > 0 && instruction <= out.points.back().first) {
            throw Error(
                ErrorKind::kBadInput,
                fmt::format("{}/instructions/{}: expected strictly rising indices, found {} "
                            "after {}",
                            where, i, instruction, out.points.back().first));
        }
        out.points.emplace_back(instruction, Cycles{cycles[i].get<double>()});
    }
    return out;
}

Json to_json(const IssueCurve& curve) {
    Json instructions = Json::array(), cycles = Json::array();
    for (const auto& [instruction, time] : curve.points) {
        instructions.push_back(instruction);
        cycles.push_back(time.value());
    }
    return {{"path", curve.path},
            {"target", enum_name(curve.target)},
            {"producers", curve.producers},
            {"warps", curve.warps},
            {"bytes_per_instruction", curve.bytes_per_instruction.value()},
            {"instructions", std::move(instructions)},
            {"cycles", std::move(cycles)}};
}

Json to_json(const RateRow& row) {
    Json out = {{"engine", row.engine},
                {"direction", row.direction},
                {"bytes", row.bytes.value()},
                {"gbps", row.rate.value()},
                {"counting", row.counting}};
    if (row.counted) out["counted_bytes"] = row.counted->value();
    return out;
}

Json to_json(const LitmusRow& row) {
    return {{"path", row.path},     {"fence", row.fence},
            {"load", row.load},     {"formally_required", row.formally_required},
            {"trials", row.trials}, {"stale", row.stale}};
}

Json to_json(const UserBurst& row) {
    return {{"producer", row.producer},          {"destination", row.destination},
            {"bytes", row.bytes.value()},        {"start_ns", row.start.value()},
            {"issue_cycles", row.issue.value()}, {"clock_ghz", number_or_null(row.clock)}};
}

auto configuration(const BurstRow& row) {
    return std::tuple(row.mode, row.path, row.target, row.both_directions, row.producers, row.warps,
                      row.destinations, row.addresses, row.beside, row.bytes_per_producer.value(),
                      row.bursts, row.gap.value(), row.gap_from);
}

/// What a schema cannot say of burst rows.
void check(const BurstRow& row, const Provenance& provenance, const std::string& where) {
    const auto fail = [&](const std::string& what) {
        throw Error(ErrorKind::kBadInput, where + what);
    };
    if (row.producers > provenance.gpus.front().sms) {
        fail(fmt::format("/producers: expected at most the GPU's {} SMs, found {}",
                         provenance.gpus.front().sms, row.producers));
    }
    for (std::size_t i = 0; i < row.issue.size(); ++i) {
        const BurstIssue& issue = row.issue[i];
        if (issue.burst >= row.bursts || (i > 0 && issue.burst <= row.issue[i - 1].burst)) {
            fail(fmt::format("/issue_cycles/{}/burst: expected rising indices below {}, found {}",
                             i, row.bursts, issue.burst));
        }
        if (issue.cycles.max < issue.cycles.p50) {
            fail(fmt::format("/issue_cycles/{}/max: expected at least the median {}, found {}", i,
                             issue.cycles.p50.value(), issue.cycles.max.value()));
        }
    }
}

template <class Row, class Make>
std::vector<Row> rows(const Json& document, const char* key, Make make) {
    std::vector<Row> out;
    if (document.contains(key)) {
        for (const Json& row : document[key]) out.push_back(make(row));
    }
    return out;
}

template <class Row>
Json rows_to_json(const std::vector<Row>& rows) {
    Json out = Json::array();
    for (const Row& row : rows) out.push_back(to_json(row));
    return out;
}

}  // namespace

Provenance provenance_from_json(const Json& document) {
    Provenance out;
    out.node = document.at("node");
    for (const Json& gpu : document.at("gpus")) {
        out.gpus.push_back({gpu.at("name"), gpu.at("uuid"), gpu.at("sms"),
                            maybe<GigaHertz>(gpu, "max_clock_ghz")});
    }
    out.driver = document.at("driver");
    out.cuda = document.value("cuda", "");
    out.topology = document.value("topology", "");
    out.tool_version = document.at("tool_version");
    out.git_commit = document.at("git_commit");
    out.argv = document.at("argv").get<std::vector<std::string>>();
    out.date = document.at("date");
    out.loopback = document.at("loopback");
    out.line_rate = maybe<BytesPerNanosecond>(document, "line_rate_gbps");
    out.warnings = document.at("warnings").get<std::vector<std::string>>();
    return out;
}

Json to_json(const Provenance& provenance) {
    Json gpus = Json::array();
    for (const Gpu& gpu : provenance.gpus) {
        gpus.push_back({{"name", gpu.name},
                        {"uuid", gpu.uuid},
                        {"sms", gpu.sms},
                        {"max_clock_ghz", number_or_null(gpu.max_clock)}});
    }
    return {{"node", provenance.node},
            {"gpus", std::move(gpus)},
            {"driver", provenance.driver},
            {"cuda", provenance.cuda},
            {"topology", provenance.topology},
            {"tool_version", provenance.tool_version},
            {"git_commit", provenance.git_commit},
            {"argv", provenance.argv},
            {"date", provenance.date},
            {"loopback", provenance.loopback},
            {"line_rate_gbps", number_or_null(provenance.line_rate)},
            {"warnings", provenance.warnings}};
}

Measurements measurements_from_json(const Json& document, const std::string& file) {
    core::validate(document, "measurements", file);
    Measurements out;
    out.provenance = provenance_from_json(document.at("provenance"));

    std::set<decltype(configuration(std::declval<BurstRow>()))> seen;
    for (std::size_t i = 0; i < document.at("bursts").size(); ++i) {
        const std::string where = fmt::format("{}: /bursts/{}", file, i);
        out.bursts.push_back(burst_row(document["bursts"][i]));
        check(out.bursts.back(), out.provenance, where);
        if (!seen.insert(configuration(out.bursts.back())).second) {
            throw Error(ErrorKind::kBadInput,
                        where + ": expected each configuration once, found a duplicate");
        }
    }
    out.visible = rows<VisibleRow>(document, "visible", visible_row);
    out.per_sm = rows<SmRow>(document, "per_sm", sm_row);
    std::size_t curve = 0;
    out.curves = rows<IssueCurve>(document, "curves", [&](const Json& row) {
        return issue_curve(row, fmt::format("{}: /curves/{}", file, curve++));
    });
    out.rates = rows<RateRow>(document, "rates", [](const Json& row) {
        return RateRow{row.at("engine"),
                       row.at("direction"),
                       quantity<Bytes>(row, "bytes"),
                       quantity<BytesPerNanosecond>(row, "gbps"),
                       row.at("counting"),
                       maybe<Bytes>(row, "counted_bytes")};
    });
    out.litmus = rows<LitmusRow>(document, "litmus", [](const Json& row) {
        return LitmusRow{row.at("path"),   row.at("fence"),
                         row.at("load"),   row.at("formally_required"),
                         row.at("trials"), row.at("stale")};
    });
    out.user_bursts = rows<UserBurst>(document, "user_bursts", [](const Json& row) {
        return UserBurst{row.at("producer"),
                         row.at("destination"),
                         quantity<Bytes>(row, "bytes"),
                         quantity<Nanoseconds>(row, "start_ns"),
                         quantity<Cycles>(row, "issue_cycles"),
                         maybe<GigaHertz>(row, "clock_ghz")};
    });
    if (document.contains("flag_round_trip")) {
        const Json& trip = document["flag_round_trip"];
        out.flag_round_trip = {quantity<Cycles>(trip, "cycles"), quantity<Nanoseconds>(trip, "ns")};
    }
    if (document.contains("sm_groups")) {
        out.sm_groups = document["sm_groups"].get<std::vector<std::vector<int>>>();
    }
    return out;
}

Json to_json(const Measurements& measurements) {
    Json out = {{"schema_version", 1},
                {"kind", "xstage.measurements"},
                {"provenance", to_json(measurements.provenance)},
                {"bursts", rows_to_json(measurements.bursts)},
                {"visible", rows_to_json(measurements.visible)},
                {"per_sm", rows_to_json(measurements.per_sm)},
                {"curves", rows_to_json(measurements.curves)},
                {"rates", rows_to_json(measurements.rates)},
                {"litmus", rows_to_json(measurements.litmus)},
                {"user_bursts", rows_to_json(measurements.user_bursts)}};
    if (const auto& trip = measurements.flag_round_trip) {
        out["flag_round_trip"] = {{"cycles", trip->cycles.value()}, {"ns", trip->ns.value()}};
    }
    if (!measurements.sm_groups.empty()) out["sm_groups"] = measurements.sm_groups;
    return out;
}

}  // namespace xstage::trace
