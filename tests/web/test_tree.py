"""The story's tree, tree.js, in the browser that it is for."""

from collections.abc import Iterator
from typing import Any

import pytest
from e2e.conftest import Server
from playwright.sync_api import Browser, Error
from web.conftest import Story, profile

pytestmark = [pytest.mark.web, pytest.mark.e2e]

SETUP = """
const {Tree, ROOT, textOf} = await import("/web/tree.js");
const {exported, imported} = await import("/web/exchange.js");
const {rows} = await import("/web/places.js");
const piece = (text, ...ids) => ({text, ids, p: 0.5, top: [{id: 9, text: " other", p: 0.4}]});
const write = (tree, text) => {
  const node = tree.written(text);
  return node.id ?? tree.add(node).id;
};
const tree = new Tree();
const typed = write(tree, "Once upon");
tree.nodes.get(typed).pieces[0].ids = [1, 2];
tree.nodes.get(typed).whole = true;
const said = tree.add({parent: typed, pieces: [piece(" a", 3), piece(" time", 4)], order: 1, batch: 5}).id;
"""


@pytest.fixture(scope="module")
def story(browser: Browser, server: Server) -> Iterator[Story]:
    """One page for all of these tests, which change nothing on it."""
    with profile(browser) as story:
        story.open(server.url)
        yield story


def run(story: Story, script: str) -> Any:
    return story.page.evaluate(f"(async () => {{ {SETUP} {script} }})()")


def test_a_path_of_known_ids_is_sent_as_ids(story: Story) -> None:
    assert run(story, "return [tree.text(said), tree.prompt(said)]") == ["Once upon a time", [1, 2, 3, 4]]


def test_the_first_token_of_a_healed_node_takes_the_place_of_the_one_before(story: Story) -> None:
    script = """
    tree.nodes.get(said).healed = true;
    const fork = tree.add(tree.forked(said, 0, {id: 9, text: " sea", p: 0.4})).id;
    const empty = tree.add({parent: typed, healed: true}).id;
    return [tree.prompt(said), tree.prompt(fork), tree.prompt(empty), tree.text(fork)];
    """
    assert run(story, script) == [[1, 3, 4], [1, 9], [1, 2], "Once upon sea"]


def test_a_path_with_unknown_ids_is_sent_as_text(story: Story) -> None:
    assert run(story, "tree.nodes.get(said).pieces[1].ids = null; return tree.prompt(said)") == "Once upon a time"
    assert run(story, "tree.nodes.get(typed).whole = false; return tree.prompt(said)") == "Once upon a time"
    assert run(story, "return tree.prompt(ROOT)") == ""


def test_ids_of_a_whole_text_stand_for_all_of_it(story: Story) -> None:
    script = """
    tree.go(said);
    const more = write(tree, "Once upon a time there");
    const before = tree.prompt(more);
    tree.nodes.get(more).pieces[0].ids = [11, 12, 13];
    tree.nodes.get(more).whole = true;
    return [before, tree.prompt(more)];
    """
    assert run(story, script) == ["Once upon a time there", [11, 12, 13]]


def test_an_edit_hangs_below_what_it_left(story: Story) -> None:
    script = """
    tree.go(said);
    const changed = write(tree, "Once upon the sea");
    tree.go(changed);
    const other = write(tree, "Twice");
    return [tree.nodes.get(changed).parent === typed, textOf(tree.nodes.get(changed)), tree.nodes.get(other).parent,
            write(tree, "Once upon the sea") === changed, write(tree, "Once upon") === typed];
    """
    assert run(story, script) == [True, " the sea", "root", True, True]


def test_a_fork_begins_as_the_other_does(story: Story) -> None:
    script = """
    const fork = tree.add(tree.forked(said, 1, {id: 9, text: " \\ufffd", p: 0.4})).id;
    return [tree.text(fork), tree.prompt(fork), tree.nodes.get(fork).parent === typed, tree.text(said)];
    """
    assert run(story, script) == ["Once upon a ", [1, 2, 3, 9], True, "Once upon a time"]


def test_the_newest_batch_comes_first_in_its_own_order(story: Story) -> None:
    script = """
    for (const [batch, order] of [[7, 1], [5, 0], [7, 0]])
      tree.add({parent: typed, batch, order, label: `${batch}.${order}`});
    return tree.children(typed).map((node) => node.label ?? "said");
    """
    assert run(story, script) == ["7.0", "7.1", "5.0", "said"]


def test_undo_goes_back_and_brings_back(story: Story) -> None:
    script = """
    const seen = [];
    tree.go(typed); tree.go(typed); tree.go(said); tree.discard(said);
    seen.push(tree.children(typed).length);
    while (tree.history.length) { tree.undo(); seen.push(tree.current === typed, tree.current === said); }
    tree.undo();
    return [seen, tree.children(typed).length, tree.current];
    """
    assert run(story, script) == [[0, False, True, True, False, False, False], 1, "root"]


