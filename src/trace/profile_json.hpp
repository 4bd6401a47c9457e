#pragma once

#include <string>

#include "core/json.hpp"
#include "xstage/documents.hpp"

namespace xstage::trace {

/// Throws kBadInput with the JSON path of the first value that is not what the schema asks for.
ProfileDocument profile_from_json(const core::Json& document, const std::string& file);
core::Json to_json(const ProfileDocument& profile);

}  // namespace xstage::trace
