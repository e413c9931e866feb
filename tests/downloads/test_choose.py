"""Which files make a model, of repositories as publishers lay them out (MOD-2)."""

from contextlib import suppress
from pathlib import Path
from random import Random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from enginebay.contract.errors import InvalidRequestError
from enginebay.models.downloads.choose import Choice, Form, choices, choose, folder_name
from enginebay.models.downloads.hub import RemoteFile
from enginebay.models.downloads.quants import ORDER
from enginebay.models.files.recognise import backend_of, form_of
from enginebay.plugins import Plugins


def files(*names: str) -> list[RemoteFile]:
    return [RemoteFile(name, 1000 * (i + 1), "0" * 64) for i, name in enumerate(names)]


def parts(stem: str, count: int) -> list[str]:
    return [f"{stem}-{i:05}-of-{count:05}.gguf" for i in range(1, count + 1)]


LLAMA = "Llama-3.2-3B-Instruct"
BARTOWSKI = [
    ".gitattributes",
    "README.md",
    f"{LLAMA}.imatrix",
    *(
        f"{LLAMA}-{q}.gguf"
        for q in ("IQ3_M", "Q4_0", "Q4_0_4_4", "Q4_K_L", "Q4_K_M", "Q8_0", "f16")
    ),
    *(f"{LLAMA}-f32/{name}" for name in parts(f"{LLAMA}-f32", 2)),
]
GEMMA = [
    "google_gemma-3-4b-it-imatrix.gguf",
    "google_gemma-3-4b-it-Q4_K_M.gguf",
    "google_gemma-3-4b-it-Q8_0.gguf",
    "google_gemma-3-4b-it-bf16.gguf",
    "mmproj-google_gemma-3-4b-it-bf16.gguf",
    "mmproj-google_gemma-3-4b-it-f16.gguf",
    "mmproj-google_gemma-3-4b-it-f32.gguf",
]
UNSLOTH = [
    "imatrix_unsloth.dat",
    "config.json",
    *(f"BF16/{name}" for name in parts("Qwen3-VL-235B-BF16", 3)),
    *(f"UD-Q4_K_XL/{name}" for name in parts("Qwen3-VL-235B-UD-Q4_K_XL", 2)),
    *(f"UD-Q2_K_XL/{name}" for name in parts("Qwen3-VL-235B-UD-Q2_K_XL", 2)),
    "mmproj-BF16.gguf",
    "mmproj-F16.gguf",
    "mmproj-F32.gguf",
]
QWEN = [
    *parts("qwen2.5-7b-instruct-fp16", 4),
    "qwen2.5-7b-instruct-q2_k.gguf",
    *parts("qwen2.5-7b-instruct-q4_0", 2),
    *parts("qwen2.5-7b-instruct-q4_k_m", 2),
    *parts("qwen2.5-7b-instruct-q8_0", 3)[:2],  # whose last part was forgotten
]
THEBLOKE = [
    "config.json",
    "llama-2-70b-chat.Q4_K_M.gguf",
    "llama-2-70b-chat.Q5_K_M.gguf",
    "llama-2-70b-chat.Q6_K.gguf-split-a",
    "llama-2-70b-chat.Q6_K.gguf-split-b",
]
SHARDS = [f"model-0000{i}-of-00002.safetensors" for i in (1, 2)]
META = [
    ".gitattributes",
    "config.json",
    "generation_config.json",
    *SHARDS,
    "model.safetensors.index.json",
    "original/consolidated.00.pth",
    "original/tokenizer.model",
    "pytorch_model-00001-of-00002.bin",
    "pytorch_model-00002-of-00002.bin",
    "tokenizer.json",
    "figures/plot.png",
]
MISTRAL = ["config.json", "consolidated.safetensors", "params.json", *SHARDS, "tokenizer.json"]
SENTENCES = [
    "1_Pooling/config.json",
    "2_Dense/pytorch_model.bin",
    "config.json",
    "model.safetensors",
    "modules.json",
    "onnx/model.onnx",
    "openvino/openvino_model.xml",
    "pytorch_model.bin",
    "tf_model.h5",
    "training_args.bin",
    "vocab.txt",
]

