"""Which renderer a model gets."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from gateway_support import HERE, tokenizer_folder
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from ludus_backend.errors import LudusError
from ludus_backend.protocol import BaseModelSpec
from ludus_backend.rendering.chatml_hermes import ChatmlHermesRenderer
from ludus_backend.rendering.renderer import load_renderer, renderer_names

QWEN_TEMPLATE = (
    "{{ '<|im_start|>system\\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>' }}"
)


def qwen_like_folder(folder, template: str):
    """A byte-level tokenizer with Qwen's added tokens."""
    vocabulary = {token: i for i, token in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    tokenizer.add_tokens(["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|im_end|>", "chat_template": template}))
    return folder


@pytest.mark.parametrize("source", ["bundled", "random"])
def test_the_bundled_tokenizer_gets_our_renderer(source) -> None:
    renderer, _ = load_renderer(BaseModelSpec(source=source), tokenizer_folder())
    assert isinstance(renderer, ChatmlHermesRenderer)
    assert renderer.get_stop_token_ids() == [2]


def test_a_plain_chatml_model_gets_ours_with_its_own_default_system_text(tmp_path) -> None:
    spec = BaseModelSpec(source="hub", id="Qwen/Qwen2.5-0.5B-Instruct")
    renderer, tokenizer = load_renderer(spec, qwen_like_folder(tmp_path, QWEN_TEMPLATE))
    assert isinstance(renderer, ChatmlHermesRenderer)
    text = tokenizer.decode(renderer.render_ids([{"role": "user", "content": "Hi"}]))
    assert text == (
        "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\n"
        "<|im_start|>user\nHi<|im_end|>\n"
    )


def test_the_system_text_is_an_option_of_ours(tmp_path) -> None:
    spec = BaseModelSpec(source="bundled", chat_template={"default_system": "Play."})
    renderer, tokenizer = load_renderer(spec, tokenizer_folder())
    assert tokenizer.decode(renderer.render_ids([])) == "<|im_start|>system\nPlay.<|im_end|>\n"


def test_a_known_family_is_used_by_model_id_and_bridges_user_turns(tmp_path) -> None:
    spec = BaseModelSpec(source="hub", id="Qwen/Qwen3-0.6B", chat_template={"enable_thinking": False})
    renderer, tokenizer = load_renderer(spec, qwen_like_folder(tmp_path, "<|im_start|> <think>"))
    assert type(renderer).__name__ == "Qwen3Renderer"
    prompt = renderer.render_ids([{"role": "user", "content": "Hi"}], add_generation_prompt=True)
    assert tokenizer.decode(prompt).endswith("<|im_start|>assistant\n<think>\n\n</think>\n\n")
    sampled = tokenizer.encode("Hel")
    bridge = renderer.bridge_to_next_turn(prompt, sampled, [{"role": "user", "content": "Next"}])
    assert bridge is not None and bridge.token_ids[: len(prompt) + 3] == prompt + sampled


@pytest.mark.parametrize(
    ("spec", "field", "value"),
    [
        ({"source": "bundled", "renderer": "qwen4"}, "base.renderer", "qwen4"),
        ({"source": "bundled", "renderer": "custom"}, "base.renderer", "custom"),
        ({"source": "bundled", "renderer": "default"}, "base.renderer", "default"),
        ({"source": "path", "id": "/somewhere/model"}, "base.renderer", "/somewhere/model"),
        ({"source": "bundled", "chat_template": {"colour": "red"}}, "base.chatTemplate", "{'colour': 'red'}"),
    ],
)
def test_what_cannot_be_chosen_is_a_typed_error_that_lists_the_choices(tmp_path, spec, field, value) -> None:
    thinking = qwen_like_folder(tmp_path, "<|im_start|> <think>")
    folder = thinking if spec["source"] == "path" else tokenizer_folder()
    with pytest.raises(LudusError) as caught:
        load_renderer(BaseModelSpec(**spec), folder)
    detail = caught.value.detail
    assert (detail.code, detail.field, detail.value) == ("invalid_request", field, value)
    if field == "base.renderer":
        assert "ludus-chatml" in (detail.expected or "") and "qwen3" in (detail.expected or "")


def test_names_that_can_be_asked_for_are_known_beforehand() -> None:
    assert renderer_names()[0] == "ludus-chatml"
    assert {"qwen3", "llama-3", "gpt-oss"} <= set(renderer_names())


def test_neither_rendering_nor_the_gateway_imports_torch_or_transformers() -> None:
    script = (
        "import sys\n"
        "import ludus_backend.__main__, ludus_backend.serve, ludus_backend.gateway.app\n"
        "from gateway_support import tokenizer_folder\n"
        "from ludus_backend.protocol import BaseModelSpec\n"
        "from ludus_backend.rendering.renderer import load_renderer\n"
        "renderer, _ = load_renderer(BaseModelSpec(), tokenizer_folder())\n"
        "renderer.render_ids([{'role': 'user', 'content': 'Hi'}])\n"
        "print(sorted({m.split('.')[0] for m in sys.modules} & {'torch', 'transformers', 'peft'}))\n"
    )
    path = [str(HERE), str(HERE.parent)]
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[:0] = {path!r}\n{script}"], capture_output=True, text=True
    )
    assert (done.stdout.strip(), done.returncode) == ("[]", 0), done.stderr
