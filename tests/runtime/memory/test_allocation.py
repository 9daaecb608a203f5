"""The allocator on small graphs whose plan is known."""

from runtime.memory import nodes
from runtime.memory.allocation import Allocator, Buffer
from runtime.memory.nodes import Graph, leaf


def planned(*results: nodes.Node) -> int:
    graph = Graph()
    for result in results:
        graph.expand(result)
    for node in (*graph.leaves, *graph.nodes):
        node.place = 0
    return Allocator([32]).plan(graph.leaves, graph.nodes)[0]


def test_a_sum_overwrites_what_nobody_else_reads() -> None:
    x, weight = leaf("F32", 64, 8), leaf("F32", 64, 64, stored=True)
    product = nodes.mul_mat(weight, x)
    size = product.nbytes
    assert planned(product) == 2 * size
    assert planned(nodes.scale(product)) == 2 * size
    assert planned(nodes.add(nodes.scale(product), product)) == 2 * size  # in the place of x, and of the product


def test_memory_of_what_was_read_is_used_again() -> None:
    x, weight = leaf("F32", 64, 8), leaf("F32", 64, 64, stored=True)
    made = x
    for _ in range(6):
        made = nodes.mul_mat(weight, made)
    assert planned(made) == 2 * x.nbytes


def test_views_keep_their_tensor() -> None:
    x, weight = leaf("F32", 64, 8), leaf("F32", 64, 64, stored=True)
    product = nodes.mul_mat(weight, x)
    rows = nodes.reshape(product, 8, 64)
    other = nodes.mul_mat(weight, product)
    assert planned(other, nodes.cont(rows)) == 3 * product.nbytes


def test_the_smallest_block_that_is_large_enough() -> None:
    buffer = Buffer(32)
    offsets = [buffer.take(size) for size in (64, 32, 96, 32, 64, 32)]
    for index in (0, 2, 4):
        buffer.release(offsets[index], (64, 32, 96, 32, 64, 32)[index])
    assert buffer.take(60) == offsets[4]  # of two that are equally large, the last
    assert buffer.take(33) == offsets[0]
    assert buffer.take(65) == offsets[2]
    assert buffer.size == 320


def test_neighbours_that_are_free_are_one_block() -> None:
    buffer = Buffer(32)
    first, second, _ = (buffer.take(32) for _ in range(3))
    buffer.release(second, 32)
    buffer.release(first, 32)
    assert buffer.take(64) == 0


def test_a_leaf_that_is_stored_needs_no_memory() -> None:
    assert planned(nodes.view(leaf("F16", 64, 8, stored=True), (64, 4))) == 0


def test_nodes_come_after_their_sources() -> None:
    x = leaf("F32", 4)
    first, second = nodes.scale(x), nodes.unary(x)
    graph = Graph()
    graph.expand(nodes.add(second, first))
    assert [node.operation for node in graph.nodes] == ["unary", "scale", "add"]
    assert graph.leaves == [x]