TABLE = [
    (f"bartowski/{LLAMA}-GGUF", BARTOWSKI, "", f"{LLAMA}-Q4_K_M.gguf", f"{LLAMA}-Q4_K_M"),
    (f"bartowski/{LLAMA}-GGUF", BARTOWSKI, "q4_0", f"{LLAMA}-Q4_0.gguf", f"{LLAMA}-Q4_0"),
    (f"bartowski/{LLAMA}-GGUF", BARTOWSKI, "FP16", f"{LLAMA}-f16.gguf", f"{LLAMA}-F16"),
    (f"bartowski/{LLAMA}-GGUF", BARTOWSKI, f"{LLAMA}-Q8_0.gguf", f"{LLAMA}-Q8_0.gguf", None),
    ("bartowski/google_gemma-3-4b-it-GGUF", GEMMA, "Q8_0", GEMMA[2], "google_gemma-3-4b-it-Q8_0"),
    ("ggml-org/gpt-oss-20b-GGUF", ["gpt-oss-20b-mxfp4.gguf"], "", "gpt-oss-20b-mxfp4.gguf", None),
    (
        "ggml-org/Qwen3-0.6B-GGUF",
        ["a-Q8_0.gguf", "a-Q4_0.gguf", "a-f16.gguf"],
        "",
        "a-Q4_0.gguf",
        None,
    ),
    (
        "microsoft/Phi-3-mini-4k-instruct-gguf",
        ["Phi-3-fp16.gguf", "Phi-3-q4.gguf"],
        "",
        "Phi-3-q4.gguf",
        None,
    ),
    (
        "TheBloke/Llama-2-70B-Chat-GGUF",
        THEBLOKE,
        "",
        "llama-2-70b-chat.Q4_K_M.gguf",
        "Llama-2-70B-Chat-Q4_K_M",
    ),
    (
        "mradermacher/X-i1-GGUF",
        ["X.i1-Q4_K_S.gguf", "X.i1-Q4_K_M.gguf"],
        "",
        "X.i1-Q4_K_M.gguf",
        "X-i1-Q4_K_M",
    ),
    (
        "mradermacher/X-i1-GGUF",
        ["X.i1-Q4_K_S.gguf", "X.i1-Q6_K.gguf"],
        "q6_k",
        "X.i1-Q6_K.gguf",
        None,
    ),
    (
        "me/new-kinds",
        ["b-IQ4_KSS.gguf", "b-Q9_X.gguf", "b-IQ1_KT.gguf"],
        "iq1_kt",
        "b-IQ1_KT.gguf",
        None,
    ),
    ("me/Model-Q4_K_M-GGUF", ["model-q4_k_m.gguf"], "", "model-q4_k_m.gguf", "Model-Q4_K_M"),
    ("me/one", ["README.md", "ggml-model.gguf"], "", "ggml-model.gguf", "one-ggml-model"),
]


@pytest.mark.parametrize(("repo", "names", "quant", "first", "folder"), TABLE)
def test_one_gguf(repo: str, names: list[str], quant: str, first: str, folder: str | None) -> None:
    choice = choose(repo, files(*names), quant)
    assert choice.files[0].name == first
    assert choice.path == first
    assert folder is None or folder_name(repo, choice, None) == folder


def test_split_files_belong_together_and_lie_beside_each_other() -> None:
    choice = choose("unsloth/Qwen3-VL-235B-GGUF", files(*UNSLOTH))
    assert choice.name == "UD-Q4_K_XL"
    assert [file.name for file in choice.files] == [*UNSLOTH[5:7], "mmproj-F16.gguf"]
    assert [file.stored_as for file in choice.files] == [
        *parts("Qwen3-VL-235B-UD-Q4_K_XL", 2),
        "mmproj-F16.gguf",
    ]
    assert choice.path == "Qwen3-VL-235B-UD-Q4_K_XL-00001-of-00002.gguf"
    for spelled in ("Q4_K_XL", "ud-q4_k_xl", "UD-Q4_K_XL"):
        assert choose("a/b", files(*UNSLOTH), spelled) == choice
    lower = choose("Qwen/Qwen2.5-7B-Instruct-GGUF", files(*QWEN))
    assert [file.name for file in lower.files] == parts("qwen2.5-7b-instruct-q4_k_m", 2)
    there = {each.name for each in choices("a/b", files(*QWEN))}
    assert there == {"Q4_K_M", "Q4_0", "Q2_K", "F16"}  # not the one that lacks a part


