"""CUDA texts that the emitter's sources share: packed accesses and reductions among threads."""

from __future__ import annotations

PACK = """\
// VEC adjacent elements, moved in one access.
template <typename T, int VEC>
struct alignas(VEC * sizeof(T)) Pack { T item[VEC]; };

template <int VEC, typename T>
__device__ __forceinline__ Pack<T, VEC> load(const T* place) { return *reinterpret_cast<const Pack<T, VEC>*>(place); }

template <typename T, int VEC>
__device__ __forceinline__ void store(T* place, const Pack<T, VEC>& pack) {
  $STORE
}
"""

_COMBINE = {
    ("sum", "float"): "a + b", ("sum", "double"): "a + b",
    ("max", "float"): "fmaxf(a, b)", ("max", "double"): "fmax(a, b)",
    ("amax", "float"): "(b > a || b != b) ? b : a", ("amax", "double"): "(b > a || b != b) ? b : a",
    ("amin", "float"): "(b < a || b != b) ? b : a", ("amin", "double"): "(b < a || b != b) ? b : a",
}  # fmt: skip

_WARP = """\
// The $NAME over groups of LANES adjacent lanes, in every lane.
template <int LANES>
__device__ __forceinline__ $T all_$NAME($T a) {
#pragma unroll
  for (int step = LANES / 2; step > 0; step /= 2) {
    const $T b = __shfl_xor_sync(0xffffffffu, a, step);
    a = $COMBINE;
  }
  return a;
}
"""

_BLOCK = """\
// The $NAME over the block, in every thread.
template <int LANES>
__device__ __forceinline__ $T all_$NAME($T a) {
  constexpr int WARPS = LANES / 32;
  __shared__ $T partial[WARPS];
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    const $T b = __shfl_xor_sync(0xffffffffu, a, step);
    a = $COMBINE;
  }
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = a;
  __syncthreads();
  a = partial[0];
#pragma unroll
  for (int warp = 1; warp < WARPS; ++warp) {
    const $T b = partial[warp];
    a = $COMBINE;
  }
  __syncthreads();  // partial is written again by the next reduction
  return a;
}
"""


def reduction_functions(kind: str, compute: str, block: bool) -> str:
    """`all_<kind>`: a reduction among the threads that share a row."""
    text = _BLOCK if block else _WARP
    return text.replace("$NAME", kind).replace("$T", compute).replace("$COMBINE", _COMBINE[(kind, compute)])
