// Einsum: sums of products over named axes, for any number of operands.
//
// An operand's term is reduced to distinct axes (a repeated letter walks the diagonal), letters that occur
// nowhere else are summed, and then two operands at a time are contracted as a batched matrix product.
// Letters that both operands have are batch axes if the result or another operand needs them, and otherwise
// the inner axis; the other letters are rows and columns. The pair with the fewest multiplications comes
// first.
#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <type_traits>
#include <vector>

#include "backend/cpu/matmul/product.h"
#include "backend/cpu/strided_copy.h"
#include "op/gradient_expression.h"
#include "op/operator.h"
#include "op/wide_integers.h"
#include "ops/common/elementwise.h"
#include "runtime/stable_sort.h"
#include "runtime/text.h"
#include "runtime/threads.h"

namespace ortrain {
namespace {

// The labels of a value's axes. The label of a letter is its character code; the labels of the ellipsis are
// negative and count from its last axis: -1, -2, ...
using Term = std::vector<int>;

struct Equation {
  std::vector<Term> inputs;
  Term output;
};

bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

// Reads the equation for operands of the given ranks; `fail_with` throws.
template <typename Fail>
Equation read_equation(const std::string& text, const std::vector<int64_t>& ranks, Fail&& fail_with) {
  std::string compact;
  for (const char c : text)
    if (c != ' ') compact += c;
  const size_t arrow = compact.find("->");
  const std::string left = compact.substr(0, arrow);
  std::vector<std::string> terms(1);
  for (const char c : left) {
    if (c == ',')
      terms.emplace_back();
    else
      terms.back() += c;
  }
  if (terms.size() != ranks.size())
    fail_with(concat("the equation '", text, "' has ", counted(terms.size(), "term"), " for ",
                     counted(ranks.size(), "operand")));
  // A term whose three dots represent `ellipsis` axes (-1: the rest of `rank`).
  const auto read_term = [&](const std::string& term, int64_t rank, int64_t ellipsis) {
    Term out;
    const size_t dots = term.find("...");
    const int64_t letters = static_cast<int64_t>(term.size()) - (dots == std::string::npos ? 0 : 3);
    if (ellipsis < 0) {
      ellipsis = rank - letters;
      if (dots == std::string::npos ? ellipsis != 0 : ellipsis < 0)
        fail_with(concat("the term '", term, "' of the equation '", text, "' names ",
                         counted(letters, "axis"), ", but its operand has ", rank));
    }
    for (size_t i = 0; i < term.size();) {
      if (i == dots) {
        for (int64_t k = ellipsis; k > 0; --k) out.push_back(static_cast<int>(-k));
        i += 3;
      } else if (is_letter(term[i])) {
        out.push_back(term[i++]);
      } else {
        fail_with(concat("the equation '", text, "' has '", term[i], "' where a letter should be"));
      }
    }
    return out;
  };
  Equation e;
  int64_t broadcast = 0;
  std::map<int, int> seen;
  for (size_t i = 0; i < terms.size(); ++i) {
    e.inputs.push_back(read_term(terms[i], ranks[i], -1));
    int64_t own = 0;
    for (const int label : e.inputs.back()) {
      ++seen[label];
      own += label < 0;
    }
    broadcast = std::max(broadcast, own);
  }
  if (arrow != std::string::npos) {
    e.output = read_term(compact.substr(arrow + 2), 0, broadcast);
    for (const int label : e.output) {
      if (label >= 0 && !seen.count(label))
        fail_with(concat("the result of the equation '", text, "' has an axis '",
                         std::string(1, static_cast<char>(label)), "' that no operand has"));
      if (std::count(e.output.begin(), e.output.end(), label) > 1)
        fail_with(concat("the result of the equation '", text, "' names the same axis twice"));
    }
  } else {
    // Every axis of the ellipsis, then the letters that occur once, in alphabetic order.
    for (int64_t k = broadcast; k > 0; --k) e.output.push_back(static_cast<int>(-k));
    for (const auto& [label, count] : seen)
      if (label >= 0 && count == 1) e.output.push_back(label);
  }
  return e;
}

Equation equation_of(const NodeContext& c) {
  c.expect(c.node().has("equation"), "the attribute 'equation' is missing");
  std::vector<int64_t> ranks;
  for (size_t i = 0; i < c.input_count(); ++i) ranks.push_back(c.rank(i));
  return read_equation(c.node().string_or("equation", ""), ranks,
                       [&](const std::string& why) { c.reject(why); });
}

std::string name_of(int label) {
  return label < 0 ? concat("axis ", -label, " from the end of the ellipsis")
                   : concat("'", std::string(1, static_cast<char>(label)), "'");
}

// The size of every label. Axes of size 1 match any other size.
std::map<int, int64_t> dims_of_labels(const NodeContext& c, const Equation& e) {
  std::map<int, int64_t> dims;
  for (size_t i = 0; i < e.inputs.size(); ++i)
    for (size_t k = 0; k < e.inputs[i].size(); ++k) {
      const int64_t dim = c.shape(i)[k];
      int64_t& known = dims.emplace(e.inputs[i][k], dim).first->second;
      c.expect(known == dim || known == 1 || dim == 1, "dimensions ", known, " and ", dim, " of ",
               name_of(e.inputs[i][k]), " differ (operand ", i, " has shape ", to_string(c.shape(i)), ")");
      if (known == 1) known = dim;
    }
  return dims;
}

void shape(ShapeContext& c) {
  c.expect(c.input_count() > 0, "it has no operands");
  for (size_t i = 1; i < c.input_count(); ++i)
    c.expect(c.dtype(i) == c.dtype(0), "its operands must have the same type, found ", to_string(c.dtype(0)),
             " and ", to_string(c.dtype(i)));
  const Equation e = equation_of(c);
  const auto dims = dims_of_labels(c, e);
  Shape out;
  for (const int label : e.output) out.push_back(dims.at(label));
  c.output(0, c.dtype(0), out);
}

// An intermediate value: distinct labels, and how they are stored in memory.
struct Value {
  Term labels;
  std::vector<int64_t> strides;  // in elements
  Slot slot;
};

// The strides of a matrix: by rows and by columns, in elements.
struct Strides {
  int64_t row, column;
};

// The functions of an element type that the steps of a kernel call.
struct Arithmetic {
  size_t width = 0;
  // y[i] is the sum of the n elements from x[i * n] on, for i < count.
  void (*sum_rows)(const void* x, int64_t n, void* y, int64_t count) = nullptr;
  // y = a b with a [m, k], b [k, n] and y [m, n] in one piece; on this thread, or on all.
  void (*multiply)(int64_t m, int64_t n, int64_t k, const void* a, Strides a_strides, const void* b,
                   Strides b_strides, void* y, bool threaded) = nullptr;
  BinaryFunction times = nullptr;
};

template <typename T>
void sum_rows(const void* x, int64_t n, void* y, int64_t count) {
  // Integers wrap around.
  using Sum = std::conditional_t<std::is_floating_point_v<T>, double, uint64_t>;
  const T* row = static_cast<const T*>(x);
  for (int64_t i = 0; i < count; ++i, row += n) {
    Sum sum = 0;
    for (int64_t k = 0; k < n; ++k) sum += static_cast<Sum>(row[k]);
    static_cast<T*>(y)[i] = static_cast<T>(sum);
  }
}

template <typename T>
void multiply_typed(int64_t m, int64_t n, int64_t k, const void* a, Strides a_strides, const void* b,
                    Strides b_strides, void* y, bool threaded) {
  const MatrixView<const T> u{static_cast<const T*>(a), a_strides.row, a_strides.column};
  const MatrixView<const T> v{static_cast<const T*>(b), b_strides.row, b_strides.column};
  (threaded ? threaded_product<T> : product<T>)(m, n, k, u, v, T(0), static_cast<T*>(y), n);
}

Arithmetic arithmetic_of(const NodeContext& c) {
  Arithmetic result{.width = size_of(c.dtype(0)), .times = binary_function("Mul", c.dtype(0))};
  const bool known = visit_wide_numeric(c.dtype(0), [&](auto zero) {
    result.sum_rows = sum_rows<decltype(zero)>;
    result.multiply = multiply_typed<decltype(zero)>;
  });
  if (!known) c.reject_dtype(0);
  return result;
}

// Makes the steps of a kernel.
class Lowering {
 public:
  Lowering(KernelContext& c)
      : c_(c), math_(arithmetic_of(c)), equation_(equation_of(c)), dims_(dims_of_labels(c, equation_)) {}

