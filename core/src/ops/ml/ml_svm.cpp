// SVMRegressor and SVMClassifier of ai.onnx.ml: support vector machines.
//
//     f(x) = Σ_i coefficient_i K(x, v_i) + rho
//     K: LINEAR x·v, POLY (γ x·v + c)^d, RBF e^(-γ |x - v|²), SIGMOID tanh(γ x·v + c)
//
// A classifier with support vectors decides between each pair of classes and counts votes; with prob_a and
// prob_b the decisions become probabilities (T.-F. Wu, C.-J. Lin and R. C. Weng, "Probability estimates for
// multi-class classification by pairwise coupling", JMLR 5, 2004). A classifier without support vectors has
// one row of coefficients per class.
#include <algorithm>
#include <cmath>

#include "ops/ml/ml.h"
#include "runtime/checked.h"
#include "runtime/threads.h"

namespace ortrain {
namespace {

class KernelFunction {
 public:
  explicit KernelFunction(const NodeContext& c) {
    const std::string name = c.node().string_or("kernel_type", "LINEAR");
    static constexpr const char* kNames[] = {"LINEAR", "POLY", "RBF", "SIGMOID"};
    const auto found = std::find(std::begin(kNames), std::end(kNames), name);
    c.expect(found != std::end(kNames), "attribute kernel_type must be LINEAR, POLY, RBF or SIGMOID, found '",
             name, "'");
    kind_ = static_cast<int>(found - std::begin(kNames));
    const std::vector<float> p = floats_of(c, "kernel_params");
    c.expect(p.empty() || p.size() == 3, "attribute kernel_params must have 3 values, found ", p.size());
    if (!p.empty()) gamma_ = p[0], shift_ = p[1], degree_ = p[2];
  }
  double operator()(const double* x, const float* v, int64_t n) const {
    double sum = 0;
    for (int64_t i = 0; i < n; ++i) {
      const double w = static_cast<double>(v[i]);
      sum += kind_ == 2 ? (x[i] - w) * (x[i] - w) : x[i] * w;
    }
    switch (kind_) {
      case 1:
        return std::pow(gamma_ * sum + shift_, degree_);
      case 2:
        return std::exp(-gamma_ * sum);
      case 3:
        return std::tanh(gamma_ * sum + shift_);
      default:
        return sum;
    }
  }

 private:
  int kind_;
  double gamma_ = 0, shift_ = 0, degree_ = 0;
};

// The part that regressor and classifier share: the support vectors or, if there are none, the coefficients
// of a linear function.
struct Machine {
  Rows rows;
  KernelFunction kernel;
  std::vector<float> vectors, coefficients, rho;
  int64_t count = 0;  // of the vectors
  PostTransform transform;

