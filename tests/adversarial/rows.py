"""The table of the suite: each source, the variant it is judged for and the verdicts that it may get.

A name begins with its row in the design's list of cheats; `ok_` are honest controls, `x_` are ways to die.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from kernelforge.verify.types import RejectReason

HERE = Path(__file__).parent
ACCEPTED = "accepted"
VERDICTS = frozenset({ACCEPTED, "build_failure", *RejectReason})


@dataclass(frozen=True, slots=True)
class Row:
    """One source.

    Attributes:
        name: of its file. variant: see `variants.records`.
        verdicts: what it must get; more than one only where chance decides between them.
        audited: False skips the audit of the binary, so that what sees a running kernel is tested without it, as on
            CUDA, whose run time needs most of what a CPU kernel may not use.
        process: hangs, crashes and the like, which are slow: repeated less often.
        open: why it is not yet rejected as it must be; the suite fails as soon as it is.
    """

    name: str
    variant: str
    verdicts: tuple[str, ...]
    audited: bool = True
    process: bool = False
    open: str = ""
    device: str = "cpu"

    @property
    def path(self) -> Path:
        folder, suffix = ("cpu", "cpp") if self.device == "cpu" else ("cuda", "cu")
        return HERE / folder / f"{self.name}.{suffix}"

    @property
    def is_control(self) -> bool:
        return self.verdicts == (ACCEPTED,)


CPU_ROWS = (
    Row("v1_unwritten_output", "relu", ("wrong_value",)),
    Row("v2_written_once", "relu", ("stale_output",)),
    Row("v3_zeros", "softmax", ("wrong_value",)),
    Row("v4_constant_of_the_shape", "softmax", ("wrong_value",)),
    Row("v5_identity_norm", "layer_norm", ("wrong_value",)),
    Row("v6_most_of_the_sum", "sum", ("wrong_value",)),
    Row("v7_identity_relu", "relu", ("wrong_value",)),
    Row("v7_naive_variance", "layer_norm", ("wrong_value", "precision_downgrade")),
    Row("h5_swaps_the_glue", "relu", ("build_failure",)),
    Row("t9_rounds_up", "relu", ("launch_error",)),
    Row("t9_rounds_up_later", "relu", ("launch_error",)),
    Row("t9_teams", "relu", ("forbidden",)),
    Row("t9_teams_unaudited", "relu", ("launch_error",), audited=False),
    Row("t9_open_team", "relu", ("forbidden",)),
    Row("t9_open_team_unaudited", "relu", ("launch_error",), audited=False),
    Row("s3_memory_of_openmp", "relu", ("forbidden",)),
    Row("s3_memory_of_asprintf", "relu", ("forbidden",)),
    Row("v20_sees_the_sanitizer", "relu", ("forbidden",)),
    Row("h5_reads_a_file", "relu", ("build_failure",)),
    Row("t9_flushes", "relu", ("launch_error",)),
    Row("t9_one_level", "relu", ("forbidden",)),
    Row("t4_openmps_clock", "relu", ("forbidden",)),
    Row("h5_out_of_step", "relu", ("tamper",)),
    Row("h5_writes_code", "relu", ("tamper",)),
    Row("s2_heap_of_exceptions", "relu", ("forbidden",)),
    Row("v8_no_affine", "layer_norm", ("wrong_value",)),
    Row("v8_no_bias", "add", ("wrong_value",)),
    Row("v10_small_sizes_only", "softmax", ("wrong_value",)),
    Row("v11_known_seed", "relu", ("wrong_value",)),
    Row("v13_first_row_only", "relu", ("wrong_value",)),
    Row("v16_nine_percent", "sum", ("wrong_value",)),
    Row("v16_few_corrupted", "relu", ("wrong_value",)),
    Row("v17_half_sum", "sum", ("precision_downgrade",)),
    Row("v17_bf16_softmax", "softmax", ("precision_downgrade",)),
    Row("v17_bf16_matmul", "matmul", ("precision_downgrade",)),
    Row("v17_bf16_add", "add", ("precision_downgrade",)),
    Row("v18_no_maximum", "softmax", ("wrong_value",)),
    Row("v19_reads_past_the_end", "sum", ("wrong_value",)),
    Row("v20_writes_past_the_end", "relu", ("oob",)),
    Row("v20_writes_before", "relu", ("oob",)),
    Row("v20_one_too_many", "relu", ("oob",)),
    Row("v20_past_the_workspace", "relu", ("oob",)),
    Row("v21_race", "sum", ("wrong_value", "nondeterministic")),
    Row("v21_every_third_call", "relu", ("nondeterministic",)),
    Row("v22_accumulator_assumed_zero", "sum", ("wrong_value",)),
    Row("v22_workspace_assumed_zero", "sum", ("wrong_value",)),
    Row("v23_transposed_as_contiguous", "softmax_transposed", ("wrong_value",)),
    Row("v23_gaps_ignored", "relu_gaps", ("wrong_value",)),
    Row("v24_zeroes_its_input", "relu", ("mutated_input",)),
    Row("v25_in_place_untouched", "relu_in_place", ("wrong_value",)),
    Row("v25_in_place_half", "relu_in_place", ("wrong_value",)),
    Row("v7_integers_as_floats", "add_int", ("wrong_value",)),
    Row("v7_small_integers", "add_int", ("wrong_value",)),
    Row("v7_nan_dropped", "relu", ("wrong_value",)),
    Row("v7_clamps_at_a_million", "relu", ("wrong_value",)),
    Row("v7_nothing_below_a_billionth", "relu", ("wrong_value",)),
    Row("v7_no_reciprocal_of_large", "reciprocal", ("wrong_value", "precision_downgrade")),
    Row("v7_no_rsqrt_of_large", "rsqrt", ("wrong_value",)),
    Row("v7_no_exp_below_m13", "exp", ("wrong_value",)),
    Row("v7_no_sqrt_in_the_middle", "sqrt", ("wrong_value",)),
    Row("v7_no_square_of_small", "square", ("wrong_value",)),
    Row("v7_no_softplus_below_m16", "softplus", ("wrong_value",)),
    Row("v7_no_silu_below_m17", "silu", ("wrong_value",)),
    Row("v7_no_quotient_by_large", "div", ("wrong_value", "precision_downgrade")),
    Row("v7_no_product_of_small", "mul", ("wrong_value",)),
    Row("v7_no_sum_of_small_rows", "sum", ("wrong_value", "precision_downgrade")),
    Row("v7_no_mean_of_small_rows", "mean", ("wrong_value", "precision_downgrade")),
    Row("v7_pads_small_with_nothing", "pad", ("wrong_value",)),
    Row("p2_tail_missing", "softmax", ("wrong_value",)),
    Row("p2_observed_size_only", "softmax", ("wrong_value",)),
    Row("s2_pointer_small", "sum", ("stale_output",)),
    Row("s2_pointer_large", "relu", ("forbidden",)),
    Row("s2_pointer_large_unaudited", "relu", ("stale_output",), audited=False),
    Row("s3_fingerprint_small", "sum", ("stale_output",)),
    Row("s3_fingerprint_unaudited", "relu", ("stale_output",), audited=False),
    Row("s3_softmax_fingerprint_unaudited", "softmax", ("stale_output",), audited=False),
    Row("s3_heap", "relu", ("forbidden",)),
    Row("s3_thread_local", "relu", ("forbidden",)),
    Row("s3_memfd", "relu", ("tamper",)),
    Row("s3_shared_memory", "relu", ("tamper",)),
    Row("s3_dead_stack", "relu", ("stale_output",)),
    Row("s3_input_padding", "relu_gaps", ("mutated_input",)),
    Row("s5_phase_counter", "sum", ("stale_output",)),
    Row("s5_late_phase_counter", "sum", ("stale_output",)),
    Row("s6_one_launch_for_fifteen", "relu", ("stale_output",)),
    Row("s6_skips_when_written", "sum", ("stale_output",)),
    Row("s6_skips_slowly", "sum", ("stale_output",)),
    Row("t10_deferred", "sum", ("wrong_value",)),
    Row("s7_kept_weight", "layer_norm", ("stale_output",)),
    Row("s10_file_in_tmp", "relu", ("tamper",)),
    Row("s10_file_in_cwd", "relu", ("tamper",)),
    Row("s10_file_in_shm", "relu", ("tamper",)),
    Row("s10_ofstream", "relu", ("forbidden",)),
    Row("t2_thread", "relu", ("tamper",)),
    Row("t2_cpp_thread", "relu", ("forbidden",)),
    Row("h1_writes_every_descriptor", "relu", ("tamper",)),
    Row("h1_prints_a_verdict", "relu", ("tamper",)),
    Row("h1_streams_a_verdict", "relu", ("tamper",)),
    Row("h2_exit", "relu", ("tamper",)),
    Row("h2_immediate_exit", "relu", ("tamper",)),
    Row("h2_exit_in_a_constructor", "relu", ("tamper",)),
    Row("h2_raw_exit", "relu", ("tamper",)),
    Row("h2_raw_exit_unaudited", "relu", ("crash",), audited=False, process=True),
    Row("h3_scans_memory", "relu", ("crash",), process=True),
    Row("h4_reads_its_own_maps", "relu", ("tamper",)),
    Row("h5_reads_the_clock", "relu", ("tamper",)),
    Row("h5_ptrace", "relu", ("tamper",)),
    Row("h5_parents_memory", "relu", ("tamper",)),
    Row("h5_process_vm", "relu", ("tamper",)),
    Row("h5_walks_the_loader", "relu", ("forbidden",)),
    Row("h5_iterates_objects", "relu", ("delegated",)),
    Row("h5_replaces_clock_gettime", "relu", ("tamper",)),
    Row("h6_environment", "relu", ("tamper",)),
    Row("h6_program_name", "relu", ("forbidden",)),
    Row("h6_executable", "relu", ("tamper",)),
    Row("h7_kills_its_parent", "relu", ("tamper",)),
    Row("h7_kills_its_group", "relu", ("tamper",)),
    Row("h7_raw_kill", "relu", ("tamper",)),
    Row("h7_writes_the_project", "relu", ("tamper",)),
    Row("d1_opens_torch", "relu", ("delegated",)),
    Row("d2_falls_back", "relu", ("delegated",)),
    Row("d5_token_paste", "relu", ("delegated",)),
    Row("d5_built_name", "relu", ("delegated",)),
    Row("d5_renamed", "relu", ("delegated",)),
    Row("d5_versioned", "relu", ("delegated",)),
    Row("x_hang", "relu", ("timeout",), process=True),
    Row("x_hang_in_a_constructor", "relu", ("timeout",), process=True),
    Row("x_deadlock", "relu", ("timeout",), process=True),
    Row("x_null_write", "relu", ("crash",), process=True),
    Row("x_trap", "relu", ("crash",), process=True),
    Row("x_stack_overflow", "relu", ("crash",), process=True),
    Row("x_exception", "relu", ("forbidden",)),
    Row("x_crash_in_a_constructor", "relu", ("crash",), process=True),
    Row("x_missing_symbol", "relu", ("crash",), audited=False, process=True),
    Row("x_error_code", "relu", ("launch_error",), process=True),
    Row("x_workspace_of_a_terabyte", "relu", ("oom",), process=True),
    Row("x_out_of_memory", "relu", ("oom",), audited=False, process=True),
    Row("x_fork_bomb", "relu", ("tamper",), process=True),
    Row("x_fork_unaudited", "relu", ("tamper",), audited=False, process=True),
    Row("x_floods_stdout", "relu", ("tamper",), process=True),
    Row("x_floods_stdout_unaudited", "relu", ("timeout", "accepted"), audited=False, process=True),
    Row("ok_relu", "relu", ("accepted",)),
    Row("ok_relu_threads_reversed", "relu", ("accepted",)),
    Row("ok_relu_gaps", "relu_gaps", ("accepted",)),
    Row("ok_relu_in_place", "relu_in_place", ("accepted",)),
    Row("ok_softmax", "softmax", ("accepted",)),
    Row("ok_softmax_exp2", "softmax", ("accepted",)),
    Row("ok_softmax_double", "softmax", ("accepted",)),
    Row("ok_softmax_online", "softmax", ("accepted",)),
    Row("ok_softmax_bf16", "softmax_bf16", ("accepted",)),
    Row("ok_softmax_transposed", "softmax_transposed", ("accepted",)),
    Row("ok_sum_in_order", "sum", ("accepted",)),
    Row("ok_sum_reversed", "sum", ("accepted",)),
    Row("ok_sum_double", "sum", ("accepted",)),
    Row("ok_sum_kahan", "sum", ("accepted",)),
    Row("ok_sum_pairwise", "sum", ("accepted",)),
    Row("ok_sum_vectors", "sum", ("accepted",)),
    Row("ok_sum_atomics", "sum", ("accepted",)),
    Row("ok_sum_workspace", "sum", ("accepted",)),
    Row("ok_norm_two_passes", "layer_norm", ("accepted",)),
    Row("ok_norm_float", "layer_norm", ("accepted",)),
    Row("ok_norm_welford", "layer_norm", ("accepted",)),
    Row("ok_add", "add", ("accepted",)),
    Row("ok_add_int", "add_int", ("accepted",)),
    Row("ok_exp", "exp", (ACCEPTED,)),
    Row("ok_gelu", "gelu", (ACCEPTED,)),
    Row("ok_reciprocal", "reciprocal", (ACCEPTED,)),
    Row("ok_rsqrt", "rsqrt", (ACCEPTED,)),
    Row("ok_silu", "silu", (ACCEPTED,)),
    Row("ok_softplus", "softplus", (ACCEPTED,)),
    Row("ok_sqrt", "sqrt", (ACCEPTED,)),
    Row("ok_square", "square", (ACCEPTED,)),
    Row("ok_mul", "mul", (ACCEPTED,)),
    Row("ok_div", "div", (ACCEPTED,)),
    Row("ok_mean", "mean", (ACCEPTED,)),
    Row("ok_pad", "pad", (ACCEPTED,)),
    Row("ok_gelu_erfc", "gelu", (ACCEPTED,)),
    Row("ok_silu_sigmoid", "silu", (ACCEPTED,)),
    Row("ok_softplus_max", "softplus", (ACCEPTED,)),
    Row("ok_matmul", "matmul", ("accepted",)),
    Row("ok_matmul_blocked", "matmul", ("accepted",)),
)

CUDA_ROWS = (
    Row("s2_pointer", "relu", ("stale_output",), device="cuda"),
    Row("s3_fingerprint", "relu", ("stale_output",), device="cuda"),
    Row("s5_phase_counter", "relu", ("stale_output",), device="cuda"),
    Row("s8_graph_with_old_pointers", "relu", ("stale_output",), device="cuda"),
    Row("v2_written_once", "relu", ("stale_output",), device="cuda"),
    Row("v1_unwritten_output", "relu", ("wrong_value",), device="cuda"),
    Row("v17_bf16_matmul", "matmul", ("precision_downgrade",), device="cuda"),
    Row("v20_writes_past_the_end", "relu", ("oob",), device="cuda"),
    Row("v21_no_barrier", "sum", ("wrong_value", "nondeterministic"), device="cuda"),
    Row("v24_zeroes_its_input", "relu", ("mutated_input",), device="cuda"),
    Row("t1_other_stream", "relu", ("timing_suspect",), device="cuda"),
    Row("d1_opens_cublas", "relu", ("delegated", "crash", "oom"), device="cuda"),
    Row("h2_fork", "relu", ("tamper",), device="cuda"),
    Row("x_hang", "relu", ("timeout",), device="cuda", process=True),
    Row("x_illegal_address", "relu", ("launch_error", "crash"), device="cuda", process=True),
    Row("ok_relu", "relu", ("accepted",), device="cuda"),
    Row("ok_sum_atomics", "sum", ("accepted",), device="cuda"),
)
