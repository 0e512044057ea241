# Agents that see a picture: a ball falls, and a paddle in the last row should catch it.
#
#   --players=4  their number
extends Node

const Player := preload("res://player.gd")
const Sync := preload("res://sync.gd")


func _ready() -> void:
	var sync := Sync.new()
	seed(sync.argument("env_seed", "1").to_int())
	for i in sync.argument("players", "4").to_int():
		var player := Player.new()
		add_child(player)
		sync.agents.append(player)
	add_child(sync)
