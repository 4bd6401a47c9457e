#include "xstage/documents.hpp"

#include "core/file.hpp"
#include "core/json.hpp"
#include "trace/measurement_json.hpp"
#include "trace/profile_json.hpp"

namespace xstage {

Measurements read_measurements(const std::string& path) {
    return trace::measurements_from_json(core::parse_json(core::read_file(path), path), path);
}

void write_measurements(const std::string& path, const Measurements& measurements) {
    core::write_file_atomic(path, core::dump_json(trace::to_json(measurements)));
}

ProfileDocument read_profile(const std::string& path) {
    return trace::profile_from_json(core::parse_json(core::read_file(path), path), path);
}

void write_profile(const std::string& path, const ProfileDocument& profile) {
    core::write_file_atomic(path, core::dump_json(trace::to_json(profile)));
}

}  // namespace xstage
