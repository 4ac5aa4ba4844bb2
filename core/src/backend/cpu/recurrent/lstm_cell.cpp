#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/recurrent/lstm_cell.cpp"
// Compiles this file for all other instruction sets first.
#include <hwy/foreach_target.h>

#include "backend/cpu/recurrent/lstm_cell.h"
#include "backend/cpu/simd/simd_math-inl.h"
#include "runtime/vector_targets.h"

HWY_BEFORE_NAMESPACE();
namespace ortrain {
namespace HWY_NAMESPACE {
namespace {

// Calls f(load, store) for each vector of h elements: load(p) and store(v, p) access those of the row p. The
// last vector may be incomplete.
template <typename T, class F>
HWY_INLINE void ForVectors(int64_t h, F f) {
  const hn::ScalableTag<T> d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t j = 0;
  for (; j + lanes <= h; j += lanes)
    f([=](const T* p) HWY_ATTR { return hn::LoadU(d, p + j); },
      [=](auto v, T* p) HWY_ATTR { hn::StoreU(v, d, p + j); });
  if (j < h)
    f([=](const T* p) HWY_ATTR { return LoadUpTo(d, p + j, h - j); },
      [=](auto v, T* p) HWY_ATTR { StoreUpTo(v, d, p + j, h - j); });
}

template <typename T>
void Cell(int64_t h, const LstmCell<T>& given) {
  const LstmCell<T> at = given;
  const hn::ScalableTag<T> d;
  T *const i = at.gates, *const o = i + h, *const forget = o + h, *const candidate = forget + h;
  ForVectors<T>(h, [=](auto load, auto store) HWY_ATTR {
    const auto argument = [=](const T* p) HWY_ATTR {
      return at.bias ? hn::Add(load(p), load(at.bias + (p - at.gates))) : load(p);
    };
    const auto vi = math::Sigmoid(d, argument(i)), vo = math::Sigmoid(d, argument(o)),
               vf = math::Sigmoid(d, argument(forget)), vc = math::Tanh(d, argument(candidate));
    store(vi, i), store(vo, o), store(vf, forget), store(vc, candidate);
    const auto cell = hn::MulAdd(vf, load(at.cell), hn::Mul(vi, vc));
    const auto state = hn::Mul(vo, math::Tanh(d, cell));
    store(cell, at.cell), store(state, at.state);
    if (at.kept_cell) store(cell, at.kept_cell);
    if (at.kept_state) store(state, at.kept_state);
  });
}

// The gradient of an argument of sigmoid, of which y is the value.
template <class D>
HWY_INLINE Vec<D> BeforeSigmoid(D d, Vec<D> dy, Vec<D> y) {
  return hn::Mul(dy, hn::Mul(y, hn::Sub(C(d, 1), y)));
}

// The gradient of an argument of tanh, of which y is the value.
template <class D>
HWY_INLINE Vec<D> BeforeTanh(D d, Vec<D> dy, Vec<D> y) {
  return hn::Mul(dy, hn::NegMulAdd(y, y, C(d, 1)));
}

template <typename T>
void CellGradient(int64_t h, const LstmCellGradient<T>& given) {
  const LstmCellGradient<T> at = given;
  const hn::ScalableTag<T> d;
  const T *const i = at.gates, *const o = i + h, *const forget = o + h, *const candidate = forget + h;
  T *const di = at.changes, *const d_o = di + h, *const df = d_o + h, *const dg = df + h;
  ForVectors<T>(h, [=](auto load, auto store) HWY_ATTR {
    const auto vi = load(i), vo = load(o), vf = load(forget), vc = load(candidate);
    const auto out = math::Tanh(d, load(at.cell));
    const auto dh = at.dy ? hn::Add(load(at.dh), load(at.dy)) : load(at.dh);
    const auto dc = hn::Add(load(at.dc), BeforeTanh(d, hn::Mul(dh, vo), out));
    const auto before = at.last_cell ? load(at.last_cell) : hn::Zero(d);
    store(BeforeSigmoid(d, hn::Mul(dc, vc), vi), di);
    store(BeforeSigmoid(d, hn::Mul(dh, out), vo), d_o);
    store(BeforeSigmoid(d, hn::Mul(dc, before), vf), df);
    store(BeforeTanh(d, hn::Mul(dc, vi), vc), dg);
    store(hn::Mul(dc, vf), at.dc);
  });
}

void CellFloat(int64_t h, const LstmCell<float>& at) { Cell(h, at); }
void CellDouble(int64_t h, const LstmCell<double>& at) { Cell(h, at); }
void CellGradientFloat(int64_t h, const LstmCellGradient<float>& at) { CellGradient(h, at); }
void CellGradientDouble(int64_t h, const LstmCellGradient<double>& at) { CellGradient(h, at); }

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace ortrain
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ortrain {

template <>
void lstm_cell(int64_t h, const LstmCell<float>& at) {
  ORTRAIN_DISPATCH(CellFloat)(h, at);
}
template <>
void lstm_cell(int64_t h, const LstmCell<double>& at) {
  ORTRAIN_DISPATCH(CellDouble)(h, at);
}
template <>
void lstm_cell_gradient(int64_t h, const LstmCellGradient<float>& at) {
  ORTRAIN_DISPATCH(CellGradientFloat)(h, at);
}
template <>
void lstm_cell_gradient(int64_t h, const LstmCellGradient<double>& at) {
  ORTRAIN_DISPATCH(CellGradientDouble)(h, at);
}

}  // namespace ortrain
#endif
