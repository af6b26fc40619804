"""Parameters of what is no language model: against the classes of transformers and published files.

Only these see a size, a bias or a norm of an encoder of images that is left out or counted twice.
"""

import json
from random import Random

import pytest
import torch

from modelbudget.api.explain import explain
from modelbudget.api.model import model
from modelbudget.huggingface.offline import transformers
from modelbudget.huggingface.other_parts import OF_IMAGES, other_parts, parameters
from modelbudget.modules.initialise import uninitialised

OF_TEXT = ("language_model.", "text_model.", "lm_head.")
TEXT = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1,
    "num_attention_heads": 4, "num_key_value_heads": 2, "pad_token_id": 0, "head_dim": 8,
    "n_routed_experts": 4, "num_experts": 4, "moe_intermediate_size": 8, "num_local_experts": 4,
}  # fmt: skip
HEADS = {"num_attention_heads": 4, "num_heads": 4}
OF_PAGES = {"internvl_chat"}
"""Wholes whose code is on model pages."""
WHOLES = sorted(other_parts().wholes.keys() - OF_PAGES)


def in_class(config) -> int:
    """Count the parameters of the class that are not those of its language model."""
    with torch.device("meta"), uninitialised():
        module = transformers.AutoModelForImageTextToText.from_config(config)
    return sum(
        p.numel()
        for name, p in module.named_parameters()
        if not any(part in name for part in OF_TEXT)
    )


def drawn(sizes: dict, random: Random) -> dict:
    """Return other values that a class takes: widths of whole heads, images of many patches."""

    def other(value):
        match value:
            case bool():
                return random.random() < 0.5
            case str():
                return random.choice(["layer_norm", "rms_norm"])
            case [_, _]:
                return [random.randint(1, 3)] * 2
            case list():
                return list(range(random.randint(1, 4)))
            case _:
                return random.randint(1, 3) if value <= 4 else 32 * random.randint(1, 4)

    values = {key: other(value) for key, value in sizes.items() if not key.startswith("n_")}
    return values | ({"patch_size": 2 * random.randint(2, 8)} if "patch_size" in sizes else {})


@pytest.mark.parametrize("seed", [None, 1, 2])
@pytest.mark.parametrize("model_type", WHOLES)
def test_as_many_parameters_as_in_the_class(model_type, seed):
    """Of the sizes that a file leaves to the class, and of drawn ones."""
    whole = other_parts().wholes[model_type]
    usual = transformers.AutoConfig.for_model(model_type, vision_config={})
    of_images, of_whole = {}, {}
    if seed is not None:
        random = Random(seed)
        of_images = drawn(other_parts().encoders[whole.encoder].defaults, random) | HEADS
        of_images["model_type"] = usual.vision_config.model_type
        of_whole = drawn(whole.defaults, random)
    text = {"model_type": usual.get_text_config().model_type, **TEXT}
    config = transformers.AutoConfig.for_model(
        model_type, vision_config=of_images, text_config=text, **of_whole
    )
    keys = {"model_type": model_type, OF_IMAGES: of_images, **of_whole}
    assert parameters(keys, [OF_IMAGES], TEXT["hidden_size"]) == in_class(config)


@pytest.mark.parametrize("size", [True, -64, 3.5, "64", [True]])
@pytest.mark.parametrize("model_type", WHOLES)
def test_what_is_no_size_is_not_counted(model_type, size):
    """True was a width of 1."""
    first = next(iter(other_parts().encoders[other_parts().wholes[model_type].encoder].defaults))
    keys = {"model_type": model_type, OF_IMAGES: {first: size}}
    assert parameters(keys, [OF_IMAGES], 32) is None


def test_settings_of_another_program_are_no_part(tmp_path):
    """Files of SmolVLM have them; what reads images had no number then."""
    text = {"model_type": "llama", "hidden_size": 32, "num_attention_heads": 4}
    config = {"model_type": "smolvlm", "text_config": text, OF_IMAGES: {}}
    of_script = {"transformers.js_config": {"kv_cache_dtype": {"q4f16": "float16"}}}
    (tmp_path / "config.json").write_text(json.dumps(config | of_script))
    assert model(tmp_path).base.left_out == parameters(config, [OF_IMAGES], 32) > 0


