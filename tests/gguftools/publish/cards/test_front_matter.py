"""Front matter: what is known, valid by the hub's own class, and added to what is there."""

import pytest
from huggingface_hub import ModelCard

from archs.metadata import Metadata
from gguftools.publish.cards.front_matter import as_text, base_of, front_matter, hub_id, merged, split_front
from quants.errors import FileError

METADATA = {
    "general.architecture": "llama",
    "general.license": "other",
    "general.license.name": "my-license",
    "general.license.link": "LICENSE",
    "general.languages": ["en", "de"],
    "general.tags": ["poetry", "gguf"],
    "general.source.repo_url": "https://huggingface.co/org/model",
}


def test_the_hub_reads_it() -> None:
    known = front_matter(Metadata(METADATA), quantized_by="me", tags=["imatrix"])
    data = ModelCard(as_text(known) + "\n# A title\n").data.to_dict()
    assert data == known
    assert known["base_model"] == "org/model"
    assert known["base_model_relation"] == "quantized"
    assert known["license_name"] == "my-license"
    assert known["tags"] == ["gguf", "imatrix", "poetry"]
    assert known["pipeline_tag"] == "text-generation"


def test_what_is_not_known_is_left_out() -> None:
    known = front_matter(Metadata({"general.architecture": "llama"}))
    assert known == {"pipeline_tag": "text-generation", "tags": ["gguf"]}


def test_embedding_models_have_their_own_tag() -> None:
    embedding = Metadata({"general.architecture": "bert", "bert.pooling_type": 2})
    assert front_matter(embedding)["pipeline_tag"] == "feature-extraction"
    assert front_matter(Metadata({**embedding, "bert.pooling_type": 4}))["pipeline_tag"] == "text-ranking"


def test_a_persons_values_stay_and_tags_add_up() -> None:
    both = merged({"license": "mit", "tags": ["mine", "gguf"], "extra": 1}, {"license": "other", "tags": ["gguf", "b"]})
    assert both == {"license": "mit", "tags": ["mine", "gguf", "b"], "extra": 1}


def test_it_is_split_from_the_text() -> None:
    assert split_front("---\na: 1\n---\n# Title\n") == ({"a": 1}, "# Title\n")
    assert split_front("# Title\n") == ({}, "# Title\n")


@pytest.mark.parametrize("front", ["a: [", "- a\n- b"])
def test_broken_front_matter_is_refused(front: str) -> None:
    with pytest.raises(FileError, match="front matter"):
        split_front(f"---\n{front}\n---\n")


def test_repositories_by_address_and_name() -> None:
    assert hub_id("https://huggingface.co/org/model/") == hub_id("org/model") == "org/model"
    assert hub_id("https://example.com/org/model") is hub_id("a/b/c") is None
    assert base_of(Metadata({"general.url": "https://example.com"})) is None
