"""``xver_cpu`` is accepted where ``torch_native`` is, and treated the same by SGLang."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("sglang")

from sglang_xver.engine.cpu import attention, ensure_sgl_kernel  # noqa: E402
from sglang_xver.errors import UnsupportedError  # noqa: E402

ensure_sgl_kernel()

REPOSITORY = Path(__file__).resolve().parents[3]


class TestDevice:
    @pytest.mark.parametrize("device", ["cuda", "cuda:1", "xpu"])
    def test_any_device_but_the_cpu(self, device: str) -> None:
        with pytest.raises(UnsupportedError, match=rf"'{device}'.*--device cpu"):
            attention.create_cpu_backend(SimpleNamespace(device=device))


class TestAllocatorHook:
    @pytest.mark.parametrize(
        "backends", [("xver_cpu", "xver_cpu"), ("xver_cpu", "torch_native"), ("triton", "xver_cpu")]
    )
    def test_takes_the_torch_form(
        self, monkeypatch: pytest.MonkeyPatch, backends: tuple[str, str]
    ) -> None:
        from sglang.srt.mem_cache import allocation

        monkeypatch.setattr(allocation, "attention_backends", lambda: backends)
        table = torch.arange(40).view(2, 20)
        rows, prefixes = torch.tensor([1, 0]), torch.tensor([16, 0])
        last = attention.last_loc_without_triton(pytest.fail, table, rows, prefixes)
        assert last.tolist() == [35, -1]

    def test_leaves_other_backends_alone(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from sglang.srt.mem_cache import allocation

        monkeypatch.setattr(allocation, "attention_backends", lambda: ("triton", "triton"))
        assert attention.last_loc_without_triton(lambda *args: args, 1, 2, 3) == (1, 2, 3)


LAUNCH = """
import json, sys
from sglang_xver.engine.cpu import ensure_sgl_kernel, register_cpu_attention
ensure_sgl_kernel()
register_cpu_attention()
register_cpu_attention()
from sglang.srt.plugins.hook_registry import HookRegistry
HookRegistry.apply_hooks()
from sglang.srt.arg_groups.overrides import resolving_view
from sglang.srt.server_args import prepare_server_args
for flags in json.loads(sys.argv[1]):
    args = prepare_server_args(flags)
    args.resolve_once()
    view = resolving_view(args)
    graph = view.cuda_graph_config
    print(json.dumps({
        "backend": view.attention_backend, "decode": graph.decode.backend,
        "prefill": graph.prefill.backend, "page_size": view.page_size,
        "overlap_off": view.disable_overlap_schedule, "sampling": view.sampling_backend,
        "chunk": view.chunked_prefill_size, "kv_dtype": view.kv_cache_dtype,
    }))
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the configuration of a model; resolving flags reads no weights."""
    folder = tmp_path_factory.mktemp("model")
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "vocab_size": 64,
        "max_position_embeddings": 256,
        "torch_dtype": "bfloat16",
    }
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def resolve(
    model: Path, *flag_sets: list[str], cpu_engine: str = "1"
) -> subprocess.CompletedProcess[str]:
    """Resolve launch flags as a server would, in a process of its own."""
    base = ["--model-path", str(model), "--device", "cpu"]
    return subprocess.run(
        [sys.executable, "-c", LAUNCH, json.dumps([base + flags for flags in flag_sets])],
        capture_output=True,
        text=True,
        timeout=280,
        env={**os.environ, "SGLANG_USE_CPU_ENGINE": cpu_engine, "PYTHONPATH": str(REPOSITORY)},
    )


class TestLaunchFlags:
    def test_resolve_as_for_torch_native(self, model: Path) -> None:
        extra: list[list[str]] = [[], ["--page-size", "16", "--enable-torch-compile"]]
        backends = ["torch_native", "xver_cpu"]
        sets = [["--attention-backend", name, *flags] for flags in extra for name in backends]
        result = resolve(model, *sets)
        assert result.returncode == 0, result.stderr[-2000:]
        lines = [json.loads(x) for x in result.stdout.splitlines() if x.startswith("{")]
        assert [line.pop("backend") for line in lines] == backends * 2
        assert lines[0] == lines[1]
        assert lines[2] == lines[3]
        assert lines[3]["decode"] == lines[3]["prefill"] == "disabled"

    def test_without_the_cpu_engine_the_error_says_what_to_set(self, model: Path) -> None:
        result = resolve(model, ["--attention-backend", "xver_cpu"], cpu_engine="0")
        assert result.returncode != 0
        assert "start the server with SGLANG_USE_CPU_ENGINE=1" in result.stderr