QWEN_2 = {"depth": 32, "embed_dim": 1280, "mlp_ratio": 4, "in_chans": 3}
QWEN_2_5 = {"depth": 32, "hidden_size": 1280, "intermediate_size": 3420, "in_chans": 3}
LARGE_2_5 = QWEN_2_5 | {"intermediate_size": 3456}
QWEN_3 = {
    "depth": 27, "hidden_size": 1152, "intermediate_size": 4304, "patch_size": 16,
    "num_position_embeddings": 2304, "deepstack_visual_indexes": [8, 16, 24],
}  # fmt: skip
SMALL_3 = QWEN_3 | {
    "depth": 24, "hidden_size": 1024, "intermediate_size": 4096,
    "deepstack_visual_indexes": [5, 11, 17],
}  # fmt: skip
TINY_3_5 = SMALL_3 | {"depth": 12, "hidden_size": 768, "intermediate_size": 3072}
GEMMA_4 = {
    "hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 27, "head_dim": 72,
    "num_attention_heads": 16, "num_key_value_heads": 16,
}  # fmt: skip
SIGLIP = {
    "hidden_size": 1152, "image_size": 896, "intermediate_size": 4304, "patch_size": 14,
    "model_type": "siglip_vision_model", "num_hidden_layers": 27, "vision_use_head": False,
}  # fmt: skip
PIXTRAL = {
    "model_type": "pixtral",
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "patch_size": 14,
}
LLAMA_4 = {
    "model_type": "llama4_vision_model", "hidden_size": 1408, "intermediate_size": 5632,
    "image_size": 336, "vision_output_dim": 4096,
}  # fmt: skip
INTERN = {
    "model_type": "intern_vit_6b", "hidden_size": 1024, "intermediate_size": 4096,
    "num_hidden_layers": 24, "image_size": 448, "qkv_bias": True, "qk_normalization": False,
    "norm_type": "layer_norm",
}  # fmt: skip
CLIP = {
    "model_type": "clip_vision_model", "hidden_size": 1024, "intermediate_size": 4096,
    "num_hidden_layers": 24, "image_size": 336, "patch_size": 14,
}  # fmt: skip
PUBLISHED = {
    # Parameters of all tensors of the checkpoint, in its metadata on its page.
    "Qwen/Qwen2-VL-2B-Instruct": ("qwen2_vl", QWEN_2 | {"hidden_size": 1536}, 2_208_985_600),
    "Qwen/Qwen2-VL-7B-Instruct": ("qwen2_vl", QWEN_2 | {"hidden_size": 3584}, 8_291_375_616),
    "Qwen/Qwen2-VL-72B-Instruct": ("qwen2_vl", QWEN_2 | {"hidden_size": 8192}, 73_405_560_320),
    "Qwen/Qwen2.5-VL-3B-Instruct": (
        "qwen2_5_vl", QWEN_2_5 | {"out_hidden_size": 2048}, 3_754_622_976,
    ),
    "Qwen/Qwen2.5-VL-7B-Instruct": (
        "qwen2_5_vl", QWEN_2_5 | {"out_hidden_size": 3584}, 8_292_166_656,
    ),
    "Qwen/Qwen2.5-VL-32B-Instruct": (
        "qwen2_5_vl", LARGE_2_5 | {"out_hidden_size": 5120}, 33_452_718_336,
    ),
    "Qwen/Qwen2.5-VL-72B-Instruct": (
        "qwen2_5_vl", LARGE_2_5 | {"out_hidden_size": 8192}, 73_410_777_344,
    ),
    "Qwen/Qwen3-VL-2B-Instruct": ("qwen3_vl", SMALL_3 | {"out_hidden_size": 2048}, 2_127_532_032),
    "Qwen/Qwen3-VL-4B-Instruct": ("qwen3_vl", SMALL_3 | {"out_hidden_size": 2560}, 4_437_815_808),
    "Qwen/Qwen3-VL-8B-Instruct": ("qwen3_vl", QWEN_3 | {"out_hidden_size": 4096}, 8_767_123_696),
    "Qwen/Qwen3-VL-30B-A3B-Instruct": (
        "qwen3_vl_moe", QWEN_3 | {"out_hidden_size": 2048}, 31_070_754_032,
    ),
    "google/gemma-3-4b-it": ("gemma3", SIGLIP, 4_300_079_472),
    "google/gemma-3-12b-it": ("gemma3", SIGLIP, 12_187_325_040),
    "google/gemma-3-27b-it": ("gemma3", SIGLIP, 27_432_406_640),
    "mistralai/Mistral-Small-3.1-24B-Instruct-2503": ("mistral3", PIXTRAL, 24_011_361_280),
    "meta-llama/Llama-4-Scout-17B-16E": ("llama4", LLAMA_4, 108_641_793_536),
    # Their checkpoints; those of Qwen 3.5 and Gemma 4 31B saved again by a class, without buffers
    # and the layer for multi-token prediction, and Kimi K2.5's added up without scales.
    "Qwen/Qwen3.5-0.8B": ("qwen3_5", TINY_3_5 | {"out_hidden_size": 1024}, 852_985_920),
    "Qwen/Qwen3.5-2B": ("qwen3_5", SMALL_3 | {"out_hidden_size": 2048}, 2_213_241_664),
    "Qwen/Qwen3.5-4B": ("qwen3_5", SMALL_3 | {"out_hidden_size": 2560}, 4_539_265_536),
    "Qwen/Qwen3.5-9B": ("qwen3_5", QWEN_3 | {"out_hidden_size": 4096}, 9_409_813_744),
    "Qwen/Qwen3.5-27B": ("qwen3_5", QWEN_3 | {"out_hidden_size": 5120}, 27_356_728_560),
    "Qwen/Qwen3.5-35B-A3B": ("qwen3_5_moe", QWEN_3 | {"out_hidden_size": 2048}, 35_107_181_936),
    "Qwen/Qwen3.5-122B-A10B": ("qwen3_5_moe", QWEN_3 | {"out_hidden_size": 3072}, 122_562_817_776),
    "google/gemma-4-31B-it": ("gemma4", GEMMA_4, 31_273_086_512),
    "mistralai/Ministral-3-3B-Instruct-2512": ("mistral3", PIXTRAL, 3_849_090_048),
    "moonshotai/Kimi-K2.5": ("kimi_k25", {}, 1_026_879_376_368),
}  # fmt: skip
"""Name → model_type and config of the images of the file, and the published number."""


