#include <fmt/format.h>

#include "fabric/nvshmem.hpp"
#include "xstage/error.hpp"

namespace xstage::fabric {

std::string NvshmemVersion::text() const {
    return fmt::format("{}.{}.{}", major, minor, patch);
}

void check_versions(const NvshmemVersion& headers, const NvshmemVersion& host_library,
                    const NvshmemVersion& device_library) {
    const auto refuse = [](const char* a, const NvshmemVersion& of_a, const char* b,
                           const NvshmemVersion& of_b) {
        throw Error(ErrorKind::kEnvironment, fmt::format("NVSHMEM's {} is {} but its {} is {}", a,
                                                         of_a.text(), b, of_b.text()));
    };
    if (host_library != device_library)
        refuse("host library", host_library, "device library", device_library);
    if (headers != host_library)
        refuse("host library", host_library, "header at build time", headers);
}

}  // namespace xstage::fabric