@pytest.mark.parametrize("quant", ["", "bf16", "Q8_0"])
def test_the_best_mmproj_comes_along(quant: str) -> None:
    choice = choose("bartowski/google_gemma-3-4b-it-GGUF", files(*GEMMA), quant)
    assert [file.name for file in choice.files[1:]] == ["mmproj-google_gemma-3-4b-it-f16.gguf"]


def test_each_of_several_models_gets_its_own_mmproj() -> None:
    names = [f"{kind}gemma-3-{size}b-q4_0.gguf" for size in (4, 12) for kind in ("", "mmproj-")]
    for size in (4, 12):
        choice = choose("me/gemmas", files(*names), f"gemma-3-{size}b-q4_0")
        assert [file.name for file in choice.files] == [
            f"gemma-3-{size}b-q4_0.gguf",
            f"mmproj-gemma-3-{size}b-q4_0.gguf",
        ]


@pytest.mark.parametrize(
    ("repo", "names", "kept"),
    [
        (
            "meta-llama/Llama",
            META,
            {*META[1:6], "original/tokenizer.model", "tokenizer.json"}
            - {"original/tokenizer.model"},
        ),
        ("mistralai/Mistral", MISTRAL, {*MISTRAL} - {"consolidated.safetensors"}),
        (
            "a/b",
            ["config.json", "consolidated.safetensors", "pytorch_model.bin"],
            {"config.json", "pytorch_model.bin"},
        ),
        ("BAAI/bge", SENTENCES, {*SENTENCES[:5], "vocab.txt"}),
        (
            "me/old",
            ["config.json", "pytorch_model.bin", "tf_model.h5"],
            {"config.json", "pytorch_model.bin"},
        ),
        (
            "turboderp/X-exl2",
            ["config.json", "output.safetensors"],
            {"config.json", "output.safetensors"},
        ),
    ],
)
def test_a_checkpoint_without_what_it_has_twice(
    repo: str, names: list[str], kept: set[str]
) -> None:
    choice = choose(repo, files(*names))
    assert {file.name for file in choice.files} == kept
    assert choice.path == ""
    assert folder_name(repo, choice, None) == repo.partition("/")[2]
    assert folder_name(repo, choice, "4.0bpw") == f"{repo.partition('/')[2]}-4.0bpw"


def test_gguf_or_checkpoint_as_the_backend_wants_it() -> None:
    both = files("config.json", "model.safetensors", "tokenizer.json", "m-Q5_K_M.gguf")
    assert choose("a/b", both).name == "Q5_K_M"
    assert choose("a/b", both, form="folder").name == "safetensors"
    assert choose("a/b", both, "safetensors").path == ""
    heavy = files("config.json", "model.safetensors", "m-F32.gguf")
    assert choose("google/gemma", heavy).name == "safetensors"
    other = choose("a/b", files("genai_config.json", "model.onnx"), form="folder")
    assert other.name == "all files"
    with pytest.raises(InvalidRequestError, match="no model"):  # as where branches have them
        choose("a/b-exl2", [RemoteFile("README.md", 5, "0" * 40)], form="folder")


