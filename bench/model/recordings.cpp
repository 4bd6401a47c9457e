// How well a profile of one recording predicts another: model_recordings OUTPUT [COMMIT]

#include <fmt/format.h>

#include <map>
#include <string>
#include <vector>

#include "core/file.hpp"
#include "core/json.hpp"
#include "model/evaluate.hpp"
#include "xstage/documents.hpp"
#include "xstage/error.hpp"
#include "xstage/model.hpp"

namespace {

using namespace xstage;
using namespace xstage::model;

Measurements recording(const std::string& name) {
    Measurements m = read_measurements(XSTAGE_SOURCE_DIR "/data/nodes/h200x2/" + name);
    std::erase_if(m.bursts, [](const BurstRow& r) { return r.path != "st16" && r.path != "bulk"; });
    return m;
}

void append(core::Json& rows, const std::string& fitted, const std::string& predicted,
            const std::vector<ErrorLine>& lines) {
    for (const ErrorLine& line : lines) {
        if (!line.path.empty() || line.producers != 0) continue;
        rows.push_back({{"fitted", fitted},
                        {"predicted", predicted},
                        {"what", line.what},
                        {"statistic", line.statistic},
                        {"n", line.rows},
                        {"median", line.median},
                        {"p90", line.p90}});
    }
}

core::Json measure() {
    const std::string first = "first-recording.json", probe = "probe.json";
    const std::string cards = "probe-other-cards.json";
    core::Json rows = core::Json::array();
    for (const auto& [fitted, others] : std::map<std::string, std::vector<std::string>>{
             {probe, {cards, first}}, {first, {probe}}}) {
        FitOptions options;
        options.resamples = 10;  // intervals are not asked for
        options.held_out = fitted == probe;
        const Profile profile = fit(recording(fitted), options);
        if (options.held_out)
            append(rows, fitted, "a third of its rows at a time", profile.held_out);
        std::vector<std::string> names;
        for (const StorePath& path : profile.paths) names.push_back(path.name);
        for (const std::string& other : others) {
            auto paths = names;
            const auto cases = make_cases(recording(other), profile.clock, paths);
            append(rows, fitted, other, summarise(profile, errors_on(profile, cases), {}));
        }
    }
    return rows;
}

}  // namespace

int main(int argc, char** argv) {
    if (argc < 2) return fmt::print(stderr, "usage: model_recordings OUTPUT [COMMIT]\n"), 2;
    try {
        const core::Json document = {{"schema_version", 1},
                                     {"kind", "model_recordings"},
                                     {"git_commit", argc > 2 ? argv[2] : ""},
                                     {"rows", measure()}};
        core::write_file_atomic(argv[1], core::dump_json(document) + "\n");
    } catch (const Error& error) {
        fmt::print(stderr, "{}\n", error.what());
        return error.exit_code();
    }
    return 0;
}
