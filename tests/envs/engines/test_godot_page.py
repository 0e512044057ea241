"""The code of docs/godot.md: conversion of a policy's file for the plugin's inference."""

import re

import numpy as np
import pytest
from support.paths import ROOT

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")
pytestmark = pytest.mark.toy


def policy(path, actions):
    """Write a policy whose continuous action is part of its observation [1, 3]; its choice is 2."""
    from onnx import TensorProto, helper, numpy_helper

    name = "action.{}" if len(actions) > 1 else "action"
    nodes, ports, constants = [], [], []
    for part, (kind, size) in actions.items():
        port = name.format(part)
        if kind == "discrete":
            constants.append(numpy_helper.from_array(np.array([2], np.int32), "choice"))
            nodes.append(helper.make_node("Identity", ["choice"], [port]))
            ports.append(helper.make_tensor_value_info(port, TensorProto.INT32, [1]))
        else:
            for what, value in (("begin", [0]), ("end", [size]), ("axis", [1])):
                constants.append(numpy_helper.from_array(np.array(value, np.int64), what))
            nodes.append(helper.make_node("Slice", ["obs", "begin", "end", "axis"], [port]))
            ports.append(helper.make_tensor_value_info(port, TensorProto.FLOAT, [1, size]))
    obs = helper.make_tensor_value_info("obs", TensorProto.FLOAT, [1, 3])
    graph = helper.make_graph(nodes, "policy", [obs], ports, constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.save(model, path)


@pytest.mark.parametrize(
    ("actions", "output"),
    [
        ({"steer": ("continuous", 2), "dash": ("discrete", 3)}, [0.5, -1, 0, 0, 0, 0, 1]),
        ({"dash": ("discrete", 3), "steer": ("continuous", 2)}, [0, 0, 1, 0.5, -1, 0, 0]),
        ({"steer": ("continuous", 2)}, [0.5, -1]),
        ({"dash": ("discrete", 3)}, [0, 0, 1]),
    ],
)
def test_the_code_of_the_page_converts_a_policy_for_the_plugin(tmp_path, actions, output):
    text = (ROOT / "docs/godot.md").read_text()
    (code,) = re.findall(r"^```python\n(.*?)```", text, re.DOTALL | re.MULTILINE)
    scope = {"__name__": "page"}
    exec(compile(code, "docs/godot.md", "exec"), scope)
    policy(tmp_path / "policy.onnx", actions)
    scope["for_plugin"](tmp_path / "policy.onnx", tmp_path / "plugin.onnx", actions)
    session = onnxruntime.InferenceSession(tmp_path / "plugin.onnx")
    obs = np.array([[0.5, -1.0, 7.0]], np.float32)
    given = {"obs": obs, "state_ins": np.zeros(1, np.float32)}
    logits, state = session.run(["output", "state_outs"], given)
    assert logits.tolist() == [output] and state.tolist() == [0]
    assert session.get_outputs()[0].shape == [1, len(output)]
