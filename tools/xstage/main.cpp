#include <fmt/format.h>

#include <csignal>
#include <new>

#include "commands.hpp"
#include "xstage/error.hpp"
#include "xstage/version.hpp"

int main(int argc, char** argv) {
    using namespace xstage;
    // A reader that closes early (head, say) is not a fault of ours.
    std::signal(SIGPIPE, SIG_DFL);

    CLI::App app{"Measure, predict and schedule stores to peer GPUs", "xstage"};
    app.set_version_flag("--version", std::string(kVersion));
    app.require_subcommand(1);
    cli::add_probe(app);
    cli::add_fit(app);
    cli::add_predict(app);
    cli::add_report(app);
    cli::add_import(app);
    cli::add_simulate(app);
    cli::add_advise(app);
    cli::add_bench(app);
    cli::add_mask(app);
    cli::add_env(app);

    try {
        app.parse(argc, argv);
        return 0;
    } catch (const CLI::ParseError& error) {
        return app.exit(error) == 0 ? 0 : static_cast<int>(ErrorKind::kBadInput);
    } catch (const cli::ExitWith& exit) {
        return exit.code;
    } catch (const Error& error) {
        fmt::print(stderr, "xstage: {}\n", error.what());
        return error.exit_code();
    } catch (const std::bad_alloc&) {
        fmt::print(stderr, "xstage: out of memory\n");
        return static_cast<int>(ErrorKind::kEnvironment);
    }
}
