"""Objects on a command line, as kubectl has them."""

import pytest

from gpuledger.command_line.commands.explain import asked_for
from gpuledger.command_line.options import Named, named_objects, one_object
from gpuledger.model.errors import BadInput

ALL = ("pod", "card", "node")


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("pod/web", [("pod", "web")]),
        ("po/web no/a card/GPU-1", [("pod", "web"), ("node", "a"), ("card", "GPU-1")]),
        ("pod web", [("pod", "web")]),
        ("pods web chat", [("pod", "web"), ("pod", "chat")]),
        ("Node a", [("node", "a")]),
        ("gpuallocations.gpuledger.dev gpu-1", [("card", "gpu-1")]),
        ("pods", [("pod", None)]),
        ("pod pod", [("pod", "pod")]),
        ("", []),
    ],
)
def test_names_are_read_as_kubectl_reads_them(words: str, found: list[tuple[str, str | None]]) -> None:
    assert named_objects(words.split(), ALL, all_of=("pod",)) == [Named(*each) for each in found]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("web", "'web' is neither pod/NAME, card/UUID nor node/NAME"),
        ("service/web", "'service/web' is neither"),
        ("service web", "'service' is neither"),
        ("nods/web", "nor node/NAME: did you mean nodes"),
        ("pod/", "'pod/' is neither"),
        ("pod/a/b", "'pod/a/b' is neither"),
        ("pod a node/b", "mixes KIND/NAME and KIND NAME"),
        ("nodes", "'nodes' has no name: write node/NAME or node NAME"),
    ],
)
def test_what_is_no_name_is_refused_with_how_to_write_it(words: str, said: str) -> None:
    with pytest.raises(BadInput, match=said):
        named_objects(words.split(), ALL, all_of=("pod",))


def test_where_one_is_meant_several_are_refused() -> None:
    with pytest.raises(BadInput, match="names 2 objects: name one at a time"):
        one_object(["pod", "a", "b"], ALL)


@pytest.mark.parametrize("words", ["web", "pod/web", "pod web", "pods web"])
def test_explain_takes_a_pods_name_alone_too(words: str) -> None:
    assert asked_for(words.split()) == Named("pod", "web")


@pytest.mark.parametrize("words", ["gang/train", "gang train", "Gangs train"])
def test_explain_takes_a_gang(words: str) -> None:
    assert asked_for(words.split()) == Named("gang", "train")


@pytest.mark.parametrize(
    ("words", "kind", "name"),
    [
        ("", "", None),
        ("pods", "pod", None),
        ("gangs", "gang", None),
        ("job/train", "job", "train"),
        ("jobs train", "job", "train"),
        ("deploy/chat", "deployment", "chat"),
        ("sts chat", "statefulset", "chat"),
        ("PyTorchJob/train", "pytorchjob", "train"),
    ],
)
def test_explain_takes_all_of_a_kind_and_what_makes_pods(words: str, kind: str, name: str | None) -> None:
    assert asked_for(words.split()) == Named(kind, name)


@pytest.mark.parametrize("words", ["node/a", "web chat", "gang a b", "deploy", "deploy/", "deploy/a/b", "deploy a b"])
def test_explain_takes_one_thing_at_a_time(words: str) -> None:
    with pytest.raises(BadInput):
        asked_for(words.split())
