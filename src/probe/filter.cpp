#include "probe/filter.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>

#include "probe/axis.hpp"
#include "trace/enum_names.hpp"
#include "xstage/error.hpp"

namespace xstage::probe {
namespace {

constexpr std::array kTextKeys{"section", "mode",     "path",   "target", "beside", "addresses",
                               "both",    "gap_from", "engine", "fence",  "load"};
constexpr std::array kNumberKeys{"sms", "warps", "bytes", "gap", "destinations"};

bool known(std::string_view key, const auto& keys) {
    return std::find(keys.begin(), keys.end(), key) != keys.end();
}

struct Attributes {
    std::map<std::string, std::string> text;
    std::map<std::string, std::int64_t> number;

    void operator()(const StoreConfig& c) {
        constexpr std::array kBeside{"nothing", "mma", "memory", "shared"};
        text["mode"] = trace::enum_name(c.mode);
        text["path"] = c.path;
        text["target"] = trace::enum_name(c.target);
        text["beside"] = kBeside.at(static_cast<std::size_t>(c.beside));
        text["addresses"] = trace::enum_name(c.addresses);
        text["both"] = c.both_directions ? "yes" : "no";
        text["gap_from"] = trace::enum_name(c.gap_from);
        number = {{"sms", c.producers},
                  {"warps", c.warps},
                  {"bytes", c.bytes},
                  {"gap", c.gap_cycles},
                  {"destinations", c.destinations}};
    }
    void operator()(const VisibleConfig& c) {
        text["path"] = c.path;
        text["addresses"] = trace::enum_name(c.addresses);
        text["fence"] = trace::enum_name(c.fence);
        number = {{"sms", c.producers}, {"warps", c.warps}, {"bytes", c.bytes}};
    }
    void operator()(const SmCase& c) { (*this)(c.config); }
    void operator()(const RateConfig& c) {
        text["engine"] = c.engine;
        text["target"] = trace::enum_name(c.target);
        text["both"] = c.direction == "both" ? "yes" : "no";
        number = {{"bytes", c.bytes}};
    }
    void operator()(const LitmusConfig& c) {
        text["path"] = c.path;
        text["fence"] = fence_name(c.fence);
        text["load"] = c.loaded ? "loaded" : "idle";
    }
};

}  // namespace

Filter::Condition Filter::parse(std::string_view text) {
    const auto at = text.find_first_of("=!<>");
    if (at == std::string_view::npos || at == 0) {
        throw Error(ErrorKind::kBadInput,
                    fmt::format("--filter: expected KEY=VALUE, found '{}'", text));
    }
    Condition condition;
    condition.key = text.substr(0, at);
    std::string_view rest = text.substr(at);
    if (rest.substr(0, 2) == "!=" || rest.substr(0, 2) == "<=" || rest.substr(0, 2) == ">=") {
        condition.compare = rest[0] == '!'   ? Compare::kNotEqual
                            : rest[0] == '<' ? Compare::kAtMost
                                             : Compare::kAtLeast;
        rest.remove_prefix(2);
    } else if (rest[0] == '=') {
        rest.remove_prefix(1);
    } else {
        throw Error(ErrorKind::kBadInput,
                    fmt::format("--filter: expected =, !=, <= or >=, found '{}'", text));
    }
    condition.value = rest;
    const bool number = known(condition.key, kNumberKeys);
    if (!number && !known(condition.key, kTextKeys)) {
        throw Error(ErrorKind::kBadInput,
                    fmt::format("--filter: unknown key '{}'; keys are {}, {}", condition.key,
                                fmt::join(kTextKeys, ", "), fmt::join(kNumberKeys, ", ")));
    }
    if (number) {
        parse_size(condition.value, "filter");
    } else if (condition.compare == Compare::kAtMost || condition.compare == Compare::kAtLeast) {
        throw Error(ErrorKind::kBadInput,
                    fmt::format("--filter: '{}' is no number to compare", condition.key));
    }
    return condition;
}

bool Filter::Condition::holds(const Step& step) const {
    Attributes attributes;
    std::visit(attributes, step.work);
    attributes.text["section"] = step.phase;
    if (const auto found = attributes.number.find(key); found != attributes.number.end()) {
        const std::int64_t want = parse_size(value, "filter");
        switch (compare) {
            case Compare::kEqual:
                return found->second == want;
            case Compare::kNotEqual:
                return found->second != want;
            case Compare::kAtMost:
                return found->second <= want;
            case Compare::kAtLeast:
                return found->second >= want;
        }
    }
    const auto found = attributes.text.find(key);
    if (found == attributes.text.end()) return false;
    return (found->second == value) == (compare == Compare::kEqual);
}

Filter::Filter(const std::vector<std::string>& texts) {
    for (std::string_view text : texts) {
        std::vector<Condition> all;
        for (;;) {
            const auto comma = text.find(',');
            all.push_back(parse(text.substr(0, comma)));
            if (comma == std::string_view::npos) break;
            text.remove_prefix(comma + 1);
        }
        any_of_.push_back(std::move(all));
    }
}

bool Filter::accepts(const Step& step) const {
    if (any_of_.empty()) return true;
    return std::any_of(any_of_.begin(), any_of_.end(), [&](const auto& all) {
        return std::all_of(all.begin(), all.end(),
                           [&](const Condition& condition) { return condition.holds(step); });
    });
}

}  // namespace xstage::probe
