"""``xver_cpu`` gives the numbers of ``torch_native`` and computes the new rows only."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("sglang")

from sglang_xver.engine.cpu import ensure_sgl_kernel  # noqa: E402

ensure_sgl_kernel()

from sglang.srt.layers.attention.torch_native_backend import TorchNativeAttnBackend  # noqa: E402
from sglang.srt.layers.radix_attention import AttentionType  # noqa: E402

from sglang_xver.engine.cpu.attention_backend import (  # noqa: E402
    NewRowsAttnBackend,
    attend_new_rows,
)
from sglang_xver.errors import UnsupportedError  # noqa: E402

HEADS, KV_HEADS, HEAD_DIM = 6, 2, 16
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 2e-2}

# (cached prefix, new rows) per request: no hit, a hit, one new row, one whole token, a long hit.
MIXED = [(0, 19), (48, 21), (32, 1), (0, 1), (96, 40)]


class Call(NamedTuple):
    """Shapes of one SDPA call."""

    heads: int
    query_rows: int
    kv_heads: int
    key_rows: int
    has_mask: bool
    is_causal: bool


class Pool:
    """One layer of a paged K/V pool with slots in the order that pages were handed out."""

    def __init__(self, slots: int, kv_heads: int, dtype: torch.dtype) -> None:
        self.key = torch.randn(slots, kv_heads, HEAD_DIM).to(dtype)
        self.value = torch.randn(slots, kv_heads, HEAD_DIM).to(dtype)

    def get_key_buffer(self, layer_id: int) -> torch.Tensor:
        return self.key

    def get_value_buffer(self, layer_id: int) -> torch.Tensor:
        return self.value

    def set_kv_buffer(self, layer: Any, where: Any, k: torch.Tensor, v: torch.Tensor) -> None:
        self.key[where.loc] = k.view(-1, *self.key.shape[1:]).to(self.key.dtype)
        self.value[where.loc] = v.view(-1, *self.value.shape[1:]).to(self.value.dtype)


class Scene(NamedTuple):
    """A batch, and a way to build a backend over a private copy of the same pool."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    layer: SimpleNamespace
    batch: SimpleNamespace
    build: Callable[[type], Any]

    def extend(self, kind: type) -> torch.Tensor:
        return self.build(kind).forward_extend(self.q, self.k, self.v, self.layer, self.batch)

    def decode(self, kind: type) -> torch.Tensor:
        return self.build(kind).forward_decode(self.q, self.k, self.v, self.layer, self.batch)


def make_layer(kv_heads: int = KV_HEADS, **changes: Any) -> SimpleNamespace:
    fields = {
        "layer_id": 0,
        "tp_q_head_num": HEADS,
        "tp_k_head_num": kv_heads,
        "qk_head_dim": HEAD_DIM,
        "v_head_dim": HEAD_DIM,
        "scaling": HEAD_DIM**-0.5,
        "is_cross_attention": False,
        "attn_type": AttentionType.DECODER,
        "sliding_window_size": -1,
        "logit_cap": 0.0,
    }
    return SimpleNamespace(**{**fields, **changes})


