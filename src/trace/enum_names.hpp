#pragma once

#include <array>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

#include "xstage/measurement.hpp"

namespace xstage::trace {

/// The names of an enum's values in documents, in the order of the values.
template <class Enum>
struct EnumNames;

template <>
struct EnumNames<BurstMode> {
    static constexpr std::array kNames{"isolated", "gap2", "periodic"};
};
template <>
struct EnumNames<Target> {
    static constexpr std::array kNames{"remote", "local"};
};
template <>
struct EnumNames<Addresses> {
    static constexpr std::array kNames{"fresh", "rewritten"};
};
template <>
struct EnumNames<GapFrom> {
    static constexpr std::array kNames{"producer", "all", "warp"};
};
template <>
struct EnumNames<Fence> {
    static constexpr std::array kNames{"one_thread", "all_threads"};
};

template <class Enum>
std::string enum_name(Enum value) {
    return EnumNames<Enum>::kNames.at(static_cast<std::size_t>(value));
}

/// Documents are checked against their schema first, so an unknown name is a programming error.
template <class Enum>
Enum enum_value(std::string_view name) {
    const auto& names = EnumNames<Enum>::kNames;
    for (std::size_t i = 0; i < names.size(); ++i) {
        if (name == names[i]) return static_cast<Enum>(i);
    }
    throw std::logic_error("enum name not in the schema: " + std::string(name));
}

}  // namespace xstage::trace
