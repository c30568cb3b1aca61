"""Measurements that anybody can repeat: `fedsched bench NAME`."""

from fedsched.bench.frame import BENCHES, BenchOptions, BenchResult, run_bench

__all__ = ["BENCHES", "BenchOptions", "BenchResult", "run_bench"]
