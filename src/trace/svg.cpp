#include "trace/svg.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace xstage::trace {
namespace {

// The drawing's own units. At 400 px of page a unit is about 0.74 px, so text of 13 stays readable.
constexpr double kWidth = 460, kHeight = 320;
constexpr double kLeft = 66, kRight = 20, kTop = 14, kBottom = 44, kLegendLine = 18;

double transform(Scale scale, double v) {
    switch (scale) {
        case Scale::kLog10:
            return std::log10(v);
        case Scale::kLog2Bytes:
            return std::log2(v);
        case Scale::kLinear:
            break;
    }
    return v;
}

std::string bytes_text(double v) {
    if (v >= 1 << 20) return fmt::format("{:.4g}M", v / (1 << 20));
    if (v >= 1 << 10) return fmt::format("{:.4g}K", v / (1 << 10));
    return fmt::format("{:.4g}", v);
}

std::string tick_text(Scale scale, double v) {
    if (scale == Scale::kLog2Bytes) return bytes_text(v);
    if (std::abs(v) >= 1e6) return fmt::format("{:.4g}M", v / 1e6);
    if (std::abs(v) >= 1e3) return fmt::format("{:.4g}k", v / 1e3);
    return fmt::format("{:.4g}", v);
}

/// About five round values between low and high (all in the axis's own numbers).
std::vector<double> ticks(Scale scale, double low, double high) {
    std::vector<double> out;
    if (scale == Scale::kLinear) {
        const double raw = (high - low) / 5;
        const double power = std::pow(10, std::floor(std::log10(raw)));
        const double unit = raw / power;
        const double step = power * (unit > 5 ? 10 : unit > 2 ? 5 : unit > 1 ? 2 : 1);
        for (double v = std::ceil(low / step - 1e-9) * step; v <= high + step * 1e-9; v += step) {
            out.push_back(std::abs(v) < step * 1e-9 ? 0 : v);
        }
        return out;
    }
    const double base = scale == Scale::kLog10 ? 10 : 2;
    const double first = std::ceil(std::log(low) / std::log(base) - 1e-9);
    const double last = std::floor(std::log(high) / std::log(base) + 1e-9);
    const double step = std::max(1.0, std::ceil((last - first + 1) / 6));
    for (double e = first; e <= last; e += step) out.push_back(std::pow(base, e));
    return out;
}

}  // namespace

std::string escape_html(std::string_view text) {
    std::string out;
    for (const char c : text) {
        switch (c) {
            case '&':
                out += "&amp;";
                break;
            case '<':
                out += "&lt;";
                break;
            case '>':
                out += "&gt;";
                break;
            case '"':
                out += "&quot;";
                break;
            default:
                out += c;
        }
    }
    return out;
}

Chart& Chart::dots(Points points, int colour, std::string label) {
    series_.push_back({Series::Kind::kDots, std::move(points), colour, std::move(label)});
    return *this;
}

Chart& Chart::line(Points points, int colour, std::string label, bool dashed) {
    series_.push_back({dashed ? Series::Kind::kDashed : Series::Kind::kLine, std::move(points),
                       colour, std::move(label)});
    return *this;
}

Chart& Chart::mark_x(double x, std::string label) {
    marks_.push_back({x, std::move(label)});
    return *this;
}

Chart& Chart::cell(double x0, double x1, double y0, double y1, double heat, std::string tip) {
    cells_.push_back({x0, x1, y0, y1, std::clamp(heat, 0.0, 1.0), std::move(tip)});
    return *this;
}

Chart& Chart::y_range(double low, double high) {
    y_range_ = Range{low, high};
    return *this;
}

Chart::Range Chart::range(const Axis& axis, bool horizontal) const {
    if (!horizontal && y_range_) return *y_range_;
    double low = INFINITY, high = -INFINITY;
    const auto take = [&](double v) {
        // A logarithmic axis has no place for zero.
        if (!std::isfinite(v) || (axis.scale != Scale::kLinear && v <= 0)) return;
        low = std::min(low, v);
        high = std::max(high, v);
    };
    for (const Series& series : series_) {
        for (const auto& [x, y] : series.points) take(horizontal ? x : y);
    }
    for (const Cell& cell : cells_) {
        take(horizontal ? cell.x0 : cell.y0);
        take(horizontal ? cell.x1 : cell.y1);
    }
    if (!(low <= high)) return axis.scale == Scale::kLinear ? Range{0, 1} : Range{1, 10};
    if (axis.scale != Scale::kLinear) {
        return low == high ? Range{low / 2, high * 2} : Range{low, high};
    }
    if (low > 0) low = 0;  // a length of time or a size starts at nothing
    if (low == high) high = low + 1;
    const double head = horizontal ? 0 : (high - low) * 0.05;
    return {low < 0 ? low - head : low, high + head};
}

