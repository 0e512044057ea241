# An agent that walks a step to the left or right in every tick, and is paid for steps to the right.
extends "res://addons/godot_rl_agents/controller/ai_controller_2d.gd"

var limit := 0  # ticks of an episode
var place := 0
var ticks := 0
var push := 0


func _physics_process(_delta: float) -> void:
	if needs_reset:
		begin()
		return
	place += push
	reward += push
	ticks += 1
	if ticks == limit:
		done = true
		begin()


func begin() -> void:
	reset()
	place = 0
	ticks = 0


func get_obs() -> Dictionary:
	return {"obs": [place, ticks]}


func get_reward() -> float:
	return reward


func get_action_space() -> Dictionary:
	return {"move": {"size": 3, "action_type": "discrete"}}


func set_action(action) -> void:
	push = int(action["move"]) - 1
