#include <fmt/format.h>

#include <memory>
#include <optional>

#include "commands.hpp"
#include "core/file.hpp"
#include "core/json.hpp"
#include "xstage/error.hpp"
#include "xstage/sparse.hpp"

namespace xstage::cli {
namespace {

using sparse::MaskFile;
using sparse::ThresholdMap;
using sparse::TokenLayout;

void add_layout(CLI::App* command, const std::shared_ptr<TokenLayout>& layout, bool required) {
    command->add_option("--frames", layout->frames, "of the latent video")
        ->check(CLI::Range(1, 1 << 20))
        ->required(required);
    command->add_option("--height", layout->height, "of a frame, in tokens")
        ->check(CLI::Range(1, 1 << 20))
        ->required(required);
    command->add_option("--width", layout->width, "of a frame, in tokens")
        ->check(CLI::Range(1, 1 << 20))
        ->required(required);
}

const ThresholdMap& layer_of(const MaskFile& file, std::int64_t layer, const std::string& path) {
    if (layer < 0 || layer >= static_cast<std::int64_t>(file.layers.size())) {
        throw Error(ErrorKind::kBadInput, fmt::format("{}: there is no layer {}; it has {}", path,
                                                      layer, file.layers.size()));
    }
    return file.layers[static_cast<std::size_t>(layer)];
}

core::Json to_json(const MaskFile& file) {
    const TokenLayout& layout = file.layers[0].layout();
    core::Json json = {{"schema_version", 1},
                       {"kind", "mask"},
                       {"layers", file.layers.size()},
                       {"steps", file.steps},
                       {"heads", file.layers[0].heads()},
                       {"prompts", file.prompts},
                       {"layout",
                        {{"text", layout.text},
                         {"frames", layout.frames},
                         {"height", layout.height},
                         {"width", layout.width},
                         {"rows", layout.rows()},
                         {"blocks", file.layers[0].blocks()}}}};
    for (std::size_t l = 0; l < file.layers.size(); ++l) {
        core::Json row = {{"layer", l}};
        for (const float p : {0.5F, 0.8F, 0.9F, 0.95F, 0.99F}) {
            double sum = 0;
            for (std::int64_t h = 0; h < file.layers[l].heads(); ++h) {
                sum += file.layers[l].density(h, p);
            }
            row["density"][fmt::format("{:.2f}", p)] =
                sum / static_cast<double>(file.layers[l].heads());
        }
        json["density_by_layer"].push_back(row);
    }
    json["budgets"] = nullptr;
    if (file.budgets) {
        const sparse::FidelitySchedule& s = file.budgets->schedule;
        json["budgets"] = {{"density", file.budgets->density},
                           {"beta", s.beta},
                           {"gamma", s.gamma},
                           {"omega", s.omega},
                           {"strength", s.strength}};
    } else {
        json["budgets_reason"] = "not tuned";
    }
    return json;
}

void print(const MaskFile& file) {
    const TokenLayout& layout = file.layers[0].layout();
    fmt::print(
        "{} layers, {} steps, {} heads, {} prompts; {} text tokens and {} x {} x {} of video: "
        "{} blocks a side\n\n{:>6}",
        file.layers.size(), file.steps, file.layers[0].heads(), file.prompts, layout.text,
        layout.frames, layout.height, layout.width, file.layers[0].blocks(), "layer");
    const core::Json json = to_json(file);
    for (const auto& [p, value] : json["density_by_layer"][0]["density"].items()) {
        fmt::print("{:>9}", p);
    }
    fmt::print("   density at top-p\n");
    for (const core::Json& row : json["density_by_layer"]) {
        fmt::print("{:>6}", row["layer"].get<int>());
        for (const auto& [p, value] : row["density"].items()) {
            fmt::print("{:>9.3f}", value.get<double>());
        }
        fmt::print("\n");
    }
    if (file.budgets) {
        fmt::print("\nbudgets: mean density {:.4f}, allowed loss from {:.4f} to {:.4f}\n",
                   file.budgets->density,
                   file.budgets->schedule.strength * (1 - file.budgets->schedule.beta),
                   file.budgets->schedule.strength);
    }
}

void add_calibrate(CLI::App* mask) {
    struct Options {
        std::vector<std::string> prompts;
        std::string output;
        double scale = 0;
    };
    auto o = std::make_shared<Options>();
    auto layout = std::make_shared<TokenLayout>();
    CLI::App* command = mask->add_subcommand(
        "calibrate", "Threshold maps from queries and keys of calibration prompts (WEST)");
    command
        ->add_option("prompts", o->prompts,
                     "safetensors files, one a prompt: layers.L.steps.T.q and .k, [rows, heads, "
                     "head_dim]")
        ->required();
    command->add_option("--text", layout->text, "leading text tokens, which stay dense")
        ->check(CLI::Range(0, 1 << 20));
    add_layout(command, layout, true);
    command->add_option("--scale", o->scale, "of the scores (default: 1/sqrt(head_dim))")
        ->check(CLI::PositiveNumber);
    command->add_option("-o,--output", o->output, "map to write")->required();
    command->callback([o, layout] {
        const MaskFile file = sparse::calibrate(o->prompts, *layout, o->scale);
        sparse::write_mask_file(o->output, file);
        fmt::print(stderr, "{}: {} layers, {} steps, {} prompts\n", o->output, file.layers.size(),
                   file.steps, file.prompts);
    });
}

void add_tune(CLI::App* mask) {
    struct Options {
        std::string map, output;
        double density = 0;
        sparse::FidelitySchedule schedule;
        bool json = false;
    };
    auto o = std::make_shared<Options>();
    CLI::App* command = mask->add_subcommand(
        "tune", "How much each head of each layer and step may leave out (FAST)");
    command->add_option("map", o->map, "threshold map; - for standard input")->required();
    command->add_option("--density", o->density, "mean over layers, steps and heads")
        ->check(CLI::Range(0.0, 1.0))
        ->required();
    command->add_option("--beta", o->schedule.beta, "share of the loss that grows with depth")
        ->check(CLI::Range(0.0, 1.0));
    command->add_option("--gamma", o->schedule.gamma, "how late it grows")
        ->check(CLI::PositiveNumber);
    command->add_option("--omega", o->schedule.omega, "weight of a step against a layer")
        ->check(CLI::NonNegativeNumber);
    command->add_option("-o,--output", o->output, "map with budgets to write")->required();
    command->add_flag("--json", o->json, "print a document");
    command->callback([o] {
        MaskFile file = sparse::read_mask_file(o->map);
        if (file.samples.empty()) {
            throw Error(ErrorKind::kBadInput, o->map + ": there are no sampled rows to tune with");
        }
        file.budgets = sparse::tune(file.layers, file.samples, file.steps, o->density, o->schedule);
        sparse::write_mask_file(o->output, file);
        if (o->json) {
            fmt::print("{}", core::dump_json(to_json(file)));
        } else {
            print(file);
        }
    });
}

void add_apply(CLI::App* mask) {
    struct Options {
        std::string map, output;
        std::int64_t layer = 0, step = 0;
        std::optional<double> density, top_p;
    };
    auto o = std::make_shared<Options>();
    auto layout = std::make_shared<TokenLayout>(TokenLayout{0, 0, 0, 0});
    CLI::App* command =
        mask->add_subcommand("apply", "The mask of one layer and step, as bits for a launch");
    command->add_option("map", o->map, "threshold map; - for standard input")->required();
    command->add_option("--layer", o->layer, "counted from 0")->required();
    command->add_option("--step", o->step, "counted from 0");
    auto* density = command->add_option("--density", o->density,
                                        "one top-p for all heads, of this density (default: the "
                                        "budgets)");
    command->add_option("--top-p", o->top_p, "for all heads")
        ->check(CLI::Range(0.0, 1.0))
        ->excludes(density);
    density->check(CLI::Range(0.0, 1.0));
    add_layout(command, layout, false);
    command->add_option("-o,--output", o->output, "mask to write")->required();
    command->callback([o, layout] {
        const MaskFile file = sparse::read_mask_file(o->map);
        ThresholdMap map = layer_of(file, o->layer, o->map);
        const int sizes = (layout->frames > 0) + (layout->height > 0) + (layout->width > 0);
        if (sizes != 0 && sizes != 3) {
            throw Error(ErrorKind::kBadInput, "--frames, --height and --width go together");
        }
        if (sizes == 3) {
            layout->text = map.layout().text;
            map = map.resampled(*layout);
        }
        sparse::BlockMask result;
        if (o->density) {
            result = map.mask_of_density(*o->density);
        } else if (o->top_p) {
            result = map.mask(static_cast<float>(*o->top_p));
        } else if (!file.budgets) {
            throw Error(ErrorKind::kBadInput,
                        o->map + ": not tuned; give --density or --top-p, or run mask tune");
        } else if (o->step < 0 || o->step >= file.steps) {
            throw Error(ErrorKind::kBadInput, fmt::format("{}: there is no step {}; it has {}",
                                                          o->map, o->step, file.steps));
        } else {
            result = map.mask(file.budgets->at(o->layer, o->step));
        }
        sparse::write_block_mask(o->output, result);
        fmt::print(stderr, "{}: {} heads, {} x {} blocks, density {:.4f}\n", o->output,
                   result.heads(), result.q_blocks(), result.key_blocks(), result.density());
    });
}

void add_inspect(CLI::App* mask) {
    struct Options {
        std::string map, svg;
        std::int64_t layer = 0, head = 0;
        std::optional<double> top_p;
        bool json = false;
    };
    auto o = std::make_shared<Options>();
    CLI::App* command = mask->add_subcommand("inspect", "What a map holds; --svg draws a head");
    command->add_option("map", o->map, "threshold map; - for standard input")->required();
    command->add_option("--layer", o->layer, "to draw, counted from 0");
    command->add_option("--head", o->head, "to draw, counted from 0");
    command->add_option("--top-p", o->top_p, "colour the blocks kept at this top-p")
        ->check(CLI::Range(0.0, 1.0));
    command->add_option("--svg", o->svg, "picture to write; - for standard output");
    command->add_flag("--json", o->json, "print a document instead of a table");
    command->callback([o] {
        const MaskFile file = sparse::read_mask_file(o->map);
        if (!o->svg.empty()) {
            const ThresholdMap& map = layer_of(file, o->layer, o->map);
            std::string title = fmt::format("layer {}, head {}", o->layer, o->head);
            std::optional<float> top_p;
            if (o->top_p) {
                top_p = static_cast<float>(*o->top_p);
                if (o->head >= 0 && o->head < map.heads()) {
                    title += fmt::format(": {:.1f}% kept at top-p {}",
                                         100 * map.density(o->head, *top_p), *o->top_p);
                }
            }
            core::write_file_atomic(o->svg, sparse::map_svg(map, o->head, top_p, title));
            if (o->svg == "-") return;
        }
        if (o->json) {
            fmt::print("{}", core::dump_json(to_json(file)));
        } else {
            print(file);
        }
    });
}

}  // namespace

void add_mask(CLI::App& app) {
    CLI::App* mask =
        app.add_subcommand("mask", "Block masks for sparse attention: find, tune, apply, inspect");
    mask->require_subcommand(1);
    add_calibrate(mask);
    add_tune(mask);
    add_apply(mask);
    add_inspect(mask);
}

}  // namespace xstage::cli