  Kernel run() {
    std::vector<Value> values;
    for (size_t i = 0; i < c_.input_count(); ++i) values.push_back(operand(i));
    out_ = c_.out(0);
    while (values.size() > 1) {
      size_t first = 0, second = 1;
      double least = 0;
      for (size_t i = 0; i < values.size(); ++i)
        for (size_t j = i + 1; j < values.size(); ++j) {
          std::set<int> all(values[i].labels.begin(), values[i].labels.end());
          all.insert(values[j].labels.begin(), values[j].labels.end());
          double work = 1;
          for (const int label : all) work *= static_cast<double>(dims_.at(label));
          if ((i == 0 && j == 1) || work < least) least = work, first = i, second = j;
        }
      const Value a = values[first], b = values[second];
      values.erase(values.begin() + static_cast<ptrdiff_t>(second));
      values.erase(values.begin() + static_cast<ptrdiff_t>(first));
      std::set<int> needed(equation_.output.begin(), equation_.output.end());
      for (const Value& v : values) needed.insert(v.labels.begin(), v.labels.end());
      values.push_back(contract(summed(a, needed, &b), summed(b, needed, &a), needed, values.empty()));
    }
    Value last = summed(values[0], {equation_.output.begin(), equation_.output.end()}, nullptr);
    // Labels of size 1 in every operand are added, so that the result has all labels.
    if (last.slot.index != out_.index) copy(last, equation_.output, out_);
    return [steps = std::move(steps_)](const Frame& f) {
      for (const Kernel& step : steps) step(f);
    };
  }

