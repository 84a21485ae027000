"""Weight formats, the private kernels and their fallbacks, and the choice between them."""

from __future__ import annotations

import pytest
import torch

from sglang_lite.errors import InvalidRequest
from sglang_lite.runtime.default_model import resolve_model_path
from sglang_lite.runtime.models import linear, loader
from sglang_lite.runtime.models.byte_linear import SECOND_BYTES, ByteLinear, byte_linear_works
from sglang_lite.runtime.models.loader import load_model
from sglang_lite.runtime.models.quantize import Int4Weight, quantise_int4, quantise_int8
from sglang_lite.runtime.models.weights import NativeBlocks
from tests.runtime.gguf_writer import tiny_llama_gguf
from tests.runtime.test_model_decoder import Sequence, greedy, prompt, step
from tests.runtime.tiny import make_tiny_model


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_int4_levels_are_exact():
    levels = torch.arange(32).remainder(16).repeat(4, 2).float() * 0.25 - 1.5
    weight = quantise_int4(levels)
    assert weight.quants.shape == (4, 64)
    assert weight.scales.shape == (4, 2)
    torch.testing.assert_close(weight.dequantise(), levels)


def test_int4_error_is_at_most_half_a_step():
    weight = random(16, 128)
    quantised = quantise_int4(weight)
    error = (quantised.dequantise() - weight).abs().unflatten(1, (-1, 32)).amax(-1)
    assert (error <= quantised.scales * 0.5001).all()


def test_a_constant_group_is_exact():
    weight = torch.full((16, 32), 0.7)
    torch.testing.assert_close(quantise_int4(weight).dequantise(), weight)
    zeros = torch.zeros(16, 32)
    assert torch.equal(quantise_int8(zeros).dequantise(), zeros)


def test_int8_error_and_halves():
    weight = random(16, 64)
    quantised = quantise_int8(weight)
    error = (quantised.dequantise() - weight).abs().unflatten(1, (-1, 32)).amax(-1)
    assert (error <= quantised.scales * 0.51).all()
    high, low = quantised.halves().dequantise().chunk(2, dim=1)
    torch.testing.assert_close(high + low, quantised.dequantise())


def native():
    """4-bit numbers as a GGUF file holds them: minimum and scale are independent."""
    generator = torch.Generator().manual_seed(0)
    quants = torch.randint(0, 16, (48, 64), dtype=torch.uint8, generator=generator)
    return Int4Weight(quants, random(48, 2).abs() * 0.1 + 0.01, random(48, 2, seed=1) * 0.3)


MAKERS = {
    "packed": lambda: (linear.packed_linear(random(48, 64).bfloat16()), random(48, 64)),
    "int4": lambda: (linear.int4_linear(native()), native().dequantise()),
    "int8": lambda: (
        linear.int8_linear(quantise_int8(random(48, 64))),
        quantise_int8(random(48, 64)).dequantise(),
    ),
}


@pytest.mark.parametrize("private_operators", [True, False])
@pytest.mark.parametrize("rows", [1, 5, 70])
@pytest.mark.parametrize("kind", MAKERS)
def test_kernels_compute_the_product(kind, rows, private_operators, monkeypatch):
    if not private_operators:
        monkeypatch.setattr(linear, "_packed_works", lambda: False)
        monkeypatch.setattr(linear, "_int4_works", lambda: False)
    kernel, weight = MAKERS[kind]()
    x = random(rows, 64, seed=2).bfloat16()
    wanted = x.float() @ weight.T
    assert kernel(x).dtype == torch.bfloat16
    torch.testing.assert_close(
        kernel(x).float(), wanted, atol=0.03 * float(wanted.std()), rtol=0.02
    )
    torch.testing.assert_close(
        kernel(x[:, :].T.contiguous().T), kernel(x), msg="depends on the input's strides"
    )


