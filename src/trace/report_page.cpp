#include "trace/report_page.hpp"

#include <fmt/format.h>

#include "trace/svg.hpp"
#include "xstage/version.hpp"

namespace xstage::trace {
namespace {

// Series colours keep a contrast of at least 3:1 against both backgrounds and differ in lightness,
// so that they stay apart for colour-blind readers and in print.
constexpr const char* kStyle = R"css(
:root{color-scheme:light dark;--bg:#fff;--fg:#1c2128;--dim:#59636e;--rule:#d1d9e0;--panel:#f6f8fa;
--c0:#0b5cad;--c1:#c4461a;--c2:#1a7f4b;--c3:#8250df;--c4:#6e7781;--c5:#a8480a}
@media(prefers-color-scheme:dark){:root{--bg:#0d1117;--fg:#e6edf3;--dim:#9aa4af;--rule:#30363d;--panel:#161b22;
--c0:#5aa9ff;--c1:#ff8a5c;--c2:#4cc38a;--c3:#c297ff;--c4:#a3adb8;--c5:#f0b429}}
*{box-sizing:border-box}
body{margin:0;background:var(--bg);color:var(--fg);font:16px/1.5 system-ui,"DejaVu Sans",sans-serif}
main{max-width:1360px;margin:0 auto;padding:24px 16px 48px}
h1{font-size:1.6rem;line-height:1.2;margin:0 0 8px}h2{font-size:1.15rem;margin:36px 0 8px}
h3{font-size:1rem;margin:0 0 4px}p{margin:0 0 12px;max-width:75ch}.dim,figcaption,td.dim{color:var(--dim)}
.answers{display:grid;grid-template-columns:repeat(auto-fit,minmax(210px,1fr));gap:12px;margin:20px 0}
.answers div{background:var(--panel);border:1px solid var(--rule);border-radius:8px;padding:12px 14px}
.answers b{display:block;font-size:1.5rem;line-height:1.25;font-variant-numeric:tabular-nums}
.figures{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,400px),1fr));gap:20px}
figure{margin:0;min-width:0;border:1px solid var(--rule);border-radius:8px;padding:12px}
figcaption{font-size:.875rem;margin-top:4px}
svg{display:block;width:100%;height:auto}
svg text{fill:var(--dim);font:13px system-ui,"DejaVu Sans",sans-serif}
svg text.axis,svg text.marked{fill:var(--fg)}
.grid{stroke:var(--rule);stroke-width:1;fill:none}.mark{stroke:var(--fg);stroke-width:1.4;stroke-dasharray:5 3;fill:none}
.line{fill:none;stroke-width:2}.dashed{stroke-dasharray:6 4}.heat{fill:var(--c1)}
.c0{fill:var(--c0);stroke:var(--c0)}.c1{fill:var(--c1);stroke:var(--c1)}.c2{fill:var(--c2);stroke:var(--c2)}
.c3{fill:var(--c3);stroke:var(--c3)}.c4{fill:var(--c4);stroke:var(--c4)}.c5{fill:var(--c5);stroke:var(--c5)}
path.line{fill:none}circle{stroke:none!important}
.scroll{overflow-x:auto}
table{border-collapse:collapse;font-variant-numeric:tabular-nums;font-size:.9rem}
th,td{padding:5px 14px 5px 0;border-bottom:1px solid var(--rule);text-align:right;vertical-align:top}
th:first-child,td:first-child,th.text,td.text{text-align:left}
th,td{white-space:nowrap}td.text:last-child:not(:first-child){white-space:normal;min-width:240px}
ul{padding-left:20px;max-width:85ch}code{font-size:.85em;overflow-wrap:anywhere}
dl{display:grid;grid-template-columns:max-content minmax(0,1fr);gap:4px 16px;margin:0}
dt{color:var(--dim)}dd{margin:0;overflow-wrap:anywhere}
@media(max-width:520px){dl{grid-template-columns:1fr}dd{margin-bottom:8px}}
)css";

bool numeric(const std::string& cell) {
    return cell.empty() ||
           (cell.find_first_of("0123456789") != std::string::npos && cell.size() < 24);
}

std::string render(const PageTable& table) {
    std::string out = fmt::format("<h2>{}</h2>\n<div class=\"scroll\"><table><thead><tr>",
                                  escape_html(table.title));
    // A column whose cells are words reads from the left.
    std::vector<bool> text(table.header.size(), false);
    for (const auto& row : table.rows) {
        for (std::size_t i = 0; i < row.size() && i < text.size(); ++i) {
            if (!numeric(row[i])) text[i] = true;
        }
    }
    const auto cells = [&](const std::vector<std::string>& row, const char* tag) {
        std::string line;
        for (std::size_t i = 0; i < row.size(); ++i) {
            const bool left = i < text.size() && text[i];
            line += fmt::format("<{0}{1}>{2}</{0}>", tag, left ? " class=\"text\"" : "",
                                escape_html(row[i]));
        }
        return line;
    };
    out += cells(table.header, "th") + "</tr></thead><tbody>\n";
    for (const auto& row : table.rows) out += "<tr>" + cells(row, "td") + "</tr>\n";
    out += "</tbody></table></div>\n";
    if (!table.note.empty())
        out += fmt::format("<p class=\"dim\">{}</p>\n", escape_html(table.note));
    return out;
}

std::string render(const Provenance& p) {
    std::string gpus;
    for (const Gpu& gpu : p.gpus) {
        gpus += fmt::format("{}{} ({} SMs{}{})", gpus.empty() ? "" : ", ", gpu.name, gpu.sms,
                            gpu.uuid.empty() ? "" : ", ", gpu.uuid);
    }
    std::string command;
    for (const std::string& argument : p.argv) command += (command.empty() ? "" : " ") + argument;

    std::string out = "<h2>Where the data come from</h2>\n<dl>";
    const auto entry = [&](const char* name, const std::string& value) {
        if (!value.empty()) out += fmt::format("<dt>{}</dt><dd>{}</dd>", name, escape_html(value));
    };
    entry("Node", p.node);
    entry("GPUs", gpus);
    entry("Link", p.topology);
    entry("Line rate",
          p.line_rate ? fmt::format("{:.0f} GB/s per direction", p.line_rate->value()) : "");
    entry("Driver, CUDA", p.driver + (p.cuda.empty() ? "" : ", CUDA " + p.cuda));
    entry("Recorded", p.date);
    entry("Command", command);
    entry("Written by", fmt::format("xstage {}{}{}", p.tool_version,
                                    p.git_commit.empty() ? "" : ", commit ", p.git_commit));
    out += "</dl>\n";
    if (!p.warnings.empty()) {
        out += "<h2>What to mind</h2>\n<ul>";
        for (const std::string& warning : p.warnings)
            out += "<li>" + escape_html(warning) + "</li>\n";
        out += "</ul>\n";
    }
    return out;
}

}  // namespace

std::string render(const Page& page) {
    std::string out = fmt::format(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">"
        "<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n"
        "<title>{0}</title>\n<style>{1}</style></head>\n<body><main>\n<h1>{0}</h1>\n<p "
        "class=\"dim\">{2}</p>\n",
        escape_html(page.title), kStyle, escape_html(page.lead));
    if (!page.answers.empty()) {
        out += "<div class=\"answers\">\n";
        for (const PageAnswer& answer : page.answers) {
            out += fmt::format("<div><b>{}</b>{}</div>\n", escape_html(answer.value),
                               escape_html(answer.meaning));
        }
        out += "</div>\n";
    }
    out += "<div class=\"figures\">\n";
    for (const PageFigure& figure : page.figures) {
        out += fmt::format("<figure><h3>{}</h3>\n{}<figcaption>{}</figcaption></figure>\n",
                           escape_html(figure.title), figure.svg, escape_html(figure.caption));
    }
    out += "</div>\n";
    for (const PageTable& table : page.tables) out += render(table);
    out += render(page.provenance);
    out += fmt::format(
        "<p class=\"dim\" style=\"margin-top:32px\">xstage {}</p>\n</main></body></html>\n",
        kVersion);
    return out;
}

}  // namespace xstage::trace
