"""Server options that the xver backend refuses, each with its reason."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from sglang_xver.errors import UnsupportedError


class Refusal(NamedTuple):
    """An option that can't be combined with the backend; ``field`` is its name in ServerArgs."""

    field: str
    reason: str
    is_set: Callable[[Any], bool] = bool

    @property
    def option(self) -> str:
        """The option as it is given on the command line."""
        return "--" + self.field.replace("_", "-")


def _above_one(value: Any) -> bool:
    return int(value or 1) > 1


def _positive(value: Any) -> bool:
    return int(value or 0) > 0


def _other_than(*harmless: str | None) -> Callable[[Any], bool]:
    return lambda value: value not in (None, *harmless)


def _refusals(reason: str, *fields: str, is_set: Callable[[Any], bool] = bool) -> list[Refusal]:
    return [Refusal(field, reason, is_set) for field in fields]


_REPLICAS = "a plan for several replicas was not checked"
_SEQUENCE_PARTS = "a rank holds a part of each sequence, and cuts at its pages were not checked"
_OUTSIDE = "whether an update reaches weights outside the accelerator was not checked"
_OTHER_FRONT_END = "its front end does not run the main process's hooks, so nobody would decide"
_OTHER_FOLDER = "the checkpoint is looked up in the hub's default cache"

REFUSALS: tuple[Refusal, ...] = (
    *_refusals(
        "old KV could come back from a tier whose copies carry no version",
        "enable_hierarchical_cache",
        "hicache_storage_backend",
        "enable_lmcache",
        "enable_flexkv",
        "enable_unified_cache_external_linker",
    ),
    *_refusals(
        "it keeps KV in pools or rows that the tree's plan does not reach",
        "speculative_algorithm",
        "uno_lora_path",
        "enable_streaming_session",
        "enable_session_radix_cache",
        "enable_kv_cache_sharding",
        "enable_hisparse",
    ),
    Refusal(
        "decoupled_spec_role",
        "the draft's KV lives in another process, which gets no plan",
        _other_than("null"),
    ),
    *_refusals(
        "its pages do not hold one token of one layer in each row",
        "enable_unified_memory",
        "enable_page_major_kv_layout",
        "enable_dsa_cache_layer_split",
    ),
    Refusal("disaggregation_mode", "the decode side holds copies of its own", _other_than("null")),
    Refusal("enable_pd_role_switch", "a server that becomes a decode side holds copies of its own"),
    Refusal(
        "disaggregation_decode_retraction_backup",
        "KV of retracted requests returns from host memory without a version",
        lambda value: value == "host_pool",
    ),
    Refusal("enable_pdmux", "its prefill batches are not among those that an update looks through"),
    *_refusals(
        "embeddings come from another process and carry no version",
        "encoder_only",
        "language_only",
    ),
    Refusal("dllm_algorithm", "its requests hold KV in a queue of its own"),
    *_refusals(
        _REPLICAS,
        "dp_size",
        "attn_dp_size",
        "moe_dp_size",
        "dwdp_size",
        is_set=_above_one,
    ),
    Refusal("enable_dp_attention", _REPLICAS),
    Refusal("pp_size", "pipeline stages were not checked", _above_one),
    *_refusals(
        _SEQUENCE_PARTS,
        "dcp_size",
        "attn_cp_size",
        is_set=_above_one,
    ),
    Refusal("enable_prefill_cp", _SEQUENCE_PARTS),
    Refusal(
        "nnodes", "other machines load files of their own, which nobody fingerprints", _above_one
    ),
    Refusal("use_ray", "schedulers in Ray actors were not checked"),
    *_refusals(
        "ranks that join or come back load weights that no update announces",
        "elastic_ep_backend",
        "enable_elastic_expert_backup",
    ),
    Refusal(
        "tokenizer_worker_num",
        "several main processes would each hold a part of the state",
        _above_one,
    ),
    *_refusals(
        _OTHER_FRONT_END,
        "grpc_mode",
        "smg_grpc_mode",
    ),
    *_refusals(
        "evidence is measured without adapters and says nothing about base plus adapter",
        "enable_lora",
        "lora_paths",
    ),
    Refusal("is_embedding", "evidence is about generated text, not about embeddings or rewards"),
    *_refusals(
        "weights are made from the checkpoint by calibration at load, so equal files do not mean "
        "equal weights",
        "quantize_and_serve",
        "modelopt_quant",
        "modelopt_checkpoint_restore_path",
    ),
    *_refusals(
        "it changes what the model computes and is part of no fingerprint",
        "quantization_param_path",
        "decrypted_config_file",
        "forward_hooks",
        "debug_tensor_dump_input_file",
    ),
    Refusal(
        "weight_cache_mode",
        "weights come from another process's memory, which no fingerprint covers",
        _other_than("off"),
    ),
    Refusal(
        "startup_weight_load_mode",
        "weights are read after the checkpoint's files were checked",
        _other_than("serial"),
    ),
    Refusal("download_dir", f"{_OTHER_FOLDER}; give its folder as --model-path"),
    *_refusals(_OUTSIDE, "kt_weight_path", "enable_paged_experts", "ple_offload_embedding"),
    *_refusals(_OUTSIDE, "cpu_offload_gb", "offload_group_size", is_set=_positive),
    Refusal(
        "kv_canary",
        "its sweep over the tree was not checked with condemned nodes in it",
        _other_than("none"),
    ),
)

ENVIRONMENT_REFUSALS: dict[str, str] = {
    "SGLANG_RUST_SERVER": _OTHER_FRONT_END,
    "SGLANG_USE_MODELSCOPE": f"{_OTHER_FOLDER}; give its folder as --model-path",
}


def _option_problems(server_args: Any) -> list[str]:
    """Judge what was given and what SGLang made of it.

    ``ServerArgs`` keeps the input; what a model or another option turned on is a declaration
    beside it.
    """
    from sglang.srt.arg_groups.overrides import resolved_view

    views = (server_args, resolved_view(server_args))
    return [
        f"{refusal.option} ({refusal.reason})"
        for refusal in REFUSALS
        if any(refusal.is_set(getattr(view, refusal.field)) for view in views)
    ]


def _environment_problems() -> list[str]:
    from sglang.srt.environ import envs

    return [
        f"{name} ({reason})"
        for name, reason in ENVIRONMENT_REFUSALS.items()
        if getattr(envs, name).get()
    ]


def require_supported(
    server_args: Any,
    tree_components: int,
    is_multimodal: bool = False,
    is_generation: bool = True,
) -> None:
    """Raise :class:`UnsupportedError` that names every refused option that is set.

    Args:
        server_args: SGLang's server arguments after resolution.
        tree_components: component kinds of the tree; more than one means SWA or Mamba state.
        is_multimodal: whether the model takes images or sound.
        is_generation: whether the model generates text.
    """
    problems = _option_problems(server_args) + _environment_problems()
    if tree_components > 1:
        problems.append("sliding-window or Mamba models (their states were not checked)")
    if is_multimodal:
        problems.append("multimodal models (their embedding cache survives every update)")
    if not is_generation:
        problems.append("embedding and reward models (evidence is about generated text)")
    if problems:
        raise UnsupportedError(
            f"--radix-cache-backend xver can't be combined with {'; '.join(problems)}. "
            "Drop the option or the backend."
        )