def test_rows_are_padded_to_few_numbers():
    """oneDNN compiles and keeps a kernel for every number of rows it sees."""
    sizes = [linear.padded_rows(rows) for rows in range(1, 4097)]
    assert sorted(set(sizes))[14:26] == [15, 16, 18, 20, 22, 24, 26, 28, 30, 32, 36, 40]
    assert len(set(sizes)) <= 8 * 12
    assert all(rows <= size <= 1.125 * rows for rows, size in enumerate(sizes, 1))


def test_the_packed_kernel_sees_few_shapes(monkeypatch):
    seen = set()
    product = torch.ops.mkldnn._linear_pointwise

    def spy(x, *rest):
        seen.add(x.shape[0])
        return product(x, *rest)

    kernel, weight = linear.PackedLinear(random(48, 64).bfloat16()), random(48, 64)
    monkeypatch.setattr(torch.ops.mkldnn, "_linear_pointwise", spy)
    x = random(256, 64, seed=2).bfloat16()
    for rows in range(128, 257, 3):
        out = kernel(x[:rows])
        assert out.shape == (rows, 48)
        torch.testing.assert_close(
            out.float(), x[:rows].float() @ weight.T, atol=0.03 * float(weight.std()) * 8, rtol=0.02
        )
    assert seen <= set(range(128, 257, 16))


def test_shapes_the_4_bit_kernel_cannot_take_fall_back():
    kernel = linear.int4_linear(quantise_int4(random(24, 64)))
    assert not isinstance(kernel, linear.Int4Linear)
    assert kernel(random(2, 64).bfloat16()).shape == (2, 24)


def test_a_kernel_that_computes_nonsense_is_not_used():
    weight = linear._sample_weight()
    assert linear._agrees(lambda: linear.PlainLinear(weight.bfloat16()), weight)
    assert not linear._agrees(lambda: linear.PlainLinear(-weight.bfloat16()), weight)

    def missing():
        raise AttributeError("no such operator")

    assert not linear._agrees(missing, weight)


def test_the_dense_kernel_is_made_when_it_is_needed():
    made = []

    def make_dense():
        made.append(True)
        switched.many = lambda x: "many"
        switched.release(9)

    switched = linear.SwitchedLinear(lambda x: "few", (8, 1), make_dense)
    assert switched(torch.zeros(linear.FEW_ROWS, 1)) == "few"
    assert not made
    rows = (linear.FEW_ROWS + 1, 10, 3)
    assert [switched(torch.zeros(n, 1)) for n in rows] == ["few", "many", "few"]
    assert len(made) == 1


def test_crossover(monkeypatch):
    few, many = (lambda x: x), (lambda x: x)
    switched = linear.SwitchedLinear(few, (8, 1), lambda: None)
    switched.many = many
    cost = {few: lambda rows: rows, many: lambda rows: 20}
    monkeypatch.setattr(linear, "_seconds", lambda kernel, x: cost[kernel](x.shape[0]))
    assert linear.measure_crossover([switched]) == 16
    cost[few] = lambda rows: 30
    assert linear.measure_crossover([switched]) == linear.FEW_ROWS


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_tiny_model(tmp_path_factory.mktemp("tiny"), model_type="qwen2")


@pytest.mark.parametrize("quantization", [None, "int4", "int8"])
def test_quantised_models_stay_close(folder, quantization):
    exact = load_model(folder, kv_slots=64, dtype="float32", device="cpu")
    model = load_model(
        folder, kv_slots=64, dtype="bfloat16", device="cpu", quantization=quantization
    )
    tokens = prompt(30)
    wanted, got = (step(m, [Sequence(tokens, range(30))], [30]) for m in (exact, model))
    allowed = {None: 0.05, "int8": 0.06, "int4": 0.4}[quantization]
    assert (got - wanted).std() <= allowed * wanted.std()


