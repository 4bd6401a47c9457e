#include "model/least_squares.hpp"

#include <cmath>
#include <unsupported/Eigen/NonLinearOptimization>

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
    int rows;
    Eigen::VectorXd start;

    int inputs() const { return static_cast<int>(parameters.size()); }
    int values() const { return rows + inputs(); }

    Profile at(const Eigen::VectorXd& x) const {
        Profile profile = base;
        for (std::size_t i = 0; i < parameters.size(); ++i) {
            const auto& p = parameters[i];
            p.set(profile, from_free(p, x[static_cast<Eigen::Index>(i)]));
        }
        return profile;
    }

    int operator()(const Eigen::VectorXd& x, Eigen::VectorXd& f) const {
        const Profile profile = at(x);
        Simulator simulate(profile);
        int row = 0;
        for (const Case& c : cases) append(simulate, c, f.data() + row), row += size_of(c);
        f.tail(inputs()) = kPull * (x - start);
        return 0;
    }

    int df(const Eigen::VectorXd& x, Eigen::MatrixXd& jacobian) const {
        Eigen::VectorXd f(values()), g(values());
        (*this)(x, f);
        jacobian.setZero(values(), x.size());
        const Profile unmoved = at(x);
        Simulator before(unmoved);
        for (Eigen::Index i = 0; i < x.size(); ++i) {
            Eigen::VectorXd moved = x;
            moved[i] += kStep;
            const Profile profile = at(moved);
            Simulator simulate(profile);
            const std::size_t path = parameters[static_cast<std::size_t>(i)].path;
            int row = 0;
            for (const Case& c : cases) {
                const int n = size_of(c);
                if ((path == kShared || path == c.path) && !simulate.agrees(before, c)) {
                    append(simulate, c, g.data() + row);
                    jacobian.block(row, i, n, 1) = (g.segment(row, n) - f.segment(row, n)) / kStep;
                }
                row += n;
            }
            jacobian(rows + i, i) = kPull;
        }
        return 0;
    }
};

}  // namespace

Eigen::VectorXd residuals(const Profile& profile, const std::vector<Case>& cases) {
    int rows = 0;
    for (const Case& c : cases) rows += size_of(c);
    Eigen::VectorXd f(rows);
    Simulator simulate(profile);
    int row = 0;
    for (const Case& c : cases) append(simulate, c, f.data() + row), row += size_of(c);
    return f;
}

Solution solve(Profile& profile, const std::vector<Parameter>& parameters,
               const std::vector<Case>& cases, int max_iterations) {
    Functor functor{profile, parameters, cases, 0, {}};
    Solution solution;
    for (std::size_t i = 0; i < cases.size(); ++i) {
        const int n = size_of(cases[i]);
        functor.rows += n;
        solution.case_of.insert(solution.case_of.end(), static_cast<std::size_t>(n), i);
    }
    Eigen::VectorXd x(static_cast<Eigen::Index>(parameters.size()));
    for (std::size_t i = 0; i < parameters.size(); ++i) {
        x[static_cast<Eigen::Index>(i)] = to_free(parameters[i], parameters[i].get(profile));
    }
    functor.start = x;
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
    const Profile found = functor.at(x);
    solution.free = x;
    solution.residual.resize(functor.values());
    functor(x, solution.residual);
    functor.df(x, solution.jacobian);
    solution.residual.conservativeResize(functor.rows);
    solution.cost = 0.5 * solution.residual.squaredNorm();
    profile = found;
    return solution;
}

}  // namespace xstage::model
