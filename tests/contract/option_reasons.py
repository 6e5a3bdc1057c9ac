"""Every server option that the backend accepts, and why it is safe: reason -> option fields.

An option of a new SGLang is in neither this table nor the refusals, and the contract test fails
until somebody has looked at it.
"""

from __future__ import annotations

ACCEPTED: dict[str, str] = {
    "acts on a refused option only": """
        hicache_host_memory_mode hicache_ratio hicache_size hicache_host_memory_fraction
        hicache_write_policy hicache_io_backend hicache_mem_layout hicache_storage_prefetch_policy
        hicache_storage_backend_extra_config hicache_storage_prefetch_retry_poll_interval
        hicache_storage_prefetch_retry_max_attempts lmcache_config_file flexkv_config_file
        unified_cache_external_linker_backend unified_cache_external_linker_config
        enable_linker_mla_dedup hisparse_config
        speculative_draft_model_path speculative_draft_model_revision
        speculative_draft_load_format speculative_num_steps speculative_eagle_topk
        speculative_num_draft_tokens speculative_dflash_block_size speculative_dspark_block_size
        speculative_dspark_sps_table_path speculative_dspark_confidence_sts_path
        speculative_dspark_align_verify_tokens_to_graph_tier speculative_accept_threshold_single
        speculative_accept_threshold_acc speculative_use_rejection_sampling speculative_token_map
        speculative_attention_mode speculative_draft_attention_backend speculative_dsa_topk_backend
        speculative_draft_kv_cache_dtype speculative_draft_window_size speculative_draft_sink_size
        speculative_moe_runner_backend speculative_moe_a2a_backend
        speculative_enable_w4a4_mxfp4_megamoe speculative_draft_model_quantization
        _speculative_draft_quantization_explicitly_set enable_multi_layer_eagle
        speculative_adaptive speculative_adaptive_config speculative_boundary_reduction
        speculative_use_block_verification speculative_domino_candidate_pool_size
        speculative_ngram_min_bfs_breadth speculative_ngram_max_bfs_breadth
        speculative_ngram_match_type speculative_ngram_max_trie_depth speculative_ngram_capacity
        speculative_ngram_external_corpus_path speculative_ngram_external_sam_budget
        speculative_ngram_external_corpus_max_tokens spec_trace_dir
        decoupled_spec_bind_endpoint decoupled_spec_connect_endpoints decoupled_spec_rank
        decrypted_draft_config_file enable_draft_weights_cpu_backup
        disaggregation_transfer_backend disaggregation_bootstrap_port disaggregation_ib_device
        disaggregation_decode_enable_radix_cache disaggregation_decode_enable_offload_kvcache
        disaggregation_decode_extra_slots disaggregation_decode_polling_interval
        disaggregation_decode_allocation_policy disaggregation_decode_host_receive_threshold
        disaggregation_enable_kv_checksum num_reserved_decode_tokens optimistic_prefill_attempts
        pdmux_config_path sm_group_num dllm_algorithm_config dllm_fdfo
        load_balance_method enable_dp_attention_local_control_broadcast enable_dp_lm_head
        pp_max_micro_batch_size pp_async_batch_depth dcp_comm_backend dcp_replicate_q_proj
        cp_strategy enable_cp_decode_attn_tp enable_cp_tp_group_sharing node_rank
        ep_join_mode ep_join_rank_offset elastic_ep_initial_size max_ep_size
        elastic_ep_scale_timeout enable_http_worker_reuseport
        enable_lora_overlap_loading max_lora_rank lora_target_modules max_loaded_loras
        max_loras_per_batch lora_eviction_policy lora_backend max_lora_chunk_size
        experts_shared_outer_loras lora_use_virtual_experts lora_strict_loading
        lora_drain_wait_threshold prefill_only_disable_kv_cache
        modelopt_checkpoint_save_path modelopt_export_path weight_cache_socket weight_cache_timeout
        paged_experts_num_resident ple_offload_backend ple_offload_dir kt_method kt_cpuinfer
        kt_threadpool_count kt_num_gpu_experts kt_max_deferred_experts_per_token
        offload_num_in_group offload_prefetch_step offload_mode kv_canary_real_data
        kv_canary_sweep_interval
    """,
    "acts on models that are refused: images, sound, encoders": """
        enable_multimodal language_model_only mm_attention_backend mm_enable_dp_encoder
        mm_process_config mm_processor_worker_num mm_io_worker_num mm_preprocess_cache_size_mb
        trust_mm_content_hashes limit_mm_data_per_request enable_mm_global_cache
        mm_global_cache_backend mm_feature_transport enable_prefix_mm_cache
        enable_broadcast_mm_inputs_process allowed_media_domains media_url_max_file_size_mb
        image_processor_backend disable_fast_image_processor asr_max_buffer_seconds
        asr_max_concurrent_sessions encoder_transfer_backend encoder_urls encoder_bootstrap_port
        encoder_register_urls enable_adaptive_dispatch_to_encoder
        enable_precise_embedding_interpolation
    """,
    "acts on models that are refused: sliding windows, recurrent states": """
        swa_full_tokens_ratio _swa_full_tokens_ratio_explicitly_set swa_prefix_tails
        enable_encoder_swa_bounded_replay enable_decoder_swa_bounded_replay
        max_mamba_cache_size mamba_ssm_dtype mamba_max_states_per_path mamba_backend
        enable_mamba_cache_stochastic_rounding mamba_cache_philox_rounds mamba_full_memory_ratio
        mamba_radix_cache_strategy uses_mamba_radix_cache mamba_track_interval
        enable_int8_mamba_checkpoint int8_mamba_ckpt_size linear_attn_backend
        linear_attn_decode_backend linear_attn_prefill_backend linear_attn_verify_backend
        enable_linear_replayssm linear_replayssm_cache_len enable_linear_replayssm_spec
        enable_scattered_sconv
    """,
    "acts on models whose KV pool is refused": """
        c128_page_size dsa_prefill_backend dsa_decode_backend dsa_paged_mqa_logits_backend
        dsa_topk_backend dsa_triton_union enable_dsa_fused_indexer dsv4_prefill_backend
        dsv4_attn_backend enable_deepseek_v4_fp4_indexer qsa_indexer_dtype
        enable_return_indexer_topk
    """,
    "without the hybrid pool a window model keeps every token, as full attention does": """
        disable_hybrid_swa_memory
    """,
    "the pool tells the dtype; one that is not checked is refused by its class": """
        kv_cache_dtype prefill_kv_cache_dequant_dtype
    """,
    "no KV is shared between requests then": "disable_radix_cache enable_mis",
    "which nodes go first changes nothing about those that stay": """
        radix_eviction_policy radix_eviction_policy_config _radix_eviction_policy_explicitly_set
    """,
    "less is inserted, under the same rules": "strip_thinking_cache",
    "it selects this backend": "radix_cache_backend",
    "every page size cuts at its own boundary": "page_size",
    "kept KV is never announced as exact, removals are announced": "kv_events_config",
    "the order of requests changes no KV; each is matched under the rules of its class": """
        schedule_policy enable_priority_scheduling disable_priority_preemption
        default_priority_value abort_on_priority_when_disabled schedule_low_priority_values_first
        priority_scheduling_preemption_threshold schedule_conservativeness retraction_policy
        max_running_requests max_queued_requests max_prefill_tokens prefill_max_requests
        prefill_decode_interval prefill_decode_interval_min_bs num_continuous_decode_steps
        scheduler_recv_interval enable_prefill_delayer prefill_delayer_max_delay_passes
        prefill_delayer_token_usage_low_watermark prefill_delayer_forward_passes_buckets
        prefill_delayer_wait_seconds_buckets prefill_delayer_queue_min_ratio
        prefill_delayer_max_delay_ms min_free_slots_delay
    """,
    "its requests are in the batches and the chunk that an update looks through": """
        chunked_prefill_size enable_dynamic_chunking disable_chunked_prefix_cache
        enable_mixed_chunk disable_overlap_schedule enable_two_batch_overlap
        enable_single_batch_overlap tbo_token_distribution_threshold
    """,
    "sizes of pools: less room means more evictions": """
        mem_fraction_static max_total_tokens context_length
    """,
    "resumed weights evict, whoever kept them": """
        enable_memory_saver enable_weights_cpu_backup
    """,
    "a format without a content fingerprint evicts at every update": """
        load_format rl_quant_profile model_loader_extra_config modelexpress_config
        remote_instance_weight_loader_seed_instance_ip
        remote_instance_weight_loader_seed_instance_service_port
        remote_instance_weight_loader_send_weights_group_ports
        remote_instance_weight_loader_backend
        remote_instance_weight_loader_start_seed_via_transfer_engine engine_info_bootstrap_port
    """,
    "used for updates from tensors, which always evict": "custom_weight_loader",
    "updates from the checkpoint engine always evict": """
        checkpoint_engine_wait_weights_before_ready
    """,
    "files that are gone make the served version unknown, which evicts": """
        delete_ckpt_after_loading
    """,
    "how files are read, not what is in them": """
        weight_loader_disable_mmap weight_loader_prefetch_checkpoints
        weight_loader_prefetch_num_threads weight_loader_drop_cache_after_load model_checksum
    """,
    "part of the identity: the fingerprint follows it": "model_path revision",
    "part of the layout, so evidence from another value does not count": """
        dtype quantization json_model_override_args
    """,
    "a label; a version is its content": "weight_version served_model_name",
    "heads of a KV row over ranks; every rank applies the same plan": "tp_size",
    "moves experts between ranks; the function stays the same": """
        ep_size ep_num_redundant_experts ep_dispatch_algorithm init_expert_location enable_eplb
        eplb_algorithm eplb_rebalance_num_iterations eplb_rebalance_layers_per_chunk
        eplb_min_rebalancing_utilization_threshold expert_distribution_recorder_mode
        expert_distribution_recorder_buffer_size expert_balancedness_report_mode
        moe_dense_tp_size shared_experts_tp_size enable_waterfill
    """,
    "other kernels or transports for the same function": """
        model_impl device enable_fp32_lm_head enable_tf32_matmul attention_backend
        decode_attention_backend prefill_attention_backend enable_lean_attention sampling_backend
        fp8_gemm_runner_backend fp4_gemm_runner_backend bf16_gemm_backend
        disable_flashinfer_autotune flashinfer_autotune_skip_ops enable_nccl_nvls enable_symm_mem
        enable_torch_symm_mem triton_attention_reduce_in_fp32 triton_attention_num_kv_splits
        triton_attention_split_tile_size flashinfer_mla_disable_ragged enable_fused_qk_norm_rope
        enable_fused_moe_sum_all_reduce disable_custom_all_reduce enable_mscclpp pre_warm_nccl
        boundary_reduction enable_quant_communications enable_flashinfer_allreduce_fusion
        enforce_disable_flashinfer_allreduce_fusion flashinfer_allreduce_fusion_backend
        enable_aiter_allreduce_fusion disable_aiter_allreduce_fusion_in_prefill
        disable_aiter_allreduce_fusion_in_decode enable_torch_compile
        enable_torch_compile_debug_mode torch_compile_max_bs moe_a2a_backend
        enable_w4a4_mxfp4_megamoe deepep_v2_mode moe_runner_backend flashinfer_mxfp4_moe_precision
        deepep_mode fuseep_mode deepep_dispatcher_output_dtype deepep_config mooncake_ib_device
        flashinfer_a2a_dispatch_type disable_flashinfer_cutlass_moe_fp4_allgather
        disable_shared_experts_fusion enforce_shared_experts_fusion enable_amd_monokernel
        enable_nvidia_megakernel enable_megamoe_for_layernorm_sp enable_deterministic_inference
        rl_on_policy_target enable_p2p_check enable_tp_lm_head_all_to_all
        enable_attn_tp_input_scattered enable_shared_experts_attn_tp enable_dense_mlp_attn_tp
        enable_layernorm_sp disable_attn_tp_gather mlx_enable_sampling
        cuda_graph_config cuda_graph_backend_decode cuda_graph_backend_prefill
        cuda_graph_max_bs_decode cuda_graph_max_bs_prefill cuda_graph_bs_decode
        cuda_graph_bs_prefill cuda_graph_prefill_max_context cuda_graph_max_seq_len_prefill
        disable_prefill_cuda_graph disable_decode_cuda_graph disable_cuda_graph
        disable_cuda_graph_padding enable_profile_cuda_graph enable_cudagraph_gc debug_cuda_graph
    """,
    "how text becomes tokens; the tree's keys are tokens": """
        tokenizer_path tokenizer_mode tokenizer_backend skip_tokenizer_init trust_remote_code
        model_config_parser chat_template trust_request_chat_template hf_chat_template_name
        completion_template default_chat_template_kwargs allow_auto_truncate
        enable_dynamic_batch_tokenizer dynamic_batch_tokenizer_batch_size
        dynamic_batch_tokenizer_batch_timeout enable_tokenizer_batch_encode
        disable_tokenizer_batch_decode detokenizer_worker_num
    """,
    "how a token is chosen from the distribution, or what is made of it": """
        random_seed reasoning_parser enable_strict_thinking tool_call_parser tool_server
        sampling_defaults preferred_sampling_params grammar_backend
        constrained_json_whitespace_pattern constrained_json_disable_any_whitespace
        constrained_json_max_whitespace_cnt enable_custom_logit_processor
        sampling_mask_max_tokens disable_outlines_disk_cache enable_watermark watermark_config
        watermark_key watermark_key_b watermark_context_window watermark_mixing_probability
        watermark_max_probability watermark_default_enabled watermark_enforce_all
    """,
    "what is returned, logged, traced or measured": """
        enable_cache_report return_input_ids return_output_ids stream_interval batch_notify_size
        stream_response_default_include_usage incremental_streaming_output enable_response_store
        file_storage_path enable_return_hidden_states return_hidden_states_mode
        enable_return_routed_experts enable_return_aux_hidden_states aux_hidden_state_capture
        return_aux_hidden_state_layer_ids log_level log_level_http log_requests
        log_requests_level log_requests_format log_requests_target
        uvicorn_access_log_exclude_prefixes crash_dump_folder show_time_cost enable_metrics
        smg_http_sidecar_port enable_mfu_metrics enable_metrics_for_all_schedulers
        load_snapshot_publish_interval tokenizer_metrics_custom_labels_header
        tokenizer_metrics_allowed_custom_labels extra_metric_labels bucket_time_to_first_token
        bucket_inter_token_latency bucket_e2e_request_latency prompt_tokens_buckets
        generation_tokens_buckets gc_warning_threshold_secs decode_log_interval
        enable_request_time_stats_logging load_publish_endpoint enable_forward_pass_metrics
        forward_pass_metrics_worker_id forward_pass_metrics_ipc_name enable_trace trace_modules
        otlp_traces_endpoint otlp_service_name export_metrics_to_file export_metrics_to_file_dir
        stat_loggers enable_layerwise_nvtx_marker debug_tensor_dump_output_folder
        debug_tensor_dump_layers msprobe_dump_config
    """,
    "processes, network and start-up": """
        nccl_port dist_timeout dist_init_addr gated_launch_port base_gpu_id gpu_id_step
        watchdog_timeout soft_watchdog_timeout sleep_on_idle custom_sigquit_handler numa_node
        gc_threshold host port fastapi_root_path grpc_port grpc_worker_threads
        grpc_response_timeout_secs sidecar sidecar_args skip_server_warmup warmups enable_http2
        http2_max_concurrent_streams http2_initial_connection_window_size ssl_keyfile ssl_certfile
        ssl_ca_certs ssl_keyfile_password enable_ssl_refresh api_key admin_api_key
    """,
}

CHECKED_SAFE: dict[str, str] = {
    name: reason for reason, names in ACCEPTED.items() for name in names.split()
}
