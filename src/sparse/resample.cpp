#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "xstage/error.hpp"
#include "xstage/sparse/west.hpp"

namespace xstage::sparse {

namespace {

/// The tokens of an axis of `from` points that point i of `to` lies between (centres aligned).
std::pair<std::int64_t, std::int64_t> between(std::int64_t i, std::int64_t to, std::int64_t from) {
    const double at =
        (static_cast<double>(i) + 0.5) * static_cast<double>(from) / static_cast<double>(to) - 0.5;
    const auto clip = [&](double x) {
        return std::clamp<std::int64_t>(static_cast<std::int64_t>(x), 0, from - 1);
    };
    return {clip(std::floor(at)), clip(std::ceil(at))};
}

/// For each block of `to`, the blocks of `from` its tokens lie between, ascending.
std::vector<std::vector<std::int64_t>> sources(const TokenLayout& to, const TokenLayout& from) {
    std::vector<std::vector<std::int64_t>> all(static_cast<std::size_t>(blocks_of(to.rows())));
    for (std::int64_t token = 0; token < to.rows(); ++token) {
        auto& list = all[static_cast<std::size_t>(token / kBlock)];
        if (token < to.text) {
            const auto [low, high] = between(token, to.text, from.text);
            list.push_back(low / kBlock);
            list.push_back(high / kBlock);
            continue;
        }
        const std::int64_t video = token - to.text;
        const auto f = between(video / (to.width * to.height), to.frames, from.frames);
        const auto y = between(video / to.width % to.height, to.height, from.height);
        const auto x = between(video % to.width, to.width, from.width);
        for (const std::int64_t i : {f.first, f.second}) {
            for (const std::int64_t j : {y.first, y.second}) {
                const std::int64_t row = from.text + (i * from.height + j) * from.width;
                list.push_back((row + x.first) / kBlock);
                list.push_back((row + x.second) / kBlock);
            }
        }
    }
    for (auto& list : all) {
        std::sort(list.begin(), list.end());
        list.erase(std::unique(list.begin(), list.end()), list.end());
    }
    return all;
}

}  // namespace

ThresholdMap ThresholdMap::resampled(const TokenLayout& layout) const {
    if (layout == layout_) return *this;
    if ((layout.text == 0) != (layout_.text == 0) ||
        (layout.frames == 0) != (layout_.frames == 0)) {
        throw Error(
            ErrorKind::kBadInput,
            fmt::format("threshold map: a map with {} text tokens and {} frames cannot become "
                        "one with {} and {}",
                        layout_.text, layout_.frames, layout.text, layout.frames));
    }
    const std::int64_t blocks_to = blocks_of(layout.rows());
    const auto from = sources(layout, layout_);
    std::vector<std::uint16_t> halves;
    halves.reserve(static_cast<std::size_t>(heads_ * blocks_to * blocks_to));
    for (std::int64_t h = 0; h < heads_; ++h) {
        for (const auto& rows : from) {
            for (const auto& columns : from) {
                std::uint16_t most = 0;
                for (const std::int64_t u : rows) {
                    const auto row = static_cast<std::size_t>((h * blocks() + u) * blocks());
                    for (const std::int64_t v : columns) {
                        most = std::max(most, remainders_[row + static_cast<std::size_t>(v)]);
                    }
                }
                halves.push_back(most);
            }
        }
    }
    return {heads_, layout, std::move(halves)};
}

}  // namespace xstage::sparse
