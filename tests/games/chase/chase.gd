# Arenas beside each other, in each of which a hunter chases a prey.
#
#   --arenas=8      their number
#   --prey=learned  prey are agents, too, with a policy of their own; by default they wander
extends Node2D

const Arena := preload("res://arena.gd")
const Sync := preload("res://sync.gd")


func _ready() -> void:
	var sync := Sync.new()
	seed(sync.argument("env_seed", "1").to_int())
	var learned: bool = sync.argument("prey", "wanders") == "learned"
	for i in sync.argument("arenas", "8").to_int():
		var arena := Arena.new()
		arena.position = Vector2(80 + 160 * (i % 4), 80 + 160 * (i / 4))
		add_child(arena)
		sync.agents.append(arena.hunter)
		if learned:
			sync.agents.append(arena.prey)
			arena.prey.policy_name = "prey"
			arena.hunter.policy_name = "hunter"
	add_child(sync)  # last, so that it comes after the arenas in every tick
