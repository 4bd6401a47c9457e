#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "xstage/error.hpp"
#include "xstage/sparse/file.hpp"

namespace xstage::sparse {

namespace {

constexpr int kMostCells = 128;  // per side; more blocks share a cell, the lowest threshold wins
constexpr int kPixels = 512;
constexpr int kMargin = 28;
constexpr int kShades = 12;

}  // namespace

std::string map_svg(const ThresholdMap& map, std::int64_t head, std::optional<float> top_p,
                    const std::string& title) {
    if (head < 0 || head >= map.heads()) {
        throw Error(ErrorKind::kBadInput, fmt::format("the map has no head {}", head));
    }
    const std::int64_t blocks = map.blocks();
    const std::int64_t per_cell = (blocks + kMostCells - 1) / kMostCells;
    const std::int64_t cells = (blocks + per_cell - 1) / per_cell;
    const double size = static_cast<double>(kPixels) / static_cast<double>(cells);
    const auto lowest = [&](std::int64_t y, std::int64_t x) {
        float least = 1;
        for (std::int64_t u = y * per_cell; u < std::min(blocks, (y + 1) * per_cell); ++u) {
            for (std::int64_t v = x * per_cell; v < std::min(blocks, (x + 1) * per_cell); ++v) {
                least = std::min(least, map.at(head, u, v));
            }
        }
        return least;
    };
    // Half of all mass lies in few blocks: shades by the logarithm of what is left outside.
    const auto shade = [&](float threshold) {
        if (top_p && threshold <= *top_p) return -1;
        const double outside = std::max(1e-4, 1 - double{threshold});
        return static_cast<int>(std::lround(kShades * (1 + std::log10(outside) / 4)));
    };

    std::string svg = fmt::format(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" width=\"{0}\" "
        "height=\"{1}\" font-family=\"sans-serif\" font-size=\"12\">\n"
        "<rect width=\"{0}\" height=\"{1}\" fill=\"#fff\"/>\n<text x=\"{2}\" y=\"18\">{3}</text>\n",
        kPixels + 2 * kMargin, kPixels + 2 * kMargin, kMargin, title);
    for (std::int64_t y = 0; y < cells; ++y) {
        std::int64_t begin = 0;
        for (std::int64_t x = 1; x <= cells; ++x) {  // one rectangle for a run of equal cells
            const int colour = shade(lowest(y, begin));
            if (x < cells && shade(lowest(y, x)) == colour) continue;
            const int grey = 255 - 255 * std::max(colour, 0) / kShades;
            if (colour != 0) {
                svg += fmt::format(
                    "<rect x=\"{:.2f}\" y=\"{:.2f}\" width=\"{:.2f}\" height=\"{:.2f}\" "
                    "fill=\"{}\"/>\n",
                    kMargin + static_cast<double>(begin) * size,
                    kMargin + static_cast<double>(y) * size, static_cast<double>(x - begin) * size,
                    size, colour < 0 ? "#2458b3" : fmt::format("#{0:02x}{0:02x}{0:02x}", grey));
            }
            begin = x;
        }
    }
    svg += fmt::format(
        "<rect x=\"{0}\" y=\"{0}\" width=\"{1}\" height=\"{1}\" fill=\"none\" stroke=\"#888\"/>\n"
        "<text x=\"{0}\" y=\"{2}\">key blocks, from left; query blocks, from above; {3} x {3} of "
        "128</text>\n</svg>\n",
        kMargin, kPixels, kPixels + 2 * kMargin - 8, blocks);
    return svg;
}

}  // namespace xstage::sparse
