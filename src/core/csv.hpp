#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace xstage::core {

/// A comma-separated table with one header line and no quoting, as measurement programs write them.
/// Every accessor throws kBadInput with file, line and column when a cell is not what is asked for.
class CsvTable {
  public:
    /// Parses `text` that came from `file`. Throws when a header name is missing or stands twice,
    /// or when a row has another number of cells than the header.
    static CsvTable parse(std::string text, std::string file);

    std::size_t rows() const { return rows_.size(); }
    const std::vector<std::string_view>& header() const { return header_; }
    bool has(std::string_view column) const;

    std::string_view text(std::size_t row, std::string_view column) const;
    /// A finite number; `lowest` is the smallest allowed.
    double number(std::size_t row, std::string_view column, double lowest = 0) const;
    /// A whole number that fits an int.
    int integer(std::size_t row, std::string_view column, int lowest = 0) const;

    /// Throws kBadInput for a cell, saying what was expected.
    [[noreturn]] void fail(std::size_t row, std::string_view column,
                           const std::string& expected) const;

  private:
    std::size_t index(std::string_view column) const;

    std::unique_ptr<const std::string> text_;  // what the views point into; stays put when moved
    std::string file_;
    std::vector<std::string_view> header_;
    std::vector<std::vector<std::string_view>> rows_;
    std::vector<std::size_t> lines_;
};

}  // namespace xstage::core