  Machine(const NodeContext& c, int64_t count_)
      : rows(c),
        kernel(c),
        vectors(floats_of(c, "support_vectors")),
        coefficients(floats_of(c, "coefficients")),
        rho(floats_of(c, "rho")),
        count(count_),
        transform(read_post_transform(c)) {
    c.expect(
        count >= 0 && count <= INT32_MAX &&
            (count == 0 || checked_product({count, rows.features}) == static_cast<int64_t>(vectors.size())),
        "it has ", counted(vectors.size(), "value"), " for ", counted(count, "support vector"), " of ",
        counted(rows.features, "feature"));
    c.expect(!rho.empty() && !coefficients.empty(), "attributes rho and coefficients must not be empty");
  }
  const float* vector(int64_t i) const { return vectors.data() + i * rows.features; }
};

// Calls f(row, its features, memory of `extra` doubles) for all rows.
template <typename T, typename F>
void each_row(const Rows& rows, const T* x, double* memory, int64_t shares, int64_t extra, int64_t cost,
              F&& f) {
  parallel_for(shares, (rows.count / std::max<int64_t>(shares, 1) + 1) * cost, [&](int64_t b, int64_t e) {
    for (int64_t share = b; share < e; ++share) {
      double* features = memory + share * (rows.features + extra);
      for (int64_t i = rows.count * share / shares; i < rows.count * (share + 1) / shares; ++i) {
        std::copy(x + i * rows.features, x + (i + 1) * rows.features, features);
        f(i, features, features + rows.features);
      }
    }
  });
}

// -----------------------------------------------------------------------------------------------------------

Machine read_regressor(const NodeContext& c) {
  const Machine m(c, c.node().int_or("n_supports", 0));
  const int64_t wanted = m.count > 0 ? m.count : m.rows.features;
  c.expect(static_cast<int64_t>(m.coefficients.size()) == wanted, "it has ",
           counted(m.coefficients.size(), "coefficient"), ", expected ", wanted);
  return m;
}

void regressor_shape(ShapeContext& c) { c.output(0, DType::kFloat, {read_regressor(c).rows.count, 1}); }

Kernel regressor_kernel(KernelContext& c) {
  const Machine m = read_regressor(c);
  const bool one_class = c.node().int_or("one_class", 0) != 0;
  const int64_t shares = std::min<int64_t>(m.rows.count, max_threads());
  const Slot x = c.in(0), y = c.out(0),
             memory = c.scratch(static_cast<size_t>(shares * m.rows.features) * sizeof(double));
  Kernel kernel;
  visit_ml(c, 0, [&](auto zero) {
    using T = decltype(zero);
    kernel = [=](const Frame& f) {
      each_row(m.rows, f.at<T>(x), f.at<double>(memory), shares, 0, (m.count + 1) * m.rows.features * 2,
               [&](int64_t i, const double* features, double*) {
                 double sum = static_cast<double>(m.rho[0]);
                 for (int64_t k = 0; k < m.count; ++k)
                   sum += static_cast<double>(m.coefficients[static_cast<size_t>(k)]) *
                          m.kernel(features, m.vector(k), m.rows.features);
                 for (int64_t k = 0; m.count == 0 && k < m.rows.features; ++k)
                   sum += static_cast<double>(m.coefficients[static_cast<size_t>(k)]) * features[k];
                 float score = static_cast<float>(sum);
                 if (!one_class) transform_scores(m.transform, &score, 1);
                 f.at<float>(y)[i] = one_class ? (sum > 0 ? 1.0f : -1.0f) : score;
               });
    };
  });
  return kernel;
}

// -----------------------------------------------------------------------------------------------------------

struct Classifier {
  Labels labels;
  std::vector<int64_t> per_class, starts;
  Machine machine;
  std::vector<float> prob_a, prob_b;
  int64_t classes;
  bool positive;  // no coefficient is negative

