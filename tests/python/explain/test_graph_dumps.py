"""Pictures and files of graphs and programs."""

import re
import xml.etree.ElementTree as ElementTree

import pytest
import torch
from testing.browser import open_page

import torch_xla
from torch_xla.debug import graph

SVG = "{http://www.w3.org/2000/svg}"


def _boxes(drawing):
    """By the number of the node: its texts and its box."""
    found = {}
    for group in ElementTree.fromstring(drawing).iter(f"{SVG}g"):
        box = group.find(f"{SVG}rect")
        found[group.find(f"{SVG}title").text] = (
            [text.text or "" for text in group.iter(f"{SVG}text")],
            *(float(box.get(name)) for name in ("x", "y", "width", "height")),
        )
    return found


def test_render_without_graphviz(device, tmp_path):
    x = torch.ones(3, 4).to(device) * 1.5
    torch_xla.sync()
    y = torch.relu(x + 77.5) @ torch.ones(4, 2).to(device)
    path = tmp_path / "graph.svg"
    drawing = graph.render([y, y.sum()], path, graphviz=False)
    assert path.read_text() == drawing
    boxes = _boxes(drawing)
    texts = [texts for texts, *_ in boxes.values()]
    ops = [op for op, _, _ in texts]
    assert {"aten::relu", "aten::add", "aten::mm", "aten::sum", "xla::device_data"} <= set(ops)
    (product,) = [one for one in texts if one[0] == "aten::mm"]
    assert product[1] == "f32[3,2]" and "test_graph_dumps.py:" in product[2]
    # No two overlap, and each stands below what it takes.
    places = [place for _, *place in boxes.values()]
    for i, (x1, y1, w1, h1) in enumerate(places):
        for x2, y2, w2, h2 in places[:i]:
            assert x1 + w1 <= x2 or x2 + w2 <= x1 or y1 + h1 <= y2 or y2 + h2 <= y1
    level = {texts[0]: y for texts, _, y, _, _ in boxes.values()}
    assert level["aten::add"] < level["aten::relu"] < level["aten::mm"] < level["aten::sum"]
    assert drawing.count("marker-end") >= 6
    assert {op for op in ops if op.startswith("xla::scalar")} == {"xla::scalar 77.5"}
    assert not product[2].startswith("/")  # Of a file in the working directory.
    assert drawing._repr_svg_() == str(drawing)  # What a notebook shows.
    with pytest.raises(TypeError):
        graph.render(None, graphviz=False)


def test_inputs_have_names_views_say_what_they_do_and_edges_pass_by(device):
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    loss = model.to(device)(torch.ones(3, 4).to(device)).square().mean()
    loss.backward()
    drawing = graph.render([loss, model[0].weight.grad], graphviz=False)
    boxes = _boxes(drawing)
    shapes = {op: shape for (op, shape, _), *_ in boxes.values()}
    for name, parameter in model.named_parameters():
        shape = f"f32[{','.join(map(str, parameter.shape))}]"
        assert shapes[f"parameter Sequential.{name}"] == shape
    assert {"aten::as_strided (transpose)", "aten::as_strided (expand)"} <= set(shapes)
    y = torch.ones(3, 4).to(device)[1:]
    assert "aten::as_strided (slice)" in graph.render([y], graphviz=False)
    passed = [
        (float(x), float(y))
        for path in re.findall(r'<path d="([^"]*)" fill="none"', drawing)
        for x, y in re.findall(r"L(-?\d+),(\d+)", path)  # The lower end, beside a row of boxes.
    ]
    assert passed
    for x, y in passed:
        for _, left, top, width, height in boxes.values():
            assert not (left < x < left + width and top < y - height / 2 < top + height)


def test_a_browser_shows_the_picture(device, tmp_path):
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    loss = model.to(device)(torch.ones(3, 4, device=device)).square().mean()
    loss.backward()
    graph.render([loss, *(one.grad for one in model.parameters())], tmp_path / "loss.svg", False)
    assert open_page(tmp_path / "loss.svg").count("<rect") > 20


def test_no_picture_of_a_format_that_is_not_written(device, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))  # Without Graphviz.
    for options in ({}, {"graphviz": False}):
        with pytest.raises(ValueError, match=r"Graphviz writes \.png files.*an \.svg"):
            graph.render([torch.ones(2).to(device) + 31.5], tmp_path / "loss.png", **options)
    assert not list(tmp_path.iterdir())


def test_render_calls_graphviz(device, tmp_path, monkeypatch):
    dot = tmp_path / "dot"
    dot.write_text('#!/bin/sh\n[ "$1" = -Tpng ] && echo PNG || { echo "<svg/>" && cat; }\n')
    dot.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    drawing = graph.render([torch.ones(2).to(device) + 31.5])
    assert drawing.startswith("<svg/>\ndigraph") and "aten::add" in drawing
    graph.render([torch.ones(2).to(device) + 31.5], tmp_path / "graph.png")
    assert (tmp_path / "graph.png").read_text() == "PNG\n"
    dot.write_text("#!/bin/sh\necho wrong >&2; exit 3\n")
    with pytest.raises(RuntimeError, match="Graphviz failed: wrong"):
        graph.render([torch.ones(2).to(device) + 31.5], graphviz=True)


def test_optimized_programs(device, tmp_path):
    (torch.ones(5, 3).to(device) @ torch.full((3, 2), 4.5).to(device)).tolist()
    files = graph.save_optimized(tmp_path / "programs")
    assert files and all(re.search(r"/program-\d{4}-[\w.-]+\.txt$", file) for file in files)
    assert "f32[5,2]" in open(files[-1]).read()


def test_a_program_that_the_compiler_refuses_is_saved(device, tmp_path, monkeypatch):
    file = tmp_path / "refused"
    monkeypatch.setenv("XLA_SAVE_HLO_FILE", str(file))
    triple = torch_xla.compile(
        lambda x: x * 3.25 + 61, custom_compile_options={"no_such_option": "1"}
    )
    with pytest.raises(RuntimeError, match="no_such_option"):
        triple(torch.ones(2, 3, device=device)).tolist()
    saved = file.read_text()
    assert re.match(r"// compilation \d+ failed\n", saved)
    assert "stablehlo.multiply" in saved


def test_a_graph_that_cannot_be_lowered_holds_nothing_up(device, tmp_path, monkeypatch):
    monkeypatch.setenv("XLA_SAVE_TENSORS_FILE", str(tmp_path / "graphs"))
    monkeypatch.setenv("XLA_SAVE_TENSORS_FMT", "hlo")
    with pytest.raises(NotImplementedError, match="ComplexHalf"):
        torch.ones(3, device=device).to(torch.complex32).cpu()
    assert (torch.ones(2, device=device) + 1.25).tolist() == [2.25, 2.25]
