#include "model/least_squares.hpp"

#include <algorithm>
#include <cmath>
#include <unsupported/Eigen/NonLinearOptimization>

#include "model/parallel.hpp"

namespace xstage::model {
namespace {

constexpr double kScale = 0.15;      // relative error from which a row counts less
constexpr double kStampCycles = 30;  // below it a difference is the stamps' own
constexpr double kPull = 0.02;       // towards the start: only what the data leave open follows it
constexpr double kStep = 3e-3;       // of the transforms; the model has kinks, so not too small

double robust(double error) {
    const double x = error / kScale;
    const double root = std::sqrt(2 * (std::sqrt(1 + x * x) - 1));
    return kScale * (error < 0 ? -root : root);
}

void append(Simulator& simulate, const Case& c, double* out) {
    const Observed predicted = simulate(c);
    for (int i = 0; i < kObservables; ++i) {
        if (c.weight[i] <= 0) continue;
        const double error =
            std::log((predicted[i] + kStampCycles) / (c.observed[i] + kStampCycles));
        *out++ = robust(c.weight[i] * error);
    }
}

int size_of(const Case& c) {
    int n = 0;
    for (double w : c.weight) n += w > 0;
    return n;
}

struct Functor {
    using Scalar = double;
    enum { InputsAtCompileTime = Eigen::Dynamic, ValuesAtCompileTime = Eigen::Dynamic };
    using InputType = Eigen::VectorXd;
    using ValueType = Eigen::VectorXd;
    using JacobianType = Eigen::MatrixXd;

    const Profile& base;
    const std::vector<Parameter>& parameters;
    const std::vector<Case>& cases;
    int threads;
    Eigen::VectorXd start;
    std::vector<Eigen::Index> row_of{0};  // first row of each case; one more at the end
    // The minimiser asks for the Jacobian where it has just asked for the residuals.
    mutable Eigen::VectorXd last_x{}, last_f{};

    Functor(const Profile& profile, const std::vector<Parameter>& free,
            const std::vector<Case>& rows, Eigen::VectorXd at_start, int most_threads)
        : base(profile),
          parameters(free),
          cases(rows),
          threads(most_threads),
          start(std::move(at_start)) {
        for (const Case& c : cases) row_of.push_back(row_of.back() + size_of(c));
    }

    Eigen::Index rows() const { return row_of.back(); }
    int inputs() const { return static_cast<int>(parameters.size()); }
    int values() const { return static_cast<int>(rows()) + inputs(); }

    Profile at(const Eigen::VectorXd& x) const {
        Profile profile = base;
        for (std::size_t i = 0; i < parameters.size(); ++i) {
            const auto& p = parameters[i];
            p.set(profile, from_free(p, x[static_cast<Eigen::Index>(i)]));
        }
        return profile;
    }

    int operator()(const Eigen::VectorXd& x, Eigen::VectorXd& f) const {
        if (last_x.size() == x.size() && last_x == x) return f = last_f, 0;
        const Profile profile = at(x);
        const auto parts = static_cast<std::size_t>(std::max(threads, 1));
        parallel_for(parts, threads, [&](std::size_t part) {
            Simulator simulate(profile);
            for (std::size_t i = part; i < cases.size(); i += parts) {
                append(simulate, cases[i], f.data() + row_of[i]);
            }
        });
        f.tail(inputs()) = kPull * (x - start);
        last_x = x, last_f = f;
        return 0;
    }

    int df(const Eigen::VectorXd& x, Eigen::MatrixXd& jacobian) const {
        Eigen::VectorXd f(values());
        (*this)(x, f);
        jacobian.setZero(values(), x.size());
        const Profile profile = at(x);
        parallel_for(parameters.size(), threads, [&](std::size_t i) {
            const auto column = static_cast<Eigen::Index>(i);
            differentiate(x, column, profile, f, jacobian.col(column).data());
        });
        return 0;
    }

    void differentiate(const Eigen::VectorXd& x, Eigen::Index i, const Profile& profile,
                       const Eigen::VectorXd& f, double* column) const {
        Eigen::VectorXd there = x;
        there[i] += kStep;
        const Profile moved_profile = at(there);
        Simulator before(profile), moved(moved_profile);
        const std::size_t path = parameters[static_cast<std::size_t>(i)].path;
        for (std::size_t k = 0; k < cases.size(); ++k) {
            if (path != kShared && path != cases[k].path) continue;
            if (moved.agrees(before, cases[k])) continue;
            append(moved, cases[k], column + row_of[k]);
            for (Eigen::Index row = row_of[k]; row < row_of[k + 1]; ++row) {
                column[row] = (column[row] - f[row]) / kStep;
            }
        }
        column[rows() + i] = kPull;
    }
};

}  // namespace

Eigen::VectorXd solve(Profile& profile, const std::vector<Parameter>& parameters,
                      const std::vector<Case>& cases, int threads, int max_iterations) {
    Eigen::VectorXd x(static_cast<Eigen::Index>(parameters.size()));
    for (std::size_t i = 0; i < parameters.size(); ++i) {
        x[static_cast<Eigen::Index>(i)] = to_free(parameters[i], parameters[i].get(profile));
    }
    Functor functor(profile, parameters, cases, x, threads);
    Eigen::LevenbergMarquardt<Functor> lm(functor);
    lm.parameters.factor = 1;  // the transforms are of order one: no long first step
    lm.parameters.ftol = 1e-3;
    lm.parameters.xtol = 1e-5;
    auto status = lm.minimizeInit(x);
    for (int i = 0; i < max_iterations; ++i) {
        if (status == Eigen::LevenbergMarquardtSpace::ImproperInputParameters) break;
        status = lm.minimizeOneStep(x);
        if (status != Eigen::LevenbergMarquardtSpace::Running) break;
    }
    profile = functor.at(x);
    return x;
}

Linearised linearise(const Profile& profile, const Eigen::VectorXd& free,
                     const std::vector<Parameter>& parameters, const std::vector<Case>& cases,
                     int threads) {
    const Functor functor(profile, parameters, cases, free, threads);
    Linearised out;
    out.residual.resize(functor.values());
    functor(free, out.residual);
    functor.df(free, out.jacobian);
    out.residual.conservativeResize(functor.rows());
    for (std::size_t i = 0; i < cases.size(); ++i) {
        out.case_of.insert(out.case_of.end(), static_cast<std::size_t>(size_of(cases[i])), i);
    }
    return out;
}

}  // namespace xstage::model
