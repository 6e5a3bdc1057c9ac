"""Options that could bring old KV back are refused, each with its reason."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from sglang.srt.arg_groups.overrides import declare_resolution
from sglang.srt.server_args import ServerArgs

from sglang_xver.engine.combinations import ENVIRONMENT_REFUSALS, REFUSALS, require_supported
from sglang_xver.errors import UnsupportedError

# A value that sets the option, where True is none.
VALUES: dict[str, Any] = {
    "hicache_storage_backend": "file",
    "speculative_algorithm": "NGRAM",
    "uno_lora_path": "/adapter",
    "decoupled_spec_role": "verifier",
    "disaggregation_mode": "decode",
    "disaggregation_decode_retraction_backup": "host_pool",
    "dllm_algorithm": "LowConfidence",
    "dp_size": 2,
    "attn_dp_size": 2,
    "moe_dp_size": 2,
    "dwdp_size": 2,
    "pp_size": 2,
    "dcp_size": 2,
    "attn_cp_size": 2,
    "nnodes": 2,
    "elastic_ep_backend": "mooncake",
    "tokenizer_worker_num": 2,
    "lora_paths": ["a=/adapter"],
    "modelopt_quant": "fp8",
    "modelopt_checkpoint_restore_path": "/state",
    "quantization_param_path": "/scales.json",
    "decrypted_config_file": "/config.json",
    "forward_hooks": [{"name": "hook"}],
    "debug_tensor_dump_input_file": "/input.npy",
    "weight_cache_mode": "client",
    "startup_weight_load_mode": "overlap",
    "download_dir": "/hub",
    "kt_weight_path": "/experts",
    "cpu_offload_gb": 4,
    "offload_group_size": 2,
    "kv_canary": "log",
}
FIELDS = [refusal.field for refusal in REFUSALS]


def server_args(**fields: Any) -> ServerArgs:
    return ServerArgs(model_path="none", **fields)


def option(field: str) -> str:
    return "--" + field.replace("_", "-")


@pytest.mark.parametrize("field", FIELDS)
def test_refused_by_name_and_reason(field: str) -> None:
    with pytest.raises(UnsupportedError) as caught:
        require_supported(server_args(**{field: VALUES.get(field, True)}), 1)
    reason = next(refusal.reason for refusal in REFUSALS if refusal.field == field)
    assert f"{option(field)} ({reason})" in str(caught.value)


@pytest.mark.parametrize("field", FIELDS)
def test_refused_when_the_model_or_another_option_turned_it_on(field: str) -> None:
    args = server_args()
    declare_resolution(args, "a model's default", **{field: VALUES.get(field, True)})
    with pytest.raises(UnsupportedError, match=option(field)):
        require_supported(args, 1)


@pytest.mark.parametrize("field", FIELDS)
def test_no_option_is_listed_twice(field: str) -> None:
    assert FIELDS.count(field) == 1


def test_a_server_with_default_options_is_supported() -> None:
    require_supported(server_args(), 1)


def test_tensor_parallelism_and_scheduling_options_are_supported() -> None:
    args = server_args(
        tp_size=2, enable_mixed_chunk=True, radix_eviction_policy="lfu", page_size=64
    )
    require_supported(args, 1)


@pytest.mark.parametrize("name", sorted(ENVIRONMENT_REFUSALS))
def test_environment_is_looked_at(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "1")
    with pytest.raises(UnsupportedError, match=name):
        require_supported(server_args(), 1)
    monkeypatch.setenv(name, "0")
    require_supported(server_args(), 1)


def test_all_reasons_at_once() -> None:
    args = server_args(enable_lmcache=True, pp_size=4)
    with pytest.raises(UnsupportedError, match=r"lmcache.*pp-size.*sliding-window"):
        require_supported(args, 2)


def test_multimodal_models_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="multimodal"):
        require_supported(server_args(), 1, is_multimodal=True)


def test_embedding_models_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="embedding and reward models"):
        require_supported(server_args(), 1, is_generation=False)


def test_an_option_that_sglang_dropped_is_an_error_not_a_pass() -> None:
    class Fewer(msgspec.Struct):
        model_path: str = ""

    with pytest.raises(AttributeError):
        require_supported(Fewer(), 1)
