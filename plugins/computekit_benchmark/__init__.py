"""The benchmark plugin: latency, throughput, memory and energy of models, and a verdict on their difference."""

from __future__ import annotations

from typing import TYPE_CHECKING

import computekit
from computekit import hookspecs, implements

from . import scenarios
from .scenarios import Figure, Finding, Load, Scenario

if TYPE_CHECKING:
    import pluggy

__all__ = ["Figure", "Finding", "Load", "Scenario"]


@implements(hookspecs.computekit_addhooks)
def computekit_addhooks(manager: pluggy.PluginManager) -> None:
    manager.add_hookspecs(scenarios)


@implements(scenarios.computekit_benchmark_scenarios)
def computekit_benchmark_scenarios() -> list[Scenario]:
    return list(scenarios.BUILTIN)


@implements(hookspecs.computekit_commands)
def computekit_commands() -> list[computekit.Command]:
    summary = "Measure models and say which is faster."
    return [computekit.Command(computekit.LazyCommand("benchmark", f"{__name__}.cli:benchmark", summary))]


@implements(hookspecs.computekit_steps)
def computekit_steps() -> list[computekit.Step]:
    summary = "Measure models side by side, in fresh processes."
    models = computekit.LazyCommand("models", f"{__name__}.cli:models", summary)
    return [
        computekit.Step(
            "benchmark", models, takes="models", gives="record", exclusive=True, words=("benchmark", "models")
        )
    ]


@implements(hookspecs.computekit_columns)
def computekit_columns() -> list[computekit.Column]:
    column = computekit.Column
    return [
        column("latency_s", "latency", "ms", 1e-3, better="lower", pareto=True, order=30),
        column("latency_p95_s", "latency p95", "ms", 1e-3, better="lower", order=31),
        column("latency_p90_s", "latency p90", "ms", 1e-3, better="lower", detail=True, order=32),
        column("latency_p99_s", "latency p99", "ms", 1e-3, better="lower", detail=True, order=33),
        column("cpu_time_s", "CPU time", "ms", 1e-3, better="lower", order=34),
        column("cpu_time_p95_s", "CPU time p95", "ms", 1e-3, better="lower", order=34),
        column("cpu_time_p90_s", "CPU time p90", "ms", 1e-3, better="lower", detail=True, order=34),
        column("cpu_time_p99_s", "CPU time p99", "ms", 1e-3, better="lower", detail=True, order=34),
        column("latency_ratio", "time ratio", "", better="lower", order=35),
        column("verdict", "verdict", order=36),
        column("throughput_per_s", "throughput", "1/s", better="higher", order=37),
        column("first_call_s", "first call", "ms", 1e-3, better="lower", detail=True, order=38),
        column("compile_s", "compile", "s", better="lower", order=39),
        column("peak_memory_bytes", "peak memory", "MB", 1e6, better="lower", order=40),
        column("energy_j", "energy", "mJ", 1e-3, better="lower", order=41),
        column("accuracy", "accuracy", "%", 0.01, digits=4, better="higher", pareto=True, interval=True, order=20),
        column("accuracy_difference", "accuracy change", "points", 0.01, better="higher", interval=True, order=21),
        column("perplexity", "perplexity", "", digits=4, better="lower", pareto=True, interval=True, order=20),
        column("perplexity_ratio", "perplexity ratio", "", digits=4, better="lower", order=21),
        column("single_stream_latency_p90_s", "single-stream p90", "ms", 1e-3, better="lower", order=50),
        column("offline_throughput_per_s", "offline", "1/s", better="higher", order=51),
        column("server_latency_p50_s", "server p50", "ms", 1e-3, better="lower", detail=True, order=52),
        column("server_latency_p90_s", "server p90", "ms", 1e-3, better="lower", detail=True, order=53),
        column("server_latency_p99_s", "server p99", "ms", 1e-3, better="lower", order=54),
        column("goodput_per_s", "goodput", "1/s", better="higher", order=55),
        column("within_bound", "within bound", "%", 0.01, better="higher", order=56),
        column("ttft_s", "first token", "ms", 1e-3, better="lower", order=57),
        column("tpot_s", "per token", "ms", 1e-3, better="lower", order=58),
        column("output_tokens_per_s", "output tokens", "1/s", better="higher", order=59),
    ]