def test_an_exported_tree_is_imported_beside_what_is_there(story: Story) -> None:
    script = """
    tree.go(said);
    const about = {model: "a model", settings: {temperature: "1.2", seed: ""}};
    const file = JSON.parse(JSON.stringify(exported(tree, about)));
    const other = new Tree();
    write(other, "Mine");
    other.import(imported(file));
    return [other.text(other.current), other.prompt(other.current), other.children(ROOT).length,
            file.model, file.settings, file.nodes[1].pieces];
    """
    packed = [[" a", 3, 0.5], [" time", 4, 0.5]]
    assert run(story, script) == ["Once upon a time", [1, 2, 3, 4], 2, "a model", {"temperature": "1.2"}, packed]


def test_a_file_of_the_first_version_is_imported(story: Story) -> None:
    script = """
    const file = {format: "srb-tree", version: 1, current: said, nodes: [...tree.nodes.values()]};
    const other = new Tree();
    other.import(imported(JSON.parse(JSON.stringify(file))));
    return [other.prompt(said), other.nodes.get(said).pieces[0].top.length];
    """
    assert run(story, script) == [[1, 2, 3, 4], 1]


def test_the_way_to_where_the_story_is_is_drawn_straight(story: Story) -> None:
    script = """
    const add = (parent, id) => tree.add({id, parent, kept: true, batch: Number(id)}).id;
    for (const [parent, id] of [[said, "7"], [said, "8"], ["7", "9"], [ROOT, "6"]]) add(parent, id);
    tree.go("7");
    return rows(tree).map(({id, column, isBranch, goesOn}) => [id.length > 1 ? "" : id, column, isBranch, goesOn]);
    """
    assert run(story, script) == [
        ["", 0, False, True],  # the root
        ["6", 1, True, False],
        ["", 0, False, True],
        ["", 0, False, True],
        ["8", 1, True, False],
        ["7", 0, False, True],
        ["9", 0, False, False],
    ]


def test_importing_keeps_what_is_newer_here_and_brings_back_what_was_discarded(story: Story) -> None:
    script = """
    const file = imported(JSON.parse(JSON.stringify(exported(tree))));
    tree.nodes.get(said).pieces.push(piece(" ago", 5));
    tree.discard(said);
    tree.import(file);
    return [tree.text(said), tree.children(typed).length];
    """
    assert run(story, script) == ["Once upon a time ago", 1]


def test_a_look_at_a_node_costs_its_children_and_not_the_tree(story: Story) -> None:
    script = """
    let reads = 0;
    const file = {format: "srb-tree", version: 1, nodes: []};
    for (let k = 0; k < 1000; k++) {
      const parent = k ? `n${k - 1}` : ROOT;
      file.nodes.push({id: `n${k}`, pieces: [], typed: true, get parent() { reads++; return parent; }});
    }
    const other = new Tree();
    const seen = [];
    for (const look of [() => other.import(file), () => other.children("n500"), () => other.places(ROOT)]) {
      look();
      seen.push(reads);
      reads = 0;
    }
    return [other.children("n500").map((node) => node.id), seen[0] < 20_000, seen[1] < 10, seen[2] < 10];
    """
    assert run(story, script) == [["n501"], True, True, True]


def test_a_node_that_is_removed_is_gone(story: Story) -> None:
    script = """
    const beside = tree.add({parent: typed, batch: 6}).id;
    tree.remove(said);
    tree.remove("nothing");
    return [tree.has(said), tree.children(typed).map((node) => node.id === beside), new Tree().children(ROOT)];
    """
    assert run(story, script) == [False, [True], []]


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        ("null", "not a tree"),
        ("[null]", "no id"),
        ("[{id: 'a', parent: 'b', pieces: []}]", "hangs on nothing"),
        ("[{id: 'a', parent: 'root'}]", "no text"),
        ("[{id: 'a', parent: 'root', pieces: [{text: 'x', ids: 'y'}]}]", "no text"),
        ("[{id: 'a', parent: 'root', pieces: [{text: 'x', ids: [], top: [{id: 1, text: 'y'}]}]}]", "no text"),
        ("[{id: 'a', parent: 'b', pieces: []}, {id: 'b', parent: 'a', pieces: []}]", "before itself"),
    ],
)
def test_what_is_no_tree_changes_nothing(story: Story, nodes: str, message: str) -> None:
    file = f"{{format: 'srb-tree', version: 1, nodes: {nodes}}}"
    with pytest.raises(Error, match=message):
        run(story, f"tree.import(imported({file}))")
    script = (
        f"try {{ tree.import(imported({file})) }} catch {{}} return [tree.nodes.size, tree.current, tree.text(said)]"
    )
    assert run(story, script) == [2, "root", "Once upon a time"]
