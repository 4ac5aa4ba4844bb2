// The speed of oneDNN for given products and convolutions alone: reads problems in the format of its verbose
// output, lets each primitive choose its layouts, and runs them one after the other, as in a step.
//
//   limit THREADS               on its standard input a line for each problem, in their order in a step:
//   convolution backward_weights mb16_ic64oc64_ih32oh32kh3sh1dh0ph1_iw32ow32kw3sw1dw0pw1
//   matmul undef 1024x256:256x1024
//   stream - 44700000           an optimizer step over so many bytes of parameters
//
// An empty line ends them and is answered by `ready`. Each line after it is a number of steps; the answer has
// one line per step: the milliseconds of convolutions, products and optimizer. Equal problems share their
// memory.
#include <omp.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dnnl.hpp>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <unordered_map>
#include <vector>

namespace {

using dnnl::memory;
using Arguments = std::unordered_map<int, memory>;

const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
dnnl::stream stream(engine);

// Memory filled with small values: zeros and denormals would change the speed.
memory filled(const memory::desc& desc) {
  memory m(desc, engine);
  auto* values = static_cast<float*>(m.get_data_handle());
  for (size_t i = 0; i < desc.get_size() / sizeof(float); ++i) values[i] = 0.5f + static_cast<float>(i % 7);
  return m;
}

// Runs a problem once.
using Work = std::function<void()>;

Work work_of(const dnnl::primitive& primitive, const Arguments& arguments) {
  return [=] {
    primitive.execute(stream, arguments);
    stream.wait();
  };
}

memory::desc any(const memory::dims& dims) { return {dims, memory::data_type::f32, memory::format_tag::any}; }

// "mb4_ic32oc64_ih7oh7kh1..." as numbers by name; names consist of letters, "_" is a separator.
std::map<std::string, int64_t> read_description(const std::string& text) {
  std::map<std::string, int64_t> numbers;
  size_t i = 0;
  while (i < text.size()) {
    std::string name, digits;
    while (i < text.size() && (std::isalpha(text[i]) || text[i] == '_')) {
      if (text[i] != '_') name += text[i];
      ++i;
    }
    while (i < text.size() && std::isdigit(text[i])) digits += text[i++];
    if (digits.empty()) break;
    numbers[name] = std::stoll(digits);
  }
  return numbers;
}

Work convolution(const std::string& direction, const std::string& description) {
  auto n = read_description(description);
  const bool two = n.contains("ih");
  const int64_t groups = n.contains("g") ? n["g"] : 1;
  const auto axes = [&](const char* name) {
    memory::dims out;
    if (two) out.push_back(n[std::string(name) + "h"]);
    out.push_back(n[std::string(name) + "w"]);
    return out;
  };
  const auto with = [](memory::dims front, const memory::dims& back) {
    front.insert(front.end(), back.begin(), back.end());
    return front;
  };
  const memory::dims in = axes("i"), out = axes("o"), kernel = axes("k"), strides = axes("s"),
                     dilations = axes("d"), before = axes("p");
  memory::dims after;
  for (size_t i = 0; i < in.size(); ++i)
    after.push_back((out[i] - 1) * strides[i] + (kernel[i] - 1) * (dilations[i] + 1) + 1 - in[i] - before[i]);
  const memory::desc x = any(with({n["mb"], n["ic"]}, in)), y = any(with({n["mb"], n["oc"]}, out));
  const memory::desc w = any(groups > 1 ? with({groups, n["oc"] / groups, n["ic"] / groups}, kernel)
                                        : with({n["oc"], n["ic"]}, kernel));
  const auto algorithm = dnnl::algorithm::convolution_direct;
  const dnnl::convolution_forward::primitive_desc forward(
      engine, dnnl::prop_kind::forward_training, algorithm, x, w, y, strides, dilations, before, after);
  if (direction == "backward_data") {
    const dnnl::convolution_backward_data::primitive_desc pd(engine, algorithm, x, w, y, strides, dilations,
                                                             before, after, forward);
    return work_of(dnnl::convolution_backward_data(pd), {{DNNL_ARG_DIFF_DST, filled(pd.diff_dst_desc())},
                                                         {DNNL_ARG_WEIGHTS, filled(pd.weights_desc())},
                                                         {DNNL_ARG_DIFF_SRC, filled(pd.diff_src_desc())}});
  }
  if (direction == "backward_weights") {
    const dnnl::convolution_backward_weights::primitive_desc pd(engine, algorithm, x, w, y, strides,
                                                                dilations, before, after, forward);
    return work_of(dnnl::convolution_backward_weights(pd),
                   {{DNNL_ARG_SRC, filled(pd.src_desc())},
                    {DNNL_ARG_DIFF_DST, filled(pd.diff_dst_desc())},
                    {DNNL_ARG_DIFF_WEIGHTS, filled(pd.diff_weights_desc())}});
  }
  return work_of(dnnl::convolution_forward(forward), {{DNNL_ARG_SRC, filled(forward.src_desc())},
                                                      {DNNL_ARG_WEIGHTS, filled(forward.weights_desc())},
                                                      {DNNL_ARG_DST, filled(forward.dst_desc())}});
}

// "32x128x64:32x64x128"
Work matmul(const std::string& description) {
  const auto dims = [](const std::string& text) {
    memory::dims out;
    std::stringstream stream(text);
    for (std::string part; std::getline(stream, part, 'x');) out.push_back(std::stoll(part));
    return out;
  };
  const size_t colon = description.find(':');
  const memory::dims a = dims(description.substr(0, colon)), b = dims(description.substr(colon + 1));
  memory::dims c = a;
  for (size_t i = 0; i + 2 < c.size(); ++i) c[i] = std::max(a[i], b[i]);
  c.back() = b.back();
  const dnnl::matmul::primitive_desc pd(engine, any(a), any(b), any(c));
  return work_of(dnnl::matmul(pd), {{DNNL_ARG_SRC, filled(pd.src_desc())},
                                    {DNNL_ARG_WEIGHTS, filled(pd.weights_desc())},
                                    {DNNL_ARG_DST, filled(pd.dst_desc())}});
}

// AdamW reads parameter, gradient and two moments and writes all except the gradient.
Work optimizer(size_t bytes) {
  struct State {
    std::vector<float> p, g, m, v;
  };
  const size_t n = bytes / sizeof(float);
  const auto state = std::make_shared<State>();
  for (std::vector<float>* values : {&state->p, &state->g, &state->m, &state->v}) values->assign(n, 1.f);
  return [state, n] {
    float *p = state->p.data(), *m = state->m.data(), *v = state->v.data();
    const float* g = state->g.data();
#pragma omp parallel for simd schedule(static)
    for (size_t i = 0; i < n; ++i) {
      m[i] = 0.5f * (m[i] + g[i]);
      v[i] = 0.5f * (v[i] + g[i]);
      p[i] = 0.5f * (p[i] + m[i] * v[i]);
    }
  };
}

struct Problem {
  size_t kind;  // 0 convolution, 1 product, 2 optimizer
  Work work;
};

double now_ms() {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2 || std::atoi(argv[1]) < 1) {
    std::fprintf(stderr, "usage: %s THREADS < problems\n", argv[0]);
    return 2;
  }
  omp_set_num_threads(std::atoi(argv[1]));
  std::vector<Problem> step;
  std::map<std::string, Problem> known;
  for (std::string line; std::getline(std::cin, line) && !line.empty();) {
    std::stringstream words(line);
    std::string kind, direction, description;
    words >> kind >> direction >> description;
    try {
      if (!known.contains(line))
        known[line] = kind == "convolution" ? Problem{0, convolution(direction, description)}
                      : kind == "matmul"    ? Problem{1, matmul(description)}
                                            : Problem{2, optimizer(std::stoull(description))};
    } catch (const std::exception& error) {
      std::fprintf(stderr, "%s: %s\n", line.c_str(), error.what());
      return 1;
    }
    step.push_back(known[line]);
  }
  std::puts("ready");
  std::fflush(stdout);
  for (int steps; std::cin >> steps;) {
    for (int i = 0; i < steps; ++i) {
      double spent[3] = {};
      double last = now_ms();
      for (const Problem& problem : step) {
        problem.work();
        const double now = now_ms();
        spent[problem.kind] += now - last;
        last = now;
      }
      std::printf("%.6f %.6f %.6f\n", spent[0], spent[1], spent[2]);
    }
    std::fflush(stdout);
  }
  return 0;
}
