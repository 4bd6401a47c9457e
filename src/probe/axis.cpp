#include "probe/axis.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <string>

#include "xstage/error.hpp"

namespace xstage::probe {
namespace {

constexpr std::size_t kMostValues = 10'000;
constexpr std::int64_t kLargest = std::int64_t{1} << 50;

[[noreturn]] void fail(std::string_view name, std::string_view text, std::string_view expected) {
    throw Error(ErrorKind::kBadInput,
                fmt::format("--{}: expected {}, found '{}'", name, expected, text));
}

std::vector<std::string_view> split(std::string_view text, char separator) {
    std::vector<std::string_view> parts;
    for (;;) {
        const auto at = text.find(separator);
        parts.push_back(text.substr(0, at));
        if (at == std::string_view::npos) return parts;
        text.remove_prefix(at + 1);
    }
}

double parse_factor(std::string_view text, std::string_view name) {
    double factor = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), factor);
    if (error != std::errc{} || end != text.data() + text.size() || !(factor > 1) ||
        !std::isfinite(factor)) {
        fail(name, text, "a factor above 1 after x");
    }
    return factor;
}

void add_range(std::string_view item, const std::vector<std::string_view>& parts,
               std::string_view name, std::vector<std::int64_t>& values) {
    if (parts.size() != 3 || parts[2].size() < 2)
        fail(name, item, "FROM:TO:xFACTOR or FROM:TO:+STEP");
    const std::int64_t from = parse_size(parts[0], name);
    const std::int64_t to = parse_size(parts[1], name);
    if (to < from) fail(name, item, "a range that does not fall");
    const std::string_view step = parts[2].substr(1);
    if (parts[2].front() == '+') {
        const std::int64_t add = parse_size(step, name);
        if (add == 0) fail(name, item, "a step above 0 after +");
        for (std::int64_t v = from; v <= to; v += add) {
            values.push_back(v);
            if (values.size() > kMostValues) fail(name, item, "at most 10000 values");
        }
    } else if (parts[2].front() == 'x') {
        const double factor = parse_factor(step, name);
        if (from == 0) fail(name, item, "a range by a factor to begin above 0");
        double v = static_cast<double>(from);
        // The tolerance lets 1K:64K:x2 and 1:1000:x10 end on their bound whatever the rounding.
        for (; v <= static_cast<double>(to) * (1 + 1e-9); v *= factor) {
            values.push_back(std::min(to, static_cast<std::int64_t>(std::llround(v))));
            if (values.size() > kMostValues) fail(name, item, "at most 10000 values");
        }
    } else {
        fail(name, item, "FROM:TO:xFACTOR or FROM:TO:+STEP");
    }
}

}  // namespace

std::int64_t parse_size(std::string_view text, std::string_view name) {
    std::int64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    std::string_view suffix(end, static_cast<std::size_t>(text.data() + text.size() - end));
    if (error != std::errc{} || value < 0) fail(name, text, "a whole number, as 4096, 4K or 1M");
    int shift = 0;
    if (suffix == "K" || suffix == "k" || suffix == "KiB") shift = 10;
    if (suffix == "M" || suffix == "MiB") shift = 20;
    if (suffix == "G" || suffix == "GiB") shift = 30;
    if (!suffix.empty() && shift == 0) fail(name, text, "no suffix but K, M or G");
    if (value > kLargest >> shift) fail(name, text, "a smaller number");
    return value << shift;
}

std::vector<std::int64_t> parse_axis(std::string_view text, std::string_view name) {
    std::vector<std::int64_t> values;
    for (const std::string_view item : split(text, ',')) {
        const auto parts = split(item, ':');
        if (parts.size() == 1) {
            values.push_back(parse_size(item, name));
        } else {
            add_range(item, parts, name, values);
        }
    }
    std::sort(values.begin(), values.end());
    values.erase(std::unique(values.begin(), values.end()), values.end());
    return values;
}

}  // namespace xstage::probe
