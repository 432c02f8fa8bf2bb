"""Stories: trees that several write at once."""

import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from srb.errors import ConflictError, InvalidRequestError, NotFoundError
from srb.history import queries as find
from srb.history import stories
from srb.history.database import ANYBODY
from srb.history.history import History, story_as_markdown
from srb.history.stories import NewNode, Node


@pytest.fixture
def history(tmp_path: Path) -> Iterator[History]:
    with History(tmp_path / "history.db") as history:
        yield history


@pytest.fixture
def story(history: History) -> str:
    return history.write(stories.make_story, None, "A tale").result().id


def add(history: History, story: str, parent: int | None, text: str, **fields: object) -> Node:
    node = NewNode(text, **fields)  # type: ignore[arg-type]
    return history.write(stories.add_node, None, story, parent, node).result()


def test_a_node_comes_back_as_it_was_written(history: History, story: str) -> None:
    root = add(history, story, None, "Once", notes="a beginning")
    node = add(
        history,
        story,
        root.id,
        " upon",
        tokens=(2402,),
        author="model",
        request="cmpl-1",
        index=3,
        seed=2**32 - 1,
        settings={"temperature": 1.2},
        label="wild",
        length=2,
        finish_reason="length",
        kept=False,
    )
    found, nodes = history.read(stories.read_nodes, None, story)
    assert nodes == [root, node]
    assert (root.id, root.parent, root.author, root.notes, root.tokens) == (1, None, "person", "a beginning", None)
    assert (node.id, node.parent, node.tokens, node.kept, node.settings) == (2, 1, (2402,), False, {"temperature": 1.2})
    assert (found.node_count, found.change) == (2, 2)


def test_tokens_stand_for_the_text_alone(history: History, story: str) -> None:
    fields = {"author": "model", "tokens": (1, 2, 3), "length": 3}
    cut = add(history, story, None, "abc", finish_reason="length", **fields)
    ended = add(history, story, None, "ab", finish_reason="stop", **fields)
    matched = add(history, story, None, "a", finish_reason="stop", stop_reason="c", **fields)
    assert [node.tokens for node in (cut, ended, matched)] == [(1, 2, 3), (1, 2), None]


def test_since_returns_new_and_changed_nodes(history: History, story: str) -> None:
    first, second = add(history, story, None, "a"), add(history, story, None, "b")
    seen = second.change
    assert history.read(stories.read_nodes, None, story, seen)[1] == []
    history.write(stories.remark, None, story, first.id, {"kept": True}).result()
    third = add(history, story, first.id, "c")
    found, nodes = history.read(stories.read_nodes, None, story, seen)
    assert [(node.id, node.kept) for node in nodes] == [(first.id, True), (third.id, None)]
    assert found.change == seen + 2


def test_what_was_said_before_stays(history: History, story: str) -> None:
    node = add(history, story, None, "a", notes="from the desk")
    said: list[dict[str, bool | str | None]] = [
        {"kept": True, "notes": "from the phone"},
        {"kept": None},
        {"notes": "from the desk again"},
    ]
    for values in said:
        history.write(stories.remark, None, story, node.id, values).result()
    found, remarks = history.read(stories.read_node, None, story, node.id)
    assert (found.kept, found.notes) == (None, "from the desk again")
    all_said = [(each.field, each.value) for each in remarks]
    assert all_said == [("kept", True), ("notes", "from the phone"), ("kept", None), ("notes", "from the desk again")]


def test_the_prompt_is_the_path(history: History, story: str) -> None:
    a = add(history, story, None, "One ")
    b = add(history, story, a.id, "two ")
    c = add(history, story, b.id, "three", tokens=(7, 8), author="model", finish_reason="length")
    d = add(history, story, c.id, " four")
    add(history, story, a.id, "elsewhere")
    assert history.read(stories.prompt_at, None, story, d.id) == ["One two ", 7, 8, " four"]
    assert history.read(stories.prompt_at, None, story, None) == []
    with pytest.raises(NotFoundError, match="no node 99"):
        history.read(stories.prompt_at, None, story, 99)