@pytest.mark.parametrize(
    ("repo", "names", "quant", "said"),
    [
        (
            "a/b",
            BARTOWSKI,
            "Q9",
            r"a/b has no 'Q9'; .* a/b:Q4_K_M; there are Q4_K_M \(8,000 bytes\), Q4_0",
        ),
        (
            "ggml-org/models",
            ["x/ggml-model-f16.gguf", "y/ggml-model-f16.gguf"],
            "",
            "has several models; .*x/ggml-model-f16",
        ),
        (
            "ggml-org/models",
            ["x/ggml-model-f16.gguf", "y/ggml-model-f16.gguf"],
            "F16",
            "has several 'F16'",
        ),
        ("a/b", ["story.gguf", "poem.gguf"], "", r"several models; .* poem \(2,000 bytes\), story"),
        (
            "a/b",
            ["README.md", "x.imatrix", "mmproj-F16.gguf"],
            "",
            "no model that an engine here loads",
        ),
        ("mlx-community/X-4bit-mlx", ["config.json", "model.safetensors"], "", "MLX"),
        (
            "me/lora",
            ["adapter_config.json", "adapter_model.safetensors"],
            "",
            "is a LoRA: .* --lora",
        ),
        ("a/b", [], "", "no model"),
    ],
)
def test_what_is_not_clear_says_what_there_is(
    repo: str, names: list[str], quant: str, said: str
) -> None:
    with pytest.raises(InvalidRequestError, match=said):
        choose(repo, files(*names), quant)
    if names == ["x/ggml-model-f16.gguf", "y/ggml-model-f16.gguf"]:
        assert choose(repo, files(*names), "y/ggml-model-f16").files[0].name == names[1]


@pytest.mark.parametrize(
    ("repo", "names", "config", "backend"),
    [
        ("a/b", ["m-Q4_0.gguf"], b"", "llamacpp"),
        ("a/b", META, b"{}", "hf"),
        ("a/b", META, b'{"quantization_config": {"quant_method": "exl2"}}', "exllamav2"),
    ],
)
def test_the_backend_that_fits(repo: str, names: list[str], config: bytes, backend: str) -> None:
    plugins = Plugins()
    assert backend_of(choose(repo, files(*names)), plugins, config) == backend
    assert form_of(backend, plugins) == ("gguf" if backend == "llamacpp" else "folder")
    assert form_of("unknown", plugins) == "folder"


QUANTS = st.sets(st.sampled_from([name for name in ORDER if name[0].isupper()]), min_size=1)


@given(QUANTS, st.sampled_from(["-", ".", "_"]), st.booleans(), st.integers(1, 3), st.randoms())
def test_every_quant_can_be_named_and_the_best_is_first(
    quants: set[str], separator: str, lower: bool, count: int, random: Random
) -> None:
    named = {
        quant: f"Some-Model-7B{separator}{quant.lower() if lower else quant}" for quant in quants
    }
    names = [
        n
        for stem in named.values()
        for n in (parts(stem, count) if count > 1 else [f"{stem}.gguf"])
    ]
    random.shuffle(names)
    there = files(*names)
    assert choose("a/b", there).name == min(quants, key=ORDER.index)
    for quant, stem in named.items():
        choice = choose("a/b", there, quant.lower())
        assert choice.name == quant
        assert [file.name for file in choice.files] == sorted(
            n for n in names if n.startswith((f"{stem}.", f"{stem}-0"))
        )


@given(
    st.lists(st.text("abQq48_KM-./\\:0fF1gu ", max_size=12).map(lambda t: t + ".gguf")),
    st.text(max_size=8),
)
def test_any_names_are_chosen_from_or_refused(names: list[str], quant: str) -> None:
    with suppress(InvalidRequestError):
        choice = choose("a/b", files(*dict.fromkeys(names)), quant)
        assert isinstance(choice, Choice)
        assert Path(choice.path).name == choice.path
        assert choice.size == sum(file.size for file in choice.files) > 0


VISION = [
    "config.json",
    *(f"UD-Q4_K_XL/{name}" for name in parts("Qwen3.5-122B-A10B-UD-Q4_K_XL", 3)),
    *(f"Q4_K_M/{name}" for name in parts("Qwen3.5-122B-A10B-Q4_K_M", 3)),
    *(f"mmproj-{q}.gguf" for q in ("BF16", "F16", "F32")),
]
DRAFTERS = [
    *(f"gemma-4-12b-it-{q}.gguf" for q in ("Q8_0", "UD-Q4_K_XL", "BF16")),
    *(f"MTP/gemma-4-12b-it-{q}-MTP.gguf" for q in ("Q8_0", "F16")),
    "mtp-gemma-4-12b-it.gguf",
    "mmproj-F16.gguf",
]
BAKED_IN = ["Qwen3.6-27B-MTP-Q8_0.gguf", "Qwen3.6-27B-MTP-Q4_K_M.gguf", "imatrix_unsloth.gguf"]
GENERIC = ["Q4_K_M/model.gguf", "Q8_0/model.gguf", "mmproj-F16.gguf"]
DOTTED = ["X.Q4_K_M.gguf", "X.Q8_0.gguf", "X.mmproj-Q8_0.gguf", "X.mmproj-f16.gguf"]


