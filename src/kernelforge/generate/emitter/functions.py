"""C++ texts of functions that the CPU's standard library has only in a form that does not vectorise."""

from __future__ import annotations

from collections.abc import Iterable

_BITS = """\
static inline float from_bits(uint32_t bits) { float value; std::memcpy(&value, &bits, 4); return value; }
static inline uint32_t to_bits(float value) { uint32_t bits; std::memcpy(&bits, &value, 4); return bits; }
// yes or no by mask: a conditional on costly values becomes a branch, and a loop with a branch does not vectorise.
static inline float choose(bool condition, float yes, float no) {
  const uint32_t mask = condition ? 0xffffffffu : 0u;
  return from_bits((to_bits(yes) & mask) | (to_bits(no) & ~mask));
}
"""

_POWER = """\
// exp(x) = 2**n * p(r) with n = round(x / ln 2), to 1 ulp and without branches, so that loops vectorise. Returns p(r).
[[gnu::always_inline]] static inline float exp_parts(float x, int32_t& n) {
  const float shifted = std::fma(x, 1.44269504f, 12582912.0f);  // n lands in the low bits
  n = static_cast<int32_t>(to_bits(shifted)) - 0x4b400000;
  const float whole = shifted - 12582912.0f;
  float r = std::fma(whole, -0.693359375f, x);
  r = std::fma(whole, 2.12194440e-4f, r);
  float p = 1.9875691500e-4f;
  p = std::fma(p, r, 1.3981999507e-3f);
  p = std::fma(p, r, 8.3334519073e-3f);
  p = std::fma(p, r, 4.1665795894e-2f);
  p = std::fma(p, r, 1.6666665459e-1f);
  p = std::fma(p, r, 5.0000001201e-1f);
  return std::fma(p, r * r, r) + 1.0f;
}
static inline float power_of_two(int32_t n) { return from_bits(static_cast<uint32_t>(n + 127) << 23); }
"""

_EXP = """\
// exp for all x; infinities and nan as std::exp.
[[gnu::always_inline]] static inline float fast_exp(float x) {
  int32_t n;
  const float p = exp_parts(x > 89.0f ? 89.0f : (x < -104.0f ? -104.0f : x), n);
  return p * power_of_two(n >> 1) * power_of_two(n - (n >> 1));  // two factors: n reaches 128 and -150
}
"""

_SMALL_EXP = """\
// exp for |x| < 87.
[[gnu::always_inline]] static inline float small_exp(float x) {
  int32_t n;
  const float p = exp_parts(x, n);
  return p * power_of_two(n);
}
"""

_ERF = """\
// erf to 1 ulp: an odd polynomial near 0, else 1 - exp(polynomial).
[[gnu::always_inline]] static inline float fast_erf(float x) {
  const float magnitude = std::fabs(x);
  const float t = choose(magnitude > 4.0f, 4.0f, magnitude), s = t * t;  // past 4 the result is 1; nan stays
  float r = std::fma(-1.72853470e-5f, t, 3.83197126e-4f);
  const float u = std::fma(-3.88396438e-3f, t, 2.42546219e-2f);
  r = std::fma(r, s, u);
  r = std::fma(r, t, -1.06777877e-1f);
  r = std::fma(r, t, -6.34846687e-1f);
  r = std::fma(r, t, -1.28717512e-1f);
  r = std::fma(r, t, -t);
  const float large = std::copysign(1.0f - small_exp(r), x);
  float q = -5.96761703e-4f;
  q = std::fma(q, s, 4.99119423e-3f);
  q = std::fma(q, s, -2.67681349e-2f);
  q = std::fma(q, s, 1.12819925e-1f);
  q = std::fma(q, s, -3.76125336e-1f);
  q = std::fma(q, s, 1.28379166e-1f);
  return choose(magnitude > 0.927734375f, large, std::fma(q, x, x));
}
"""

_TANH = """\
// tanh to 2 ulp: an odd polynomial near 0, else 1 - 2 / (exp(2|x|) + 1).
[[gnu::always_inline]] static inline float fast_tanh(float x) {
  const float magnitude = std::fabs(x);
  const float t = choose(magnitude > 10.0f, 10.0f, magnitude), s = t * t;  // past 10 the result is 1; nan stays
  const float large = std::copysign(1.0f - 2.0f / (small_exp(2.0f * t) + 1.0f), x);
  float q = -5.70498872745e-3f;
  q = std::fma(q, s, 2.06390887954e-2f);
  q = std::fma(q, s, -5.37397155531e-2f);
  q = std::fma(q, s, 1.33314422036e-1f);
  q = std::fma(q, s, -3.33332819422e-1f);
  return choose(t < 0.625f, std::fma(q * s, x, x), large);
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

_TEXTS = {
    "bits": _BITS,
    "power": _POWER,
    "exp": _EXP,
    "small_exp": _SMALL_EXP,
    "erf": _ERF,
    "tanh": _TANH,
    "half": _HALF,
}
_NEEDS = {
    "exp": ("bits", "power"), "erf": ("bits", "power", "small_exp"), "tanh": ("bits", "power", "small_exp"),
    "half": ("bits",),
}  # fmt: skip


def cpu_functions(names: Iterable[str]) -> str:
    """The texts of the named functions ("exp", "erf", "tanh", "half") and of what they call, in order."""
    wanted = set(names)
    for name in tuple(wanted):
        wanted.update(_NEEDS.get(name, ()))
    return "".join(text for name, text in _TEXTS.items() if name in wanted)