 private:
  // Input i with the strides of its labels. The strides of a repeated label are added, so that the label
  // walks the diagonal; axes that are broadcast are left out.
  Value operand(size_t i) {
    Value v;
    v.slot = c_.in(i);
    const std::vector<int64_t> strides = strides_of(c_.shape(i));
    for (size_t k = 0; k < strides.size(); ++k) {
      const int label = equation_.inputs[i][k];
      if (c_.shape(i)[k] == 1 && dims_.at(label) != 1) continue;
      const auto it = std::find(v.labels.begin(), v.labels.end(), label);
      if (it == v.labels.end()) {
        v.labels.push_back(label);
        v.strides.push_back(strides[k]);
      } else {
        v.strides[static_cast<size_t>(it - v.labels.begin())] += strides[k];
      }
    }
    return v;
  }

  Shape shape_of(const Term& labels) const {
    Shape shape;
    for (const int label : labels) shape.push_back(dims_.at(label));
    return shape;
  }

  static int64_t stride_of(const Value& v, int label) {
    const auto it = std::find(v.labels.begin(), v.labels.end(), label);
    return it == v.labels.end() ? 0 : v.strides[static_cast<size_t>(it - v.labels.begin())];
  }

  static bool has(const Term& term, int label) {
    return std::find(term.begin(), term.end(), label) != term.end();
  }

  Slot memory(const Term& labels) {
    return c_.scratch(static_cast<size_t>(element_count(shape_of(labels))) * math_.width);
  }

  void copy(const Value& v, const Term& order, Slot to) {
    const Shape dims = shape_of(order);
    std::vector<int64_t> strides;
    for (const int label : order) strides.push_back(stride_of(v, label));
    const StridedCopy copy(math_.width, dims, {0, strides}, {0, strides_of(dims)});
    steps_.push_back(
        [copy, from = v.slot, to](const Frame& f) { copy(f.at<std::byte>(from), f.at<std::byte>(to)); });
  }

  // The value in row-major order of these labels: the value itself if it is stored in that order.
  Value ordered(const Value& v, const Term& order) {
    const std::vector<int64_t> wanted = strides_of(shape_of(order));
    bool already = true;
    for (size_t i = 0; already && i < order.size(); ++i)
      already = dims_.at(order[i]) == 1 || stride_of(v, order[i]) == wanted[i];
    if (already) return {order, wanted, v.slot};
    const Slot to = memory(order);
    copy(v, order, to);
    return {order, wanted, to};
  }