@pytest.mark.parametrize(
    ("names", "quant", "chosen"),
    [
        (VISION, "", [*VISION[4:7], "mmproj-F16.gguf"]),
        (VISION, "ud-q4_k_xl", [*VISION[1:4], "mmproj-F16.gguf"]),
        (DRAFTERS, "", [DRAFTERS[1], "mmproj-F16.gguf"]),
        (DRAFTERS, "Q8_0", [DRAFTERS[0], "mmproj-F16.gguf"]),
        (BAKED_IN, "", [BAKED_IN[1]]),
        (GENERIC, "Q8_0", ["Q8_0/model.gguf", "mmproj-F16.gguf"]),
        (GENERIC, "Q4_K_M/model.gguf", ["Q4_K_M/model.gguf", "mmproj-F16.gguf"]),
        (DOTTED, "", ["X.Q4_K_M.gguf", "X.mmproj-f16.gguf"]),
        (["a-imatrix-Q4_K_M.gguf", "a-imatrix.gguf"], "", ["a-imatrix-Q4_K_M.gguf"]),
    ],
)
def test_drafters_and_projectors_are_no_models(
    names: list[str], quant: str, chosen: list[str]
) -> None:
    assert [file.name for file in choose("a/b-GGUF", files(*names), quant).files] == chosen


@pytest.mark.parametrize(
    ("names", "quant", "chosen"),
    [
        (GEMMA, "", "mmproj-google_gemma-3-4b-it-f16.gguf"),
        (GEMMA, "f32", "mmproj-google_gemma-3-4b-it-f32.gguf"),
        (VISION, "mmproj-BF16.gguf", "mmproj-BF16.gguf"),
        (["mmproj-model-Q8_0.gguf", "mmproj-model-f16.gguf"], "", "mmproj-model-f16.gguf"),
    ],
)
def test_a_projector_alone(names: list[str], quant: str, chosen: str) -> None:
    choice = choose("a/b-GGUF", files(*names), quant, "mmproj")
    assert [file.name for file in choice.files] == [chosen]
    assert choice.path == chosen
    assert folder_name("a/b-GGUF", choice, None).startswith("b-mmproj")


def test_a_lora_alone() -> None:
    own = ["adapter_config.json", "adapter_model.safetensors"]
    names = [*own, "README.md", "config.json", "checkpoint-8/adapter_model.safetensors"]
    assert [file.name for file in choose("a/b", files(*names), form="adapter").files] == own
    with pytest.raises(InvalidRequestError, match=r"is a LoRA: .* --lora"):
        choose("a/b", files(*names))
    with pytest.raises(InvalidRequestError, match=r"lacks one of adapter_config.json"):
        choose("a/b", files(*META), form="adapter")
    with pytest.raises(InvalidRequestError, match="has no mmproj file"):
        choose("a/b", files(*QWEN), form="mmproj")
    two = files("mmproj-a-4b-f16.gguf", "mmproj-b-12b-q8_0.gguf")
    with pytest.raises(InvalidRequestError, match="several models"):
        choose("a/b", two, form="mmproj")


def test_files_in_pieces_say_what_to_do() -> None:
    names = [f"X.i1-Q6_K.gguf.part{i}of2" for i in (1, 2)]
    with pytest.raises(InvalidRequestError, match="join them with `cat`"):
        choose("mradermacher/X-i1-GGUF", files("README.md", *names))
    whole = "X.i1-Q4_K_M.gguf"
    assert choose("mradermacher/X-i1-GGUF", files(whole, *names)).path == whole
    with pytest.raises(InvalidRequestError, match="has no 'Q6_K'"):
        choose("mradermacher/X-i1-GGUF", files(whole, *names), "Q6_K")