  explicit Classifier(const NodeContext& c)
      : labels(c, "classlabels_ints"),
        per_class(c.node().ints_or("vectors_per_class", {})),
        starts(starts_of(per_class)),
        machine(c, starts.back()),
        prob_a(floats_of(c, "prob_a")),
        prob_b(floats_of(c, "prob_b")),
        classes(std::max<int64_t>(1, static_cast<int64_t>(labels.size()))) {
    c.expect(!labels.empty(), "it has neither classlabels_ints nor classlabels_strings");
    const int64_t count = static_cast<int64_t>(machine.coefficients.size());
    if (pairwise()) {
      c.expect(static_cast<int64_t>(per_class.size()) == classes && classes >= 2,
               "attribute vectors_per_class must have one value for each of the ",
               counted(classes, "class label"), ", at least 2; found ", counted(per_class.size(), "value"));
      c.expect(count == (classes - 1) * machine.count && static_cast<int64_t>(machine.rho.size()) == pairs(),
               "it needs ", counted((classes - 1) * machine.count, "coefficient"), " and ", pairs(),
               " rho, found ", count, " and ", machine.rho.size());
      for (const std::vector<float>* p : {&prob_a, &prob_b})
        c.expect(prob_a.empty() || static_cast<int64_t>(p->size()) == pairs(), "it needs ", pairs(),
                 " prob_a and prob_b, found ", prob_a.size(), " and ", prob_b.size());
    } else {
      c.expect(count == classes * machine.rows.features, "it needs ",
               counted(classes * machine.rows.features, "coefficient"), ", found ", count);
    }
    positive = *std::min_element(machine.coefficients.begin(), machine.coefficients.end()) >= 0;
  }
  static constexpr int64_t kTooMany = int64_t{INT32_MAX} + 1;
  static std::vector<int64_t> starts_of(const std::vector<int64_t>& counts) {
    std::vector<int64_t> starts = {0};
    for (const int64_t n : counts)  // sums are cut at kTooMany, which later checks reject
      starts.push_back(std::min<int64_t>(starts.back() + std::clamp<int64_t>(n, 0, kTooMany), kTooMany));
    return starts;
  }
  bool pairwise() const { return machine.count > 0; }
  int64_t pairs() const { return classes * (classes - 1) / 2; }
  bool has_probabilities() const { return pairwise() && !prob_a.empty(); }
  // The number of scores, before a single score is expanded to two.
  int64_t scores() const { return pairwise() && !has_probabilities() ? pairs() : classes; }
  bool mirrored() const { return scores() == 1 && machine.rho.size() == 1 && classes == 2; }
  int64_t width() const { return mirrored() ? 2 : scores(); }
  // Doubles of memory for a row: kernel values, votes, scores, and the coupling's matrices.
  int64_t memory() const { return machine.count + 3 * classes + pairs() + 2 * classes * classes; }

  // The probabilities p that minimize Σ (r_ji p_i - r_ij p_j)² for given pairwise r (second approach of the
  // paper), by its iteration.
  void couple(const double* r, double* p, double* q, double* qp) const {
    const int64_t k = classes;
    for (int64_t i = 0; i < k; ++i) {
      p[i] = 1.0 / static_cast<double>(k);
      q[i * k + i] = 0;
      for (int64_t j = 0; j < k; ++j) {
        if (j == i) continue;
        q[i * k + i] += r[j * k + i] * r[j * k + i];
        q[i * k + j] = -r[j * k + i] * r[i * k + j];
      }
    }
    for (int64_t round = 0; round < std::max<int64_t>(100, k); ++round) {
      double pqp = 0, worst = 0;
      for (int64_t i = 0; i < k; ++i) {
        qp[i] = 0;
        for (int64_t j = 0; j < k; ++j) qp[i] += q[i * k + j] * p[j];
        pqp += p[i] * qp[i];
      }
      for (int64_t i = 0; i < k; ++i) worst = std::max(worst, std::abs(qp[i] - pqp));
      if (worst < 0.005 / static_cast<double>(k)) break;
      for (int64_t i = 0; i < k; ++i) {
        const double diff = (pqp - qp[i]) / q[i * k + i], whole = 1 + diff;
        p[i] += diff;
        pqp = (pqp + diff * (diff * q[i * k + i] + 2 * qp[i])) / (whole * whole);
        for (int64_t j = 0; j < k; ++j) {
          qp[j] = (qp[j] + diff * q[i * k + j]) / whole;
          p[j] /= whole;
        }
      }
    }
  }

