#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <random>
#include <thread>

#include "model/calibrate.hpp"
#include "model/evaluate.hpp"
#include "model/groups.hpp"
#include "model/identify.hpp"
#include "model/least_squares.hpp"
#include "model/parallel.hpp"
#include "model/placement.hpp"
#include "model/recovery.hpp"
#include "xstage/error.hpp"
#include "xstage/model.hpp"

namespace xstage::model {
namespace {

constexpr double kWidest = 4.0;           // an interval wider than this factor identifies nothing
constexpr double kResolution = 0.025;     // half width that stopping and rounding alone can explain
constexpr double kRowResolution = 0.007;  // of one recorded time: stamps, and where the fit stops

double median(std::vector<double> v) {
    return percentile(std::move(v), 0.5);
}

// Stamps and loops around the bursts: what the total holds beside issue and gaps.
void fit_overheads(const std::vector<Case>& cases, Profile& profile) {
    for (std::size_t i = 0; i < profile.paths.size(); ++i) {
        std::vector<double> finish, between;
        for (const Case& c : cases) {
            if (c.path == i && c.bursts == 1 && c.observed[kTotal] > 0) {
                finish.push_back(c.observed[kTotal] - c.observed[kFirst]);
            }
        }
        if (!finish.empty()) profile.paths[i].finish = Cycles{std::max(0.0, median(finish))};
        for (const Case& c : cases) {
            if (c.path != i || c.bursts != 2 || c.observed[kTotal] <= 0) continue;
            // Only unstalled rows: elsewhere medians over warps do not add up.
            if (c.observed[kFirst] * 1.2 < c.observed[kFirstSlowest]) continue;
            if (c.observed[kLast] * 1.2 < c.observed[kLastSlowest]) continue;
            between.push_back(c.observed[kTotal] - c.observed[kFirst] - c.observed[kLast] -
                              c.gap.value() - profile.paths[i].finish.value());
        }
        if (!between.empty()) profile.paths[i].between = Cycles{std::max(0.0, median(between))};
    }
}

std::vector<double> resample(const Linearised& solution, std::size_t cases, std::uint64_t seed,
                             int resamples, std::size_t parameters) {
    // One Gauss-Newton step per resample of whole rows, from the solution's own Jacobian: the
    // bootstrap of the linearised fit. Deterministic in the seed.
    std::mt19937_64 random(seed);
    std::vector<double> draws;
    const auto n = static_cast<Eigen::Index>(parameters);
    const Eigen::Index rows = solution.residual.size();
    for (int b = 0; b < resamples; ++b) {
        std::vector<double> times(cases, 0.0);
        for (std::size_t i = 0; i < cases; ++i) times[random() % cases] += 1;
        Eigen::VectorXd weight(rows);
        for (Eigen::Index r = 0; r < rows; ++r) {
            weight[r] = times[solution.case_of[static_cast<std::size_t>(r)]];
        }
        const auto j = solution.jacobian.topRows(rows);
        Eigen::MatrixXd normal = j.transpose() * weight.asDiagonal() * j;
        normal.diagonal().array() += 1e-4;
        const Eigen::VectorXd step =
            -normal.ldlt().solve(j.transpose() * weight.asDiagonal() * solution.residual);
        for (Eigen::Index i = 0; i < n; ++i) draws.push_back(step[i]);
    }
    return draws;
}

void describe(const Parameter& parameter, const Profile& profile, Estimate& estimate) {
    estimate.name = parameter.name;
    estimate.unit = parameter.unit;
    estimate.meaning = parameter.meaning;
    estimate.value = parameter.get(profile);
}

void estimate_all(const std::vector<Parameter>& free, const Eigen::VectorXd& centre,
                  const Linearised& solution, std::size_t cases, const FitOptions& options,
                  Profile& profile) {
    const auto draws = resample(solution, cases, options.seed, options.resamples, free.size());
    // Where parameters can trade against each other, the rows' own resolution widens both.
    const auto j = solution.jacobian.topRows(solution.residual.size());
    Eigen::MatrixXd normal = j.transpose() * j;
    normal.diagonal().array() += 1e-4;
    const Eigen::VectorXd trade = normal.inverse().diagonal().cwiseSqrt() * (2 * kRowResolution);
    for (std::size_t i = 0; i < free.size(); ++i) {
        Estimate e;
        describe(free[i], profile, e);
        std::vector<double> own;
        for (std::size_t b = i; b < draws.size(); b += free.size()) own.push_back(draws[b]);
        const double x = centre[static_cast<Eigen::Index>(i)];
        // The linear step is centred on the solution; its spread is what the rows leave open.
        const double middle = percentile(own, 0.5);
        const double least = kResolution + trade[static_cast<Eigen::Index>(i)];
        const double down = std::min(percentile(own, 0.025) - middle, 0.0) - least;
        const double up = std::max(percentile(own, 0.975) - middle, 0.0) + least;
        e.low = from_free(free[i], x + down);
        e.high = from_free(free[i], x + up);
        if (up - down > 2 * std::log(kWidest)) {
            e.reason =
                fmt::format("the rows allow {:.3g} to {:.3g}: they do not depend on it enough",
                            *e.low, *e.high);
            e.value = e.low = e.high = std::nullopt;
        }
        profile.parameters.push_back(e);
    }
}

void fit_visibility(const Measurements& measurements, Profile& profile) {
    std::vector<double> fence, echo;
    for (const VisibleRow& row : measurements.visible) {
        const auto at = std::find_if(profile.paths.begin(), profile.paths.end(),
                                     [&](const StorePath& p) { return p.name == row.path; });
        if (at == profile.paths.end() || !(row.echo_ns.value() > 0)) continue;
        const GigaHertz clock = row.echo / row.echo_ns;
        const Load load{row.producers, row.warps, clock, GapFrom::kProducer};
        const FluidModel model = fluid_model(profile.network, profile.topology, *at, load);
        const FluidBurst burst =
            fluid_burst(profile.network, *at, load, row.bytes_per_producer, Cycles{}, false);
        const FluidResult result = run_fluid(model, std::span(&burst, 1));
        const Nanoseconds drained = Cycles{result.drained[0]} / clock;
        echo.push_back((row.echo_ns - drained).value());
        fence.push_back((row.fenced / clock - drained).value());
    }
    const auto add = [&](const char* name, const char* meaning, const std::vector<double>& seen,
                         std::optional<Nanoseconds>& field) {
        Estimate e{name, "ns", meaning, {}, {}, {}, {}};
        if (measurements.provenance.loopback) {
            e.reason = "loopback: the stores never crossed a link";
        } else if (seen.empty()) {
            e.reason = "no rows of visible time";
        } else {
            field = Nanoseconds{median(seen)};
            e.value = field->value();
            e.low = percentile(seen, 0.025);
            e.high = percentile(seen, 0.975);
        }
        profile.parameters.push_back(e);
    };
    add("fence", "from the drain to the end of a system-scope fence", fence,
        profile.visibility.fence);
    add("echo", "from the drain to the peer's answer", echo, profile.visibility.echo);
}

struct Setup {
    std::vector<Case> cases;
    std::vector<Parameter> free;
    std::vector<Estimate> unidentified;
    Profile start;
};

Setup set_up(const Measurements& measurements) {
    Setup setup;
    Profile& profile = setup.start;
    profile.node = measurements.provenance.node;
    profile.clock = typical_clock(measurements);
    std::vector<std::string> names;
    setup.cases = make_cases(measurements, profile.clock, names);
    if (setup.cases.empty()) {
        throw Error(ErrorKind::kBadInput,
                    "bursts: no remote row with fresh addresses and nothing beside to fit");
    }
    for (const std::string& name : names) profile.paths.push_back(default_path(name));
    for (const Case& c : setup.cases) {
        if (c.bursts > 1 && c.load.gap_from == GapFrom::kWarp) {
            profile.paths[c.path].warps_apart = true;
        }
    }
    profile.network = default_network();
    int sms = measurements.provenance.gpus.empty() ? 0 : measurements.provenance.gpus.front().sms;
    for (const Case& c : setup.cases) sms = std::max(sms, c.load.producers);
    std::string no_groups;
    profile.topology = find_topology(measurements, sms, no_groups);
    profile.topology.halves = equal_halves(profile.topology);
    profile.rows = static_cast<int>(setup.cases.size());
    if (!no_groups.empty()) profile.notes.push_back("groups: " + no_groups);
    fit_overheads(setup.cases, profile);
    for (const Parameter& parameter : all_parameters(profile)) {
        const std::string reason = missing_rows(parameter, measurements, setup.cases, no_groups);
        if (reason.empty()) {
            setup.free.push_back(parameter);
            continue;
        }
        setup.unidentified.push_back(
            {parameter.name, parameter.unit, parameter.meaning, {}, {}, {}, reason});
        if (!measurements.provenance.loopback) neutralise(parameter.name, profile);
    }
    return setup;
}

// Placement and parameters depend on each other: where the CTAs are is sought once more with what
// the first pass has found.
Eigen::VectorXd fit_network(Profile& profile, const std::vector<Parameter>& free,
                            const std::vector<Case>& cases, int threads) {
    const std::vector<Case> fitted = thin_out(cases);
    find_placement(cases, profile);
    Eigen::VectorXd found = solve(profile, free, fitted, threads);
    if (find_placement(cases, profile)) found = solve(profile, free, fitted, threads);
    return found;
}

// The fit of all rows, with its intervals.
Profile fit_all(const Setup& setup, const FitOptions& options, int threads) {
    Profile profile = setup.start;
    const Eigen::VectorXd found = fit_network(profile, setup.free, setup.cases, threads);
    const std::vector<Case> fitted = thin_out(setup.cases);
    const Linearised around = linearise(profile, found, setup.free, fitted, threads);
    estimate_all(setup.free, found, around, fitted.size(), options, profile);
    profile.parameters.insert(profile.parameters.end(), setup.unidentified.begin(),
                              setup.unidentified.end());
    return profile;
}

std::vector<Calibration> calibrate_all(const std::vector<BurstRow>& rows, const Profile& profile) {
    std::vector<Calibration> out;
    for (const StorePath& path : profile.paths) out.push_back(calibrate(rows, path.name));
    return out;
}

void report_simple(const std::vector<Calibration>& calibrations, Profile& profile) {
    for (std::size_t i = 0; i < calibrations.size(); ++i) {
        const Calibration& c = calibrations[i];
        const std::string prefix = profile.paths[i].name + ".simple.";
        const auto add = [&](const char* name, const char* unit, const char* meaning,
                             double value) {
            Estimate e{prefix + name, unit, meaning, {}, {}, {}, c.reason};
            if (c.model) e.value = value;
            profile.parameters.push_back(e);
        };
        const BurstGap m = c.model.value_or(BurstGap{});
        add("issue", "ns", "T_iss0 of the three-parameter model", m.issue.value());
        add("drain", "B/ns", "R of the three-parameter model", m.drain.value());
        add("capacity", "B", "Q of the three-parameter model", m.capacity.value());
        if (c.model) profile.simple.push_back(m), profile.simple_producers = c.producers;
    }
}

std::string count_recovered(const std::vector<ErrorSample>& recovery) {
    std::array<int, 2> inside{}, all{};
    for (const ErrorSample& s : recovery) ++all[s.slowest], inside[s.slowest] += s.error == 0;
    return fmt::format(
        "recovery gaps in their recorded brackets, held out: {} of {} for the "
        "slowest SM, {} of {} for the median SM",
        inside[1], all[1], inside[0], all[0]);
}

struct Held {
    std::vector<ErrorSample> errors, recovery;
};

// Every row is held out once, a fold at a time.
Held hold_out(const Setup& setup, const std::vector<RecoveryBracket>& brackets, int fold, int folds,
              int threads) {
    const auto belongs = [&](std::size_t i) {
        return static_cast<int>(i % static_cast<std::size_t>(folds)) == fold;
    };
    std::vector<Case> kept, held;
    for (std::size_t i = 0; i < setup.cases.size(); ++i) {
        (belongs(i) ? held : kept).push_back(setup.cases[i]);
    }
    if (kept.empty() || held.empty()) return {};
    Profile trained = setup.start;
    fit_network(trained, setup.free, kept, threads);
    // A bracket belongs to a whole sweep; the fold that judges it has not seen a third of it.
    std::vector<RecoveryBracket> judged;
    for (std::size_t i = 0; i < brackets.size(); ++i) {
        if (belongs(i / 2)) judged.push_back(brackets[i]);
    }
    return {errors_on(trained, held), recovery_errors(trained, judged)};
}

// Both models see the same rows; the calibration of the simple one keeps all of them, since the
// paper's procedure needs particular rows.
void compare_models(const Setup& setup, const std::vector<Calibration>& calibrations,
                    const std::vector<Held>& folds, Profile& profile) {
    std::vector<ErrorSample> ours, recovery;
    for (const Held& held : folds) {
        ours.insert(ours.end(), held.errors.begin(), held.errors.end());
        recovery.insert(recovery.end(), held.recovery.begin(), held.recovery.end());
    }
    const auto simple = simple_errors_on(profile, calibrations, setup.cases);
    const auto pooled = [](const std::vector<ErrorSample>& samples) {
        std::vector<double> e;
        for (const ErrorSample& s : samples) e.push_back(s.error);
        return percentile(std::move(e), 0.5);
    };
    profile.hierarchical = simple.empty() || pooled(ours) <= pooled(simple);
    ours.insert(ours.end(), recovery.begin(), recovery.end());
    profile.held_out = summarise(profile, ours, simple);
    if (!recovery.empty()) profile.notes.push_back(count_recovered(recovery));
}

}  // namespace

Profile fit(const Measurements& measurements, const FitOptions& options) {
    if (const auto errors = accounting_errors(measurements); !errors.empty()) {
        throw Error(ErrorKind::kCheckFailed, errors.front());
    }
    const Setup setup = set_up(measurements);
    const auto brackets = recovery_brackets(setup.cases);
    const int folds = options.held_out && options.folds > 1 ? options.folds : 0;
    const int cores = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
    const int each = std::max(1, cores / (1 + folds));
    // The fit of all rows and those of the folds are alike, and nobody waits for another.
    Profile profile;
    std::vector<Held> held(static_cast<std::size_t>(folds));
    parallel_for(1 + held.size(), cores, [&](std::size_t i) {
        if (i == 0) {
            profile = fit_all(setup, options, each);
        } else {
            held[i - 1] = hold_out(setup, brackets, static_cast<int>(i) - 1, folds, each);
        }
    });
    fit_visibility(measurements, profile);
    const auto calibrations = calibrate_all(measurements.bursts, profile);
    report_simple(calibrations, profile);
    if (folds > 0) compare_models(setup, calibrations, held, profile);
    return profile;
}

}  // namespace xstage::model
