// One token of LinearAttention forward and back on vectors, and the walk over the tokens of every head. The
// gradient walks back over the tokens; it stores one state per run of tokens, and recomputes the states
// within a run.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/attention/linear_attention_kernels.cpp"
// Compiles this file for all other instruction sets first.
#include <hwy/foreach_target.h>

#include <algorithm>

#include "backend/cpu/attention/linear_attention_kernels.h"
#include "backend/cpu/simd/simd_math-inl.h"
#include "runtime/vector_targets.h"

#ifndef ORTRAIN_LINEAR_ATTENTION_TYPES
#define ORTRAIN_LINEAR_ATTENTION_TYPES
namespace ortrain {

// One token of one head: where its operands are stored. Those of the queries that share the keys are
// consecutive.
struct LinearToken {
  const void *q, *k, *v, *decay, *rate;
};

struct LinearTokenGradient {
  const void* dy;  // of the queries that share the keys
  void *dq, *dk, *dv, *ddecay, *drate;
};

struct LinearAttentionFunctions {
  // Advances the state by one token. Writes the result to y, unless y is null, and u.
  void (*step)(const LinearAttention&, const LinearToken&, void* state, void* y, void* u);
  // Computes the gradient of a step from the state before the token. `dstate`, the gradient of the state
  // after the token, becomes that of the state before it. `work` has room for a state and three rows of v.
  void (*back)(const LinearAttention&, const LinearToken&, const LinearTokenGradient&, const void* before,
               void* dstate, void* work);
};

}  // namespace ortrain
#endif

