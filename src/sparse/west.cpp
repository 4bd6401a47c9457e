#include "xstage/sparse/west.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>

#include "xstage/error.hpp"

namespace xstage::sparse {

namespace {

void require(bool condition, const std::string& what) {
    if (!condition) throw Error(ErrorKind::kBadInput, "threshold map: " + what);
}

void check_layout(const TokenLayout& layout) {
    constexpr std::int64_t kMost = std::int64_t{1} << 20;
    require(layout.text >= 0 && layout.text < kMost && layout.frames >= 0 &&
                layout.frames < kMost && layout.height >= 1 && layout.height < kMost &&
                layout.width >= 1 && layout.width < kMost && layout.rows() >= 1 &&
                layout.rows() < std::int64_t{1} << 31,
            fmt::format("{} text tokens and {} x {} x {} of video is no layout", layout.text,
                        layout.frames, layout.height, layout.width));
}

}  // namespace

float half_to_float(std::uint16_t half) {
    const std::uint32_t sign = std::uint32_t{half} >> 15 << 31;
    const std::uint32_t exponent = half >> 10 & 31;
    const std::uint32_t fraction = half & 0x3ff;
    if (exponent == 0) {
        const float value = std::ldexp(static_cast<float>(fraction), -24);
        return sign != 0 ? -value : value;
    }
    const std::uint32_t wide = exponent == 31 ? 255 : exponent + 112;
    return std::bit_cast<float>(sign | wide << 23 | fraction << 13);
}

std::uint16_t half_below(float value) {
    if (!(value > 0)) return 0;
    if (value >= 65504) return 0x7bff;
    const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
    const int exponent = static_cast<int>(bits >> 23) - 127;
    if (exponent < -14) return static_cast<std::uint16_t>(std::ldexp(value, 24));
    return static_cast<std::uint16_t>((exponent + 15) << 10 | (bits >> 13 & 0x3ff));
}

ThresholdMap::ThresholdMap(std::int64_t heads, const TokenLayout& layout,
                           std::vector<std::uint16_t> halves)
    : heads_(heads), layout_(layout), halves_(std::move(halves)) {
    check_layout(layout);
    require(heads >= 1 && heads < 65536, "the number of heads");
    require(halves_.size() == static_cast<std::size_t>(heads * blocks() * blocks()),
            fmt::format("{} values given, {} heads of {} x {} blocks expected", halves_.size(), heads,
                        blocks(), blocks()));
    constexpr std::uint16_t kOne = 0x3c00;
    for (const std::uint16_t half : halves_) {
        require(half <= kOne, fmt::format("{} is not within 0 and 1", half_to_float(half)));
    }
}

float ThresholdMap::at(std::int64_t head, std::int64_t u, std::int64_t v) const {
    return half_to_float(halves_[static_cast<std::size_t>((head * blocks() + u) * blocks() + v)]);
}

BlockMask ThresholdMap::mask(std::span<const float> top_p) const {
    require(top_p.size() == static_cast<std::size_t>(heads_),
            fmt::format("{} values of top-p for {} heads", top_p.size(), heads_));
    BlockMask mask(1, heads_, layout_.rows(), layout_.rows());
    for (std::int64_t h = 0; h < heads_; ++h) {
        for (std::int64_t u = 0; u < blocks(); ++u) {
            for (std::int64_t v = 0; v < blocks(); ++v) {
                if (at(h, u, v) <= top_p[static_cast<std::size_t>(h)]) mask.set(0, h, u, v);
            }
        }
    }
    mask.keep_dense(0, layout_.text);
    return mask;
}

BlockMask ThresholdMap::mask(float top_p) const {
    return mask(std::vector<float>(static_cast<std::size_t>(heads_), top_p));
}

double ThresholdMap::density(std::int64_t head, float top_p) const {
    const std::int64_t rows = layout_.rows();
    const std::int64_t text = blocks_of(layout_.text);
    const auto size = [&](std::int64_t block) {
        return std::min<std::int64_t>(kBlock, rows - block * kBlock);
    };
    double pairs = 0;
    for (std::int64_t u = 0; u < blocks(); ++u) {
        std::int64_t keys = 0;
        for (std::int64_t v = 0; v < blocks(); ++v) {
            if (u < text || v < text || at(head, u, v) <= top_p) keys += size(v);
        }
        pairs += static_cast<double>(size(u) * keys);
    }
    return pairs / static_cast<double>(rows) / static_cast<double>(rows);
}

std::vector<float> ThresholdMap::levels(std::int64_t head) const {
    const auto count = static_cast<std::size_t>(blocks() * blocks());
    const auto first = halves_.begin() + static_cast<std::ptrdiff_t>(head) *
                                             static_cast<std::ptrdiff_t>(count);
    std::vector<std::uint16_t> sorted(first, first + static_cast<std::ptrdiff_t>(count));
    std::sort(sorted.begin(), sorted.end());  // positive halves order as their bits do
    sorted.erase(std::unique(sorted.begin(), sorted.end()), sorted.end());
    std::vector<float> values;
    for (const std::uint16_t half : sorted) values.push_back(half_to_float(half));
    return values;
}

BlockMask ThresholdMap::mask_of_density(double density_wanted) const {
    require(density_wanted >= 0 && density_wanted <= 1, "a density lies within 0 and 1");
    int low = -1;       // bits of a float16 whose mask is not dense enough
    int high = 0x3c00;  // 1: everything is kept
    while (high - low > 1) {
        const int middle = (low + high) / 2;
        const float top_p = half_to_float(static_cast<std::uint16_t>(middle));
        double sum = 0;
        for (std::int64_t h = 0; h < heads_; ++h) sum += density(h, top_p);
        (sum / static_cast<double>(heads_) >= density_wanted ? high : low) = middle;
    }
    return mask(half_to_float(static_cast<std::uint16_t>(high)));
}

WestCalibration::WestCalibration(std::int64_t heads, const TokenLayout& layout)
    : heads_(heads), layout_(layout) {
    check_layout(layout);
    require(heads >= 1 && heads < 65536, "the number of heads");
    const std::int64_t blocks = blocks_of(layout.rows());
    lowest_.assign(static_cast<std::size_t>(heads * blocks * blocks), 1.0F);
}

std::vector<float> thresholds_of(std::span<const double> mass, std::int64_t blocks) {
    require(mass.size() == static_cast<std::size_t>(blocks * blocks),
            fmt::format("{} masses given, {} expected", mass.size(), blocks * blocks));
    std::vector<float> thresholds(mass.size());
    std::vector<std::size_t> order(static_cast<std::size_t>(blocks));
    for (std::int64_t u = 0; u < blocks; ++u) {
        const auto row = mass.subspan(static_cast<std::size_t>(u * blocks),
                                      static_cast<std::size_t>(blocks));
        double total = 0;
        for (const double m : row) {
            require(m >= 0 && std::isfinite(m), fmt::format("row {} has a mass of {}", u, m));
            total += m;
        }
        require(total > 0, fmt::format("row {} has no mass", u));
        std::iota(order.begin(), order.end(), std::size_t{0});
        std::sort(order.begin(), order.end(), [&](auto a, auto b) { return row[a] > row[b]; });
        double before = 0;
        double with = 0;
        for (std::size_t i = 0; i < order.size(); ++i) {
            if (i > 0 && row[order[i]] < row[order[i - 1]]) before = with;
            with += row[order[i]];
            thresholds[static_cast<std::size_t>(u * blocks) + order[i]] =
                static_cast<float>(std::min(1.0, before / total));
        }
    }
    return thresholds;
}

void WestCalibration::add(std::int64_t head, std::span<const double> mass) {
    require(head >= 0 && head < heads_, fmt::format("there is no head {}", head));
    const std::vector<float> thresholds = thresholds_of(mass, blocks_of(layout_.rows()));
    float* lowest = lowest_.data() + static_cast<std::size_t>(head) * thresholds.size();
    for (std::size_t i = 0; i < thresholds.size(); ++i) {
        lowest[i] = std::min(lowest[i], thresholds[i]);
    }
}

ThresholdMap WestCalibration::map() const {
    std::vector<std::uint16_t> halves;
    halves.reserve(lowest_.size());
    for (const float t : lowest_) halves.push_back(half_below(t));
    return {heads_, layout_, std::move(halves)};
}

double recall(const BlockMask& mask, std::int64_t head, std::span<const double> mass) {
    const std::int64_t blocks = mask.key_blocks();
    require(mass.size() == static_cast<std::size_t>(mask.q_blocks() * blocks),
            "mask and masses have unequal shapes");
    double kept = 0;
    double total = 0;
    for (std::int64_t u = 0; u < mask.q_blocks(); ++u) {
        const auto rows = static_cast<double>(
            std::min<std::int64_t>(kBlock, mask.q_rows() - u * kBlock));
        for (std::int64_t v = 0; v < blocks; ++v) {
            const double m = rows * mass[static_cast<std::size_t>(u * blocks + v)];
            total += m;
            if (mask.test(0, head, u, v)) kept += m;
        }
    }
    return kept / total;
}

}  // namespace xstage::sparse