@pytest.mark.parametrize(
    ("names", "left_out"),
    [
        (["checkpoint-500/model.safetensors", "checkpoint-500/optimizer.pt"], {0, 1}),
        (["runs/events.out", "onnx/model.onnx_data", "model.onnx.data"], {0, 1, 2}),
        (
            ["original/consolidated.00.pth", "original/params.json", "consolidated.00.pth"],
            {0, 1, 2},
        ),
        (
            ["consolidated-00001-of-00002.safetensors", "consolidated.safetensors.index.json"],
            {0, 1},
        ),
        (["adapter_config.json", "adapter_model.safetensors"], {0, 1}),
        (["model-00001-of-00003.safetensors", "model-00003-of-00003.safetensors"], {0, 1}),
        (["chat_template.jinja", "additional_chat_templates/rag.jinja", "code/modeling.py"], set()),
    ],
)
def test_what_lies_beside_a_checkpoint(names: list[str], left_out: set[int]) -> None:
    own = ["config.json", "model.safetensors", "tokenizer.json"]
    chosen = choose("a/b", files(*own, *names)).files
    kept = [name for i, name in enumerate(names) if i not in left_out]
    assert [file.name for file in chosen] == [*own, *kept]


STEMS = st.sampled_from(
    ["model", "M-7B", "sub/M-7B", "Q4_K_M/M-7B-Q4_K_M", "UD-Q4_K_XL/M", "MTP/M"]
)
LAID_OUT = st.one_of(
    st.builds(
        lambda stem, quant, end: f"{stem}{quant}{end}",
        STEMS,
        st.sampled_from(["", "-Q8_0", ".i1-IQ4_XS", "-UD-Q4_K_XL", "-BF16"]),
        st.sampled_from(
            [".gguf", ".gguf.part1of2", *(f"-0000{i}-of-00002.gguf" for i in (1, 2, 3))]
        ),
    ),
    st.sampled_from(
        [
            *(
                "config.json",
                "modules.json",
                "adapter_config.json",
                "mmproj-F16.gguf",
                "M.mmproj-f16.gguf",
            ),
            *(
                "mtp-M.gguf",
                "imatrix.gguf",
                "consolidated.safetensors",
                "adapter_model.safetensors",
            ),
            *(
                "model.safetensors",
                "output.safetensors",
                *SHARDS,
                "model-00002-of-00003.safetensors",
            ),
            *("pytorch_model.bin", "pytorch_model-00001-of-00002.bin", "onnx/model.onnx"),
            *(
                "original/model.safetensors",
                "checkpoint-1/model.safetensors",
                "2_Dense/model.safetensors",
            ),
        ]
    ),
)


def is_loadable(choice: Choice) -> bool:
    """Whether llama.cpp, transformers or exllamav2 would find all of one model in these files."""
    names = [file.stored_as or file.name for file in choice.files]
    if choice.path:
        models = [name for name in names if "mmproj" not in name]
        stem, _, count = choice.path.removesuffix(".gguf").rpartition("-of-")
        first = stem.removesuffix("-00001")
        whole = [choice.path] if not count.isdigit() or not stem else parts(first, int(count))
        return models == whole and len(names) - len(models) <= 1 and "mtp" not in names[0].lower()
    tops = [name for name in names if "/" not in name]
    weights = [name for name in tops if name.endswith((".safetensors", ".bin"))]
    numbered = [name for name in weights if "-of-" in name]
    complete = {"model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"}
    described = {"config.json", "modules.json"} & set(tops)
    return bool(weights and described) and (not numbered or {*numbered} == complete)


@given(st.lists(LAID_OUT, unique=True), st.sampled_from([None, "gguf", "folder"]))
@example(["config.json", "pytorch_model.bin", "pytorch_model-00001-of-00002.bin"], None)
def test_what_is_chosen_can_be_loaded_and_is_found_again(
    names: list[str], form: Form | None
) -> None:
    there = files(*names)
    for offered in choices("a/b", there, form):
        if offered.name == "all files":  # for backends that know better
            continue
        assert is_loadable(offered), (names, offered)
        chosen = choose("a/b", there, offered.name, form)
        assert chosen == offered
        assert len({file.stored_as or file.name for file in chosen.files}) == len(chosen.files)
        assert choose("a/b", chosen.files, offered.name, form).path == chosen.path
