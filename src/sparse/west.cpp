#include "xstage/sparse/west.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
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

std::uint16_t half_above(double value) {
    if (!(value > 0)) return 0;
    int exponent = 0;
    std::frexp(value, &exponent);  // value is in [2^(exponent-1), 2^exponent)
    const int unit = std::max(exponent - 11, -24);
    // A fraction of 2048 carries into the exponent, which is right.
    const auto fraction = static_cast<int>(std::ceil(std::ldexp(value, -unit)));
    const int bits = unit == -24 ? fraction : ((unit + 25) << 10) + fraction - 1024;
    return static_cast<std::uint16_t>(std::min(bits, 0x7bff));
}

ThresholdMap::ThresholdMap(std::int64_t heads, const TokenLayout& layout,
                           std::vector<std::uint16_t> remainders)
    : heads_(heads), layout_(layout), remainders_(std::move(remainders)) {
    check_layout(layout);
    require(heads >= 1 && heads < 65536, "the number of heads");
    require(remainders_.size() == static_cast<std::size_t>(heads * blocks() * blocks()),
            fmt::format("{} values given, {} heads of {} x {} blocks expected", remainders_.size(),
                        heads, blocks(), blocks()));
    constexpr std::uint16_t kOne = 0x3c00;
    for (const std::uint16_t half : remainders_) {
        require(half <= kOne, fmt::format("{} is not within 0 and 1", half_to_float(half)));
    }
}

float ThresholdMap::at(std::int64_t head, std::int64_t u, std::int64_t v) const {
    const auto i = static_cast<std::size_t>((head * blocks() + u) * blocks() + v);
    return 1 - half_to_float(remainders_[i]);
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
    const auto first = remainders_.begin() +
                       static_cast<std::ptrdiff_t>(head) * static_cast<std::ptrdiff_t>(count);
    std::vector<std::uint16_t> sorted(first, first + static_cast<std::ptrdiff_t>(count));
    std::sort(sorted.begin(), sorted.end(),
              std::greater<>());  // positive halves order as their bits
    std::vector<float> values;
    for (const std::uint16_t half : sorted) values.push_back(1 - half_to_float(half));
    values.erase(std::unique(values.begin(), values.end()), values.end());
    return values;
}

BlockMask ThresholdMap::mask_of_density(double density_wanted) const {
    require(density_wanted >= 0 && density_wanted <= 1, "a density lies within 0 and 1");
    int low = 0;            // bits of a remainder at which the mask is dense enough: all is kept
    int high = 0x3c00 + 1;  // and of one at which it is not
    while (high - low > 1) {
        const int middle = (low + high) / 2;
        const float top_p = 1 - half_to_float(static_cast<std::uint16_t>(middle));
        double sum = 0;
        for (std::int64_t h = 0; h < heads_; ++h) sum += density(h, top_p);
        (sum / static_cast<double>(heads_) >= density_wanted ? low : high) = middle;
    }
    return mask(1 - half_to_float(static_cast<std::uint16_t>(low)));
}

WestCalibration::WestCalibration(std::int64_t heads, const TokenLayout& layout)
    : heads_(heads), layout_(layout) {
    check_layout(layout);
    require(heads >= 1 && heads < 65536, "the number of heads");
    const std::int64_t blocks = blocks_of(layout.rows());
    largest_.assign(static_cast<std::size_t>(heads * blocks * blocks), 0.0);
}

std::vector<double> remainders_of(std::span<const double> mass, std::int64_t blocks) {
    require(mass.size() == static_cast<std::size_t>(blocks * blocks),
            fmt::format("{} masses given, {} expected", mass.size(), blocks * blocks));
    std::vector<double> remainders(mass.size());
    std::vector<std::size_t> order(static_cast<std::size_t>(blocks));
    for (std::int64_t u = 0; u < blocks; ++u) {
        const auto row =
            mass.subspan(static_cast<std::size_t>(u * blocks), static_cast<std::size_t>(blocks));
        std::iota(order.begin(), order.end(), std::size_t{0});
        for (const double m : row) {
            require(m >= 0 && std::isfinite(m), fmt::format("row {} has a mass of {}", u, m));
        }
        // From the smallest up, so that small sums keep their digits.
        std::sort(order.begin(), order.end(), [&](auto a, auto b) { return row[a] < row[b]; });
        double* out = remainders.data() + u * blocks;
        double sum = 0;
        for (std::size_t begin = 0, end = 0; begin < order.size(); begin = end) {
            for (; end < order.size() && row[order[end]] == row[order[begin]]; ++end) {
                sum += row[order[end]];
            }
            for (std::size_t i = begin; i < end; ++i) out[order[i]] = sum;
        }
        require(sum > 0, fmt::format("row {} has no mass", u));
        for (std::int64_t v = 0; v < blocks; ++v) out[v] = std::min(1.0, out[v] / sum);
    }
    return remainders;
}

void WestCalibration::add(std::int64_t head, std::span<const double> mass) {
    require(head >= 0 && head < heads_, fmt::format("there is no head {}", head));
    const std::vector<double> remainders = remainders_of(mass, blocks_of(layout_.rows()));
    double* largest = largest_.data() + static_cast<std::size_t>(head) * remainders.size();
    for (std::size_t i = 0; i < remainders.size(); ++i) {
        largest[i] = std::max(largest[i], remainders[i]);
    }
}

ThresholdMap WestCalibration::map() const {
    std::vector<std::uint16_t> halves;
    halves.reserve(largest_.size());
    for (const double r : largest_) halves.push_back(half_above(r));
    return {heads_, layout_, std::move(halves)};
}

double recall(const BlockMask& mask, std::int64_t head, std::span<const double> mass) {
    const std::int64_t blocks = mask.key_blocks();
    require(mass.size() == static_cast<std::size_t>(mask.q_blocks() * blocks),
            "mask and masses have unequal shapes");
    double kept = 0;
    double total = 0;
    for (std::int64_t u = 0; u < mask.q_blocks(); ++u) {
        const auto rows =
            static_cast<double>(std::min<std::int64_t>(kBlock, mask.q_rows() - u * kBlock));
        for (std::int64_t v = 0; v < blocks; ++v) {
            const double m = rows * mass[static_cast<std::size_t>(u * blocks + v)];
            total += m;
            if (mask.test(0, head, u, v)) kept += m;
        }
    }
    return kept / total;
}

}  // namespace xstage::sparse
