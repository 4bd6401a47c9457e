#pragma once

#include <string>

namespace xstage::cli {

/// `given`, or the profile of the node recorded with xstage: found beside an installed binary, else
/// in the source tree it was built from. Throws kUnsupported where neither is there.
std::string profile_path(const std::string& given);

}  // namespace xstage::cli
