# Two agents with the official plugin, which a test copies into addons/. With --onnx=FILE, the plugin runs a policy.
extends Node

const Player := preload("res://player.gd")
const Sync := preload("res://addons/godot_rl_agents/sync.gd")


func _ready() -> void:
	for limit in [3, 4]:
		var player := Player.new()
		player.limit = limit
		add_child(player)
	var sync := Sync.new()
	for text in OS.get_cmdline_args():
		if text.begins_with("--onnx="):
			sync.control_mode = Sync.ControlModes.ONNX_INFERENCE
			sync.onnx_model_path = text.get_slice("=", 1)
	add_child(sync)