def test_a_gguf_runs_on_its_own_4_bits(tmp_path, monkeypatch):
    """Native blocks, reordered and fused, equal the converted bfloat16 weights."""
    monkeypatch.setenv("SGLANG_LITE_CACHE", str(tmp_path))
    folder = resolve_model_path(tiny_llama_gguf(tmp_path / "tiny.gguf"))
    model = load_model(folder, kv_slots=64, dtype="bfloat16", device="cpu")
    tokens = prompt(20)
    results = []
    for few_rows in (0, 1000):
        for layer in model.layers:
            for kernel in (layer.qkv, layer.output, layer.gate_up, layer.down):
                kernel.few_rows = few_rows
        results.append(step(model, [Sequence(tokens, range(20))], [20]))
        if not few_rows:
            assert all(layer.down.many is not None for layer in model.layers)
    assert (results[0] - results[1]).abs().max() <= 0.05 * results[0].std()


def test_packed_weights_are_kept_for_the_next_load(tmp_path, monkeypatch):
    """The second load doesn't look at the GGUF file; a damaged copy is made anew."""
    monkeypatch.setenv("SGLANG_LITE_CACHE", str(tmp_path))
    folder = resolve_model_path(tiny_llama_gguf(tmp_path / "tiny.gguf"))
    tokens = prompt(5)

    def logits():
        model = load_model(folder, kv_slots=64, dtype="bfloat16", device="cpu", quantization="int4")
        return step(model, [Sequence(tokens, range(5))], [5])

    first = logits()
    (kept,) = folder.glob("packed-*.pt")
    with monkeypatch.context() as patched:
        patched.setattr(NativeBlocks, "int4", lambda *_: pytest.fail("packed again"))
        assert torch.equal(logits(), first)
    kept.write_bytes(kept.read_bytes()[:100])
    assert torch.equal(logits(), first)
    assert kept.stat().st_size > 100


def test_only_what_works_is_accepted(folder):
    with pytest.raises(InvalidRequest, match="'int3'"):
        load_model(folder, kv_slots=8, dtype="bfloat16", device="cpu", quantization="int3")
    with pytest.raises(InvalidRequest, match="bfloat16"):
        load_model(folder, kv_slots=8, dtype="float32", device="cpu", quantization="int4")


def test_quantised_kernels_get_bfloat16_on_every_cpu(folder, monkeypatch):
    monkeypatch.setattr(loader, "cpu_multiplies_bfloat16", lambda: False)
    assert load_model(folder, kv_slots=8, device="cpu").dtype == torch.float32
    model = load_model(folder, kv_slots=8, device="cpu", quantization="int4")
    assert model.dtype == torch.bfloat16


def test_a_quantised_model_generates(folder):
    model = load_model(folder, kv_slots=64, dtype="bfloat16", device="cpu", quantization="int4")
    sequence = Sequence(prompt(5), range(64))
    greedy(model, [sequence], 10)
    assert all(0 <= token < 258 for token in sequence.tokens)


def test_byte_linear_is_exact_to_its_bytes():
    """Large columns and inputs have two bytes: what is left is half a step of small columns."""
    if not byte_linear_works():
        pytest.skip("this torch or CPU has no 8-bit product")
    weight, x = random(48, 192).bfloat16(), random(5, 192, seed=1).bfloat16()
    weight[:, :SECOND_BYTES] *= 8
    kernel = ByteLinear(weight, limit=8.0)
    steps = weight.float().abs().amax(1) / 127
    bound = 0.51 * steps * x[:, SECOND_BYTES:].float().abs().sum(1, keepdim=True)
    error = (kernel(x) - x.float() @ weight.float().T).abs()
    assert kernel(x).dtype == torch.float32
    assert (error < 0.3 * bound).all()
    assert torch.equal(kernel(x)[2:3], kernel(x[2:3]))


def test_byte_linear_keeps_rows_apart_and_not_finite():
    if not byte_linear_works():
        pytest.skip("this torch or CPU has no 8-bit product")
    weight, x = random(48, 64), random(4, 64, seed=1)
    before = weight.clone()
    kernel = ByteLinear(weight, limit=8.0)
    assert torch.equal(weight, before)
    x[1, 3], x[2, 5] = torch.nan, torch.inf
    assert kernel(x).isfinite().all(1).tolist() == [True, False, False, True]
