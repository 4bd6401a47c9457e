#pragma once

#include <string>
#include <vector>

#include "xstage/measurement.hpp"
#include "xstage/profile.hpp"

namespace xstage {

/// How a profile was made from a recording.
struct FitRun {
    std::string source;  ///< the measurement document
    std::string tool_version;
    std::string git_commit;
    std::vector<std::string> argv;
    std::string date;  ///< ISO 8601
};

/// A node profile document.
struct ProfileDocument {
    Provenance recording;
    FitRun fitted;
    model::Profile profile;
};

/// A measurement document from a file, or from standard input for "-".
/// Throws Error of kind kBadInput with the file, the line or JSON path, and what was expected.
Measurements read_measurements(const std::string& path);

/// Writes the document in one step; "-" is standard output.
void write_measurements(const std::string& path, const Measurements& measurements);

/// A node profile document; the same errors.
ProfileDocument read_profile(const std::string& path);

/// Writes the document in one step; "-" is standard output.
void write_profile(const std::string& path, const ProfileDocument& profile);

}  // namespace xstage
