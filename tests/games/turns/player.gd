# An agent that moves when it acts, and is paid for being near 1. It prints the return of each episode.
extends "res://addons/godot_rl_agents/controller/ai_controller_2d.gd"

var limit := 0  # actions of an episode
var place := 0.0
var turns := 0
var total := 0.0


func begin() -> void:
	reset()
	place = 0.0
	turns = 0
	total = 0.0


func get_obs() -> Dictionary:
	return {"obs": [place, turns, limit]}


func get_reward() -> float:
	return reward


func get_action_space() -> Dictionary:
	return {
		"push": {"size": 1, "action_type": "continuous"},
		"move": {"size": 3, "action_type": "discrete"},
	}


func set_action(action = null) -> void:
	if needs_reset:  # a trainer's first action has no meaning
		begin()
		return
	place += int(action["move"]) - 1 + 0.5 * action["push"][0]
	var gain := -absf(place - 1.0)
	reward += gain
	total += gain
	turns += 1
	if turns == limit:
		print("return of %d actions: %.9f" % [limit, total])
		done = true
		begin()