def test_a_tree_is_brought_from_elsewhere(history: History, story: str) -> None:
    tree = [NewNode("c", id="z", parent="y"), NewNode("a", id="x"), NewNode("b", id="y", parent="x"), NewNode("d")]
    made = history.write(stories.make_story, None, "Copy", tree).result()
    _, nodes = history.read(stories.read_nodes, None, made.id)
    assert [(node.id, node.parent, node.text) for node in nodes] == [
        (1, None, "a"),
        (2, None, "d"),
        (3, 1, "b"),
        (4, 3, "c"),
    ]


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ([NewNode("a", id=1), NewNode("b", id=1)], "several have the id 1"),
        ([NewNode("a", parent="gone")], "there is no parent 'gone'"),
        ([NewNode("a", id=1, parent=1)], "are their own ancestors"),
    ],
)
def test_nodes_that_are_no_tree_are_refused(history: History, tree: list[NewNode], message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        history.write(stories.make_story, None, "Bad", tree).result()
    assert history.read(stories.list_stories, None) == []


def test_a_story_is_seen_with_the_key_that_made_it(history: History) -> None:
    mine = history.write(stories.make_story, "me", "Mine").result()
    history.write(stories.make_story, None, "Everybody's").result()
    assert [each.title for each in history.read(stories.list_stories, "me")] == ["Everybody's", "Mine"]
    assert [each.title for each in history.read(stories.list_stories, "you")] == ["Everybody's"]
    with pytest.raises(NotFoundError):
        history.read(stories.read_nodes, "you", mine.id)
    with pytest.raises(NotFoundError):
        history.write(stories.remove_story, None, mine.id).result()
    history.write(stories.add_node, "me", mine.id, None, NewNode("the secret")).result()
    assert len(history.read(find.search, "me", "secret")) == 1
    assert history.read(find.search, "you", "secret") == []
    assert len(history.read(find.search, ANYBODY, "secret")) == 1


def test_a_removed_story_is_gone_from_everywhere(history: History, story: str) -> None:
    add(history, story, None, "gone forever")
    add(history, history.write(stories.make_story, None, "Other").result().id, None, "gone never")
    history.write(stories.remove_story, None, story, permanent=True).result()
    with pytest.raises(NotFoundError):
        history.read(stories.read_nodes, None, story)
    assert [each.snippet for each in history.read(find.search, None, "gone")] == ["gone never"]
    for table in ("nodes", "texts", "remarks"):
        assert history.read(count, table) == (0 if table == "remarks" else 1)


def count(db: sqlite3.Connection, table: str) -> int:
    return int(db.execute(f"SELECT count(*) FROM {table}").fetchone()[0])


def test_markdown_is_the_path_to_the_last_kept_node(history: History, story: str) -> None:
    a = add(history, story, None, "Once")
    b = add(history, story, a.id, " upon", author="model", finish_reason="length")
    add(history, story, a.id, " there", author="model", finish_reason="length")
    assert history.read(story_as_markdown, None, story) == "# A tale\n\nOnce\n"
    history.write(stories.remark, None, story, b.id, {"kept": True}).result()
    assert history.read(story_as_markdown, None, story) == "# A tale\n\nOnce upon\n"
    assert history.read(story_as_markdown, None, story, 3) == "# A tale\n\nOnce there\n"


def test_search(history: History, story: str) -> None:
    for text in ("Die Straße nach Süden", "The dragon slept", "Two dragons, one cave", "dragon's tail"):
        add(history, story, None, text)

    def found(words: str, **options: int) -> list[str]:
        return [each.snippet for each in history.read(find.search, None, words, **options)]

    assert found("dragon") == ["dragon's tail", "The dragon slept"]
    assert found("drag*") == ["dragon's tail", "Two dragons, one cave", "The dragon slept"]
    assert found('"one cave"') == ["Two dragons, one cave"]
    assert found('"dragons one ca"*') == ["Two dragons, one cave"]
    assert found('"two cave"*') == []
    assert found("cave two") == ["Two dragons, one cave"]
    assert found("suden") == ["Die Straße nach Süden"]
    assert found("drag*", limit=1) == ["dragon's tail"]
    place = history.read(find.search, None, "drag*", limit=1)[0].place
    assert found("drag*", limit=1, before=place) == ["Two dragons, one cave"]
    for odd in ("NEAR(", "a OR", "text:x", "^x", "{x}", "x\0y", "-dragons", 'x"y'):
        assert found(odd) == (["Two dragons, one cave"] if odd == "-dragons" else [])
    with pytest.raises(InvalidRequestError, match="takes the words to search for"):
        found('"" *')


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("老船长说“起航。”", ("船长", "老船长", '"长说"', "起航", "船*", "船长 起航", '"船长说"')),
        ("そこでアリスはウサギの穴に", ("アリス", "ウサギ", "の穴")),
        ("กัปตันเฒ่าพูดว่า", ("กัปตัน", "เฒ่า", "พูด")),
        ("他叫Alice、住在Köln北边", ("Alice", "koln", "alic*", "北边", "叫Alice")),
        ("𠮷野家で", ("𠮷野", "野家")),
    ],
)
def test_a_search_finds_parts_of_texts_without_spaces(
    history: History, story: str, text: str, parts: tuple[str, ...]
) -> None:
    add(history, story, None, text)
    add(history, story, None, "船 説 長 うさぎ Al ice")
    for part in parts:
        assert [each.snippet for each in history.read(find.search, None, part)][-1:] == [text], part
    assert history.read(find.search, None, "长船") == []


