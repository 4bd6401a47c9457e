#include "core/csv.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

#include "xstage/error.hpp"

namespace xstage::core {
namespace {

std::vector<std::string_view> split(std::string_view line) {
    std::vector<std::string_view> cells;
    for (;;) {
        const auto comma = line.find(',');
        cells.push_back(line.substr(0, comma));
        if (comma == std::string_view::npos) return cells;
        line.remove_prefix(comma + 1);
    }
}

/// Text of a file as it may be shown in one line of a terminal.
std::string shown(std::string_view text) {
    std::string out(text.substr(0, 60));
    std::replace_if(
        out.begin(), out.end(), [](unsigned char c) { return c < 0x20 || c >= 0x7f; }, '?');
    return out;
}

}  // namespace

CsvTable CsvTable::parse(std::string text, std::string file) {
    CsvTable table;
    table.text_ = std::make_unique<const std::string>(std::move(text));
    table.file_ = std::move(file);
    std::string_view rest = *table.text_;
    for (std::size_t line_number = 1; !rest.empty(); ++line_number) {
        const auto end = rest.find('\n');
        std::string_view line = rest.substr(0, end);
        rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 1);
        if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
        if (line.empty()) continue;
        auto cells = split(line);
        if (table.header_.empty()) {
            table.header_ = std::move(cells);
            continue;
        }
        if (cells.size() != table.header_.size()) {
            throw Error(ErrorKind::kBadInput,
                        fmt::format("{}:{}: expected {} cells as in the header, found {}",
                                    table.file_, line_number, table.header_.size(), cells.size()));
        }
        table.rows_.push_back(std::move(cells));
        table.lines_.push_back(line_number);
    }
    auto names = table.header_;
    std::sort(names.begin(), names.end());
    const auto twice = std::adjacent_find(names.begin(), names.end());
    if (names.empty() || names.front().empty() || twice != names.end()) {
        throw Error(
            ErrorKind::kBadInput,
            fmt::format("{}:1: expected a header line of distinct column names{}", table.file_,
                        twice == names.end() ? "" : ", found twice: " + shown(*twice)));
    }
    return table;
}

bool CsvTable::has(std::string_view column) const {
    return std::find(header_.begin(), header_.end(), column) != header_.end();
}

std::size_t CsvTable::index(std::string_view column) const {
    const auto found = std::find(header_.begin(), header_.end(), column);
    if (found == header_.end()) {
        throw Error(ErrorKind::kBadInput,
                    fmt::format("{}:1: expected a column '{}'", file_, column));
    }
    return static_cast<std::size_t>(found - header_.begin());
}

std::string_view CsvTable::text(std::size_t row, std::string_view column) const {
    return rows_.at(row)[index(column)];
}

double CsvTable::number(std::size_t row, std::string_view column, double lowest) const {
    const std::string_view cell = text(row, column);
    double value = 0;
    const auto [end, error] = std::from_chars(cell.data(), cell.data() + cell.size(), value);
    if (error != std::errc() || end != cell.data() + cell.size() || !std::isfinite(value) ||
        value < lowest) {
        fail(row, column, fmt::format("a number >= {}", lowest));
    }
    return value;
}

int CsvTable::integer(std::size_t row, std::string_view column, int lowest) const {
    const double value = number(row, column, lowest);
    if (value != std::floor(value) || value > std::numeric_limits<int>::max()) {
        fail(row, column, fmt::format("a whole number >= {}", lowest));
    }
    return static_cast<int>(value);
}

void CsvTable::fail(std::size_t row, std::string_view column, const std::string& expected) const {
    throw Error(ErrorKind::kBadInput,
                fmt::format("{}:{}: column '{}': expected {}, found '{}'", file_, lines_.at(row),
                            column, expected, shown(text(row, column))));
}

}  // namespace xstage::core
