"""What is said of architectures is what their data say."""

import json

from archs.plans.export import obstacle
from archs.registry import of_config
from gguftools.inspection.catalogue import architectures, coverage, encoders, wrappers
from tests.archs import exported
from tests.archs.test_more_families import ONE_WAY
from tests.conftest import DATA

WITH_HEADS = {"clef", "laya", "openjev"}  # which decide: their classes export, but not the heads of these files


def test_exports_that_were_verified_are_among_those_that_are_promised() -> None:
    promised = {hf_class for each in architectures() if each.exports for hf_class in each.hf_classes}
    verified = {recorded["config"]["architectures"][0] for recorded in exported.lines()}
    assert len(verified) > 80
    assert verified <= promised


def test_an_obstacle_is_said_where_there_is_one() -> None:
    found = {each.hf_classes[0]: each.export_obstacle for each in architectures() if not each.image}
    assert found["LlamaForCausalLM"] is None
    assert found["Qwen2VLForConditionalGeneration"] == "needs --mmproj: it is the text part of a model of images"
    assert found["BitnetForCausalLM"] == "the file has its weights as they were rounded; it becomes BitNetForCausalLM"
    assert found["RuGPT3XLForCausalLM"] is None
    assert "text part of a model of images" in str(found["KimiK3ForConditionalGeneration"])
    assert all(each.exports == (each.export_obstacle is None) for each in architectures())


def test_wrappers_are_read_as_the_text_model_that_they_name() -> None:
    assert "LlavaForConditionalGeneration" in wrappers()
    for hf_class in wrappers():
        config = {"architectures": [hf_class], "text_config": {"architectures": ["LlamaForCausalLM"]}}
        assert of_config(config).hf_classes[0] == "LlamaForCausalLM", hf_class


def test_every_class_is_listed_once_as_what_it_is() -> None:
    """Also in `--json`: a class with an encoder alone, around any text model, is converted, too."""
    found = {name: each for each in architectures() for name in each.hf_classes}
    assert {name for each in encoders() for name in each.hf_classes if not name.endswith("VisionModel")} <= set(found)
    voxtral = found["VoxtralForConditionalGeneration"]
    assert voxtral.wrapper
    assert voxtral.name == ""
    assert voxtral.encoders == voxtral.exporting_encoders == voxtral.hf_classes
    assert not found["JanusForConditionalGeneration"].exporting_encoders
    assert found["UltravoxModel"].running_encoders
    assert found["Gemma3ForConditionalGeneration"].running_encoders == ("Gemma3ForConditionalGeneration",)
    assert not found["Qwen3ForCausalLM"].encoders
    assert not found["Qwen3ForCausalLM"].wrapper


def test_encoders_say_which_of_their_parts_run() -> None:
    found = {each.hf_classes[0]: each for each in encoders()}
    assert found["Gemma3ForConditionalGeneration"].running == ("vision",)
    assert found["UltravoxModel"].running == ("audio",)
    assert all(set(each.running) <= set(each.parts) for each in found.values())
    assert found["Gemma3ForConditionalGeneration"].exporting == ("Gemma3ForConditionalGeneration",)
    assert found["JanusForConditionalGeneration"].exporting == ()
    assert coverage()["exported_with_encoders"] > 30


def test_each_class_counts_once() -> None:
    count, known = coverage(), [each for each in architectures() if not (each.wrapper or each.image)]
    assert count["classes"] == len({name for each in known if not each.draft for name in each.hf_classes})
    assert count["exported"] < count["classes"]
    assert count["with_running_encoders"] <= count["with_encoders"]
    assert count["architectures"] == len(known)


def test_what_was_seen_not_to_export_is_not_promised() -> None:
    """Entries whose export `tests/archs/test_more_families.py` sees refused."""
    refused = {
        path.parent.name
        for path in (DATA / "families").glob("*/spec.json")
        if json.loads(path.read_text(encoding="utf-8")).get("export") == "none"
    } | ONE_WAY
    assert len(refused) > 15
    for entry in refused - WITH_HEADS:
        file = DATA / "families" / entry / "config.json"
        config = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
        if not config:  # published with another file
            continue
        assert obstacle(of_config(config)) is not None, entry
