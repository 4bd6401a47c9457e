#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace xstage::trace {

std::string escape_html(std::string_view text);

/// How the numbers of an axis are laid out and written.
enum class Scale { kLinear, kLog10, kLog2Bytes };

struct Axis {
    std::string label;
    Scale scale = Scale::kLinear;
};

using Points = std::vector<std::pair<double, double>>;

/// One chart as inline SVG: no script and no colours of its own. Series take the classes c0, c1,
/// ..., which the page's style sheet colours for light and dark.
class Chart {
  public:
    Chart(std::string title, Axis x, Axis y)
        : title_(std::move(title)), x_{std::move(x)}, y_{std::move(y)} {}

    Chart& dots(Points points, int colour, std::string label = {});
    Chart& line(Points points, int colour, std::string label = {}, bool dashed = false);
    /// A vertical line with a label at its top.
    Chart& mark_x(double x, std::string label);
    /// A rectangle of a map; `heat` from 0 to 1 becomes its opacity.
    Chart& cell(double x0, double x1, double y0, double y1, double heat, std::string tip);
    /// Sets the range of the vertical axis; without it the axis spans the data.
    Chart& y_range(double low, double high);

    std::string svg() const;

  private:
    struct Series {
        enum class Kind { kDots, kLine, kDashed } kind;
        Points points;
        int colour;
        std::string label;
    };
    struct Mark {
        double x;
        std::string label;
    };
    struct Cell {
        double x0, x1, y0, y1, heat;
        std::string tip;
    };
    struct Range {
        double low, high;
    };

    Range range(const Axis& axis, bool horizontal) const;

    std::string title_;
    Axis x_, y_;
    std::optional<Range> y_range_;
    std::vector<Series> series_;
    std::vector<Mark> marks_;
    std::vector<Cell> cells_;
};

}  // namespace xstage::trace