@pytest.mark.parametrize("name", PUBLISHED)
def test_as_many_parameters_as_published(name):
    """By the name of the model and by its sizes. Only this sees a wrong `left_out` of a model."""
    model_type, of_images, published = PUBLISHED[name]
    of_text = model(name)
    keys = {"model_type": model_type, OF_IMAGES: of_images}
    left_out = of_text.base.left_out
    assert left_out == parameters(keys, [OF_IMAGES], vars(of_text.architecture)["d_model"])
    assert of_text.predict("parameters").total + left_out == published


def test_as_many_parameters_as_published_where_the_language_model_has_no_name(tmp_path):
    """huggingface.co/llava-hf/llava-1.5-7b-hf, and OpenGVLab/InternVL3-8B with its own code."""
    qwen = {
        "model_type": "qwen2", "hidden_size": 3584, "intermediate_size": 18944,
        "num_attention_heads": 28, "num_hidden_layers": 28, "num_key_value_heads": 4,
        "vocab_size": 151674, "tie_word_embeddings": False, "max_position_embeddings": 32768,
    }  # fmt: skip
    of_llava = {"model_type": "llama", "vocab_size": 32064}
    wholes = {
        7_063_427_072: {"model_type": "llava", "text_config": of_llava, OF_IMAGES: CLIP},
        7_944_373_760: {"model_type": "internvl_chat", "llm_config": qwen, OF_IMAGES: INTERN},
    }
    for published, config in wholes.items():
        (tmp_path / "config.json").write_text(json.dumps(config))
        of_text = model(str(tmp_path / "config.json"))
        assert of_text.predict("parameters").total + of_text.base.left_out == published


def test_what_reads_images_takes_room_too():
    """In what serves and in what fits: 676,550,144 numbers of two bytes are neither's room.

    vLLM's RoPE table of places in images is four times as long, for as many channels as a head has.
    """
    of_text, of_whole = model("qwen-2.5-7b"), model("Qwen/Qwen2.5-VL-7B-Instruct")
    settings = {"length": 1024, "n_ctx": 32768, "dtype": "bfloat16"}
    served = [m.serve("l4", settings).of_device for m in (of_text, of_whole)]
    longer_table = 3 * 32768 * 128 * 2
    difference = served[0].cache_bytes - served[1].cache_bytes
    assert difference == 2 * 676_550_144 + longer_table
    fits = [m.fit("l4", settings, training=False) for m in (of_text, of_whole)]
    assert fits[0].accelerator.bytes - fits[1].accelerator.bytes == 2 * 676_550_144
    assert fits[0].largest["batch"].value > fits[1].largest["batch"].value


def test_parts_that_are_not_known_are_not_counted():
    """An encoder of sound, one that no file has, a size that is missing."""
    images = {"model_type": "siglip_vision_model"}
    assert parameters({"model_type": "gemma3", OF_IMAGES: images}, [OF_IMAGES], 8)
    for config, left_out in (
        ({"model_type": "gemma3", OF_IMAGES: {"model_type": "dinov2"}}, [OF_IMAGES]),
        (
            {"model_type": "gemma3", OF_IMAGES: images, "audio_config": {}},
            [OF_IMAGES, "audio_config"],
        ),
        *(
            ({"model_type": "gemma3", OF_IMAGES: images | size}, [OF_IMAGES])
            for size in (
                {"patch_size": "14"},
                {"patch_size": 0},
                {"patch_size": []},
                {"hidden_size": 1.5},
                {"hidden_size": -5},
                {"hidden_size": 10**60},
                {"hidden_size": None},
            )
        ),
        ({"model_type": "ovis2", OF_IMAGES: images}, [OF_IMAGES]),
    ):
        assert parameters(config, left_out, 8) is None


def test_a_log_and_an_answer_name_what_reads_images(tmp_path):
    """A line of vLLM 0.10, of which the language model alone left 1.4 GiB without a name."""
    of_whole = model("Qwen/Qwen2.5-VL-7B-Instruct")
    lines = of_whole.predictions(["parameters"]).notes_of_file
    assert any("reads images or sound has 676,550,144 parameters" in line for line in lines)
    log = tmp_path / "server.log"
    log.write_text(
        "INFO core.py Initializing a V1 LLM engine with config: "
        "model='Qwen/Qwen2.5-VL-7B-Instruct', dtype=torch.bfloat16\n"
        "INFO gpu_model_runner.py Model loading took 15.6271 GiB and 119.639792 seconds\n"
    )
    (weights,) = (line for line in explain(log).lines if line.name == "weights")
    assert "1.26 GiB what reads images" in weights.explained
    assert 0 < weights.unexplained < 0.16 * 2**30  # its buffers of images
