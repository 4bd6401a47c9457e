#pragma once

#include <string>

#include "xstage/measurement.hpp"

namespace xstage {

/// A measurement document from a file, or from standard input for "-".
/// Throws Error of kind kBadInput with the file, the line or JSON path, and what was expected.
Measurements read_measurements(const std::string& path);

/// Writes the document in one step; "-" is standard output.
void write_measurements(const std::string& path, const Measurements& measurements);

}  // namespace xstage
