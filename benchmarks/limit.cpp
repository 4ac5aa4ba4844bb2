// How fast oneDNN does given products and convolutions alone: reads problems in the words of its verbose
// output, lets each primitive choose its layouts, and prints the shortest of several runs of each.
//
//   limit THREADS < problems        a line: KIND DIRECTION DESCRIPTION, for instance
//   convolution backward_weights mb16_ic64oc64_ih32oh32kh3sh1dh0ph1_iw32ow32kw3sw1dw0pw1
//   matmul undef 1024x256:256x1024
//   stream - 44700000                  an optimizer step over so many bytes of parameters
//
// Prints a line for each: milliseconds.
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
#include <sstream>
#include <string>
#include <unordered_map>
#include <vector>

namespace {

using dnnl::memory;
using Arguments = std::unordered_map<int, memory>;

const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
dnnl::stream stream(engine);

// The shortest run of several, after one that warms up: at least five and a fifth of a second.
double shortest(const std::function<void()>& run) {
  run();
  double best = 1e9, spent = 0;
  for (int i = 0; i < 5 || (spent < 200 && i < 1000); ++i) {
    const auto start = std::chrono::steady_clock::now();
    run();
    const double ms =
        std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
    best = std::min(best, ms);
    spent += ms;
  }
  return best;
}

// Memory with small numbers in it: zeros and denormals have speeds of their own.
memory filled(const memory::desc& desc) {
  memory m(desc, engine);
  auto* values = static_cast<float*>(m.get_data_handle());
  for (size_t i = 0; i < desc.get_size() / sizeof(float); ++i) values[i] = 0.5f + static_cast<float>(i % 7);
  return m;
}

double time_of(const dnnl::primitive& primitive, const Arguments& arguments) {
  return shortest([&] {
    primitive.execute(stream, arguments);
    stream.wait();
  });
}

memory::desc any(const memory::dims& dims) { return {dims, memory::data_type::f32, memory::format_tag::any}; }

// "mb4_ic32oc64_ih7oh7kh1..." as numbers by name; names are letters, "_" only separates.
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

double convolution(const std::string& direction, const std::string& description) {
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
    return time_of(dnnl::convolution_backward_data(pd), {{DNNL_ARG_DIFF_DST, filled(pd.diff_dst_desc())},
                                                         {DNNL_ARG_WEIGHTS, filled(pd.weights_desc())},
                                                         {DNNL_ARG_DIFF_SRC, filled(pd.diff_src_desc())}});
  }
  if (direction == "backward_weights") {
    const dnnl::convolution_backward_weights::primitive_desc pd(engine, algorithm, x, w, y, strides,
                                                                dilations, before, after, forward);
    return time_of(dnnl::convolution_backward_weights(pd),
                   {{DNNL_ARG_SRC, filled(pd.src_desc())},
                    {DNNL_ARG_DIFF_DST, filled(pd.diff_dst_desc())},
                    {DNNL_ARG_DIFF_WEIGHTS, filled(pd.diff_weights_desc())}});
  }
  return time_of(dnnl::convolution_forward(forward), {{DNNL_ARG_SRC, filled(forward.src_desc())},
                                                      {DNNL_ARG_WEIGHTS, filled(forward.weights_desc())},
                                                      {DNNL_ARG_DST, filled(forward.dst_desc())}});
}

// "32x128x64:32x64x128"
double matmul(const std::string& description) {
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
  return time_of(dnnl::matmul(pd), {{DNNL_ARG_SRC, filled(pd.src_desc())},
                                    {DNNL_ARG_WEIGHTS, filled(pd.weights_desc())},
                                    {DNNL_ARG_DST, filled(pd.dst_desc())}});
}

// AdamW reads parameter, gradient and two moments and writes all but the gradient.
double optimizer(size_t bytes) {
  const auto n = static_cast<int64_t>(bytes / sizeof(float));
  std::vector<float> p(static_cast<size_t>(n), 1.f), g = p, m = p, v = p;
  return shortest([&] {
#pragma omp parallel for simd schedule(static)
    for (int64_t i = 0; i < n; ++i) {
      m[static_cast<size_t>(i)] += g[static_cast<size_t>(i)];
      v[static_cast<size_t>(i)] += g[static_cast<size_t>(i)];
      p[static_cast<size_t>(i)] += m[static_cast<size_t>(i)] * v[static_cast<size_t>(i)];
    }
  });
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2 || std::atoi(argv[1]) < 1) {
    std::fprintf(stderr, "usage: %s THREADS < problems\n", argv[0]);
    return 2;
  }
  omp_set_num_threads(std::atoi(argv[1]));
  std::string kind, direction, description;
  while (std::cin >> kind >> direction >> description) {
    try {
      const double ms = kind == "convolution" ? convolution(direction, description)
                        : kind == "matmul"    ? matmul(description)
                                              : optimizer(std::stoull(description));
      std::printf("%.6f\n", ms);
    } catch (const std::exception& error) {
      std::fprintf(stderr, "%s %s %s: %s\n", kind.c_str(), direction.c_str(), description.c_str(),
                   error.what());
      return 1;
    }
  }
  return 0;
}
