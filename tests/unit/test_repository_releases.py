"""The release table: every release renders whole, as its own filler would, and says what it refuses."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from string import Template
from typing import Any

import pytest
from google.protobuf import text_format
from release_templates import RELEASES, templates
from tritonclient.grpc import model_config_pb2

from labbuild import releases
from labbuild.releases import effective_policy, release, table
from labctl import repository
from labctl.repository import RenderRequest
from labctl.texts import Replacement
from labkit.errors import LabError

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "operate" / "gpu.md"
GIVEN = {"engine_dir": "/engines/llama", "tokenizer_dir": "/weights/llama"}


def request(tmp_path: Path, name: str, **settings: Any) -> RenderRequest:
    it = release(name)
    return RenderRequest(
        [templates(tmp_path / "tree", name)],
        ["tensorrt_llm"],
        GIVEN,
        tmp_path / "out",
        defaults=it.defaults_for(settings),
        optional=it.optional,
        replacements=[Replacement(*texts) for texts in it.replacements_for(settings)],
    )


def parsed(text: str) -> Any:
    return text_format.Parse(text, model_config_pb2.ModelConfig())


@pytest.mark.parametrize("name", RELEASES)
def test_every_release_renders_from_its_defaults_alone(tmp_path: Path, name: str) -> None:
    repository.render(request(tmp_path, name))
    text = (tmp_path / "out" / "tensorrt_llm" / "config.pbtxt").read_text()
    assert "${" not in "".join(line for line in text.splitlines() if not line.startswith("#"))
    assert parsed(text).name == "tensorrt_llm"


@pytest.mark.parametrize("name", RELEASES)
def test_a_render_equals_what_the_filler_makes_parameter_by_parameter(tmp_path: Path, name: str) -> None:
    wanted = request(tmp_path, name)
    repository.render(wanted)
    ours = parsed((tmp_path / "out" / "tensorrt_llm" / "config.pbtxt").read_text())
    template = next(wanted.sources[0].rglob("config.pbtxt")).read_text()
    # The filler: pairs of words, everything text, one safe substitution.
    words = {key: str(value).lower() if value is not None else "" for key, value in wanted.defaults.items()}
    words |= {"logits_datatype": "TYPE_FP32", "encoder_input_features_data_type": "TYPE_FP16", **GIVEN}
    filled = parsed(Template(template).safe_substitute(words))
    assert {key: value.string_value for key, value in ours.parameters.items()} == {
        key: value.string_value for key, value in filled.parameters.items()
    }
    assert ours == filled


def test_the_static_batching_of_0_5_0_is_the_workshops_literal_replacement(tmp_path: Path) -> None:
    repository.render(request(tmp_path, "0.5.0", gpt_model_type="V1"))
    config = parsed((tmp_path / "out" / "tensorrt_llm" / "config.pbtxt").read_text())
    assert config.parameters["gpt_model_type"].string_value == "V1"


@pytest.mark.parametrize("name", RELEASES[1:])
def test_later_releases_have_a_placeholder_for_the_batching_type(name: str) -> None:
    settings = {"gpt_model_type": "V1"}
    assert release(name).defaults_for(settings)["batching_strategy"] == "V1"
    assert release(name).replacements_for(settings) == []


@pytest.mark.parametrize("name", RELEASES)
def test_a_stacks_settings_reach_the_placeholders_that_a_release_has(name: str) -> None:
    settings = {"max_batch_size": 16, "max_num_sequences": 9, "decoupled_mode": True, "unrelated": "x"}
    values = release(name).defaults_for(settings)
    assert values["decoupled_mode"] is True
    assert values.get("triton_max_batch_size", 16) == 16
    assert values.get("max_num_sequences", 9) == 9
    assert "unrelated" not in values


@pytest.mark.parametrize("name", RELEASES)
def test_no_placeholder_is_of_two_kinds_at_once(name: str) -> None:
    it = release(name)
    keys = [*it.required, *it.defaults, *it.optional]
    assert len(keys) == len(set(keys))


@pytest.mark.parametrize(("spelling", "name"), [("0.17.0.post1", "0.17.0"), ("v0.8.0", "0.8.0"), ("", "0.17.0")])
def test_a_release_answers_to_its_other_names(spelling: str, name: str) -> None:
    assert release(spelling).name == name


def test_an_unknown_release_is_refused_with_the_known_ones() -> None:
    with pytest.raises(LabError, match=r"unknown TensorRT-LLM release '9\.9'") as caught:
        release("9.9")
    assert all(name in caught.value.why for name in RELEASES)


def test_a_batching_type_that_a_release_lacks_is_refused_before_anything_starts() -> None:
    without = release("0.19.0").model_copy(update={"batching_types": ("inflight_fused_batching",)})
    with pytest.raises(LabError, match="does not serve gpt_model_type=V1") as caught:
        without.check_combination({"gpt_model_type": "V1"})
    assert "inflight_fused_batching" in caught.value.why
    assert without.check_combination({"gpt_model_type": "inflight_fused_batching"}) == []


def test_a_switch_that_a_release_lacks_is_refused_and_the_first_release_with_it_named() -> None:
    with pytest.raises(LabError, match=r"TensorRT-LLM 0\.5\.0 has no enable_chunked_context") as caught:
        release("0.5.0").check_combination({"enable_chunked_context": True})
    assert caught.value.remedy.startswith("--release 0.8.0 or newer")
    assert release("0.5.0").check_combination({"enable_chunked_context": False}) == []
    assert release("0.8.0").check_combination({"enable_chunked_context": True}) == []


def test_a_limit_that_a_release_lacks_is_told_with_the_one_that_holds() -> None:
    settings = {"max_num_sequences": 9, "max_batch_size": 64}
    assert release("0.5.0").effective(settings) == {}
    for name in ("0.5.0", "0.8.0"):  # the engine's own limit is the bound, wherever the other one stands
        found = release(name).effective({"max_num_sequences": 64, "max_batch_size": 8})
        assert found["max_num_sequences"]["effective"] == "8"
    assert release("0.17.0").effective(settings)["max_num_sequences"]["effective"] == "64"
    assert "max_num_sequences in effect: 64, not 9" in release("0.17.0").check_combination(settings)[0]


def test_a_number_that_a_release_has_no_place_for_is_refused_instead_of_left_out() -> None:
    settings = {"sink_token_length": 4}
    with pytest.raises(LabError, match=r"TensorRT-LLM 0\.8\.0 has no sink_token_length") as caught:
        release("0.8.0").check_combination(settings)
    assert caught.value.remedy.startswith("--release 0.11.0 or newer")
    assert release("0.11.0").check_combination(settings) == []


def test_0_5_0_takes_the_published_limits_for_llama_unless_others_are_given_and_says_so() -> None:
    settings = {"max_batch_size": 64, "max_num_sequences": 64, "other": 1}
    taken, said = release("0.5.0").usual_for("llama", settings, ())
    assert taken == {"max_batch_size": 8, "max_num_sequences": 8, "other": 1}
    assert "the published setting" in said[0]
    kept, warned = release("0.5.0").usual_for("llama", settings, ("max_batch_size", "max_num_sequences"))
    assert kept == settings
    assert all("#718" in line for line in warned)
    assert release("0.17.0").usual_for("llama", settings, ()) == (settings, [])


def test_a_deprecated_batching_type_is_served_with_a_notice() -> None:
    assert release("0.5.0").check_combination({"gpt_model_type": "V1"}) == []
    assert "deprecated" in release("0.17.0").check_combination({"gpt_model_type": "V1"})[0]


def test_the_workshops_word_for_a_policy_is_written_as_the_accepted_one_with_a_notice() -> None:
    settings = {"batch_scheduler_policy": "guaranteed_completion"}
    assert release().defaults_for(settings)["batch_scheduler_policy"] == "guaranteed_no_evict"
    assert "in effect: guaranteed_no_evict, not guaranteed_completion" in release().check_combination(settings)[0]


def test_an_unknown_policy_is_refused_instead_of_silently_replaced() -> None:
    with pytest.raises(LabError, match="has no batch_scheduler_policy=fastest"):
        release().check_combination({"batch_scheduler_policy": "fastest"})


@pytest.mark.parametrize(
    ("name", "decoupled", "chunked", "effective"),
    [
        ("0.5.0", False, False, "max_utilization"),
        ("0.5.0", True, False, "guaranteed_no_evict"),
        ("0.5.0", True, True, "guaranteed_no_evict"),
        ("0.8.0", True, False, "guaranteed_no_evict"),
        ("0.11.0", True, False, "guaranteed_no_evict"),
        ("0.11.0", True, True, "max_utilization"),
        ("0.14.0", True, False, "max_utilization"),
        ("0.19.0", True, False, "max_utilization"),
    ],
)
def test_the_policy_in_effect_is_the_releases_own(name: str, decoupled: bool, chunked: bool, effective: str) -> None:
    found, reason = effective_policy(release(name), "max_utilization", decoupled=decoupled, chunked_context=chunked)
    assert found == effective
    assert bool(reason) == (effective != "max_utilization")


def test_the_table_names_one_pinned_image_per_release() -> None:
    images = [it.image for it in table().values()]
    assert len(set(images)) == len(images) == len(RELEASES) + 1  # and one that has the LLM API alone
    assert not any(image.endswith("latest") for image in images)


def test_importing_the_renderer_loads_neither_grpc_nor_protobuf() -> None:
    code = "import sys, labctl.repository; print([m for m in ('grpc', 'google.protobuf') if m in sys.modules])"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"


def test_the_tables_aliases_are_not_names_of_others() -> None:
    assert releases.table().keys().isdisjoint(alias for it in table().values() for alias in it.aliases)


@pytest.mark.parametrize("name", RELEASES)
def test_the_guide_says_of_a_release_what_the_table_says(name: str) -> None:
    it = release(name)
    (row,) = [line for line in GUIDE.read_text(encoding="utf-8").splitlines() if line.startswith(f"| {name} ")]
    cells = [cell.strip(" `") for cell in row.strip("|").split("|")]
    image, served = it.image.partition(":")[2], "deprecated" if it.deprecated else "yes"
    assert cells[1:] == [image, it.triton, it.cuda, it.driver, it.builder, served, "added" if it.app else "yes"]
