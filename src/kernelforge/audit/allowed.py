"""Which names a CPU kernel may import. Owns `is_allowed`.

A list of what is harmless, because no list of what is harmful is complete: the C++ library alone reaches files, threads
and clocks under thousands of names.
"""

from __future__ import annotations

import re

_PLAIN = frozenset({
    # memory and strings, and their checked forms
    "memcpy", "memmove", "memset", "memcmp", "bcmp", "mempcpy", "memchr", "strlen", "strcmp", "strncmp",
    "__memcpy_chk", "__memmove_chk", "__memset_chk",
    # algorithms
    "qsort", "bsearch", "abs", "labs", "llabs", "div", "ldiv", "lldiv",
    # what compilers and the start-up files add
    "__cxa_finalize", "__gmon_start__", "_ITM_deregisterTMCloneTable", "_ITM_registerTMCloneTable", "__stack_chk_fail",
    "__tls_get_addr", "__errno_location", "__cpu_model", "__cpu_indicator_init", "__dso_handle", "workspace_bytes",
    "_GLOBAL_OFFSET_TABLE_", "__cxa_guard_acquire", "__cxa_guard_release", "__cxa_guard_abort", "__cxa_pure_virtual",
    # An assertion that ends the process is seen as the crash that it is. Exceptions are not thrown: they are memory of
    # any size, allocated and kept.
    "abort", "__assert_fail", "_Unwind_Resume", "__gxx_personality_v0", "__cxa_begin_catch", "__cxa_end_catch",
    "__cxa_rethrow", "__cxa_call_unexpected",
    "__clang_call_terminate", "_ZSt9terminatev",
})  # fmt: skip
_MATH = (
    r"a?(sin|cos|tan)h?|(sin|cos|tan|asin|acos|atan|atan2)pi|sincos|atan2|exp|exp2|exp10|expm1|log|log2|log10|log1p|"
    r"logb|ilogb|pow|pow10|sqrt|rsqrt|cbrt|hypot|fabs|fmin|fmax|fma|fmod|fdim|floor|ceil|trunc|round|roundeven|rint|"
    r"nearbyint|lround|llround|lrint|llrint|ldexp|scalb|scalbn|scalbln|frexp|modf|remainder|remquo|drem|copysign|erf|"
    r"erfc|lgamma|lgamma_r|tgamma|gamma|j0|j1|jn|y0|y1|yn|nextafter|nexttoward|nan|significand|isnan|isinf|finite|"
    r"fpclassify|signbit|issignaling|iseqsig"
)
_INTEGER, _REAL, _COMPLEX = "[qhsdt]i", "(?:[hbsdxt]f)", "[hsdxt]c"
_ARITHMETIC = (  # of the compiler's own library
    rf"__(u?div|u?mod|u?divmod|mul|ashl|ashr|lshr|add|sub|neg|abs)v?({_INTEGER}|{_REAL}|{_COMPLEX})[234]"
    rf"|__(popcount|clz|ctz|ffs|parity|bswap|clrsb){_INTEGER}2|__(u?cmp|eq|ne|lt|le|gt|ge|unord)({_INTEGER}|{_REAL})2"
    rf"|__powi{_REAL}2|__(extend|trunc){_REAL}{_REAL}2|__fix(uns)?{_REAL}{_INTEGER}|__float(un)?{_INTEGER}{_REAL}"
)
# What compilers make of OpenMP's pragmas, but for what a source may call to get memory that stays (PLUGIN_malloc, task
# reductions), to leave a team open (parallel_start), or to bind later regions (teams).
_SCHEDULE = r"(static|dynamic|guided|runtime|nonmonotonic_(dynamic|guided|runtime)|maybe_nonmonotonic_runtime)"
_GOMP = (
    rf"GOMP_(parallel(_loop_{_SCHEDULE}|_sections)?|loop_(ull_)?(ordered_)?{_SCHEDULE}_(start|next)"
    r"|loop_end(_nowait|_cancel)?|sections_(start|next|end|end_nowait|end_cancel)|barrier(_cancel)?"
    r"|critical(_name)?_(start|end)|atomic_(start|end)|single_(start|copy_start|copy_end)|ordered_(start|end)"
    r"|task|taskwait|taskyield|taskgroup_(start|end)|taskloop(_ull)?|cancel|cancellation_point)"
)
_KMPC = (
    r"__kmpc_(fork_call(_if)?|(cancel_)?barrier|cancel|cancellationpoint|(end_)?critical(_with_hint)?|(end_)?single"
    r"|(end_)?master|(end_)?masked|(end_)?ordered|global_thread_num|for_static_(init_\w+|fini)"
    r"|dispatch_(init|next|fini)_\w+|dispatch_deinit|(end_)?reduce(_nowait)?|flush|(end_)?serialized_parallel"
    r"|push_num_threads)"
)
_PATTERN = re.compile(
    rf"(__)?({_MATH})(f|l|f16|f32|f64|f128)?(_r)?(_finite)?"
    r"|fe(clear|get|raise|set|test)(except(flag)?|round|env|mode)|feupdateenv|feholdexcept|signgam|__signgam"
    r"|_ZGV[a-zA-Z0-9]+_\w+"  # vectors of math functions
    rf"|{_ARITHMETIC}|{_GOMP}|{_KMPC}"
    # Of what OpenMP sets only locks: all else outlives the call and slows eager itself.
    r"|omp_(test|set|unset|init|destroy)_(nest_)?lock(_with_hint)?|omp_in_\w+|omp_get_(?!wtime|affinity)\w+"
    r"|_ZSt\d+__throw_\w+|_ZT[IVS](N10__cxxabiv1\d+\w+|[a-z])"  # exceptions and their type information
)


def is_allowed(name: str) -> bool:
    """Whether an import is arithmetic, memory copying, OpenMP or a compiler's own support."""
    return name in _PLAIN or _PATTERN.fullmatch(name) is not None
