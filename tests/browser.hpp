#pragma once

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "temporary_directory.hpp"

namespace xstage::test {

/// How a page lays out in a real browser.
struct Layout {
    double page_width;       ///< scroll width: more than the viewport means sideways scrolling
    double smallest_text;    ///< px, SVG text after scaling included
    double lowest_contrast;  ///< of text against the page, WCAG ratio
    int figures;             ///< SVG drawings with an area
    int clipped_labels;      ///< SVG text that reaches out of its drawing
};

inline bool have_browser() {
    return std::system("command -v chromium >/dev/null 2>&1") == 0;
}

// The page under test has no script; a harness beside it loads it in a frame of the wanted width
// and measures it from outside.
inline constexpr const char* kHarness = R"html(<!doctype html><body style="margin:0">
<iframe id="frame" src="page.html" style="border:0;height:2000px"></iframe><pre id="result"></pre>
<script>
frame.style.width = new URLSearchParams(location.search).get('width') + 'px';
frame.onload = () => {
  const doc = frame.contentDocument, view = frame.contentWindow;
  const rgb = text => text.match(/[\d.]+/g).slice(0, 3).map(Number);
  const light = c => { const [r, g, b] = rgb(c).map(v => (v /= 255) <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4);
                       return .2126 * r + .7152 * g + .0722 * b; };
  const page = light(view.getComputedStyle(doc.body).backgroundColor);
  const ratio = c => { const a = light(c); return (Math.max(a, page) + .05) / (Math.min(a, page) + .05); };
  let text = 1e9, contrast = 1e9, clipped = 0, figures = 0;
  for (const svg of doc.querySelectorAll('svg')) {
    const box = svg.getBoundingClientRect();
    if (box.width > 100 && box.height > 50) ++figures;
    const scale = box.width / svg.viewBox.baseVal.width;
    for (const t of svg.querySelectorAll('text')) {
      const style = view.getComputedStyle(t), b = t.getBoundingClientRect();
      text = Math.min(text, parseFloat(style.fontSize) * scale);
      contrast = Math.min(contrast, ratio(style.fill));
      if (b.left < box.left - 1 || b.right > box.right + 1 || b.top < box.top - 1 || b.bottom > box.bottom + 1) ++clipped;
    }
  }
  for (const e of doc.querySelectorAll('p,td,th,li,dt,dd,h1,h2,h3,b,figcaption')) {
    const style = view.getComputedStyle(e);
    text = Math.min(text, parseFloat(style.fontSize));
    contrast = Math.min(contrast, ratio(style.color));
  }
  result.textContent = JSON.stringify({width: doc.documentElement.scrollWidth, text, contrast, figures, clipped});
};
</script>)html";

/// Lays `html` out in headless Chromium; no value if the browser gave no answer.
inline std::optional<Layout> lay_out(const std::string& html, int width, bool dark) {
    const TemporaryDirectory directory;
    directory.write("page.html", html);
    const std::string harness = directory.write("harness.html", kHarness);
    const std::string command =
        "timeout 60 chromium --headless --no-sandbox --disable-gpu --allow-file-access-from-files "
        "--user-data-dir='" +
        directory.file("profile") +
        "' --blink-settings=preferredColorScheme=" + (dark ? "0" : "1") +
        " --virtual-time-budget=5000 --dump-dom 'file://" + harness +
        "?width=" + std::to_string(width) + "' >'" + directory.file("dom") + "' 2>/dev/null";
    if (std::system(command.c_str()) != 0) return std::nullopt;
    const std::string dom = slurp(directory.file("dom"));
    const auto from = dom.find("<pre id=\"result\">{"), to = dom.find("}</pre>");
    if (from == std::string::npos || to == std::string::npos) return std::nullopt;
    const auto start = from + 17;
    const auto result = nlohmann::json::parse(dom.substr(start, to + 1 - start));
    return Layout{result["width"], result["text"], result["contrast"], result["figures"],
                  result["clipped"]};
}

}  // namespace xstage::test
