// Just enough of CUDA for g++ to run the emitted kernels on the CPU: every thread of a block is a fibre, blocks run one
// after another. Barriers and shuffles switch fibres. Slow, and no model of memory; index arithmetic is what it checks.
#pragma once
#include <ucontext.h>

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <vector>

#define __global__
#define __device__
#define __forceinline__ inline
#define __restrict__
#define __launch_bounds__(...)
#define __align__(n) alignas(n)

struct dim3 { unsigned x = 1, y = 1, z = 1; };
struct uint2 { unsigned x, y; };
struct uint4 { unsigned x, y, z, w; };
using cudaStream_t = void*;
static dim3 threadIdx, blockIdx, gridDim;
enum { cudaFuncAttributeMaxDynamicSharedMemorySize = 0 };
template <typename F> int cudaFuncSetAttribute(F, int, int) { return 0; }
static inline int cudaGetLastError() { return 0; }

struct __nv_bfloat16 {
  uint16_t bits;
  __nv_bfloat16() = default;
  explicit __nv_bfloat16(double value) : __nv_bfloat16(static_cast<float>(value)) {}
  explicit __nv_bfloat16(float value) {
    uint32_t wide;
    std::memcpy(&wide, &value, 4);
    bits = value != value ? 0x7fff : static_cast<uint16_t>((wide + 0x7fffu + ((wide >> 16) & 1u)) >> 16);
  }
  operator float() const {
    const uint32_t wide = static_cast<uint32_t>(bits) << 16;
    float value;
    std::memcpy(&value, &wide, 4);
    return value;
  }
};
struct __half {
  _Float16 value;
  __half() = default;
  explicit __half(float x) : value(static_cast<_Float16>(x)) {}
  explicit __half(double x) : value(static_cast<_Float16>(x)) {}
  operator float() const { return static_cast<float>(value); }
};
static inline float __expf(float x) { return std::exp(x); }
static inline float __fdividef(float x, float y) { return x / y; }
static inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
static inline double rsqrt(double x) { return 1.0 / std::sqrt(x); }
template <typename T> void __stcs(T* place, const T& value) { std::memcpy(place, &value, sizeof(T)); }
using std::max;
using std::min;
template <typename A, typename B> auto min(A a, B b) { using C = std::common_type_t<A, B>; return C(a) < C(b) ? C(a) : C(b); }
template <typename A, typename B> auto max(A a, B b) { using C = std::common_type_t<A, B>; return C(a) > C(b) ? C(a) : C(b); }

namespace emulation {
alignas(256) static char dynamic_shared[256 * 1024];
static ucontext_t scheduler;
static std::vector<ucontext_t> fibres;
static std::vector<char> done;
static std::vector<std::vector<char>> stacks;
static unsigned current, live, arrived;
static uint64_t generation;
static double lanes[1024];
static unsigned warp_arrived[32];
static uint64_t warp_generation[32];
static std::function<void()> body;

static void yield() { const unsigned me = current; swapcontext(&fibres[me], &scheduler); threadIdx.x = me; }
static void enter() { body(); done[current] = 1; --live; swapcontext(&fibres[current], &scheduler); }
static void meet(unsigned& count, uint64_t& turn, unsigned all) {
  const uint64_t mine = turn;
  if (++count == all) { count = 0; ++turn; return; }
  while (turn == mine) yield();
}
static void launch(unsigned blocks, unsigned threads, std::function<void()> kernel) {
  body = std::move(kernel);
  gridDim.x = blocks;
  fibres.resize(threads);
  stacks.assign(threads, std::vector<char>(1 << 16));
  for (unsigned block = 0; block < blocks; ++block) {
    blockIdx.x = block;
    done.assign(threads, 0);
    live = threads;
    for (unsigned t = 0; t < threads; ++t) {
      getcontext(&fibres[t]);
      fibres[t].uc_stack.ss_sp = stacks[t].data();
      fibres[t].uc_stack.ss_size = stacks[t].size();
      fibres[t].uc_link = nullptr;
      makecontext(&fibres[t], enter, 0);
    }
    while (live > 0)
      for (unsigned t = 0; t < threads; ++t)
        if (!done[t]) { current = t; threadIdx.x = t; swapcontext(&scheduler, &fibres[t]); }
  }
}
}  // namespace emulation

static inline void __syncthreads() { emulation::meet(emulation::arrived, emulation::generation, unsigned(emulation::fibres.size())); }
static inline void __syncwarp_all() {
  const unsigned warp = threadIdx.x / 32;
  emulation::meet(emulation::warp_arrived[warp], emulation::warp_generation[warp], 32);
}
template <typename T> T __shfl_xor_sync(unsigned, T value, int step) {
  emulation::lanes[threadIdx.x] = value;
  __syncwarp_all();
  const T other = static_cast<T>(emulation::lanes[threadIdx.x ^ unsigned(step)]);
  __syncwarp_all();
  return other;
}
