"""C++ texts of functions that the CPU's standard library has only in a form that does not vectorise."""

from __future__ import annotations

from collections.abc import Iterable

_BITS = """\
static inline float from_bits(uint32_t bits) { float value; std::memcpy(&value, &bits, 4); return value; }
static inline uint32_t to_bits(float value) { uint32_t bits; std::memcpy(&bits, &value, 4); return bits; }
"""

_EXP = """\
// exp to 1 ulp, without branches so that loops vectorise: 2**n * p(r), n = round(x / ln 2). inf and nan as std::exp.
static inline float fast_exp(float x) {
  const float bounded = x > 89.0f ? 89.0f : (x < -104.0f ? -104.0f : x);
  const float shifted = std::fma(bounded, 1.44269504f, 12582912.0f);  // n lands in the low bits
  const float n = shifted - 12582912.0f;
  float r = std::fma(n, -0.693359375f, bounded);
  r = std::fma(n, 2.12194440e-4f, r);
  float p = 1.9875691500e-4f;
  p = std::fma(p, r, 1.3981999507e-3f);
  p = std::fma(p, r, 8.3334519073e-3f);
  p = std::fma(p, r, 4.1665795894e-2f);
  p = std::fma(p, r, 1.6666665459e-1f);
  p = std::fma(p, r, 5.0000001201e-1f);
  p = std::fma(p, r * r, r) + 1.0f;
  // 2**n as two factors: n reaches 128 and -150.
  const int32_t power = static_cast<int32_t>(to_bits(shifted)) - 0x4b400000;
  const int32_t half = power >> 1;
  const float first = from_bits(static_cast<uint32_t>(half + 127) << 23);
  return p * first * from_bits(static_cast<uint32_t>(power - half + 127) << 23);
}
"""

_ERF = """\
// erf to 1 ulp: an odd polynomial near 0, else 1 - exp(polynomial).
static inline float fast_erf(float x) {
  const float t = std::fabs(x), s = x * x;
  float r = std::fma(-1.72853470e-5f, t, 3.83197126e-4f);
  const float u = std::fma(-3.88396438e-3f, t, 2.42546219e-2f);
  r = std::fma(r, s, u);
  r = std::fma(r, t, -1.06777877e-1f);
  r = std::fma(r, t, -6.34846687e-1f);
  r = std::fma(r, t, -1.28717512e-1f);
  r = std::fma(r, t, -t);
  // Past 4 the result is 1, while the polynomial no longer is in range.
  const float large = std::copysign(t > 4.0f ? 1.0f : 1.0f - fast_exp(r), x);
  float q = -5.96761703e-4f;
  q = std::fma(q, s, 4.99119423e-3f);
  q = std::fma(q, s, -2.67681349e-2f);
  q = std::fma(q, s, 1.12819925e-1f);
  q = std::fma(q, s, -3.76125336e-1f);
  q = std::fma(q, s, 1.28379166e-1f);
  return t > 0.927734375f ? large : std::fma(q, x, x);
}
"""

_TANH = """\
// tanh to 2 ulp: an odd polynomial near 0, else 1 - 2 / (exp(2|x|) + 1).
static inline float fast_tanh(float x) {
  const float t = std::fabs(x), s = x * x;
  const float large = std::copysign(1.0f - 2.0f / (fast_exp(2.0f * t) + 1.0f), x);
  float q = -5.70498872745e-3f;
  q = std::fma(q, s, 2.06390887954e-2f);
  q = std::fma(q, s, -5.37397155531e-2f);
  q = std::fma(q, s, 1.33314422036e-1f);
  q = std::fma(q, s, -3.33332819422e-1f);
  return t < 0.625f ? std::fma(q * s, x, x) : large;
}
"""

# Bit tricks instead of kf::half_to_float, whose scalar instruction keeps a loop from being vectorised.
_HALF = """\
static inline float half_to_float(uint16_t half) {
  const uint32_t wide = static_cast<uint32_t>(half) << 16, twice = wide + wide;
  const float normal = from_bits((twice >> 4) + 0x70000000u) * 0x1p-112f;
  const float subnormal = from_bits((twice >> 17) | 0x3f000000u) - 0.5f;
  return from_bits((wide & 0x80000000u) | (twice < 0x08000000u ? to_bits(subnormal) : to_bits(normal)));
}
static inline uint16_t float_to_half(float value) {  // round to nearest even
  const uint32_t wide = to_bits(value), twice = wide + wide;
  const uint32_t exponent = twice & 0xff000000u, bias = exponent < 0x71000000u ? 0x71000000u : exponent;
  const float rounded = from_bits((bias >> 1) + 0x07800000u) + std::fabs(value) * 0x1p+112f * 0x1p-110f;
  const uint32_t bits = to_bits(rounded), number = ((bits >> 13) & 0x7c00u) + (bits & 0x0fffu);
  return static_cast<uint16_t>(((wide & 0x80000000u) >> 16) | (twice > 0xff000000u ? 0x7e00u : number));
}
"""

_TEXTS = {"bits": _BITS, "exp": _EXP, "erf": _ERF, "tanh": _TANH, "half": _HALF}
_NEEDS = {"exp": ("bits",), "erf": ("bits", "exp"), "tanh": ("bits", "exp"), "half": ("bits",)}


def cpu_functions(names: Iterable[str]) -> str:
    """The texts of the named functions ("exp", "erf", "tanh", "half") and of what they call, in order."""
    wanted = set(names)
    for name in tuple(wanted):
        wanted.update(_NEEDS.get(name, ()))
    return "".join(text for name, text in _TEXTS.items() if name in wanted)