std::string Chart::svg() const {
    const auto labelled = std::count_if(series_.begin(), series_.end(),
                                        [](const Series& series) { return !series.label.empty(); });
    const double top =
        kTop + kLegendLine * static_cast<double>((labelled + 1) / 2) + (marks_.empty() ? 0 : 14);
    const double height = kHeight + top - kTop;
    const Range xs = range(x_, true), ys = range(y_, false);
    const auto place = [](const Axis& axis, const Range& range, double v, double from, double to) {
        const double low = transform(axis.scale, range.low),
                     high = transform(axis.scale, range.high);
        const double at = (transform(axis.scale, v) - low) / (high - low);
        return from + std::clamp(at, -0.02, 1.02) * (to - from);
    };
    const auto px = [&](double v) { return place(x_, xs, v, kLeft, kWidth - kRight); };
    const auto py = [&](double v) { return place(y_, ys, v, height - kBottom, top); };
    const auto drawable = [&](double x, double y) {
        return std::isfinite(x) && std::isfinite(y) && (x_.scale == Scale::kLinear || x > 0) &&
               (y_.scale == Scale::kLinear || y > 0);
    };

    std::string out =
        fmt::format("<svg viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"{}\"><title>{}</title>\n",
                    kWidth, height, escape_html(title_), escape_html(title_));
    for (const Cell& cell : cells_) {
        out += fmt::format(
            "<rect class=\"heat\" x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" "
            "fill-opacity=\"{:.2f}\"><title>{}</title></rect>\n",
            px(cell.x0), py(cell.y1), px(cell.x1) - px(cell.x0), py(cell.y0) - py(cell.y1),
            cell.heat, escape_html(cell.tip));
    }
    for (const double v : ticks(x_.scale, xs.low, xs.high)) {
        out += fmt::format(
            "<path class=\"grid\" d=\"M{0:.1f} {1:.1f}V{2:.1f}\"/><text x=\"{0:.1f}\" "
            "y=\"{3:.1f}\" "
            "text-anchor=\"middle\">{4}</text>\n",
            px(v), top, height - kBottom, height - kBottom + 16, tick_text(x_.scale, v));
    }
    for (const double v : ticks(y_.scale, ys.low, ys.high)) {
        out += fmt::format(
            "<path class=\"grid\" d=\"M{0:.1f} {1:.1f}H{2:.1f}\"/><text x=\"{3:.1f}\" "
            "y=\"{4:.1f}\" "
            "text-anchor=\"end\">{5}</text>\n",
            kLeft, py(v), kWidth - kRight, kLeft - 6, py(v) + 4, tick_text(y_.scale, v));
    }
    out += fmt::format(
        "<text class=\"axis\" x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\">{}</text>\n"
        "<text class=\"axis\" transform=\"translate(14 {:.1f}) rotate(-90)\" "
        "text-anchor=\"middle\">{}</text>\n",
        (kLeft + kWidth - kRight) / 2, height - 8, escape_html(x_.label),
        (top + height - kBottom) / 2, escape_html(y_.label));

    for (const Series& series : series_) {
        if (series.kind == Series::Kind::kDots) {
            for (const auto& [x, y] : series.points) {
                if (!drawable(x, y)) continue;
                out +=
                    fmt::format("<circle class=\"c{}\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"2.6\"/>\n",
                                series.colour, px(x), py(y));
            }
            continue;
        }
        std::string path;
        for (const auto& [x, y] : series.points) {
            if (!drawable(x, y)) continue;
            path += fmt::format("{}{:.1f} {:.1f}", path.empty() ? "M" : "L", px(x), py(y));
        }
        out += fmt::format("<path class=\"line c{}{}\" d=\"{}\"/>\n", series.colour,
                           series.kind == Series::Kind::kDashed ? " dashed" : "", path);
    }
    for (const Mark& mark : marks_) {
        if (!drawable(mark.x, 1)) continue;
        const double at = px(mark.x);
        // Near the right edge the label stands to the left of its line.
        const bool left = at > kWidth * 0.6;
        out += fmt::format(
            "<path class=\"mark\" d=\"M{0:.1f} {1:.1f}V{2:.1f}\"/><text class=\"marked\" "
            "x=\"{0:.1f}\" "
            "y=\"{3:.1f}\" text-anchor=\"{4}\">{5}</text>\n",
            at, top, height - kBottom, top - 4, left ? "end" : "start", escape_html(mark.label));
    }
    int entry = 0;
    for (const Series& series : series_) {
        if (series.label.empty()) continue;
        const double x = kLeft + (entry % 2) * (kWidth - kLeft) / 2,
                     y = kTop + 2 + kLegendLine * (entry / 2);
        out +=
            series.kind == Series::Kind::kDots
                ? fmt::format("<circle class=\"c{}\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"4\"/>",
                              series.colour, x + 10, y)
                : fmt::format("<path class=\"line c{}{}\" d=\"M{:.1f} {:.1f}h20\"/>", series.colour,
                              series.kind == Series::Kind::kDashed ? " dashed" : "", x, y);
        out += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\">{}</text>\n", x + 26, y + 4,
                           escape_html(series.label));
        ++entry;
    }
    return out + "</svg>\n";
}

}  // namespace xstage::trace