def make_scene(
    requests: list[tuple[int, int]],
    *,
    page_size: int = 1,
    dtype: torch.dtype = torch.float32,
    pool_dtype: torch.dtype | None = None,
    seed: int = 0,
    encoder_lens: list[int] | None = None,
    **layer_changes: Any,
) -> Scene:
    """Lay requests out over shuffled pages; request ``i`` uses row ``2 * i + 1`` of the table."""
    torch.manual_seed(seed)
    layer = make_layer(**layer_changes)
    lengths = [prefix + new for prefix, new in requests]
    extra = encoder_lens or [0] * len(requests)
    pages_of = [-(-(n + e) // page_size) for n, e in zip(lengths, extra, strict=True)]
    order = iter((torch.randperm(sum(pages_of)) + 1).tolist())  # page 0 is padding
    table = torch.zeros(2 * len(requests) + 1, max(pages_of) * page_size, dtype=torch.int64)
    written = []
    for i, (pages, (prefix, _)) in enumerate(zip(pages_of, requests, strict=True)):
        first_slots = torch.tensor([next(order) * page_size for _ in range(pages)])
        slots = (first_slots[:, None] + torch.arange(page_size)).flatten()
        table[2 * i + 1, : len(slots)] = slots
        written.append(slots[extra[i] + prefix : extra[i] + lengths[i]])

    kv_heads = layer.tp_k_head_num
    pool = Pool((sum(pages_of) + 1) * page_size, kv_heads, pool_dtype or dtype)
    tokens = sum(new for _, new in requests)

    def build(kind: type) -> Any:
        private = Pool(1, kv_heads, dtype)
        private.key, private.value = pool.key.clone(), pool.value.clone()
        runner = SimpleNamespace(
            device="cpu",
            req_to_token_pool=SimpleNamespace(req_to_token=table),
            token_to_kv_pool=private,
        )
        return kind(runner)

    return Scene(
        q=torch.randn(tokens, HEADS * HEAD_DIM).to(dtype),
        k=torch.randn(tokens, kv_heads * HEAD_DIM).to(dtype),
        v=torch.randn(tokens, kv_heads * HEAD_DIM).to(dtype),
        layer=layer,
        batch=SimpleNamespace(
            out_cache_loc=torch.cat(written),
            encoder_out_cache_loc=None,
            req_pool_indices=torch.tensor([2 * i + 1 for i in range(len(requests))]),
            seq_lens=torch.tensor(lengths),
            extend_prefix_lens=torch.tensor([prefix for prefix, _ in requests]),
            extend_seq_lens=torch.tensor([new for _, new in requests]),
            encoder_lens=None if encoder_lens is None else torch.tensor(encoder_lens),
        ),
        build=build,
    )


def dense_reference(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Causal attention written out in float64. Shapes as in ``attend_new_rows``."""
    groups = query.shape[0] // key.shape[0]
    key = key.double().repeat_interleave(groups, 0)
    value = value.double().repeat_interleave(groups, 0)
    scores = query.double() @ key.transpose(1, 2) * query.shape[-1] ** -0.5
    new, length = scores.shape[1:]
    hidden = torch.ones(new, length, dtype=torch.bool).triu(length - new + 1)
    return scores.masked_fill(hidden, float("-inf")).softmax(-1) @ value


@pytest.fixture
def sdpa_calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Call]]:
    """Every SDPA call that goes through ``torch.nn.functional``."""
    calls: list[Call] = []
    original = torch.nn.functional.scaled_dot_product_attention

    def record(query: Any, key: Any, value: Any, attn_mask: Any = None, **options: Any) -> Any:
        causal = bool(options.get("is_causal"))
        shape = (query.shape[1], query.shape[2], key.shape[1], key.shape[2])
        calls.append(Call(*shape, attn_mask is not None, causal))
        return original(query, key, value, attn_mask=attn_mask, **options)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", record)
    return calls


class TestSameNumbersAsTorchNative:
    @pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
    @pytest.mark.parametrize("page_size", [1, 16])
    @pytest.mark.parametrize("kv_heads", [HEADS, KV_HEADS, 1])
    def test_mixed_batch(self, dtype: torch.dtype, page_size: int, kv_heads: int) -> None:
        scene = make_scene(MIXED, page_size=page_size, dtype=dtype, kv_heads=kv_heads)
        ours, stock = scene.extend(NewRowsAttnBackend), scene.extend(TorchNativeAttnBackend)
        assert ours.dtype == stock.dtype == dtype
        torch.testing.assert_close(ours, stock, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])

    @pytest.mark.parametrize("window", [0, 1, 7, 30, 59, 60, 500])
    def test_sliding_window(self, window: int) -> None:
        requests = [(0, 60), (40, 20), (59, 1)]
        scene = make_scene(requests, page_size=16, sliding_window_size=window)
        ours, stock = scene.extend(NewRowsAttnBackend), scene.extend(TorchNativeAttnBackend)
        torch.testing.assert_close(ours, stock, atol=2e-5, rtol=2e-5)

    def test_pool_in_another_dtype(self) -> None:
        scene = make_scene(MIXED, dtype=torch.float32, pool_dtype=torch.bfloat16)
        ours, stock = scene.extend(NewRowsAttnBackend), scene.extend(TorchNativeAttnBackend)
        torch.testing.assert_close(ours, stock, atol=2e-5, rtol=2e-5)

    @pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
    @pytest.mark.parametrize("page_size", [1, 16])
    @pytest.mark.parametrize("window", [-1, 9])
    def test_decode(self, dtype: torch.dtype, page_size: int, window: int) -> None:
        requests = [(0, 1), (17, 1), (64, 1)]
        scene = make_scene(requests, page_size=page_size, dtype=dtype, sliding_window_size=window)
        assert torch.equal(scene.decode(NewRowsAttnBackend), scene.decode(TorchNativeAttnBackend))

    def test_extend_by_one_row_equals_decode(self) -> None:
        scene = make_scene([(17, 1), (64, 1)])
        torch.testing.assert_close(
            scene.extend(NewRowsAttnBackend), scene.decode(TorchNativeAttnBackend)
        )

    @pytest.mark.parametrize(
        "changes",
        [
            pytest.param({"attn_type": AttentionType.ENCODER_ONLY}, id="bidirectional"),
            pytest.param({"encoder_lens": [5, 9]}, id="decoder-of-encoder-decoder"),
        ],
    )
    def test_other_layers_take_the_stock_step(
        self, changes: dict[str, Any], sdpa_calls: list[Call]
    ) -> None:
        scene = make_scene([(0, 12), (8, 4)], **changes)
        ours, stock = scene.extend(NewRowsAttnBackend), scene.extend(TorchNativeAttnBackend)
        assert torch.equal(ours, stock)
        assert sdpa_calls == []  # the stock step holds its own reference to SDPA


class TestAgainstTheDefinition:
    @pytest.mark.parametrize("prefix,new", [(0, 33), (5, 33), (100, 1), (0, 1), (64, 64)])
    @pytest.mark.parametrize("limit", [1, 50, 700, 1 << 22])
    def test_any_chunking_of_rows(self, prefix: int, new: int, limit: int) -> None:
        torch.manual_seed(prefix + new)
        query = torch.randn(HEADS, new, HEAD_DIM)
        key = torch.randn(KV_HEADS, prefix + new, HEAD_DIM)
        value = torch.randn(KV_HEADS, prefix + new, HEAD_DIM)
        ours = attend_new_rows(
            query, key, value, scale=None, enable_gqa=True, mask_elements_limit=limit
        )
        expected = dense_reference(query, key, value).float()
        torch.testing.assert_close(ours, expected, atol=2e-5, rtol=2e-5)

    def test_a_later_key_never_shows(self) -> None:
        query, key = torch.randn(HEADS, 8, HEAD_DIM), torch.randn(KV_HEADS, 24, HEAD_DIM)
        value = torch.randn(KV_HEADS, 24, HEAD_DIM)
        before = attend_new_rows(query, key, value, scale=None, enable_gqa=True)
        key[:, 20:], value[:, 20:] = 1e3, 1e3
        after = attend_new_rows(query, key, value, scale=None, enable_gqa=True)
        assert torch.equal(before[:, :4], after[:, :4])
        assert not torch.equal(before[:, 4:], after[:, 4:])


class TestWorkDone:
    def test_is_new_rows_times_length(self, sdpa_calls: list[Call]) -> None:
        make_scene(MIXED).extend(NewRowsAttnBackend)
        rows_and_keys = [(call.query_rows, call.key_rows) for call in sdpa_calls]
        assert rows_and_keys == [(new, prefix + new) for prefix, new in MIXED]

    def test_no_mask_without_prefix_or_for_a_single_row(self, sdpa_calls: list[Call]) -> None:
        make_scene(MIXED).extend(NewRowsAttnBackend)
        assert [call.has_mask for call in sdpa_calls] == [False, True, False, False, True]
        assert [call.is_causal for call in sdpa_calls] == [True, False, False, True, False]

    def test_kv_heads_are_not_repeated(self, sdpa_calls: list[Call]) -> None:
        make_scene(MIXED).extend(NewRowsAttnBackend)
        assert {(call.heads, call.kv_heads) for call in sdpa_calls} == {(HEADS, KV_HEADS)}

    def test_a_window_trims_the_keys(self, sdpa_calls: list[Call]) -> None:
        make_scene([(90, 10)], sliding_window_size=16).extend(NewRowsAttnBackend)
        assert [(call.query_rows, call.key_rows) for call in sdpa_calls] == [(10, 26)]

    def test_masks_stay_below_the_limit(self, sdpa_calls: list[Call]) -> None:
        query, key = torch.randn(HEADS, 30, HEAD_DIM), torch.randn(KV_HEADS, 50, HEAD_DIM)
        attend_new_rows(query, key, key, scale=None, enable_gqa=True, mask_elements_limit=400)
        assert sum(call.query_rows for call in sdpa_calls) == 30
        assert max(call.query_rows * call.key_rows for call in sdpa_calls) <= 400


class TestRefusals:
    @pytest.mark.parametrize("step", ["extend", "decode"])
    def test_logit_cap(self, step: str) -> None:
        scene = make_scene([(4, 1)], logit_cap=30.0)
        with pytest.raises(UnsupportedError, match=r"logit_cap=30\.0.*another attention backend"):
            getattr(scene, step)(NewRowsAttnBackend)

    @pytest.mark.parametrize("step", ["forward_extend", "forward_decode"])
    def test_attention_sinks(self, step: str) -> None:
        scene = make_scene([(4, 1)])
        forward = getattr(scene.build(NewRowsAttnBackend), step)
        with pytest.raises(UnsupportedError, match="sinks"):
            forward(scene.q, scene.k, scene.v, scene.layer, scene.batch, sinks=torch.zeros(HEADS))
