#include <fmt/format.h>

#include <memory>

#include "commands.hpp"
#include "trace/import_h200x2.hpp"
#include "xstage/documents.hpp"

namespace xstage::cli {

void add_import(CLI::App& app) {
    struct Options {
        std::string directory, output = "-";
    };
    auto options = std::make_shared<Options>();
    CLI::App* command = app.add_subcommand(
        "import", "Turn the CSV files of a recording into a measurement document");
    command
        ->add_option("directory", options->directory, "holds stores.csv, visible.csv, per_sm.csv")
        ->required();
    command->add_option("-o,--output", options->output, "document to write; - for standard output");
    command->callback([options] {
        const Measurements measurements = trace::import_h200x2(options->directory);
        write_measurements(options->output, measurements);
        fmt::print(stderr, "xstage import: {} burst rows, {} visible rows, {} SM rows, {} curves\n",
                   measurements.bursts.size(), measurements.visible.size(),
                   measurements.per_sm.size(), measurements.curves.size());
    });
}

}  // namespace xstage::cli
