#pragma once

namespace xstage {

inline constexpr const char* kVersion = "0.1.0";

}  // namespace xstage
