// The discrete Fourier transform of one line, of any length. It is computed in double, because cancellation
// would leave no precision in float.
#pragma once

#include <cmath>
#include <complex>
#include <cstdint>
#include <numbers>
#include <utility>
#include <vector>

namespace ortrain {

//     X[k] = Σ_n x[n] e^(∓2πi kn/N)        - forward, + backward; neither is scaled
//
// A length that is a power of two is split in halves (J. W. Cooley and J. W. Tukey, 1965). Any other becomes
// a convolution with a chirp, whose length can be a power of two (L. I. Bluestein, 1970).
class Fft {
 public:
  using Complex = std::complex<double>;

  explicit Fft(int64_t length) : n_(length), m_(1) {
    while (m_ < n_) m_ *= 2;
    if (m_ != n_) m_ *= m_ < 2 * n_ - 1 ? 2 : 1;
    for (int64_t k = 0; k < m_ / 2; ++k) roots_.push_back(turn(-2 * k, m_));
    if (m_ == n_) return;
    filter_.assign(static_cast<size_t>(m_), Complex(0));
    for (int64_t k = 0; k < n_; ++k) {
      chirp_.push_back(turn(-(k * k % (2 * n_)), n_));
      filter_[static_cast<size_t>(k)] = filter_[static_cast<size_t>((m_ - k) % m_)] =
          std::conj(chirp_.back());
    }
    halves(filter_.data());
  }

  int64_t length() const { return n_; }
  // Values of working memory that a transform needs.
  int64_t work() const { return m_ == n_ ? 0 : m_; }

  void run(Complex* x, bool backward, Complex* work) const {
    if (backward) conjugate(x);
    if (m_ == n_)
      halves(x);
    else
      convolve(x, work);
    if (backward) conjugate(x);
  }

 private:
  // e^(πi k/n)
  static Complex turn(int64_t k, int64_t n) {
    const double angle = std::numbers::pi * static_cast<double>(k) / static_cast<double>(n);
    return {std::cos(angle), std::sin(angle)};
  }
  // Without the handling of infinities that the * operator does.
  static Complex product(Complex a, Complex b) {
    return {a.real() * b.real() - a.imag() * b.imag(), a.real() * b.imag() + a.imag() * b.real()};
  }
  void conjugate(Complex* x) const {
    for (int64_t k = 0; k < n_; ++k) x[k] = std::conj(x[k]);
  }

  // The forward transform of m_ values in place.
  void halves(Complex* x) const {
    for (int64_t i = 1, j = 0; i < m_; ++i) {  // j is i with its bits in reverse
      int64_t bit = m_ / 2;
      for (; j & bit; bit /= 2) j ^= bit;
      j ^= bit;
      if (i < j) std::swap(x[i], x[j]);
    }
    for (int64_t half = 1; half < m_; half *= 2)
      for (int64_t start = 0; start < m_; start += 2 * half)
        for (int64_t k = 0; k < half; ++k) {
          Complex &a = x[start + k], &b = x[start + k + half];
          const Complex odd = product(b, roots_[static_cast<size_t>(k * (m_ / 2 / half))]);
          b = a - odd;
          a += odd;
        }
  }

  // kn = (k² + n² - (k - n)²) / 2, so X[k] = c[k] Σ_n (x[n] c[n]) conj(c[k - n]) with c[k] = e^(-πi k²/N).
  void convolve(Complex* x, Complex* work) const {
    for (int64_t k = 0; k < n_; ++k) work[k] = product(x[k], chirp_[static_cast<size_t>(k)]);
    for (int64_t k = n_; k < m_; ++k) work[k] = Complex(0);
    halves(work);
    for (int64_t k = 0; k < m_; ++k) work[k] = std::conj(product(work[k], filter_[static_cast<size_t>(k)]));
    halves(work);
    for (int64_t k = 0; k < n_; ++k)
      x[k] = product(std::conj(work[k]) / static_cast<double>(m_), chirp_[static_cast<size_t>(k)]);
  }

  int64_t n_, m_;               // m_: the power of two that is transformed
  std::vector<Complex> roots_;  // e^(-2πi k/m_)
  std::vector<Complex> chirp_, filter_;
};

}  // namespace ortrain