  // Label and scores of a row.
  int64_t decide(const double* x, double* work, float* scores_out) const {
    const int64_t features = machine.rows.features, v = machine.count;
    double *kernels = work, *votes = kernels + v, *p = votes + classes, *qp = p + classes,
           *margins = qp + classes, *r = margins + pairs(), *q = r + classes * classes;
    double* result = p;
    std::fill(votes, votes + classes, 0.0);
    if (pairwise()) {
      for (int64_t i = 0; i < v; ++i) kernels[i] = machine.kernel(x, machine.vector(i), features);
      const auto part = [&](int64_t row, int64_t of) {
        double sum = 0;
        for (int64_t i = starts[static_cast<size_t>(of)]; i < starts[static_cast<size_t>(of) + 1]; ++i)
          sum += static_cast<double>(machine.coefficients[static_cast<size_t>(row * v + i)]) * kernels[i];
        return sum;
      };
      size_t pair = 0;
      for (int64_t i = 0; i < classes; ++i)
        for (int64_t j = i + 1; j < classes; ++j, ++pair) {
          margins[pair] = static_cast<double>(machine.rho[pair]) + part(j - 1, i) + part(i, j);
          votes[margins[pair] > 0 ? i : j] += 1;
          if (!has_probabilities()) continue;
          const double z =
              margins[pair] * static_cast<double>(prob_a[pair]) + static_cast<double>(prob_b[pair]);
          r[i * classes + j] = std::clamp(1 / (1 + std::exp(z)), 1e-7, 1 - 1e-7);
          r[j * classes + i] = 1 - r[i * classes + j];
        }
      if (has_probabilities())
        couple(r, p, q, qp);
      else
        result = margins;
    } else {
      for (int64_t j = 0; j < classes; ++j) {
        p[j] = static_cast<double>(machine.rho[0]);
        for (int64_t i = 0; i < features; ++i)
          p[j] += static_cast<double>(machine.coefficients[static_cast<size_t>(j * features + i)]) * x[i];
      }
    }
    const double* decisive = pairwise() ? votes : p;
    const size_t best = static_cast<size_t>(std::max_element(decisive, decisive + classes) - decisive);
    const double weight = decisive[best];
    int64_t label = labels[best];
    if (machine.rho.size() == 1) {
      if (classes == 2 && !has_probabilities() && positive && weight >= 0.5) label = labels[1];
      if (classes != 2) label = weight > 0 && !labels.texts ? 1 : 0;
    }
    const int64_t n = scores();
    if (mirrored()) {
      scores_out[0] = static_cast<float>(-result[0]);
      scores_out[1] = static_cast<float>(result[0]);
    } else {
      std::copy(result, result + n, scores_out);
    }
    transform_scores(machine.transform, scores_out, width());
    return label;
  }
};

void classifier_shape(ShapeContext& c) {
  const Classifier k(c);
  if (c.has_output(0)) c.output(0, k.labels.type(), {k.machine.rows.count});
  if (c.has_output(1)) c.output(1, DType::kFloat, {k.machine.rows.count, k.width()});
}

Kernel classifier_kernel(KernelContext& c) {
  const Classifier k(c);
  const Rows rows = k.machine.rows;
  const int64_t shares = std::min<int64_t>(rows.count, max_threads()), width = k.width();
  const Slot x = c.in(0), memory = c.scratch(static_cast<size_t>(shares * (rows.features + k.memory())) * 8),
             unwanted = c.scratch(static_cast<size_t>(rows.count * width) * 4);
  const Slot label = c.has_output(0) ? c.out(0) : Slot{}, scores = c.has_output(1) ? c.out(1) : unwanted;
  Kernel kernel;
  visit_ml(c, 0, [&](auto zero) {
    using T = decltype(zero);
    kernel = [=](const Frame& f) {
      each_row(rows, f.at<T>(x), f.at<double>(memory), shares, k.memory(),
               (k.machine.count + k.classes) * rows.features * 2,
               [&](int64_t i, const double* features, double* work) {
                 const int64_t found = k.decide(features, work, f.at<float>(scores) + i * width);
                 if (label.defined()) f.at<int64_t>(label)[i] = found;
               });
    };
  });
  return kernel;
}

ORTRAIN_OPERATOR({.domain = kMl,
                  .type = "SVMRegressor",
                  .rules = {.shape = regressor_shape, .element_type = always<DType::kFloat>},
                  .kernels = {.cpu = regressor_kernel}});
ORTRAIN_OPERATOR({.domain = kMl,
                  .type = "SVMClassifier",
                  .rules = {.shape = classifier_shape, .element_type = classifier_types},
                  .kernels = {.cpu = classifier_kernel}});

}  // namespace
}  // namespace ortrain
