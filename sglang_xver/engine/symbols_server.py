"""What is relied on of SGLang's processes, requests and options. Data only."""

from __future__ import annotations

from sglang_xver.engine.combinations import ENVIRONMENT_REFUSALS, REFUSALS
from sglang_xver.engine.symbols import MEM, SRT, Symbol, fields, symbols

_COMPONENTS = f"{SRT}.managers.scheduler_components"
MANAGER = f"{_COMPONENTS}.weight_updater.SchedulerWeightUpdaterManager"
STATE = f"{_COMPONENTS}.internal_state.SchedulerInternalStateController"
STREAMER = f"{_COMPONENTS}.output_streamer.SchedulerOutputStreamer"
TOKENIZER = f"{SRT}.managers.tokenizer_manager.TokenizerManager"
SCHEDULER = f"{SRT}.managers.scheduler.Scheduler"
_REQ = f"{SRT}.managers.schedule_batch.Req"
_REQ_KV = f"{SRT}.managers.schedule_batch.ReqKvInfo"
_IO = f"{SRT}.managers.io_struct"
_REGISTRY = f"{MEM}.registry"
_POOLS = f"{MEM}.memory_pool"
_UNIFIED = f"{MEM}.unified_cache"
_HOOKS = f"{SRT}.plugins.hook_registry"
_ARGS = f"{SRT}.arg_groups"
SERVER_ARGS = f"{SRT}.server_args.ServerArgs"
_GRAPHS = f"{SRT}.model_executor.cuda_graph_config"
_TORCH_NATIVE = f"{SRT}.layers.attention.torch_native_backend.TorchNativeAttnBackend"

_UPDATE_HOOKS = (
    *symbols(
        "hook",
        MANAGER,
        {
            "flush_cache_after_weight_update": "self recv_req success message",
            "update_weights_from_disk": "self recv_req",
            "update_weights_from_ipc": "self recv_req",
            "update_weights_from_tensor": "self recv_req",
            "update_weights_from_distributed": "self recv_req",
            "begin_weight_update": "self recv_req",
            "end_weight_update": "self recv_req",
            "resume_memory_occupation": "self recv_req",
            "check_weights": "self recv_req",
        },
    ),
    *symbols(
        "hook",
        STATE,
        {"set_internal_state": "self recv_req", "get_internal_state": "self recv_req"},
    ),
    *symbols("hook", STREAMER, {"get_cached_tokens_details": "self req"}),
    *symbols(
        "hook",
        TOKENIZER,
        {
            "update_weights_from_disk": "self obj request",
            "update_weights_from_tensor": "self obj request",
            "update_weights_from_distributed": "self obj request",
            "update_weights_from_ipc": "self obj request",
            "update_weight_version": "self obj",
            "set_internal_state": "self obj",
            "_create_tokenized_object": (
                "self obj input_text input_ids input_embeds mm_inputs token_type_ids"
            ),
        },
    ),
)

_CPU_HOOKS = symbols(
    "hook",
    SRT,
    {
        "arg_groups.attention_hook.handle_attention_backend_compatibility": "server_args",
        "mem_cache.allocation.get_last_loc": (
            "req_to_token req_pool_indices_tensor prefix_lens_tensor"
        ),
    },
)

_OBJECTS_OF_UPDATES = (
    *fields(MANAGER, "scheduler _session tp_cpu_group"),
    *fields(STATE, "scheduler"),
    *fields(STREAMER, "tree_cache"),
    *symbols("call", TOKENIZER, {"__init__": "server_args", "get_internal_state": ""}),
    *symbols("call", TOKENIZER, {"config_value": "name"}),
    *fields(TOKENIZER, "server_args"),
    *symbols(
        "call",
        SCHEDULER,
        {
            "flush_cache": "empty_cache",
            "is_fully_idle": "ignore_waiting",
            "collect_inflight_reqs": "",
        },
    ),
    *fields(SCHEDULER, "tree_cache waiting_queue chunked_req _engine_paused"),
    *symbols("call", _REQ, {"finished": ""}),
    *fields(
        _REQ,
        "kv skip_radix_cache_insert extra_key sampling_params _cache_breakdown_computed",
    ),
    *fields(_REQ_KV, "holds_kv"),
    *fields(f"{SRT}.sampling.sampling_params.SamplingParams", "custom_params"),
    *fields(f"{_IO}.TokenizedGenerateReqInput", "sampling_params"),
    *fields(f"{_IO}.TokenizedEmbeddingReqInput", "sampling_params"),
    *fields(
        f"{_IO}.UpdateWeightFromDiskReqInput",
        "model_path load_format weight_version manifest flush_cache torch_empty_cache",
    ),
    *(
        Symbol(f"{_IO}.UpdateWeightsFrom{way}ReqInput.{name}", "field")
        for way in ("Tensor", "Distributed", "IPC")
        for name in ("weight_version", "flush_cache", "torch_empty_cache")
    ),
    *(
        Symbol(f"{_IO}.{update}ReqOutput.{name}", "field")
        for update in (
            "UpdateWeightFromDisk",
            "UpdateWeightsFromTensor",
            "UpdateWeightsFromDistributed",
            "UpdateWeightsFromIPC",
            "BeginWeightUpdate",
            "EndWeightUpdate",
        )
        for name in ("success", "message")
    ),
    *fields(f"{_IO}.UpdateWeightVersionReqInput", "new_version"),
    *fields(f"{_IO}.ResumeMemoryOccupationReqInput", "tags"),
    *fields(f"{_IO}.CheckWeightsReqInput", "action"),
    *fields(f"{_IO}.GetInternalStateReqOutput", "internal_state"),
    *fields(f"{_IO}.SetInternalStateReq", "server_args"),
    *symbols(
        "call",
        _IO,
        {"SetInternalStateReq": "server_args", "SetInternalStateReqOutput": "updated"},
    ),
)

