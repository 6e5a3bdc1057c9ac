"""What is relied on of SGLang's prefix tree. Data only."""

from __future__ import annotations

from sglang_xver.engine.symbols import MEM, SRT, Symbol, fields, symbols

_BASE = f"{MEM}.base_prefix_cache"
_KEY = f"{MEM}.radix_cache.RadixKey"
_CACHE = f"{MEM}.unified_radix_cache.UnifiedRadixCache"
_EVENTS = f"{MEM}.events.KVCacheEventRecorder"
_UNIFIED = f"{MEM}.unified_cache"
_CORE = f"{_UNIFIED}.unified_tree_core.UnifiedTreeCore"
_NODE = f"{_UNIFIED}.unified_tree_core.UnifiedTreeNode"
_EVICTION = f"{_UNIFIED}.unified_tree_core_interface.BaseEvictionResult"
_COMPONENT_DATA = f"{_UNIFIED}.components.ComponentData"

TREE_SYMBOLS: tuple[Symbol, ...] = (
    *symbols(
        "override",
        _CORE,
        {
            "__init__": "self params components",
            "reset": "self",
            "_new_node": "self priority",
            "_add_new_node": "self parent key value priority session_id rotation_base",
            "_split_node": "self key child split_len",
            "_unevict_node_on_insert": "self node fresh_value session_id",
            "_unregister_node": "self node",
            "_update_evictable_leaf_sets": "self node",
            "_release_all_component_layers": (
                "self node medium tracker device_frees host_frees cache_actions"
            ),
            "match_prefix": "self params",
            "match_full_device_prefix": "self key",
            "begin_insert": "self params",
            "inc_lock_ref": "self node_id skip_lock_components",
            "dec_lock_ref": "self node_id params skip_swa",
            "set_hicache_enabled": "self",
            "set_host_memory_buffer_only": "self",
        },
    ),
    *symbols(
        "override",
        _CACHE,
        {
            "__init__": "self params",
            "reset": "self",
            "match_prefix": "self params",
            "insert": "self params",
            "dec_lock_ref": "self node_id params skip_swa",
        },
    ),
    *symbols(
        "override",
        _EVENTS,
        {
            "__init__": "self enabled page_size dynamo_format lora_names",
            "record_store": "self node medium session_id",
            "record_remove": "self node medium",
        },
    ),
    *symbols(
        "call",
        _CORE,
        {
            "_remove_leaf_from_parent": "node",
            "_assert_receipt_anchor": "node params",
            "node_by_id": "node_id",
        },
    ),
    *fields(
        _CORE,
        "_node_arena root_node page_size kv_events is_eagle tlru_bookkeeping"
        " component_evictable_size_ component_protected_size_ evictable_device_leaves"
        " empty_match_result _empty_match_result _ongoing_insert_walk_state"
        " _is_tracking_unbacked_tokens _tracked_unbacked_tokens enable_session_radix_cache",
    ),
    *symbols(
        "call",
        _CACHE,
        {"_apply_eviction_result": "result", "_apply_cache_actions": "actions", "sanity_check": ""},
    ),
    *fields(_CACHE, "disable page_size tree_core"),
    *fields(_EVENTS, "enabled"),
    *symbols("override", _NODE, {"__init__": "self tree_components priority"}),
    *fields(
        _NODE,
        "id key parent children component_data write_through_pending_id load_back_pending_id"
        " counter creation_time last_access_time hit_count priority hash_value event_hash_value"
        " rotation_base _tlru_cached_prefix_len _tlru_history_len",
    ),
    *fields(_COMPONENT_DATA, "lock_ref host_lock_ref value"),
    *symbols(
        "call",
        _KEY,
        {
            "match_at": "other offset page_size",
            "page_aligned": "page_size",
        },
    ),
    *symbols(
        "override",
        _KEY,
        {
            "__init__": "self token_ids extra_key is_bigram limit cache_salt",
            "__len__": "self",
            "__getitem__": "self idx",
            "child_key_at": "self offset page_size",
        },
    ),
    *fields(_KEY, "token_ids extra_key cache_salt raw_token_ids __slots__"),
    *symbols("call", _UNIFIED, {"unified_tree_core_interface.BaseEvictionResult": ""}),
    *fields(_EVICTION, "tracker device_frees host_frees cache_actions"),
    *symbols(
        "call",
        _BASE,
        {
            "InsertResult": "prefix_len last_device_node rotation_tail_declined mamba_exist",
            "MatchPrefixParams": "key req",
        },
    ),
    *fields(
        f"{_BASE}.InsertParams",
        "key value prev_prefix_len inserted_len priority session_id rotation_base"
        " track_adopted_ranges component_evicted_seqlens",
    ),
    *fields(f"{_BASE}.DecLockRefParams", "skipped_lock_components"),
    *symbols("call", _BASE, {"IncLockRefResult": "delta node_id"}),
    *fields(
        f"{_UNIFIED}.components",
        "ComponentType.FULL BASE_COMPONENT_TYPE _NUM_COMPONENT_TYPES get_and_increase_time_counter",
    ),
    *symbols(
        "call",
        _UNIFIED,
        {
            "cache_action.FreeDeviceKV": "",
            "unified_tree_core_interface.InsertStepResult": "",
            "unified_tree_core._set_tlru_lens_and_raise_history": "node parent",
        },
    ),
    *symbols("call", MEM, {"utils.split_node_hash_value": "child_hash_value split_len page_size"}),
    *fields(f"{SRT}.utils", "assert_int64_array"),
    *fields(f"{_BASE}.MatchPrefixParams", "key req"),
    *fields(_BASE, "MatchResult.last_device_node MatchResult.device_prefix_len DecLockRefResult"),
    *fields(f"{SRT}.disaggregation.kv_events.StorageMedium", "GPU"),
    *fields(
        f"{MEM}.cache_init_params.CacheInitParams",
        "tree_core_backend token_to_kv_pool_allocator page_size enable_kv_cache_events"
        " dynamo_kv_event_format kv_event_lora_names",
    ),
)