  // Sums away the labels that neither `needed` nor the other value has.
  Value summed(const Value& v, const std::set<int>& needed, const Value* other) {
    Term kept, gone;
    for (const int label : v.labels)
      (needed.count(label) || (other && has(other->labels, label)) ? kept : gone).push_back(label);
    if (gone.empty()) return v;
    Term order = kept;
    order.insert(order.end(), gone.begin(), gone.end());
    const Value from = ordered(v, order);
    const int64_t rows = element_count(shape_of(kept)), n = element_count(shape_of(gone));
    const Slot to = memory(kept);
    steps_.push_back([math = math_, rows, n, x = from.slot, to](const Frame& f) {
      const auto width = static_cast<int64_t>(math.width);
      parallel_for(rows, n, [&](int64_t begin, int64_t end) {
        math.sum_rows(f.at<std::byte>(x) + begin * n * width, n, f.at<std::byte>(to) + begin * width,
                      end - begin);
      });
    });
    return {kept, strides_of(shape_of(kept)), to};
  }

  Value contract(const Value& a, const Value& b, const std::set<int>& needed, bool is_last) {
    Term batch, inner, rows, columns;
    // Labels are in the order of the result, so that the last step can write the result directly.
    const auto sorted = [&](Term labels) {
      stable_sort(labels, [&](int x, int y) { return place(x) < place(y); });
      return labels;
    };
    for (const int label : sorted(a.labels))
      (has(b.labels, label) ? (needed.count(label) ? batch : inner) : rows).push_back(label);
    for (const int label : sorted(b.labels))
      if (!has(a.labels, label)) columns.push_back(label);
    const auto joined = [](const Term& x, const Term& y, const Term& z) {
      Term all = x;
      all.insert(all.end(), y.begin(), y.end());
      all.insert(all.end(), z.begin(), z.end());
      return all;
    };
    // An operand whose matrices are stored transposed is read that way instead of being copied.
    const auto matrix = [&](const Value& v, const Term& first, const Term& second, bool& is_transposed) {
      const Value straight{joined(batch, first, second), {}, {}},
          transposed{joined(batch, second, first), {}, {}};
      is_transposed = !lies(v, straight.labels) && lies(v, transposed.labels);
      return ordered(v, is_transposed ? transposed.labels : straight.labels);
    };
    bool a_transposed = false, b_transposed = false;
    const Value left = matrix(a, rows, inner, a_transposed), right = matrix(b, inner, columns, b_transposed);
    const int64_t m = element_count(shape_of(rows)), n = element_count(shape_of(columns)),
                  k = element_count(shape_of(inner)), batches = element_count(shape_of(batch));
    const Term result = joined(batch, rows, columns);
    const Slot to = is_last && result == equation_.output ? out_ : memory(result);
    const Strides u{a_transposed ? 1 : k, a_transposed ? m : 1},
        v{b_transposed ? 1 : n, b_transposed ? k : 1};
    steps_.push_back([=, math = math_, x = left.slot, y = right.slot](const Frame& f) {
      const auto width = static_cast<int64_t>(math.width);
      const std::byte *from_x = f.at<std::byte>(x), *from_y = f.at<std::byte>(y);
      std::byte* out = f.at<std::byte>(to);
      const auto one = [&](int64_t i, bool threaded) {
        math.multiply(m, n, k, from_x + i * m * k * width, u, from_y + i * k * n * width, v,
                      out + i * m * n * width, threaded);
      };
      if (m == 1 && n == 1 && k == 1) {
        parallel_for(batches, 1, [&](int64_t begin, int64_t end) {
          math.times(from_x + begin * width, 1, from_y + begin * width, 1, out + begin * width, end - begin);
        });
      } else if (batches >= max_threads() || m * n * k < kGrain) {
        parallel_for(batches, m * n * k, [&](int64_t begin, int64_t end) {
          for (int64_t i = begin; i < end; ++i) one(i, false);
        });
      } else {
        for (int64_t i = 0; i < batches; ++i) one(i, true);
      }
    });
    return {result, strides_of(shape_of(result)), to};
  }

  // The position of a label in the result; labels that are summed away come last.
  size_t place(int label) const {
    return static_cast<size_t>(std::find(equation_.output.begin(), equation_.output.end(), label) -
                               equation_.output.begin());
  }