_START = (
    *symbols(
        "call",
        _REGISTRY,
        {
            "create_unified_radix_cache": "ctx cache_class",
            "register_radix_cache_backend": "name factory",
            "registered_radix_cache_backends": "",
        },
    ),
    *fields(
        f"{_REGISTRY}.TreeCacheBuildContext",
        "server_args params model_config tp_size tp_rank is_hybrid_swa is_hybrid_ssm",
    ),
    *symbols(
        "call",
        f"{_UNIFIED}.tree_core_registry",
        {"register_tree_core_backend": "name factory", "registered_tree_core_backends": ""},
    ),
    *symbols("call", f"{MEM}.allocator.BaseTokenToKVPoolAllocator", {"get_kvcache": ""}),
    *fields(f"{_POOLS}.KVCache", "dtype layer_shard_enabled"),
    *fields(f"{_POOLS}.MHATokenToKVPool", "k_buffer v_buffer kv_cache_layout quant_method"),
    *fields(f"{_POOLS}.MLATokenToKVPool", "kv_buffer use_dsa dcp_replicated"),
    *symbols(
        "call",
        f"{SRT}.configs.model_config.ModelConfig",
        {"get_total_num_kv_heads": ""},
    ),
    *fields(
        f"{SRT}.configs.model_config.ModelConfig",
        "model_path dtype quantization is_multimodal is_generation",
    ),
    *fields(
        SERVER_ARGS,
        "attention_backend enable_metrics json_model_override_args load_format model_path"
        " radix_cache_backend revision served_model_name weight_version",
    ),
    *(Symbol(f"{SERVER_ARGS}.{refusal.field}", "field") for refusal in REFUSALS),
    *(Symbol(f"{SRT}.environ.envs.{name}", "field") for name in ENVIRONMENT_REFUSALS),
    *symbols("call", f"{_ARGS}.overrides", {"resolved_view": "server_args"}),
    *symbols("call", f"{SRT}.plugins", {"load_plugins": ""}),
    *symbols(
        "call",
        f"{_HOOKS}.HookRegistry",
        {"register": "target hook hook_type source", "apply_hooks": ""},
    ),
    *fields(f"{_HOOKS}.HookRegistry", "_hooks _patched"),
    *fields(f"{_HOOKS}.HookType", "AFTER AROUND"),
)

_CPU_ENGINE = (
    *symbols("call", f"{_HOOKS}", {"HookSource": "plugin_name dist_name"}),
    *fields(f"{_ARGS}.choices", "ATTENTION_BACKEND_CHOICES"),
    *symbols("call", f"{_ARGS}.choices", {"add_attention_backend_choices": "iterable"}),
    *symbols(
        "call",
        f"{_ARGS}.overrides",
        {
            "attention_backends_of": "cfg",
            "declare_resolution": "server_args source fields",
            "resolving_view": "server_args",
        },
    ),
    *symbols(
        "override",
        _TORCH_NATIVE,
        {
            "forward_extend": "self q k v layer forward_batch save_kv_cache",
            "forward_decode": "self q k v layer forward_batch save_kv_cache",
            "_run_sdpa_forward_extend": (
                "self query output k_cache v_cache req_to_token req_pool_indices seq_lens"
                " extend_prefix_lens extend_seq_lens encoder_lens scaling enable_gqa causal"
                " is_cross_attn sliding_window_size"
            ),
        },
    ),
    *fields(f"{SRT}.layers.radix_attention.RadixAttention", "layer_id logit_cap"),
    *fields(f"{SRT}.model_executor.model_runner.ModelRunner", "device"),
    *fields(SERVER_ARGS, "cuda_graph_config"),
    *fields(_GRAPHS, "Backend.DISABLED Phase.DECODE Phase.PREFILL"),
    *symbols("call", _GRAPHS, {"with_phase": "config phase"}),
    *symbols(
        "call",
        f"{MEM}.allocation",
        {
            "attention_backends": "",
            "get_last_loc_torch": "req_to_token req_pool_indices_tensor prefix_lens_tensor",
        },
    ),
    *symbols(
        "call",
        f"{SRT}.layers.attention.attention_registry",
        {"register_attention_backend": "name"},
    ),
)

CPU_HOOKED_PATHS: frozenset[str] = frozenset(symbol.path for symbol in _CPU_HOOKS)
"""Hooks of the CPU attention backend: applied when it is used, in the processes that need them."""

SERVER_SYMBOLS: tuple[Symbol, ...] = (
    *_UPDATE_HOOKS,
    *_CPU_HOOKS,
    *_OBJECTS_OF_UPDATES,
    *_START,
    *_CPU_ENGINE,
)
