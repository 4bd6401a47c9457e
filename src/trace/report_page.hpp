#pragma once

#include <string>
#include <vector>

#include "xstage/measurement.hpp"

namespace xstage::trace {

/// A table of a report; the first column names the row, the others are right-aligned.
struct PageTable {
    std::string title;
    std::vector<std::string> header;
    std::vector<std::vector<std::string>> rows;
    std::string note;
};

struct PageFigure {
    std::string title;
    std::string svg;
    std::string caption;  ///< how to read it, in a sentence or two
};

/// One number that answers a question, set large at the top.
struct PageAnswer {
    std::string value;
    std::string meaning;
};

struct Page {
    std::string title;
    std::string lead;
    std::vector<PageAnswer> answers;
    std::vector<PageFigure> figures;
    std::vector<PageTable> tables;
    Provenance provenance;
};

/// The page as one HTML file that needs nothing beside it: style inline, figures inline SVG, no
/// script, light and dark by the reader's preference, from 400 px of width up.
std::string render(const Page& page);

}  // namespace xstage::trace
