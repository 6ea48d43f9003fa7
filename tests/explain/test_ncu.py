"""Nsight Compute's CSV, in the form of its raw page and of the others, as profiles."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernelforge.explain.ncu import METRICS, ncu_command, parse_ncu

RAW = """==PROF== Connected to process 4711 (/tmp/runner)
==PROF== Profiling "group_norm" - 0: 0%....50%....100% - 19 passes
a line of the program, "with, commas"
==PROF== Disconnected from process 4711
"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size","Grid Size","Device","CC",\
"dram__bytes_read.sum","dram__bytes_write.sum","dram__throughput.avg.pct_of_peak_sustained_elapsed",\
"gpu__time_duration.sum","l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum",\
"l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_st.sum","l1tex__data_pipe_lsu_wavefronts_mem_shared.sum",\
"launch__block_size","launch__grid_size","launch__registers_per_thread","lts__t_sectors_srcunit_tex.sum",\
"sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed",\
"smsp__average_warp_latency_per_inst_issued.ratio",\
"smsp__average_warps_issue_stalled_barrier_per_issue_active.ratio",\
"smsp__average_warps_issue_stalled_long_scoreboard_per_issue_active.ratio"
"","","","","","","","","","","","byte","byte","%","ns","","","","","","register/thread","sector","%","inst","inst","inst"
"0","4711","runner","127.0.0.1","group_norm","1","7","(256, 1, 1)","(64, 1, 1)","0","9.0","1,048,576","2,048","21.53",\
"7,296","100","50","600","256","64","40","49,152","n/a","24.51","4.91","12.25"
"1","4711","runner","127.0.0.1","void scale<float>(const float *)","1","7","(128, 1, 1)","(132, 2, 1)","0","9.0",\
"nan","0","1.25","1,500","0","0","0","n/a","n/a","n/a","n/a","0","3.00","0","1.00"
"""
HEAD = "ID Kernel.Name Block.Size Grid.Size Section.Name Metric.Name Metric.Unit Metric.Value"
LONG = "\n".join(
    ",".join(f'"{cell}"' for cell in cells)
    for cells in (
        [name.replace(".", " ") for name in HEAD.split()],
        ["0", "k", "(64, 1, 1)", "(2, 3, 1)", "Command line", "gpu__time_duration.sum", "usecond", "2.50"],
        ["0", "k", "(64, 1, 1)", "(2, 3, 1)", "Command line", "dram__bytes_read.sum", "Mbyte", "1.5"],
        ["1", "other", "(64, 1, 1)", "(2, 3, 1)", "Command line", "dram__bytes_read.sum", "byte", "12"],
    )
)


def test_the_raw_page() -> None:
    first, second = parse_ncu(RAW)
    assert (first.name, first.grid, first.block, first.registers) == ("group_norm", 64, 256, 40)
    assert first.duration_us == pytest.approx(7.296)
    assert (first.read_bytes, first.written_bytes) == (1048576.0, 2048.0)
    assert first.units == {"dram": 21.53}, "n/a is not zero"
    assert (first.cycles, first.stalls) == (24.51, {"barrier": 4.91, "long_scoreboard": 12.25})
    assert (first.conflicts, first.l2_bytes) == (0.25, 49152 * 32)
    assert (first.sms, first.waves, first.load_use) == (None, None, None)
    assert (second.name, second.grid, second.block) == ("void scale<float>", 264, 128), "from the launch's own columns"
    assert (second.read_bytes, second.written_bytes, second.conflicts) == (None, 0.0, None)
    assert second.units == {"dram": 1.25, "tensor": 0.0}


def test_a_row_a_metric_with_older_units() -> None:
    (only,) = parse_ncu(LONG)
    assert (only.name, only.grid, only.block, only.duration_us, only.read_bytes) == ("k", 6, 64, 2.5, 1.5e6)


@pytest.mark.parametrize(
    "text",
    [
        "", "==ERROR== ERR_NVGPUCTRPERM - no permission\n", RAW.partition('"0","4711"')[0],
        RAW.replace('"7,296"', '"n/a"').replace('"1,500"', '""'), '"ID","Process ID"\n"0","1"\n',
        '"ID","Kernel Name"\n"0"\n"1","k","too","many"\n',
    ],
)  # fmt: skip
def test_what_holds_no_measurement_is_none(text: str) -> None:
    assert parse_ncu(text) == ()


def test_a_log_that_ends_early_gives_what_is_there() -> None:
    assert [k.name for k in parse_ncu(RAW[: RAW.index('"void scale')])] == ["group_norm"]


def test_the_command_line() -> None:
    cold = ncu_command(Path("/x/ncu"), Path("/tmp/log"), cold=True)
    assert cold[0] == "/x/ncu" and cold[cold.index("--clock-control") + 1] == "none"
    assert cold[cold.index("--cache-control") + 1] == "all" and cold[cold.index("--log-file") + 1] == "/tmp/log"
    assert ncu_command(Path("ncu"), Path("l"), cold=False)[-5] == "none"
    wanted = cold[cold.index("--metrics") + 1].split(",")
    assert len(wanted) == len(set(wanted)) == len(METRICS)