def test_a_node_may_end_earlier_and_nothing_is_lost(history: History, story: str) -> None:
    root = add(history, story, None, "One. ")
    node = add(history, story, root.id, "Two 👩. Thr", tokens=(7, 8, 9), author="model", finish_reason="abort")
    remark = {"ends_at": len("Two 👩.")}
    short = history.write(stories.remark, None, story, node.id, remark).result()
    assert (short.text, short.tokens, short.ends_at) == ("Two 👩.", None, 6)
    assert history.read(stories.prompt_at, None, story, node.id) == ["One. Two 👩."]
    assert "One. Two 👩.\n" in history.read(story_as_markdown, None, story, node.id)
    again = history.write(stories.remark, None, story, node.id, {"ends_at": None}).result()
    assert (again.text, again.tokens) == (node.text, node.tokens)


def test_a_title_and_a_context_that_were_changed_since_arent_replaced(history: History, story: str) -> None:
    def change(since: int | None, **values: str) -> int:
        return history.write(stories.change_story, None, story, values, since).result().change

    first = change(0, context='{"memory": "Ada"}')
    add(history, story, None, "Once")  # which doesn't touch them
    change(0, place="{}")
    assert change(first, title="Better") == change(None, title="Best") - 1
    later = change(first, context='{"memory": "Tom"}')
    with pytest.raises(ConflictError, match=rf"the context .* by change {later}, after change {first}; get the story"):
        change(first, context='{"memory": "Eve"}')
    with pytest.raises(ConflictError, match="the title"):
        change(first, title="Worst")
    found = history.read(stories.get_story, None, story)
    assert (found.title, found.context) == ("Best", {"memory": "Tom"})


def test_a_deleted_story_is_in_the_trash_for_30_days(
    history: History, story: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def titles(*, deleted: bool) -> list[str]:
        return [each.title for each in history.read(stories.list_stories, None, deleted=deleted)]

    add(history, story, None, "an hour of prose")
    history.write(stories.remove_story, None, story).result()
    assert (titles(deleted=False), titles(deleted=True)) == ([], ["A tale"])
    assert history.read(find.search, None, "prose") == []
    with pytest.raises(NotFoundError):
        add(history, story, None, "more")
    with pytest.raises(ConflictError):  # nothing is changed then
        history.write(stories.change_story, None, story, {"title": "B"}, -1, restores=True).result()
    assert titles(deleted=True) == ["A tale"]
    assert history.write(stories.change_story, None, story, {}, restores=True).result().deleted is None
    assert history.read(stories.read_nodes, None, story)[1][0].text == "an hour of prose"
    assert len(history.read(find.search, None, "prose")) == 1
    history.write(stories.remove_story, None, story).result()
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 31 * 24 * 3600)
    assert titles(deleted=True) == []
    history.write(stories.empty_trash).result()
    assert [history.read(count, table) for table in ("stories", "nodes", "texts")] == [0, 0, 0]