  bool lies(const Value& v, const Term& order) const {
    const std::vector<int64_t> wanted = strides_of(shape_of(order));
    for (size_t i = 0; i < order.size(); ++i)
      if (dims_.at(order[i]) != 1 && stride_of(v, order[i]) != wanted[i]) return false;
    return true;
  }

  KernelContext& c_;
  Arithmetic math_;
  Equation equation_;
  std::map<int, int64_t> dims_;
  std::vector<Kernel> steps_;
  Slot out_;
};

Kernel kernel(KernelContext& c) { return Lowering(c).run(); }

// dx_k = Einsum(dy, the other operands -> the term of x_k). Labels that only x_k has are broadcast by an
// operand of ones; a letter that x_k repeats is put on the diagonal by an identity matrix.
void gradient(GradientContext& g) {
  const size_t count = g.node().inputs.size();
  std::vector<int64_t> ranks;
  for (size_t i = 0; i < count; ++i) {
    const auto rank = g.rank(g.x(i));
    if (!rank) g.reject("the rank of its operands is not known, so its gradient cannot be built");
    ranks.push_back(*rank);
  }
  const Equation e = read_equation(g.node().string_or("equation", ""), ranks,
                                   [&](const std::string& why) { g.reject(why); });
  for (size_t k = 0; k < count; ++k) {
    if (!g.needs(k)) continue;
    std::vector<Term> terms = {e.output};
    Names operands = {g.dy(0)};
    for (size_t i = 0; i < count; ++i)
      if (i != k) terms.push_back(e.inputs[i]), operands.push_back(g.x(i));
    std::set<int> used;
    for (const Term& term : e.inputs) used.insert(term.begin(), term.end());
    Term target = e.inputs[k];
    std::set<int> reached;
    for (const Term& term : terms) reached.insert(term.begin(), term.end());
    const bool spread =
        std::any_of(target.begin(), target.end(), [&](int label) { return !reached.count(label); });
    if (spread) {
      const Name dims = g("Shape", {g.x(k)});
      const Name one = g.scalar_like(g.x(k), 1);
      terms.push_back(target);
      operands.push_back(g("Expand", {one, dims}));
    }
    // No letter has a label of 1000 or more, so these labels name the second axes of identity matrices.
    int next = 1000;
    for (size_t axis = 0; axis < target.size(); ++axis) {
      const size_t first =
          static_cast<size_t>(std::find(target.begin(), target.end(), target[axis]) - target.begin());
      if (first == axis) continue;
      const Name dim = g("Gather", {g("Shape", {g.x(k)}),
                                    g.int64s({static_cast<int64_t>(axis), static_cast<int64_t>(axis)})});
      const Name square = g("Expand", {g.scalar_like(g.x(k), 1), dim});
      terms.push_back({target[axis], next});
      operands.push_back(g("EyeLike", {square}));
      target[axis] = next++;
    }
    // The new equation has only letters: the letters of the old equation, and unused letters for the other
    // labels.
    std::map<int, char> letters;
    for (const int label : used)
      if (label >= 0) letters[label] = static_cast<char>(label);
    const auto letter = [&](int label) {
      if (const auto it = letters.find(label); it != letters.end()) return it->second;
      for (const char* range : {"abcdefghijklmnopqrstuvwxyz", "ABCDEFGHIJKLMNOPQRSTUVWXYZ"})
        for (const char* p = range; *p; ++p)
          if (std::none_of(letters.begin(), letters.end(),
                           [&](const auto& entry) { return entry.second == *p; }))
            return letters[label] = *p;
      g.reject("its gradient has more axes than there are letters");
    };
    std::string equation;
    for (const Term& term : terms) {
      if (!equation.empty() || &term != &terms.front()) equation += ',';
      for (const int label : term) equation += letter(label);
    }
    equation += "->";
    for (const int label : target) equation += letter(label);
    const Name full = g("Einsum", operands, {{"equation", equation}});
    g.set(k, g.unbroadcast(full, full, k));
  }
}

ORTRAIN_OPERATOR({.type = "Einsum",
                  .rules = {.shape = shape, .gradient = gradient},
                  .kernels = {.cpu = wide_integers<kernel>}});

}  // namespace
}  // namespace ortrain
