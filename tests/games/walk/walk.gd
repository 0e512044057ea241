# Two walkers with the official plugin, which a test copies into addons/.
extends Node

const Walker := preload("res://walker.gd")
const Sync := preload("res://addons/godot_rl_agents/sync.gd")


func _ready() -> void:
	for windows in [3, 4]:
		var walker := Walker.new()
		walker.limit = 8 * windows
		add_child(walker)
	add_child(Sync.new())  # last, so that it comes after the walkers in every tick