HWY_BEFORE_NAMESPACE();
namespace ortrain {
namespace HWY_NAMESPACE {
namespace {

template <typename T>
T Dot(const T* a, const T* b, int64_t n) {
  const hn::ScalableTag<T> d;
  auto sum = hn::Zero(d);
  ForVectors<T>(n, [&](int64_t i, int64_t count) HWY_ATTR {
    sum = hn::MulAdd(LoadUpTo(d, a + i, count), LoadUpTo(d, b + i, count), sum);
  });
  return hn::GetLane(hn::SumOfLanes(d, sum));
}

// Adds: y += factor x.
template <typename T>
void AddScaled(const T* x, T factor, T* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) y[i] += factor * x[i];
}

template <typename T>
T Kept(const LinearAttention& a, const LinearToken& t, int64_t row) {
  return a.gated ? std::exp(static_cast<const T*>(t.decay)[a.decays == 1 ? 0 : row]) : T{1};
}

// S := e^g S, then u.
template <typename T>
void DecayAndUpdate(const LinearAttention& a, const LinearToken& t, T* state, T* u) {
  const T *k = static_cast<const T*>(t.k), *v = static_cast<const T*>(t.v);
  const int64_t n = a.v_size;
  if (a.gated)
    for (int64_t i = 0; i < a.size; ++i) {
      const T kept = Kept<T>(a, t, i);
      for (int64_t j = 0; j < n; ++j) state[i * n + j] *= kept;
    }
  std::copy_n(v, n, u);
  if (!a.delta) return;
  for (int64_t i = 0; i < a.size; ++i) AddScaled(state + i * n, -k[i], u, n);
  const T rate = *static_cast<const T*>(t.rate);
  for (int64_t j = 0; j < n; ++j) u[j] *= rate;
}

template <typename T>
void Step(const LinearAttention& a, const LinearToken& t, void* at, void* y, void* update) {
  const T *q = static_cast<const T*>(t.q), *k = static_cast<const T*>(t.k);
  T *state = static_cast<T*>(at), *to = static_cast<T*>(y), *u = static_cast<T*>(update);
  const int64_t n = a.v_size;
  DecayAndUpdate<T>(a, t, state, u);
  for (int64_t i = 0; i < a.size; ++i) AddScaled(u, k[i], state + i * n, n);
  if (!to) return;
  std::fill_n(to, a.group() * n, T{0});
  for (int64_t h = 0; h < a.group(); ++h)
    for (int64_t i = 0; i < a.size; ++i)
      AddScaled(state + i * n, static_cast<T>(a.scale) * q[h * a.size + i], to + h * n, n);
}

//     dS += scale q dyᵀ,  dq = scale S dy,  dk = dS u,  du = dSᵀ k
//     with a rate: db = du (v - S'ᵀk),  dv = b du,  dk -= S' dv,  dS -= k dvᵀ,  where S' = e^g S before
//     with a decay: dg = dS S',  dS := e^g dS
template <typename T>
void Back(const LinearAttention& a, const LinearToken& t, const LinearTokenGradient& g, const void* before,
          void* gradient, void* work) {
  const T *q = static_cast<const T*>(t.q), *k = static_cast<const T*>(t.k), *v = static_cast<const T*>(t.v),
          *dy = static_cast<const T*>(g.dy);
  T *dq = static_cast<T*>(g.dq), *dk = static_cast<T*>(g.dk), *dv = static_cast<T*>(g.dv);
  T* ds = static_cast<T*>(gradient);
  const int64_t n = a.v_size;
  T *state = static_cast<T*>(work), *u = state + a.state(), *du = u + n, *row = du + n;
  std::copy_n(static_cast<const T*>(before), a.state(), state);
  DecayAndUpdate<T>(a, t, state, u);  // state is S'
  const T scale = static_cast<T>(a.scale);
  std::fill_n(du, n, T{0});
  for (int64_t i = 0; i < a.size; ++i) {
    std::copy_n(state + i * n, n, row);
    AddScaled(u, k[i], row, n);  // of S after the token
    for (int64_t h = 0; h < a.group(); ++h) {
      dq[h * a.size + i] = scale * Dot(row, dy + h * n, n);
      AddScaled(dy + h * n, scale * q[h * a.size + i], ds + i * n, n);
    }
    dk[i] = Dot(ds + i * n, u, n);
    AddScaled(ds + i * n, k[i], du, n);
  }
  if (a.delta) {
    const T rate = *static_cast<const T*>(t.rate);
    std::copy_n(v, n, row);
    for (int64_t i = 0; i < a.size; ++i) AddScaled(state + i * n, -k[i], row, n);
    *static_cast<T*>(g.drate) = Dot(du, row, n);
    for (int64_t j = 0; j < n; ++j) du[j] *= rate;
    for (int64_t i = 0; i < a.size; ++i) {
      dk[i] -= Dot(state + i * n, du, n);
      AddScaled(du, -k[i], ds + i * n, n);
    }
  }
  std::copy_n(du, n, dv);
  if (!a.gated) return;
  T* dg = static_cast<T*>(g.ddecay);
  std::fill_n(dg, a.decays, T{0});
  for (int64_t i = 0; i < a.size; ++i) {
    dg[a.decays == 1 ? 0 : i] += Dot(ds + i * n, state + i * n, n);
    const T kept = Kept<T>(a, t, i);
    for (int64_t j = 0; j < n; ++j) ds[i * n + j] *= kept;
  }
}

LinearAttentionFunctions FindLinearAttention(DType dtype) {
  if (kHasKernels<double> && dtype == DType::kDouble) return {Step<double>, Back<double>};
  return {Step<float>, Back<float>};
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace ortrain
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

#include "runtime/threads.h"

namespace ortrain {
namespace {

constexpr size_t kPast = LinearAttention::kPast, kDecay = LinearAttention::kDecay,
                 kRate = LinearAttention::kRate;

void expect_floating(const NodeContext& c, size_t i) {
  if (c.dtype(i) != DType::kFloat && c.dtype(i) != DType::kDouble) c.reject_dtype(i);
}

// The operands of a node, from which those of a token are taken.
struct Operands {
  Slot q, k, v, past, decay, rate;

  Operands(KernelContext& c, size_t first) {
    q = c.in(first), k = c.in(first + 1), v = c.in(first + 2);
    const auto optional = [&](size_t i) { return c.has_input(i) ? c.in(i) : Slot{}; };
    past = optional(first + kPast), decay = optional(first + kDecay), rate = optional(first + kRate);
  }
};

int64_t at_token(const LinearAttention& a, int64_t batch, int64_t token, int64_t width, int64_t place) {
  return (batch * a.tokens + token) * width + place;
}

template <typename T>
LinearToken token_of(const LinearAttention& a, const Operands& o, const Frame& f, int64_t batch, int64_t head,
                     int64_t token) {
  const auto at = [&](int64_t width, int64_t place) { return at_token(a, batch, token, width, place); };
  LinearToken t{};
  t.q = f.at<T>(o.q) + at(a.heads * a.size, head * a.group() * a.size);
  t.k = f.at<T>(o.k) + at(a.kv_heads * a.size, head * a.size);
  t.v = f.at<T>(o.v) + at(a.kv_heads * a.v_size, head * a.v_size);
  if (a.gated) t.decay = f.at<T>(o.decay) + at(a.kv_heads * a.decays, head * a.decays);
  if (a.delta) t.rate = f.at<T>(o.rate) + at(a.rates, a.rates == 1 ? 0 : head);
  return t;
}

// Calls f(part, batch, head) for all heads of keys, which are divided among `parts`.
template <typename F>
void each_head(const LinearAttention& a, int64_t parts, const F& f) {
  const int64_t heads = a.batch * a.kv_heads;
  parallel_for(parts, heads * a.tokens * a.state() / std::max<int64_t>(parts, 1),
               [&](int64_t begin, int64_t end) {
                 for (int64_t part = begin; part < end; ++part)
                   for (int64_t i = heads * part / parts; i < heads * (part + 1) / parts; ++i)
                     f(part, i / a.kv_heads, i % a.kv_heads);
               });
}

int64_t parts_of(const LinearAttention& a) { return std::min<int64_t>(a.batch * a.kv_heads, max_threads()); }

}  // namespace

Kernel linear_attention(KernelContext& c, const LinearAttention& a) {
  expect_floating(c, a.first);
  const Operands operands(c, a.first);
  const Slot y = c.out(0), present = c.has_output(1) ? c.out(1) : Slot{};
  const int64_t parts = parts_of(a), own = a.state() + a.v_size;
  const Slot scratch = c.scratch(static_cast<size_t>(std::max<int64_t>(parts, 1) * own) * size_of(a.dtype));
  const LinearAttentionFunctions functions = ORTRAIN_DISPATCH(FindLinearAttention)(a.dtype);
  Kernel kernel;
  visit_floating(a.dtype, [&](auto zero) {
    using T = decltype(zero);
    kernel = [=](const Frame& f) {
      each_head(a, parts, [&](int64_t part, int64_t batch, int64_t head) {
        const int64_t place = (batch * a.kv_heads + head) * a.state();
        T *work = f.at<T>(scratch) + part * own, *u = work + a.state();
        T* state = present.defined() ? f.at<T>(present) + place : work;
        if (operands.past.defined())
          std::copy_n(f.at<T>(operands.past) + place, a.state(), state);
        else
          std::fill_n(state, a.state(), T{0});
        for (int64_t token = 0; token < a.tokens; ++token)
          functions.step(
              a, token_of<T>(a, operands, f, batch, head, token), state,
              f.at<T>(y) + at_token(a, batch, token, a.heads * a.v_size, head * a.group() * a.v_size), u);
      });
    };
  });
  return kernel;
}

Kernel linear_attention_grad(KernelContext& c, const LinearAttention& a) {
  expect_floating(c, a.first);
  const Operands operands(c, a.first);
  const Slot dy = c.has_input(0) ? c.in(0) : Slot{}, dpresent = c.has_input(1) ? c.in(1) : Slot{};
  std::vector<Slot> out(kRate + 1);
  for (size_t o = 0; o < out.size(); ++o)
    if (c.has_output(o)) out[o] = c.out(o);
  const int64_t parts = parts_of(a), run = a.run(), runs = a.tokens > 0 ? (a.tokens + run - 1) / run : 0;
  // A part keeps: one state per run, the states within a run, the gradient of the state, the working memory
  // of a step back, and room for gradients that are not needed.
  const int64_t states = runs + run + 1, rows = 3 * a.v_size;
  const int64_t spare = a.group() * a.size + a.size + a.v_size + a.decays + 1 + a.group() * a.v_size;
  const int64_t own = (states + 2) * a.state() + rows + spare;
  const Slot scratch = c.scratch(static_cast<size_t>(std::max<int64_t>(parts, 1) * own) * size_of(a.dtype));
  const LinearAttentionFunctions functions = ORTRAIN_DISPATCH(FindLinearAttention)(a.dtype);
  Kernel kernel;
  visit_floating(a.dtype, [&](auto zero) {
    using T = decltype(zero);
    kernel = [=](const Frame& f) {
      each_head(a, parts, [&](int64_t part, int64_t batch, int64_t head) {
        const int64_t place = (batch * a.kv_heads + head) * a.state();
        T *kept = f.at<T>(scratch) + part * own, *within = kept + runs * a.state();
        T *ds = within + (run + 1) * a.state(), *work = ds + a.state(), *unwanted = work + a.state() + rows;
        T* no_dy = unwanted + spare - a.group() * a.v_size;
        std::fill_n(no_dy, a.group() * a.v_size, T{0});
        const auto token = [&](int64_t i) { return token_of<T>(a, operands, f, batch, head, i); };
        if (operands.past.defined())
          std::copy_n(f.at<T>(operands.past) + place, a.state(), within);
        else
          std::fill_n(within, a.state(), T{0});
        for (int64_t i = 0; i < a.tokens; ++i) {
          if (i % run == 0) std::copy_n(within, a.state(), kept + i / run * a.state());
          functions.step(a, token(i), within, nullptr, work);
        }
        if (dpresent.defined())
          std::copy_n(f.at<T>(dpresent) + place, a.state(), ds);
        else
          std::fill_n(ds, a.state(), T{0});
        for (int64_t r = runs; r-- > 0;) {
          const int64_t first = r * run, last = std::min(a.tokens, first + run);
          std::copy_n(kept + r * a.state(), a.state(), within);
          for (int64_t i = first; i + 1 < last; ++i) {
            T* next = within + (i - first + 1) * a.state();
            std::copy_n(next - a.state(), a.state(), next);
            functions.step(a, token(i), next, nullptr, work);
          }
          for (int64_t i = last; i-- > first;) {
            T* room = unwanted;
            const auto place_of = [&](size_t o, int64_t width, int64_t count, int64_t offset) {
              T* spare_room = room;
              room += count;
              return out[o].defined() ? f.at<T>(out[o]) + at_token(a, batch, i, width, offset) : spare_room;
            };
            LinearTokenGradient g{};
            g.dy = dy.defined()
                       ? f.at<T>(dy) + at_token(a, batch, i, a.heads * a.v_size, head * a.group() * a.v_size)
                       : no_dy;
            g.dq = place_of(0, a.heads * a.size, a.group() * a.size, head * a.group() * a.size);
            g.dk = place_of(1, a.kv_heads * a.size, a.size, head * a.size);
            g.dv = place_of(2, a.kv_heads * a.v_size, a.v_size, head * a.v_size);
            if (a.gated) g.ddecay = place_of(kDecay, a.kv_heads * a.decays, a.decays, head * a.decays);
            if (a.delta) g.drate = place_of(kRate, a.kv_heads, 1, head);
            functions.back(a, token(i), g, within + (i - first) * a.state(), ds, work);
          }
        }
        if (out[kPast].defined()) std::copy_n(ds, a.state(), f.at<T>(out[kPast]) + place);
      });
    };
  });
  return kernel;
}

}  // namespace ortrain
#endif
